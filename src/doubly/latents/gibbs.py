"""Gibbs sampling of the hidden variables: persistent chains for every row, one sweep for each gradient."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.annealing import Annealing
from doubly.latents.batch import Memory, Visit, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.importance import Marginal, is_exact
from doubly.latents.sweep import chain_log_odds, sweep
from doubly.layers.chain import Chain


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

    validation = "annealed, T"
    draws: int = 5
    """Chains for each row."""
    sweeps: int = 1
    """Sweeps before each gradient for theta."""
    valid_rows: int = 200
    """At most so many rows, evenly spaced, by which an epoch is validated."""

    def __post_init__(self) -> None:
        for name in ("draws", "sweeps", "valid_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} of the Gibbs estimator must be at least 1, got {getattr(self, name)}")

    def check(self, model: Chain, proposal: Chain) -> None:
        chain_log_odds(model, torch.zeros(model.size))

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        """Fair coins; what they are forgets itself within a few sweeps."""
        chain_log_odds(chain, torch.zeros(chain.size))
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

    def validate(
        self, model: Chain, theta: Tensor, proposal: Chain, phi: Tensor, x: Tensor, draws: int, rng: torch.Generator
    ) -> Marginal:
        """log p(x) of some of the rows, annealed through as many temperatures as draws are asked for.

        Nothing here makes the posterior of z like the proposal, whose draws would miss it by more and more nats as the
        model learns. Every temperature costs a sweep, so that few rows have to do.
        """
        if is_exact(model, proposal):
            return super().validate(model, theta, proposal, phi, x, draws, rng)
        some = x[:: math.ceil(len(x) / self.valid_rows)]
        return Annealing(temperatures=draws, chains=1).log_marginal(model, theta, some.float(), rng)


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
