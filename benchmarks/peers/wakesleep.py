"""Pyro's ReweightedWakeSleep on the models that it can express: belief networks and the variational autoencoder.

It is not the same algorithm, and has less to do: Adam without prior and noise, one set of draws for both updates, and
one weight for each draw of a whole mini-batch, where the others weigh the draws of each row. Nor does its gradient go
through the draws, as that of the autoencoder's bound does elsewhere.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import SVI, ReweightedWakeSleep
from torch import Tensor

from peers.side import Arrays, Side, Task, serve

Params = dict[str, Tensor]


def perceptron(p: Params, given: Tensor) -> Tensor:
    return torch.tanh(F.linear(torch.tanh(F.linear(given, p["W0"], p["b0"])), p["W1"], p["b1"]))


def distribution(kind: str, p: Params, given: Tensor | None, like: Tensor) -> dist.Distribution:
    """p(value | given), for rows as in `like` where nothing is given."""
    if kind == "normal":
        return dist.Normal(like.new_zeros(50), 1.0).expand((len(like), 50)).to_event(1)
    if kind == "sbn" and given is None:
        return dist.Bernoulli(logits=p["b"]).expand((len(like), len(p["b"]))).to_event(1)
    assert given is not None
    if kind == "sbn":
        return dist.Bernoulli(logits=F.linear(given, p["W"], p["b"])).to_event(1)
    inner = perceptron(p, given)
    if kind == "mlp":
        return dist.Bernoulli(logits=F.linear(inner, p["W_logits"], p["b_logits"])).to_event(1)
    log_sigma = F.linear(inner, p["W_sigma"], p["b_sigma"]).clamp(-8, 8)
    return dist.Normal(F.linear(inner, p["W_mu"], p["b_mu"]), log_sigma.exp()).to_event(1)


class WakeSleep(Side):
    def load(self, task: Task, arrays: Arrays) -> None:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        pyro.enable_validation(False)
        self.task, self.x, self.arrays = task, torch.from_numpy(arrays["x"]), arrays
        loss = ReweightedWakeSleep(num_particles=task.draws, insomnia=1.0, max_plate_nesting=1)
        self.svi = SVI(self.model, self.guide, pyro.optim.Adam({"lr": task.phi_step}), loss)

    def model(self, x: Tensor, observations: Arrays | None = None) -> None:
        top = len(self.task.proposal)
        with pyro.plate("rows", len(x)):
            value = None
            for level in range(top, 0, -1):
                value = pyro.sample(f"z{level}", self.layer("theta", self.task.model, level, value))
            pyro.sample("x", self.layer("theta", self.task.model, 0, value), obs=x)

    def guide(self, x: Tensor, observations: Arrays | None = None) -> None:
        with pyro.plate("rows", len(x)):
            value = x
            for level in range(len(self.task.proposal)):
                value = pyro.sample(f"z{level + 1}", self.layer("phi", self.task.proposal, level, value))

    def layer(self, vector: str, kinds: list[str], level: int, given: Tensor | None) -> dist.Distribution:
        prefix = f"{vector}.{level}."
        params = {
            name.removeprefix(prefix): pyro.param(name, torch.from_numpy(array))
            for name, array in self.arrays.items()
            if name.startswith(prefix) and array.size
        }
        return distribution(kinds[level], params, given, self.x)

    def run(self, times: int) -> None:
        for _ in range(times):
            self.svi.step(self.x)

    def densities(self, arrays: Arrays) -> Arrays:
        """Of the first draw alone: Pyro adds over the rows what the others keep apart."""
        values = {f"z{i + 1}": torch.from_numpy(arrays[f"z{i}"])[0] for i in range(len(self.task.proposal))}
        found = {}
        for name, program in (("log_p", self.model), ("log_q", self.guide)):
            trace = pyro.poutine.trace(pyro.poutine.condition(program, values)).get_trace(self.x)
            found[name] = np.asarray(trace.log_prob_sum().detach())
        return found


if __name__ == "__main__":
    serve(WakeSleep())
