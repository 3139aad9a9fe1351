"""What the proposal ascends: objectives for phi.

Each is handed one round of draws and gives a number for each row, whose gradient with respect to phi is the direction
to go: sometimes the objective itself, sometimes a surrogate with the same gradient in expectation.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.registry import Registry
from doubly.latents.batch import Batch, Memory
from doubly.latents.importance import Draws, log_mean_weight
from doubly.layers.chain import Chain, Values
from doubly.samplers import Adam
from doubly.samplers.adam import AdamState


class Round(NamedTuple):
    """One round of draws on a mini-batch."""

    batch: Batch
    draws: Draws
    weight: Tensor
    """Normalised weights (S, B), constants."""


class Ascent(NamedTuple):
    """A number for each row, whose gradient is followed, and what the objective remembers from now on."""

    rows: Tensor
    memory: Memory


class Objective(ABC):
    """A function of the draws whose gradient with respect to phi is followed.

    An objective is a frozen dataclass whose fields are its options. It must give `__call__`: from a round of draws, a
    number for each row (`Ascent`). It may give `init`, what it remembers from the start, and say of itself what the
    attributes below name; each lets an estimator take a quicker way, or refuse a model before training.

    >>> @dataclass(frozen=True)
    ... class Elbo(Objective):
    ...     pathwise = True
    ...     def __call__(self, round):
    ...         return Ascent(round.draws.log_weight.mean(0), round.batch.memory)
    >>> Elbo().pathwise
    True
    """

    pathwise: ClassVar[bool] = False
    """Whether the gradient goes through the values drawn, so that every latent layer must be reparameterised."""
    least_draws: ClassVar[int] = 1
    """Draws without which it says nothing."""
    weighted: ClassVar[bool] = False
    """Whether the weights alone say what the draws stand for, so that not all of them must be the proposal's own."""
    plain: ClassVar[bool] = False
    """Whether it is sum_s w_s log q(z_s | x) of the draws, log q(z | x) of the sleep phase, or both, and nothing else:
    its gradient needs no graph."""
    sleep_weight: ClassVar[float] = 0.0
    """The share of the sleep phase in that."""
    bound: ClassVar[bool] = False
    """Whether it is the log mean weight, whose gradient for theta is the weighted one: one backward pass serves both.
    Neither this nor `plain` is inherited by an objective that ascends something else."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__call__" in vars(cls):  # what it inherits of these was said of another function
            for name in ("plain", "bound"):
                setattr(cls, name, vars(cls).get(name, False))

    def check(self, model: Chain, draws: int) -> None:
        """Refuse a model or a number of draws that this objective cannot serve, before training starts."""
        if draws < self.least_draws:
            name = type(self).__name__.lower()
            raise UserError(
                f"the objective {name} compares draws, so it needs at least {self.least_draws}, got {draws}: "
                "raise draws"
            )
        rough = [type(layer).__name__ for layer in model.layers[1:] if layer.kind == "binary"]
        if self.pathwise and rough:
            name = type(self).__name__.lower()
            raise UserError(
                f"the objective {name} needs real latent layers, whose draws can be differentiated, "
                f"got {', '.join(rough)}: choose wake, sleep, vimco or nvil"
            )

    def init(self, model: Chain, rng: torch.Generator) -> Memory:
        """What the objective remembers between rounds."""
        return {}

    @abstractmethod
    def __call__(self, round: Round) -> Ascent:
        """What is ascended on these rows."""


@dataclass(frozen=True)
class Wake(Objective):
    """Inclusive KL divergence, so that q covers p: E_{p(z|x)}[log q(z|x)], with the weights of the draws.

    sum_s w_s log q(z_s | x)
    """

    weighted = True
    plain = True

    def __call__(self, round: Round) -> Ascent:
        return Ascent((round.weight * round.draws.log_q).sum(0), round.batch.memory)


@dataclass(frozen=True)
class Sleep(Objective):
    """Inclusive KL divergence in the sleep phase: E_{p(x,z)}[log q(z|x)], with rows drawn from the model itself.

    log q(z | x) for (x, z) ~ p(x, z | theta)
    """

    weighted = True
    plain = True
    sleep_weight = 1.0

    def __call__(self, round: Round) -> Ascent:
        pair = round.batch.pair
        x, *latents = sleep_draw(round.batch)
        return Ascent(pair.proposal.log_prob(pair.phi, tuple(latents[::-1]), x), round.batch.memory)


def sleep_draw(batch: Batch) -> Values:
    """As many rows as the mini-batch has, with their latents, drawn from the model."""
    pair = batch.pair
    x, *latents = pair.model.sample(pair.theta.detach(), len(batch.x), batch.rng)
    if pair.proposal.masked:  # values are missing where the rows have none
        x = x.masked_fill(batch.x.isnan(), math.nan)
    return x, *latents


@dataclass(frozen=True)
class WakeSleep(Objective):
    """Wake and sleep in equal parts."""

    weighted = True
    plain = True
    sleep_weight = 0.5

    def __call__(self, round: Round) -> Ascent:
        return Ascent((Wake()(round).rows + Sleep()(round).rows) / 2, round.batch.memory)


@dataclass(frozen=True)
class IWAE(Objective):
    """The bound L_S itself, through reparameterised draws (Burda et al. 2016); with one draw, the VAE's bound.

    log 1/S sum_s p(x, z_s) / q(z_s | x)
    """

    pathwise = True
    bound = True

    def __call__(self, round: Round) -> Ascent:
        return Ascent(log_mean_weight(round.draws.log_weight), round.batch.memory)


@dataclass(frozen=True)
class DReG(Objective):
    """The bound L_S with doubly reparameterised gradients, of lower variance (Tucker et al. 2019).

    sum_s w_s^2 log p(x, z_s) / q(z_s | x), differentiated through z_s only
    """

    pathwise = True

    def __call__(self, round: Round) -> Ascent:
        pair = round.batch.pair
        log_q = pair.proposal.log_prob(pair.phi.detach(), round.draws.latents[::-1], round.batch.x)
        return Ascent((round.weight**2 * (round.draws.log_p - log_q)).sum(0), round.batch.memory)


@dataclass(frozen=True)
class VIMCO(Objective):
    """The bound L_S by score functions, each draw with the others as its baseline (Mnih & Rezende 2016).

    sum_s (L - L_{-s} - w_s) log q(z_s | x), where L_{-s} has weight s replaced by the geometric mean of the others
    """

    least_draws = 2

    def __call__(self, round: Round) -> Ascent:
        log_weight = round.draws.log_weight.detach()
        n = len(log_weight)
        others = (log_weight.sum(0) - log_weight) / (n - 1)
        # row s of the square: the log weights with the s-th replaced
        replaced = log_weight.expand(n, -1, -1).clone()
        replaced[range(n), range(n)] = others
        without = torch.logsumexp(replaced, 1) - math.log(n)
        signal = log_mean_weight(log_weight) - without - round.weight
        return Ascent((signal * round.draws.log_q).sum(0), round.batch.memory)


@dataclass(frozen=True)
class NVIL(Objective):
    """The evidence lower bound by score functions, with a learnt baseline (Mnih & Gregor 2014).

    mean_s (l_s - C(x) - c) / max(1, sd) log q(z_s | x),  l_s = log p(x, z_s) - log q(z_s | x)

    C is a perceptron fitted to l, c and sd running moments of what it leaves over.
    """

    units: int = 100
    baseline_step: float = 1e-3
    decay: float = 0.8

    def init(self, model: Chain, rng: torch.Generator) -> Memory:
        weights = self._baseline(model.layers[0].n_out).init(rng)
        zero = weights.new_zeros(())
        return _remembered(Adam().init(weights, rng), mean=zero, variance=zero.clone())  # saved as two tensors

    def __call__(self, round: Round) -> Ascent:
        theta, m, v, t = (round.batch.memory[f"nvil.{name}"] for name in AdamState._fields)
        state = AdamState(theta, m, v, int(t))
        baseline = self._baseline(round.batch.x.shape[1])
        weights = state.theta.detach().requires_grad_()
        x = round.batch.x.nan_to_num()  # 0 where missing
        error = round.draws.log_weight.detach() - baseline.predict(weights, x)
        (grad,) = torch.autograd.grad(-(error**2).mean(), weights)
        left = error.detach()
        mean = torch.lerp(left.mean(), round.batch.memory["nvil.mean"], self.decay)
        variance = torch.lerp(left.var(correction=0), round.batch.memory["nvil.variance"], self.decay)
        scaled = (left - mean) / variance.sqrt().clamp(min=1)
        state = Adam().tell(state, grad, self.baseline_step, round.batch.rng)
        return Ascent((scaled * round.draws.log_q).mean(0), _remembered(state, mean, variance))

    def _baseline(self, n_in: int) -> "_Baseline":
        return _Baseline(n_in, self.units)


@dataclass(frozen=True)
class _Baseline:
    """A perceptron with one layer of tanh units, from a row to a number; its weights are one flat vector."""

    n_in: int
    units: int

    def init(self, rng: torch.Generator) -> Tensor:
        bound = math.sqrt(6 / (self.n_in + self.units))
        first = (2 * torch.rand(self.units * self.n_in, generator=rng, device=rng.device) - 1) * bound
        return torch.cat([first, first.new_zeros(2 * self.units + 1)])

    def predict(self, weights: Tensor, x: Tensor) -> Tensor:
        sizes = [self.units * self.n_in, self.units, self.units, 1]
        first, bias, second, offset = weights.split(sizes)
        found: Tensor = torch.tanh(F.linear(x, first.view(self.units, self.n_in), bias)) @ second + offset
        return found


def _remembered(state: AdamState, mean: Tensor, variance: Tensor) -> Memory:
    found = {"theta": state.theta, "m": state.m, "v": state.v, "t": torch.tensor(state.t)}
    return {f"nvil.{name}": value for name, value in (found | {"mean": mean, "variance": variance}).items()}


OBJECTIVES = Registry(
    "objective",
    wake=Wake,
    sleep=Sleep,
    wake_sleep=WakeSleep,
    iwae=IWAE,
    dreg=DReG,
    vimco=VIMCO,
    nvil=NVIL,
)
