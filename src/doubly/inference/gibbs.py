"""Gibbs sampling of the hidden variables: persistent chains for every row, one sweep for each gradient."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.errors import UserError
from doubly.inference.estimator import Estimate, Estimator
from doubly.inference.visit import Memory, Visit, Wanted
from doubly.kernels import darn, gibbs
from doubly.layers import DARN, SBN, Layer, Params
from doubly.model import Chain, Values, nothing


@dataclass(frozen=True)
class Gibbs(Estimator):
    """Persistent Gibbs chains for every row, for models of sbn and darn layers.

    With z_s, s = 1…S, the states of a row's chains after a sweep, which leaves p(z | x, theta) as it is:
    the gradient for theta is 1/S sum_s grad log p(x, z_s | theta), that for phi is 1/S sum_s grad log q(z_s | x; phi),
    the inclusive KL divergence. A sweep goes from the bottom layer to the top and draws every unit in turn, given all
    others: unit k of layer l with log-odds

    (pre-activation of z^l_k from above) + log p(z^{l-1}, z^l_{-k} | z^l_k = 1) - log p(z^{l-1}, z^l_{-k} | z^l_k = 0)

    The memory holds z1, z2, … (S, N, ceil(H / 8)), eight units in a byte. It is changed in place, for a copy of all
    chains in every step would cost as much as the sweep: as with the generator, whoever wants to keep a state saves it
    before the next step. The statistic `train` is the mean of log p(x, z), which is no bound on log p(x).
    """

    draws: int = 5
    """Chains for each row."""
    sweeps: int = 1
    """Sweeps before each gradient for theta."""

    def __post_init__(self) -> None:
        for name in ("draws", "sweeps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} of the Gibbs estimator must be at least 1, got {getattr(self, name)}")

    def check(self, model: Chain, proposal: Chain) -> None:
        _log_odds(model, torch.zeros(model.size))

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        """Fair coins; what they are forgets itself within a few sweeps."""
        _log_odds(chain, torch.zeros(chain.size))
        return {
            f"z{level}": pack(
                torch.randint(2, (self.draws, n_data, layer.n_out), generator=rng, device=rng.device, dtype=torch.uint8)
            )
            for level, layer in enumerate(chain.layers[1:], start=1)
        }

    def __call__(self, visit: Visit, wanted: Wanted = "both") -> Estimate:
        """Gradients with the chains of these rows, which take a step unless only that for phi is wanted."""
        chain, theta, proposal, phi, x, index, memory, rng = visit
        theta = theta.detach()
        hidden = tuple(
            unpack(memory[f"z{level}"][:, index], layer.n_out, theta.dtype)
            for level, layer in enumerate(chain.layers[1:], start=1)
        )
        if wanted != "phi":
            for _ in range(self.sweeps):
                hidden = sweep(chain, theta, x, hidden, rng)
            for level, value in enumerate(hidden, start=1):
                memory[f"z{level}"][:, index] = pack(value)
        theta = theta.requires_grad_(wanted != "phi")
        phi = phi.detach().requires_grad_(wanted != "theta")
        log_p = chain.log_prob(theta, (x, *hidden)).mean()
        log_q = log_p.new_zeros(())
        if phi.requires_grad and proposal.layers:
            log_q = proposal.log_prob(phi, hidden[::-1], x).mean()
        inputs = [vector for vector in (theta, phi) if vector.requires_grad]
        grads = iter(torch.autograd.grad(log_p + log_q, inputs, materialize_grads=True))
        return Estimate(
            next(grads) if theta.requires_grad else theta.new_zeros(0),
            next(grads) if phi.requires_grad else phi.new_zeros(0),
            memory,
            {"train": log_p.detach(), "effective": log_p.new_tensor(self.draws)},
        )


@torch.no_grad()
def sweep(chain: Chain, theta: Tensor, x: Tensor, hidden: Values, rng: torch.Generator, beta: float = 1.0) -> Values:
    """One sweep over all hidden layers (…, H), from the bottom to the top; x broadcasts with them.

    It leaves p(z) p(x | z)^beta as it is: with beta = 1, the posterior.
    """
    layers = _log_odds(chain, theta)
    values = [x, *hidden, nothing(theta)]
    for level in range(1, len(layers)):
        own, below = layers[level], layers[level - 1]
        above, value, under = values[level + 1], values[level], values[level - 1]
        own_logits = F.linear(above, own.given, own.bias)
        power = beta if level == 1 else 1.0  # only the data are tempered
        field = own_logits + power * F.linear(under, below.given.T)
        logits = F.linear(value, below.given, below.bias)
        if below.before is not None:
            logits = logits + F.linear(under, below.before)
        W, V = below.given.T, None
        if own.before is not None:  # the units feed each other as they feed the layer below
            logits = torch.cat([logits, own_logits + F.linear(value, own.before)], -1)
            W, V = torch.cat([W, own.before.T], -1), own.before + own.before.T
            field = field + F.linear(value, V)
        tempered = 0 if power == 1 else below.given.shape[0]
        values[level] = gibbs.sweep(value, field, logits, W, V, rng, tempered, power).value
    return tuple(values[1:-1])


class LogOdds(NamedTuple):
    """Log-odds that are linear: bias + given · (what the layer is given) + before · (its own values before each)."""

    bias: Tensor
    given: Tensor
    before: Tensor | None = None


@functools.singledispatch
def log_odds(layer: Layer, params: Params) -> LogOdds:
    """The log-odds of a layer's values; a layer of one's own is made fit for Gibbs sampling by registering it here."""
    raise UserError(
        f"Gibbs sampling needs sbn or darn layers, got {type(layer).__name__}: change the model, or take estimator nais"
    )


@log_odds.register
def _(layer: SBN, params: Params) -> LogOdds:
    return LogOdds(params["b"], params["W"])


@log_odds.register
def _(layer: DARN, params: Params) -> LogOdds:
    put_back = layer.out_of_order
    square = darn.square(params["W"], layer.n_out)
    return LogOdds(put_back(params["b"]), put_back(params["U"].T).T, put_back(put_back(square).T).T)


def _log_odds(chain: Chain, theta: Tensor) -> list[LogOdds]:
    return [log_odds(layer, params) for layer, params in zip(chain.layers, chain.unflatten(theta), strict=True)]


def pack(bits: Tensor) -> Tensor:
    """The last axis, of zeros and ones, as bytes: entry i is bit i % 8 of byte i // 8.

    >>> pack(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1]))
    tensor([129,   1], dtype=torch.uint8)
    """
    bits = F.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.unflatten(-1, (-1, 8)) << places).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What was packed, as numbers.

    >>> unpack(torch.tensor([129, 1], dtype=torch.uint8), 9)
    tensor([1., 0., 0., 0., 0., 0., 0., 1., 1.])
    """
    places = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(-1) >> places & 1).flatten(-2)[..., :width].to(dtype)
