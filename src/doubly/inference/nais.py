"""Neural adaptive importance sampler: both gradients from one set of weighted draws."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from doubly.errors import UserError
from doubly.inference.draws import Draws, propose
from doubly.inference.estimator import Estimate, Estimator
from doubly.inference.objectives import Objective, Round, Wake
from doubly.inference.visit import Memory, Visit, Wanted
from doubly.kernels.weights import summarise
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

    def look(self, visit: Visit, pathwise: bool) -> Draws:
        """The draws from which all is estimated."""
        model, theta, proposal, phi, x, _, _, rng = visit
        return propose(model, theta, proposal, phi, x, self.draws, rng, pathwise)

    def __call__(self, visit: Visit, wanted: Wanted = "both") -> Estimate:
        whole = visit.proposal.layers and not visit.proposal.masked
        if whole and (wanted == "theta" or self.objective.plain):
            return self._directly(visit, wanted)
        theta = visit.theta.detach().requires_grad_(wanted != "phi")
        phi = visit.phi.detach().requires_grad_(wanted != "theta")
        visit, memory = visit._replace(theta=theta, phi=phi), visit.memory
        pathwise = self.objective.pathwise and phi.requires_grad
        drawn = self.look(visit, pathwise)
        weight, train, effective = summarise(drawn.log_p, drawn.log_q)
        theta_climb, phi_climb = (weight * drawn.log_p).sum(0).mean(), theta.new_zeros(())
        if phi.requires_grad:
            rows, learnt = self.objective(Round(visit, drawn, weight))
            memory = memory | learnt
            phi_climb = rows.mean()
        stats = {"train": train, "effective": effective}
        return Estimate(*_gradients(theta_climb, theta, phi_climb, phi, pathwise), memory, stats)

    def _directly(self, visit: Visit, wanted: Wanted) -> Estimate:
        """The same without a graph: where both gradients are weighted sums, layers know the way back by themselves."""
        model, theta, proposal, phi, x, _, memory, rng = visit
        q = proposal.track_draw(phi.detach(), x, rng, self.draws, back=wanted != "theta")
        p = model.track(theta.detach(), (x, *q.values[::-1]), back=wanted != "phi")
        weight, train, effective = summarise(p.log_prob, q.log_prob)
        share = weight / len(x)
        return Estimate(
            theta.new_zeros(0) if wanted == "phi" else p.pull(share),
            phi.new_zeros(0) if wanted == "theta" else q.pull(share),
            memory,
            {"train": train, "effective": effective},
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
