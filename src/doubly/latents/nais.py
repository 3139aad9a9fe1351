"""Neural adaptive importance sampler: both gradients from one set of weighted draws."""

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels.weights import summarise
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.importance import Draws, propose, survivors
from doubly.latents.objectives import OBJECTIVES, Objective, Round, Wake
from doubly.latents.persistent import Persistent
from doubly.latents.phases import phi_gradient, sleep_phase
from doubly.layers import Chain


@dataclass(frozen=True)
class NAIS(Estimator):
    """Self-normalised importance sampling with the proposal that is being learnt.

    With z_s ~ q(z|x; phi), s = 1…S, and w_s ∝ p(x, z_s | theta) / q(z_s|x; phi) summing to one:
    the gradient for theta is sum_s w_s grad log p(x, z_s | theta), that for phi is the objective's
    (wake: sum_s w_s grad log q(z_s|x; phi)). Both come from one backward pass, but for DReG.

    Most of the weight is often on few of the draws. With `survivors`, the draws that are hit by so many evenly spaced
    points on the weights of a row stand for all of them, and only these have gradients: draws to choose from then cost
    their densities alone.
    """

    draws: int = 5
    objective: Objective = field(default_factory=Wake)
    survivors: int = 0
    """0 takes all the draws."""
    takes_objective = True

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise UserError(f"draws of the latent variables must be at least 1, got {self.draws}")
        if self.survivors < 0:
            raise UserError(f"survivors among the draws must be at least 1, or 0 for all, got {self.survivors}")

    def check(self, model: Chain, proposal: Chain) -> None:
        self.objective.check(model, self.draws)
        plain = [name for name, objective in OBJECTIVES.items() if objective.plain]
        needs = {
            "latent layers": bool(proposal.layers),
            "complete rows": not proposal.masked,
            f"the objective {' or '.join(plain)}": self.objective.plain,
        }
        missing = [what for what, given in needs.items() if not given]
        if self.survivors and missing:
            raise UserError(f"survivors among the draws need {' and '.join(missing)}: leave them out of the estimator")

    def for_missing(self, model: Chain) -> Estimator:
        if model.layers[0].factorised:
            return self
        if not self.objective.weighted:
            raise UserError(
                f"the objective {type(self.objective).__name__.lower()} needs complete rows or a data layer whose "
                f"values are independent, got missing values and {type(model.layers[0]).__name__}: choose wake, "
                "sleep or wake-sleep"
            )
        # missing values are drawn along with the latents: the visits of a row are a chain, which is remembered
        return Persistent(self.draws, self.objective, sweeps=0, remembers_rows=True)

    def with_objective(self, objective: Objective) -> Estimator:
        return dataclasses.replace(self, objective=objective)

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        return self.objective.init(chain, rng)

    def draw(self, batch: Batch, pathwise: bool) -> Draws:
        """The draws from which all is estimated."""
        return propose(batch.pair, batch.x, self.draws, batch.rng, pathwise)

    def __call__(self, batch: Batch, wanted: Wanted = "both") -> Estimate:
        whole = batch.pair.proposal.layers and not batch.pair.proposal.masked
        if whole and wanted != "theta" and self.objective.bound and self.objective.pathwise:
            return self._of_paths(batch, wanted)
        if not (whole and (wanted == "theta" or self.objective.plain)):
            return self._by_autograd(batch, wanted)
        return self._of_survivors(batch, wanted) if self.survivors else self._of_all(batch, wanted)

    def _by_autograd(self, batch: Batch, wanted: Wanted) -> Estimate:
        """For any objective, and for rows with missing values."""
        theta = batch.pair.theta.detach().requires_grad_(wanted != "phi")
        phi = batch.pair.phi.detach().requires_grad_(wanted != "theta")
        batch, memory = batch._replace(pair=batch.pair._replace(theta=theta, phi=phi)), batch.memory
        pathwise = self.objective.pathwise and phi.requires_grad
        drawn = self.draw(batch, pathwise)
        weight, _, train, ess = summarise(drawn.log_p, drawn.log_q)
        theta_objective, phi_objective = (weight * drawn.log_p).sum(0).mean(), theta.new_zeros(())
        if phi.requires_grad:
            rows, learnt = self.objective(Round(batch, drawn, weight))
            memory = memory | learnt
            phi_objective = rows.mean()
        if self.objective.bound and wanted == "both":
            theta_objective, pathwise = torch.zeros_like(theta_objective), False
        grads = _gradients(theta_objective, theta, phi_objective, phi, apart=pathwise)
        return Estimate(*grads, memory, {"train": train, "ess": ess})

    def _of_all(self, batch: Batch, wanted: Wanted) -> Estimate:
        """Without a graph: where both gradients are weighted sums, layers know them by themselves."""
        model, theta, proposal, phi = batch.pair
        of_draws = wanted != "theta" and self.objective.sleep_weight < 1
        q = proposal.draw_vjp(phi.detach(), batch.x, batch.rng, self.draws, of_draws, batch.prepared)
        p = model.log_prob_vjp(theta.detach(), (batch.x, *q.values[::-1]), grad=wanted != "phi")
        _, share, train, ess = summarise(p.log_prob, q.log_prob)
        slept = sleep_phase(self.objective, batch, wanted)
        theta_grad = p.vjp(share) if wanted != "phi" else None
        sleep_weight = self.objective.sleep_weight
        wake_grad = q.vjp((1 - sleep_weight) * share if sleep_weight else share) if of_draws else None
        phi_grad = phi_gradient(self.objective, batch, wanted, wake_grad, slept)
        return Estimate(theta_grad, phi_grad, batch.memory, {"train": train, "ess": ess})

    def _of_paths(self, batch: Batch, wanted: Wanted) -> Estimate:
        """The bound L_S through reparameterised draws: sum_s w_s grad log w_s, for phi through z_s."""
        model, theta, proposal, phi = batch.pair
        q = proposal.draw_pathwise_vjp(phi.detach(), batch.x, batch.rng, self.draws, batch.prepared)
        p = model.log_prob_pathwise_vjp(theta.detach(), (batch.x, *q.values[::-1]))
        _, share, train, ess = summarise(p.log_prob, q.log_prob)
        theta_grad, of_latents = p.vjp(share, to_theta=wanted == "both")
        return Estimate(theta_grad, q.vjp(-share, of_latents[::-1]), batch.memory, {"train": train, "ess": ess})

    def _of_survivors(self, batch: Batch, wanted: Wanted) -> Estimate:
        """The same, of some of the draws, which stand for all of them."""
        model, theta, proposal, phi = batch.pair
        theta, phi = theta.detach(), phi.detach()
        q = proposal.draw_vjp(phi, batch.x, batch.rng, self.draws, False, batch.prepared)
        p = model.log_prob_vjp(theta, (batch.x, *q.values[::-1]), grad=False)
        weight, _, train, ess = summarise(p.log_prob, q.log_prob)
        slept = sleep_phase(self.objective, batch, wanted)
        draw, row, weight = survivors(weight, self.survivors, batch.rng)
        x, values = batch.x[row], tuple(value[draw, row] for value in q.values)
        share = weight / len(batch.x)
        theta_grad = wake_grad = None
        if wanted != "theta" and self.objective.sleep_weight < 1:
            wake_grad = proposal.log_prob_vjp(phi, values, x).vjp((1 - self.objective.sleep_weight) * share)
        if wanted != "phi":
            theta_grad = model.log_prob_vjp(theta, (x, *values[::-1])).vjp(share)
        phi_grad = phi_gradient(self.objective, batch, wanted, wake_grad, slept)
        return Estimate(theta_grad, phi_grad, batch.memory, {"train": train, "ess": ess})


def _gradients(
    theta_objective: Tensor, theta: Tensor, phi_objective: Tensor, phi: Tensor, apart: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of each objective with respect to its own vector, or of their sum with respect to both; if wanted."""
    if theta.requires_grad and phi.requires_grad and not apart:
        grads = torch.autograd.grad(theta_objective + phi_objective, (theta, phi), materialize_grads=True)
        return grads[0], grads[1]

    def gradient(objective: Tensor, vector: Tensor) -> Tensor | None:
        if not vector.requires_grad:
            return None
        return torch.autograd.grad(objective, vector, retain_graph=True, materialize_grads=True)[0]

    return gradient(theta_objective, theta), gradient(phi_objective, phi)
