"""Shards: the training rows in some parts, each with random numbers and a memory of its own.

Shards are ranges of rows, of equal lengths up to one. Each mini-batch has as many rows of each shard, up to one.
What a shard adds to a gradient depends on no other shard, so that any rank can compute it; the random
numbers of theta come from the state's own generator, which is the same at all ranks.
"""

import itertools
import math

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.random import generator
from doubly.core.ranks import Ranks
from doubly.latents import Batch, Estimate, Memory, Wanted
from doubly.training.method import Method

LARGEST = 2**62


def check_shards(shards: int, rows: int, batch: int) -> None:
    """Each shard must have a row in each mini-batch."""
    least = rows // math.ceil(rows / batch)
    if shards > 1 and rows // shards < math.ceil(rows / batch):
        raise UserError(
            f"mini-batches of {least} rows cannot be cut into {shards} shards with a row in each: take fewer shards, "
            "or a larger batch"
        )


def new_order(n_data: int, shards: int, rng: torch.Generator) -> Tensor:
    """The rows in a new order: shard after shard, each shuffled."""
    ends = itertools.pairwise(bounds(n_data, shards))
    parts = [low + torch.randperm(high - low, generator=rng, device=rng.device) for low, high in ends]
    return torch.cat(parts) if shards > 1 else parts[0]


def sharded_batches(order: Tensor, size: int, shards: int) -> tuple[Tensor, ...]:
    """The rows in mini-batches of about that size, each with as many rows of each shard, up to one.

    >>> [index.tolist() for index in sharded_batches(torch.tensor([1, 0, 2, 5, 3, 4]), 4, shards=2)]
    [[1, 0, 5, 3], [2, 4]]
    """
    number = math.ceil(len(order) / size)
    parts = [order[low:high].tensor_split(number) for low, high in itertools.pairwise(bounds(len(order), shards))]
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def bounds(n_data: int, shards: int) -> list[int]:
    """Where shards begin and end."""
    return [n_data * shard // shards for shard in range(shards + 1)]


def sharded_estimate(method: Method, batch: Batch, n_data: int, wanted: Wanted, ranks: Ranks) -> Estimate:
    """Both gradients on a mini-batch, shard by shard; each rank computes its own, and the sum is that over all.

    The rows of the mini-batch stand in the order of their shards, as `sharded_batches` puts them.
    """
    sizes = {"theta": method.model.size, "phi": method.proposal.size}
    names = [name for name in sizes if wanted in (name, "both")]
    lengths, own = [*(sizes[name] for name in names), 2], ranks.own(method.shards)
    key = int(torch.randint(LARGEST, (1,), generator=batch.rng, device=batch.rng.device))
    ends = bounds(n_data, method.shards)
    ordered = batch.row_index.sort().values  # within a shard they are not, and need not be
    places = torch.bucketize(torch.tensor(ends, device=ordered.device), ordered).tolist()
    memory, vectors = dict(batch.memory), batch.pair.theta.new_empty(len(own), sum(lengths))
    for shard, vector in zip(own, vectors, strict=True):
        rows = slice(places[shard], places[shard + 1])
        if not len(x := batch.x[rows]):
            vector.zero_()
            continue
        part = batch._replace(
            x=x,
            row_index=batch.row_index[rows] - ends[shard],
            memory=of_shard(memory, shard),
            rng=generator(batch.rng.device, key, "shard", shard),
        )
        found = method.estimator(part, wanted)
        memory |= named(found.memory, shard)
        grads = [grad for grad in (found.theta_grad, found.phi_grad) if grad is not None]
        stats = torch.stack([found.stats["train"], found.stats["ess"]]).to(vector)
        for into, value in zip(vector.split(lengths), (*grads, stats), strict=True):
            torch.mul(value, len(x) / len(batch.x), out=into)
    parts = dict(zip(own, vectors, strict=True))
    *summed, stats = ranks.total(parts, vectors.new_empty(sum(lengths)), method.shards).split(lengths)
    by_name = dict(zip(names, summed, strict=True))
    return Estimate(by_name.get("theta"), by_name.get("phi"), memory, {"train": stats[0], "ess": stats[1]})


# What is remembered of the rows


def init_memory(method: Method, n_data: int, rng: torch.Generator) -> Memory:
    """What the estimator remembers at first; of several shards, of each for itself."""
    if method.shards == 1:
        return method.estimator.init(method.model, n_data, rng)
    found: Memory = {}
    ends = bounds(n_data, method.shards)
    for shard in range(method.shards):
        found |= named(method.estimator.init(method.model, ends[shard + 1] - ends[shard], rng), shard)
    return found


def own_memory(memory: Memory, shards: int, ranks: Ranks) -> Memory:
    """What is remembered of the shards of this rank."""
    own = [named(of_shard(memory, shard), shard) for shard in ranks.own(shards)]
    return memory if shards == 1 else {name: value for each in own for name, value in each.items()}


def whole_memory(memory: Memory, shards: int, ranks: Ranks) -> Memory:
    """At the first rank, what is remembered of all shards."""
    if shards == 1 or ranks.size == 1:
        return memory
    found: Memory = {}
    for shard, part in ranks.gathered({shard: of_shard(memory, shard) for shard in ranks.own(shards)}).items():
        found |= named(part, shard)
    return found


def named(memory: Memory, shard: int) -> Memory:
    return {f"shard{shard}.{name}": value for name, value in memory.items()}


def of_shard(memory: Memory, shard: int) -> Memory:
    start = f"shard{shard}."
    return {name.removeprefix(start): value for name, value in memory.items() if name.startswith(start)}
