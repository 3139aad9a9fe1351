"""All that moves in a run, and where it starts: vectors, numbers and the generator. A checkpoint is just this."""

import math
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.core.cache import Tensors
from doubly.core.codec import Encoded, check_like, from_tensors, to_tensors
from doubly.core.random import generator
from doubly.core.ranks import Ranks
from doubly.core.rows import StoredRows, blocks
from doubly.latents import Memory
from doubly.latents.completions import Moments
from doubly.samplers.prior import PriorState
from doubly.training.centring import centring
from doubly.training.method import Method, latest_start, mover, samples_per_epoch
from doubly.training.shards import init_memory, own_memory, whole_memory
from doubly.training.tuning import Tuned, untuned

ADDED = {"retried": 0, "tuned": None}  # numbers that older states have not, and what they would have been
WIDENED = 2**16  # cells of the training rows that are converted to double precision at a time


class State(NamedTuple):
    """All that moves: vectors and numbers, and the generator (which is advanced in place)."""

    theta: Any
    """The sampler's state; its first field is the weights of the model."""
    phi: Any
    """The optimiser's state; its first field is the weights of the proposal."""
    memory: Memory
    """What the estimator remembers."""
    prior: PriorState
    """What the prior has learnt, such as the scale of each group of weights."""
    rng: torch.Generator
    order: Tensor
    """The order of the rows in this epoch."""
    totals: Tensor
    """Sums over the steps of this epoch: rows, what `Record` reports of them, the largest gradient, and what the
    sampler watches."""
    mean: Tensor
    """The mean of the samples collected so far, in double precision."""
    window: Tensor
    """The mean of the samples in the current window."""
    epoch: int = 0
    """Epochs finished."""
    batch: int = 0
    """Mini-batches done in the epoch that is under way."""
    inner: int = 0
    """Steps done on the mini-batch that is under way."""
    waited: int = 0
    """Epochs or steps since the last sample."""
    best: float = -math.inf
    """The best validation log-likelihood of the epochs that count, before collecting started."""
    stale: int = 0
    """Epochs since validation last rose."""
    collected: int = 0
    began: int | None = None
    """Epochs finished when collecting started."""
    tuned: Tuned | None = None
    """Of an automatic step."""
    retried: int = 0
    """How often the chain has diverged: each time, the step became a third."""


def init(method: Method, x: Tensor | StoredRows) -> State:
    """The state from which a run on the training rows x starts."""
    return _start(method, moments(method, x).mean, len(x))


def _start(method: Method, mean: Tensor, n_data: int) -> State:
    """The same, from the mean and the number of the rows alone."""
    device = mean.device
    rng = generator(device, method.seed, "chain")
    theta = method.model.init(rng, mean)
    phi = method.proposal.init(rng)
    return State(
        theta=mover(method, 0).sampler.init(theta, rng),
        phi=method.optimiser.init(phi, rng),
        memory=init_memory(method, n_data, rng),
        prior=method.prior.init(method.model.groups),
        rng=rng,
        order=torch.zeros(0, dtype=torch.int64, device=device),
        totals=torch.zeros(4, dtype=torch.float64, device=device),
        mean=torch.zeros(theta.shape, dtype=torch.float64, device=device),
        window=torch.zeros(theta.shape, dtype=torch.float64, device=device),
        began=0 if latest_start(method, n_data) == 0 else None,
        tuned=untuned(theta, centring(method.model)) if method.step == "auto" else None,
    )


def moments(method: Method, x: Tensor | StoredRows) -> Moments:
    """Mean and standard deviation of each column of the training rows x, over the observed cells."""
    total = square = observed = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for part in blocks(x, WIDENED):  # all rows are never widened at once
        block = torch.as_tensor(part, device=x.device)
        missing = block.isnan()
        values = block.masked_fill(missing, 0)
        total = total + values.sum(0, dtype=torch.float64)
        square = square + values.double().square().sum(0)
        observed = observed + (~missing).sum(0)
    white = 255 if method.dynamic else 1
    spread = (square / observed - (total / observed) ** 2).clamp(min=0).sqrt()
    return Moments((total / (observed * white)).float(), (spread / white).float())


def finished(method: Method, state: State) -> bool:
    """Whether the protocol has come to its end, always at the end of an epoch."""
    enough = state.began is not None and state.collected >= method.collect
    return state.batch == state.inner == 0 and (enough or state.epoch >= method.epochs)


def wait_again(state: State) -> State:
    """Forget the samples, and wait again for validation to level off; the chain itself is unchanged."""
    none = torch.zeros_like(state.mean)
    return state._replace(mean=none, window=none.clone(), waited=0, stale=0, collected=0, began=None)


def planned(method: Method, state: State, n_data: int) -> int:
    """How many samples there will be in the end, once collecting has started."""
    return 0 if state.began is None else planned_from(method, state.began, n_data)


def planned_from(method: Method, began: int, n_data: int) -> int:
    """How many samples there will be in the end, if collecting starts after so many epochs."""
    return min(method.collect, math.floor((method.epochs - began) * samples_per_epoch(method, n_data)))


