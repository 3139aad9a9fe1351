"""Neural adaptive importance sampler: both gradients from one set of weighted draws."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from doubly.errors import UserError
from doubly.inference.draws import Draws, effective_draws, log_mean_weight, normalised, propose
from doubly.inference.estimator import Estimate, Estimator, Wanted
from doubly.inference.objectives import Memory, Objective, Round, Wake
from doubly.model import Chain


@dataclass(frozen=True)
class NAIS(Estimator):
    """Self-normalised importance sampling with the proposal that is being learnt.

    With z_s ~ q(z|x; phi), s = 1…S, and w_s ∝ p(x, z_s | theta) / q(z_s|x; phi) summing to one:
    the gradient for theta is sum_s w_s grad log p(x, z_s | theta), that for phi is the objective's
    (wake: sum_s w_s grad log q(z_s|x; phi)). Both come from one backward pass, but for pathwise objectives.
    """

    draws: int = 5
    objective: Objective = field(default_factory=Wake)

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws of the hidden variables must be at least 1, got {self.draws}")

    def check(self, model: Chain, proposal: Chain) -> None:
        self.objective.check(model, self.draws)

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        return self.objective.init(chain, rng)

    def look(
        self,
        chain: Chain,
        theta: Tensor,
        proposal: Chain,
        phi: Tensor,
        x: Tensor,
        index: Tensor,
        memory: Memory,
        rng: torch.Generator,
        pathwise: bool,
    ) -> Draws:
        """The draws from which all is estimated."""
        return propose(chain, theta, proposal, phi, x, self.draws, rng, pathwise)

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
        pathwise = self.objective.pathwise and phi.requires_grad
        drawn = self.look(chain, theta, proposal, phi, x, index, memory, rng, pathwise)
        weight = normalised(drawn.log_weight)
        theta_climb, phi_climb = (weight * drawn.log_p).sum(0).mean(), theta.new_zeros(())
        if phi.requires_grad:
            rows, learnt = self.objective(Round(chain, theta, proposal, phi, x, drawn, weight, memory, rng))
            memory = memory | learnt
            phi_climb = rows.mean()
        log_weight = drawn.log_weight.detach()
        return Estimate(
            *_gradients(theta_climb, theta, phi_climb, phi, pathwise),
            memory,
            {"train": log_mean_weight(log_weight).mean(), "effective": effective_draws(log_weight).mean()},
        )


def _gradients(
    theta_climb: Tensor, theta: Tensor, phi_climb: Tensor, phi: Tensor, pathwise: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of each climb with respect to its own vector; empty where none is wanted."""
    if theta.requires_grad and phi.requires_grad and not pathwise:  # neither climb knows the other's vector
        grads = torch.autograd.grad(theta_climb + phi_climb, (theta, phi), materialize_grads=True)
        return grads[0], grads[1]

    def gradient(climb: Tensor, vector: Tensor) -> Tensor:
        if not vector.requires_grad:
            return vector.new_zeros(0)
        return torch.autograd.grad(climb, vector, retain_graph=True, materialize_grads=True)[0]

    return gradient(theta_climb, theta), gradient(phi_climb, phi)
