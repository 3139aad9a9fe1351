"""All that moves in a run, and where it starts: vectors, numbers and the generator. A checkpoint is just this."""

import math
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.core.cache import Tensors
from doubly.core.codec import Encoded, from_tensors
from doubly.core.random import generator
from doubly.latents import Memory
from doubly.latents.completions import Moments
from doubly.training.method import Method, latest_start, mover, samples_per_epoch

WIDENED = 2**16  # cells of the training rows that are converted to double precision at a time


class State(NamedTuple):
    """All that moves: vectors and numbers, and the generator (which is advanced in place)."""

    theta: Any
    """The sampler's state; its first field is the weights of the model."""
    phi: Any
    """The optimiser's state; its first field is the weights of the proposal."""
    memory: Memory
    """What the estimator remembers."""
    rng: torch.Generator
    order: Tensor
    """The order of the rows in this epoch."""
    totals: Tensor
    """Sums over the steps of this epoch: what `Record` reports of them, and the largest gradient."""
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


def init(method: Method, x: Tensor) -> State:
    """The state from which a run on the training rows x starts."""
    rng = generator(x.device, method.seed, "chain")
    theta = method.model.init(rng, moments(method, x).mean)
    phi = method.proposal.init(rng)
    return State(
        theta=mover(method, 0).sampler.init(theta, rng),
        phi=method.optimiser.init(phi, rng),
        memory=method.estimator.init(method.model, len(x), rng),
        rng=rng,
        order=torch.zeros(0, dtype=torch.int64, device=x.device),
        totals=torch.zeros(4, dtype=torch.float64, device=x.device),
        mean=torch.zeros(theta.shape, dtype=torch.float64, device=x.device),
        window=torch.zeros(theta.shape, dtype=torch.float64, device=x.device),
        began=0 if latest_start(method, len(x)) == 0 else None,
    )


def moments(method: Method, x: Tensor) -> Moments:
    """Mean and standard deviation of each column of the training rows x, over the observed cells."""
    total = square = observed = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    for block in x.split(max(1, WIDENED // x.shape[1])):  # all rows are never widened at once
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


def decode(method: Method, encoded: Encoded, device: torch.device | str = "cpu") -> State:
    """A state from what `to_tensors` gave; a TypeError or KeyError if it is not of this method."""
    # which sampler it is depends on the epoch: Adam in the warm-up
    theta = mover(method, encoded.numbers["epoch"]).sampler.state_type
    named = encoded._replace(tensors=with_present_names(encoded.tensors))
    return from_tensors(State, named, device, {"theta": theta, "phi": method.optimiser.state_type})


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
    vectors = [value for value in (*state.theta, *state.phi, state.totals) if isinstance(value, Tensor)]
    return all(bool(torch.isfinite(vector).all()) for vector in vectors)
