"""Gibbs sampling of the latent variables: persistent chains for every row, one sweep for each gradient."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.annealing import Annealing
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.importance import Marginal, is_exact
from doubly.latents.memory import pack, unpack
from doubly.latents.pair import Pair
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

    The memory holds z1, z2, … (S, N, ceil(H / 8)), eight units in a byte. The statistic `train` is the mean of
    log p(x, z), which is no bound on log p(x).
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

    def __call__(self, batch: Batch, wanted: Wanted = "both") -> Estimate:
        """Gradients with the chains of these rows, which take a step unless only that for phi is wanted."""
        (chain, theta, proposal, phi), x, index, memory, rng = batch
        theta = theta.detach()
        latents = tuple(
            unpack(memory[f"z{level}"][:, index], layer.n_out, theta.dtype)
            for level, layer in enumerate(chain.layers[1:], start=1)
        )
        if wanted != "phi":
            for _ in range(self.sweeps):
                latents = sweep(chain, theta, x, latents, rng)
            for level, value in enumerate(latents, start=1):
                memory[f"z{level}"][:, index] = pack(value)
        theta = theta.requires_grad_(wanted != "phi")
        phi = phi.detach().requires_grad_(wanted != "theta")
        log_p = chain.log_prob(theta, (x, *latents)).mean()
        log_q = log_p.new_zeros(())
        if phi.requires_grad and proposal.layers:
            log_q = proposal.log_prob(phi, latents[::-1], x).mean()
        inputs = [vector for vector in (theta, phi) if vector.requires_grad]
        grads = iter(torch.autograd.grad(log_p + log_q, inputs, materialize_grads=True))
        return Estimate(
            next(grads) if theta.requires_grad else None,
            next(grads) if phi.requires_grad else None,
            memory,
            {"train": log_p.detach(), "ess": log_p.new_tensor(self.draws)},
        )

    def validate(self, pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> Marginal:
        """log p(x) of some of the rows, annealed through as many temperatures as draws are asked for.

        The posterior of z need not be like the proposal, whose draws would miss it by more and more nats as the model
        learns. Every temperature costs a sweep, so that few rows have to do.
        """
        if is_exact(pair.model, pair.proposal):
            return super().validate(pair, x, draws, rng)
        some = x[:: math.ceil(len(x) / self.valid_rows)]
        return Annealing(temperatures=draws, chains=1).log_likelihood(pair.model, pair.theta, some.float(), rng)
