"""Neural adaptive importance sampler: both gradients from one set of weighted draws."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from doubly.errors import UserError
from doubly.inference.draws import effective_draws, log_mean_weight, normalised, propose
from doubly.inference.estimator import Estimate, Estimator, Memory, Wanted
from doubly.inference.objectives import Objective, Wake
from doubly.model import Chain


@dataclass(frozen=True)
class NAIS(Estimator):
    """Self-normalised importance sampling with the proposal that is being learnt.

    With z_s ~ q(z|x; phi), s = 1…S, and w_s ∝ p(x, z_s | theta) / q(z_s|x; phi) summing to one:
    the gradient for theta is sum_s w_s grad log p(x, z_s | theta), that for phi is the objective's
    (wake: sum_s w_s grad log q(z_s|x; phi)). Both come from one backward pass.
    """

    draws: int = 5
    objective: Objective = field(default_factory=Wake)

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws of the hidden variables must be at least 1, got {self.draws}")

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        return {}

    def __call__(
        self,
        chain: Chain,
        theta: Tensor,
        proposal: Chain,
        phi: Tensor,
        x: Tensor,
        index: Tensor,
        memory: Memory,
        rng: torch.Generator,
        wanted: Wanted = "both",
    ) -> Estimate:
        theta = theta.detach().requires_grad_(wanted != "phi")
        phi = phi.detach().requires_grad_(wanted != "theta")
        drawn = propose(chain, theta, proposal, phi, x, self.draws, rng)
        weight = normalised(drawn.log_weight)
        log_p, log_q = (weight * drawn.log_p).sum(0), self.objective(drawn, weight)
        inputs = [vector for vector in (theta, phi) if vector.requires_grad]
        grads = iter(torch.autograd.grad((log_p + log_q).mean(), inputs, materialize_grads=True))
        log_weight = drawn.log_weight.detach()
        return Estimate(
            next(grads) if theta.requires_grad else theta.new_zeros(0),
            next(grads) if phi.requires_grad else phi.new_zeros(0),
            memory,
            {"train": log_mean_weight(log_weight).mean(), "effective": effective_draws(log_weight).mean()},
        )
