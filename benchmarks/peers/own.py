"""`doubly` itself; with DOUBLY_KERNELS=0, its plain twins."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from doubly.latents import LikelihoodConfig, log_likelihood, normalised, propose
from doubly.latents.annealing import Annealing
from doubly.latents.importance import log_mean_weight
from doubly.latents.memory import unpack
from doubly.latents.pair import Pair
from doubly.latents.sweep import sweep
from doubly.layers.chain import Chain, Values
from doubly.runs.build import Facts, build
from doubly.runs.folder import Run
from doubly.runs.presets import preset
from doubly.training.method import Method
from doubly.training.state import init
from doubly.training.step import step
from peers.side import Arrays, Side, Task, serve

RUNS = Path(__file__).parents[2] / "runs" / "reproduce"


def method(task: Task) -> Method:
    remembered = {"estimator": f"persistent:chains={task.states}", "resample": False, "theta_steps": 1}
    config = preset(
        "dsgnht-nais",
        model=",".join(task.model),
        proposal=",".join(task.proposal),
        hidden=task.widths[1:],
        objective=task.objective,
        draws=task.draws,
        step=task.step,
        phi_step=task.phi_step,
        friction=task.friction,
        prior=f"student-t:df={task.df},scale={task.scale}",
        batch=task.batch,
        **(remembered if task.work == "remembered" else {}),
    )
    return build(config, Facts(task.widths[0], "binary", (task.widths[0],)))


def start(task: Task) -> Arrays:
    """Rows, weights and draws of the hidden variables that all sides are given."""
    how, rng = method(task), torch.Generator().manual_seed(0)
    x = (torch.rand(task.batch, task.widths[0], generator=rng) < task.ones).float()
    state = init(how, x)
    if task.run:
        run = Run(RUNS / task.run)
        saved = run.restore(build(run.config, run.facts))
        assert saved is not None
        state, x = saved, torch.as_tensor(run.data().train[: task.batch]).float()
    theta, phi = state.theta.theta, state.phi.theta
    drawn = propose(Pair(how.model, theta, how.proposal, phi), x, task.draws, seeded())
    arrays = named("theta", how.model, theta) | named("phi", how.proposal, phi)
    return arrays | {"x": x.numpy()} | {f"z{i}": value.numpy() for i, value in enumerate(drawn.latents)}


def named(vector: str, chain: Chain, weights: Tensor) -> Arrays:
    """The weights of a chain under the names that all sides know, layers from the data upward."""
    layers = chain.unflatten(weights.detach())
    layers = layers[::-1] if vector.startswith("phi") else layers  # a proposal lists its top layer first
    return {f"{vector}.{i}.{name}": value.numpy() for i, layer in enumerate(layers) for name, value in layer.items()}


def flat(vector: str, chain: Chain, arrays: Arrays) -> Tensor:
    """The way back."""
    n = len(chain.layers)
    places = range(n - 1, -1, -1) if vector == "phi" else range(n)
    parts = [
        arrays[f"{vector}.{i}.{name}"].reshape(-1)
        for i, layer in zip(places, chain.layers, strict=True)
        for name in layer.shapes()
    ]
    return torch.from_numpy(np.concatenate(parts))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


class Own(Side):
    def load(self, task: Task, arrays: Arrays) -> None:
        self.task, self.how = task, method(task)
        self.x, self.index = torch.from_numpy(arrays["x"]), torch.arange(task.batch)
        self.theta, self.phi = flat("theta", self.how.model, arrays), flat("phi", self.how.proposal, arrays)
        state = init(self.how, self.x)
        self.beginning = self.state = state._replace(
            theta=self.how.sampler.init(self.theta, state.rng), phi=self.how.optimiser.init(self.phi, state.rng)
        )
        self.hidden: Values = tuple(torch.from_numpy(arrays[f"z{i}"]) for i in range(len(task.proposal)))

    def run(self, times: int) -> None:
        self.state = self.beginning  # how long a step takes depends on the weights, which are not to drift away
        for _ in range(times):
            if self.task.work in ("step", "remembered"):
                self.state = step(self.how, self.state, self.x, self.index, self.task.n_data)
            elif self.task.work == "score":
                how = LikelihoodConfig(draws=self.task.score_draws)
                self.scored = log_likelihood(Pair(self.how.model, self.theta, self.how.proposal, self.phi), self.x, how)
            elif self.task.work == "anneal":
                how = Annealing(temperatures=self.task.temperatures, chains=1)
                pair = Pair(self.how.model, self.theta, self.how.proposal, self.phi)
                self.scored = how.log_likelihood(pair, self.x, self.state.rng)
            else:
                self.hidden = sweep(self.how.model, self.theta, self.x, self.hidden, self.state.rng)

    def _states(self) -> list[Tensor]:
        return [bits for name, bits in self.state.memory.items() if name.startswith("state.z")]

    def densities(self, arrays: Arrays) -> Arrays:
        theta, phi = self.theta.clone().requires_grad_(), self.phi.clone().requires_grad_()
        model, proposal = self.how.model, self.how.proposal
        z = tuple(torch.from_numpy(arrays[f"z{i}"]) for i in range(len(self.task.proposal)))
        log_p, log_q = model.log_prob(theta, (self.x, *z)), proposal.log_prob(phi, z[::-1], self.x)
        weight = normalised(log_p - log_q)
        theta_objective, phi_objective = (weight * log_p).sum(0).mean(), (weight * log_q).sum(0).mean()
        if self.task.objective == "iwae":  # the draws that z is, with their gradient
            drawn = propose(Pair(model, theta, proposal, phi), self.x, self.task.draws, seeded(), pathwise=True)
            phi_objective = log_mean_weight(drawn.log_weight).mean()
        if self.task.objective == "wake":  # the gradient as a step takes it
            theta_grad = model.log_prob_vjp(self.theta, (self.x, *z)).vjp(weight.detach() / len(self.x))
        else:
            (theta_grad,) = torch.autograd.grad(theta_objective, theta, retain_graph=True)
        theta_grad = self.how.prior.grad(self.theta) + self.task.n_data * theta_grad
        (phi_grad,) = torch.autograd.grad(phi_objective, phi)
        found = {"log_p": log_p.detach().numpy(), "log_q": log_q.detach().numpy()}
        return found | named("theta_grad", model, theta_grad) | named("phi_grad", proposal, phi_grad)

    def summary(self) -> dict[str, float]:
        if self.task.work in ("score", "anneal"):
            return {"score": self.scored.log_likelihood.mean().item()}
        if self.task.work == "sweep":
            return {"ones": self.hidden[0].mean().item()}
        of_states = {
            f"ones in {name}": unpack(bits, width).mean().item()
            for name, bits, width in zip(("z1", "z2"), self._states(), self.task.widths[1:], strict=False)
        }
        return of_states | {
            "temperature": ((self.state.theta.u**2).mean() / self.task.eta).item(),
            "theta moved": (self.state.theta.theta - self.theta).square().mean().sqrt().item(),
            "phi moved": (self.state.phi.theta - self.phi).square().mean().sqrt().item(),
        }


if __name__ == "__main__":
    serve(Own())
