"""Neural adaptive importance sampler: both gradients from one set of weighted draws."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels.weights import summarise
from doubly.latents.batch import Memory, Visit, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.importance import Draws, propose, survivors
from doubly.latents.objectives import OBJECTIVES, Objective, Round, Wake, dream
from doubly.layers.chain import Chain, ChainTrack


@dataclass(frozen=True)
class NAIS(Estimator):
    """Self-normalised importance sampling with the proposal that is being learnt.

    With z_s ~ q(z|x; phi), s = 1…S, and w_s ∝ p(x, z_s | theta) / q(z_s|x; phi) summing to one:
    the gradient for theta is sum_s w_s grad log p(x, z_s | theta), that for phi is the objective's
    (wake: sum_s w_s grad log q(z_s|x; phi)). Both come from one backward pass, but for DReG.

    Most of the weight is often on few of the draws. With `survivors`, the draws that are hit by so many evenly spaced
    points on the weights of a row stand for all of them, and only for these is there a way back: draws to choose from
    then cost their densities alone.
    """

    draws: int = 5
    objective: Objective = field(default_factory=Wake)
    survivors: int = 0
    """0 takes all the draws."""

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws of the hidden variables must be at least 1, got {self.draws}")
        if self.survivors < 0:
            raise UserError(f"survivors among the draws must be at least 1, or 0 for all, got {self.survivors}")

    def check(self, model: Chain, proposal: Chain) -> None:
        self.objective.check(model, self.draws)
        plain = [name for name, objective in OBJECTIVES.items() if objective.plain]
        needs = {
            "hidden layers": bool(proposal.layers),
            "complete rows": not proposal.masked,
            f"the objective {' or '.join(plain)}": self.objective.plain,
        }
        missing = [what for what, given in needs.items() if not given]
        if self.survivors and missing:
            raise UserError(f"survivors among the draws need {' and '.join(missing)}: leave them out of the estimator")

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
        if self.objective.bound and wanted == "both":
            theta_climb, pathwise = torch.zeros_like(theta_climb), False
        stats = {"train": train, "effective": effective}
        return Estimate(*_gradients(theta_climb, theta, phi_climb, phi, apart=pathwise), memory, stats)

    def _directly(self, visit: Visit, wanted: Wanted) -> Estimate:
        """The same without a graph: where both gradients are weighted sums, layers know the way back by themselves."""
        model, theta, proposal, phi, x, _, memory, rng = visit
        theta, phi, asleep = theta.detach(), phi.detach(), self.objective.dreams
        of_theta, of_phi, of_draws = wanted != "phi", wanted != "theta", wanted != "theta" and asleep < 1
        q = proposal.track_draw(phi, x, rng, self.draws, back=of_draws and not self.survivors)
        p = model.track(theta, (x, *q.values[::-1]), back=of_theta and not self.survivors)
        weight, train, effective = summarise(p.log_prob, q.log_prob)
        dreamt = self._dreams(visit) if of_phi and asleep else None
        if self.survivors:
            draw, row, weight = survivors(weight, self.survivors, rng)
            given, hidden = x[row], tuple(value[draw, row] for value in q.values)
            q = proposal.track(phi, hidden, given) if of_draws else q
            p = model.track(theta, (given, *hidden[::-1])) if of_theta else p
        share = weight / len(x)
        theta_grad = p.pull(share) if of_theta else theta.new_zeros(0)
        phi_grad = q.pull((1 - asleep) * share) if of_draws else torch.zeros_like(phi) if of_phi else phi.new_zeros(0)
        if dreamt is not None:
            phi_grad += dreamt.pull(phi.new_full((len(x),), asleep / len(x)))
        return Estimate(theta_grad, phi_grad, memory, {"train": train, "effective": effective})

    def _dreams(self, visit: Visit) -> ChainTrack:
        """log q(z | x) of dreams."""
        x, *hidden = dream(visit)
        return visit.proposal.track(visit.phi.detach(), tuple(hidden[::-1]), x)


def _gradients(
    theta_climb: Tensor, theta: Tensor, phi_climb: Tensor, phi: Tensor, apart: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of each climb with respect to its own vector, or of their sum with respect to both; if wanted."""
    if theta.requires_grad and phi.requires_grad and not apart:
        grads = torch.autograd.grad(theta_climb + phi_climb, (theta, phi), materialize_grads=True)
        return grads[0], grads[1]

    def gradient(climb: Tensor, vector: Tensor) -> Tensor:
        if not vector.requires_grad:
            return vector.new_zeros(0)
        return torch.autograd.grad(climb, vector, retain_graph=True, materialize_grads=True)[0]

    return gradient(theta_climb, theta), gradient(phi_climb, phi)