def decode(method: Method, encoded: Encoded, n_data: int, device: torch.device | str = "cpu") -> State:
    """A state from what `to_tensors` gave; a TypeError, KeyError or RuntimeError if it is not of this method."""
    # which sampler it is depends on the epoch: Adam in the warm-up
    theta = mover(method, encoded.numbers["epoch"]).sampler.state_type
    defaults: dict[str, Any] = vars(theta).get("_field_defaults", {})  # of fields that samplers have had since then
    later = {f"theta.{name}": value for name, value in defaults.items()}
    named = Encoded(with_present_names(encoded.tensors), ADDED | later | encoded.numbers)
    if "tuned.square" in named.tensors:  # before there were centres, weights moved as with those at 0
        none = centring(method.model).unmeasured(named.tensors["tuned.square"])
        named = named._replace(tensors={f"tuned.centre.{n}": v for n, v in none._asdict().items()} | named.tensors)
    if "tuned.t" in named.numbers:
        del named.numbers["tuned"]
    _check(method, named, n_data, device)
    state = from_tensors(State, named, device, {"theta": theta, "phi": method.optimiser.state_type})
    method.prior.given(state.prior, method.model.groups)  # which checks the values
    return state


def _check(method: Method, found: Encoded, n_data: int, device: torch.device | str) -> None:
    """Refuse a state that is not such as this method has: names, shapes, types, finite numbers, the order of rows.

    The kernels rely on all of it. They write without looking, so that a vector that is too short would be the end of
    the process.
    """
    for name, chain in (("theta.theta", method.model), ("phi.theta", method.proposal)):
        if (size := found.tensors[name].numel()) != chain.size:  # before anything of that size is made
            raise TypeError(f"{name} has {size} weights where {chain.size} are expected")
    check_order(found.tensors["order"], n_data)
    check_numbers(found.numbers)
    width = method.model.layers[0].n_out
    expected = _start(method, torch.full((width,), 0.5, device=device), n_data)
    if found.numbers["epoch"] >= method.warmup:
        expected = expected._replace(theta=method.sampler.init(expected.theta.theta, expected.rng))
    like = to_tensors(expected)
    like.tensors["order"] = found.tensors["order"]
    watched = mover(method, found.numbers["epoch"]).sampler.stats(expected.theta)
    if found.tensors["totals"].shape == (4 + len(watched),):  # once an epoch has begun
        like.tensors["totals"] = torch.zeros(4 + len(watched), dtype=torch.float64)
    check_like(found.tensors, like.tensors)
    if lacking := like.numbers.keys() - found.numbers.keys():
        raise TypeError(f"it lacks {min(lacking)}")
    if unknown := found.numbers.keys() - like.numbers.keys():
        raise TypeError(f"it has {min(unknown)}, which is not expected")
    batches, done = math.ceil(n_data / method.batch), found.numbers
    if (
        done["batch"] > batches
        or done["inner"] > method.theta_steps
        or (done["batch"] and not len(like.tensors["order"]))
    ):
        raise TypeError(f"it stands at mini-batch {done['batch']} of {batches}, step {done['inner']}")


def check_order(order: Tensor, n_data: int) -> None:
    """Refuse (TypeError) what is no order of so many rows; an empty one is that of an epoch that has not begun."""
    rows = torch.arange(n_data if len(order) else 0)
    if order.dtype != torch.int64 or order.shape != rows.shape or not torch.equal(order.sort().values, rows):
        raise TypeError(f"order is no order of {n_data} rows")


def check_numbers(numbers: dict[str, Any]) -> None:
    """Refuse (TypeError) what is no number, or negative where it counts something."""
    for name, value in numbers.items():
        if value is None or (type(value) is int and value >= 0):
            continue
        if type(value) is not float or math.isnan(value):
            raise TypeError(f"{name} is {str(value)[:40]!r}")


def with_present_names(tensors: Tensors) -> Tensors:
    """Tensors of a state under the names of today, where version 0.1 had others: what was remembered of the rows."""
    found, rows = {}, 0
    for name, tensor in tensors.items():
        if name.startswith("memory.hollow."):  # one state for each row
            found["memory.state." + name.removeprefix("memory.hollow.")] = tensor[None]
            rows = len(tensor)
        elif re.fullmatch(r"memory\.z\d+", name):  # Gibbs chains
            found["memory.state." + name.removeprefix("memory.")] = tensor
            rows = tensor.shape[1]
        else:
            found[name] = tensor
    return found | ({"memory.visited": torch.ones(rows, dtype=torch.uint8)} if rows else {})


def healthy(state: State) -> bool:
    """Whether all numbers are finite; the state of a chain that has diverged is not worth saving."""
    vectors = [vector for vector in to_tensors(state).tensors.values() if vector.is_floating_point()]
    return all(bool(torch.isfinite(vector).all()) for vector in vectors)


def own_part(state: State, shards: int, ranks: Ranks) -> State:
    """The state with the memory of this rank's shards alone."""
    return state._replace(memory=own_memory(state.memory, shards, ranks))


def whole(state: State, shards: int, ranks: Ranks) -> State:
    """At the first rank, the state with the memory of all shards; all ranks must stand at the same step."""
    if shards == 1 or ranks.size == 1:
        return state
    ranks.same((state.epoch, state.batch, state.inner), "step")
    return state._replace(memory=whole_memory(state.memory, shards, ranks))
