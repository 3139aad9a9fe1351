"""What a layer is: a distribution p(value | given) of one vector given another. It holds its shape, never weights."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.types import Start
from doubly.kernels.rows import broadcast

Params = dict[str, Tensor]
Kind = Literal["binary", "real", "mixed"]


class Drawn(NamedTuple):
    """A value with its log density, which carries the gradient with respect to the layer's parameters."""

    value: Tensor
    log_prob: Tensor


class LayerVJP(NamedTuple):
    """A value with its log density, a constant, and the vector-Jacobian product of that density."""

    value: Tensor
    log_prob: Tensor
    vjp: Callable[[Tensor, Params], None]
    """Given a weight for each row, writes sum_rows weight d log_prob / d params into tensors of the same shapes."""


class LogProbPathwiseVJP(NamedTuple):
    """The log density of a value, a constant, and its vector-Jacobian product for all that it depends on."""

    log_prob: Tensor
    vjp: Callable[[Tensor, Params | None], "Paths"]
    """As that of `LayerVJP`, where tensors are given to write into; it gives back gradients for value and given."""


class Paths(NamedTuple):
    """Gradients with respect to a value, where that is wanted, and to what was given."""

    value: Tensor | None
    given: Tensor


class DrawPathwiseVJP(NamedTuple):
    """A value as a smooth function of parameters, given and noise, with its log density; both are constants."""

    value: Tensor
    log_prob: Tensor
    vjp: Callable[[Tensor, Tensor, Params, bool], Tensor | None]
    """Of weights of the log densities and a gradient with respect to the value: writes the gradient with respect to
    the parameters, and gives back that with respect to the given, if it is wanted."""


class LogOdds(NamedTuple):
    """Log-odds that are linear: bias + given · (what the layer is given) + before · (its own values before each)."""

    bias: Tensor
    given: Tensor
    before: Tensor | None = None


class Block(NamedTuple):
    """Entries of a value that say one thing together: a number, a bit (0 or 1), or several of which one is 1."""

    width: int
    discrete: bool


@dataclass(frozen=True)
class Layer(ABC):
    """p(value | given), with `given` of width n_in (0 for a top layer) and `value` of width n_out.

    The last axis is the vector; all axes before it are batch axes and broadcast. A layer is a frozen dataclass: its
    fields are its options, and weights come as `params`. `doubly check my_file.py:MyLayer` tests what is said here.

    A layer must give

    - `kind`: "binary" (values are 0 or 1), "real", or "mixed", whose `blocks` say more;
    - `shapes`, `init`: its parameters by name, and where they start;
    - `log_prob`, `draw`: the density, differentiable in the parameters, and draws from it with their `log_prob`;
    - `mean`: what is expected of each value.

    A layer may give

    - `factorised = False`, if its values depend on each other given `given`: it must then;
    - `cells`: rows with missing values, imputation;
    - `reparameterised = True` and `draw_pathwise`: the objectives iwae and dreg;
    - `is_linear = True` and `linear_log_odds`: the estimator gibbs, annealed scores;
    - `row_biases`: a proposal that is refined row by row;
    - `bias_of`: an automatic step that learns sooner;
    - `log_prob_vjp`, `draw_vjp`, and for iwae `log_prob_pathwise_vjp`, `draw_pathwise_vjp`: gradients that are quicker
      than autograd's; and `prepare`, what these share from draw to draw. A subclass that overrides something else of
      the layer does not inherit these.

    docs/own-members.md writes one in ten lines. Its heart is five, the density and a draw from it:

    >>> def log_prob(params, value, given):
    ...     p = torch.special.ndtr(given @ params["W"].T + params["b"])
    ...     return torch.where(value == 1, p, 1 - p).log().sum(-1)
    >>> def draw(params, given, rng, draws=None):
    ...     p = torch.special.ndtr(given @ params["W"].T + params["b"]).detach()
    ...     value = torch.bernoulli(p.expand(*((draws,) if draws else ()), *p.shape), generator=rng)
    ...     return Drawn(value, log_prob(params, value, given))
    >>> params, rng = {"W": torch.ones(3, 2), "b": torch.zeros(3)}, torch.Generator().manual_seed(0)
    >>> draw(params, torch.ones(4, 2), rng, draws=5).log_prob.shape
    torch.Size([5, 4])
    """

    n_in: int
    n_out: int
    start: Start = "glorot"
    """Weights to start from: Glorot's, or those of the reference implementation, smaller by n_in."""
    kind: ClassVar[Kind]
    reparameterised: ClassVar[bool] = False
    """Whether `draw_pathwise` is there."""
    factorised: ClassVar[bool] = True
    """Whether the values are independent of each other, given what is given."""
    is_linear: ClassVar[bool] = False
    """Whether `linear_log_odds` is there."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in VJPS:
            owner = next(each for each in cls.__mro__ if name in vars(each))
            if owner not in (cls, Layer) and _overrides(cls, owner):  # what it inherits was written for another density
                setattr(cls, name, vars(Layer)[name])
                cls.prepare = Layer.prepare  # type: ignore[method-assign]
        if "prepare" not in vars(cls) and {"draw_vjp", "draw_pathwise_vjp"} & set(vars(cls)):
            cls.prepare = Layer.prepare  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        if self.start not in get_args(Start):
            raise UserError(f"start must be one of {', '.join(get_args(Start))}, got {self.start!r}")

    def blocks(self) -> tuple[Block, ...]:
        """What the entries of a value are; where the layer is factorised, blocks are independent of each other."""
        return (Block(1, self.kind == "binary"),) * self.n_out

    def nearest(self, value: Tensor) -> Tensor:
        """The value that the layer could draw which is nearest to this one: for guesses to start from."""
        return value

    def row_biases(self) -> tuple[str, ...]:
        """Parameters which `draw` takes with a row for each row that is given, too: what is added last."""
        return ()

    def bias_of(self) -> dict[str, str]:
        """Matrices of weights (n_out, n_in), each with the bias (n_out) that is added to what it gives."""
        return {}

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The parameters and their shapes, in the order in which they stand in theta."""

    @abstractmethod
    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        """Parameters to start from; `mean` is the mean of the values to be drawn, where it is known (the data)."""

    @abstractmethod
    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        """log p(value | given), without the last axis."""

    @abstractmethod
    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        """One value for each given, or `draws` of them along a new leading axis."""

    def draw_pathwise(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        """As `draw`, but the value too carries the gradient, as a smooth function of parameters, given and noise."""
        raise UserError(f"{type(self).__name__} is not reparameterised: its draws have no gradient")

    def log_prob_vjp(self, params: Params, value: Tensor, given: Tensor, grad: bool = True) -> LayerVJP:
        """`log_prob` with its vector-Jacobian product, where `grad` asks for it; by autograd, unless overridden."""
        return _by_autograd(params, grad, lambda watched: Drawn(value, self.log_prob(watched, value, given)))

    def draw_vjp(
        self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None, grad: bool = True
    ) -> LayerVJP:
        """`draw`, likewise."""
        return _by_autograd(params, grad, lambda watched: self.draw(watched, given, rng, draws))

    def prepare(self, params: Params, given: Tensor) -> object:
        """What several draws for the same given share, or None; `draw_vjp` and `draw_pathwise_vjp` of a layer that
        gives something take it as `prepared`."""
        return None

    def log_prob_pathwise_vjp(
        self, params: Params, value: Tensor, given: Tensor, to_value: bool = True
    ) -> LogProbPathwiseVJP:
        """`log_prob` with its product for parameters, value and given; by autograd, unless overridden."""
        watched = {name: each.detach().requires_grad_() for name, each in params.items()}
        ends = (value.detach().requires_grad_(to_value), given.detach().requires_grad_())
        with torch.enable_grad():
            log_prob = self.log_prob(watched, *ends)

        def vjp(weight: Tensor, into: Params | None) -> Paths:
            wanted = [*(ends if to_value else ends[1:]), *(watched.values() if into is not None else ())]
            found = list(_gradients((log_prob,), wanted, (weight.expand(log_prob.shape),)))
            of_value = found.pop(0) if to_value else None
            of_given = found.pop(0)
            for name, grad in zip(watched, found, strict=False):
                assert into is not None
                into[name].copy_(grad)
            return Paths(of_value, of_given)

        return LogProbPathwiseVJP(log_prob.detach(), vjp)

    def draw_pathwise_vjp(
        self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None
    ) -> DrawPathwiseVJP:
        """`draw_pathwise`, likewise."""
        watched = {name: each.detach().requires_grad_() for name, each in params.items()}
        given = given.detach().requires_grad_()
        with torch.enable_grad():
            value, log_prob = self.draw_pathwise(watched, given, rng, draws)

        def vjp(weight: Tensor, of_value: Tensor, into: Params, to_given: bool) -> Tensor | None:
            wanted = [*watched.values(), *((given,) if to_given else ())]
            found = _gradients((log_prob, value), wanted, (weight.expand(log_prob.shape), of_value))
            for name, grad in zip(watched, found, strict=False):
                into[name].copy_(grad)
            return found[-1] if to_given else None

        return DrawPathwiseVJP(value.detach(), log_prob.detach(), vjp)

    @abstractmethod
    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        """E[value_i | given, and those entries of `value` that come before i where the layer is autoregressive]."""

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        """log p of each entry, given those before it where the layer is autoregressive: `log_prob` is their sum."""
        raise UserError(f"{type(self).__name__} does not say how its entries share its log_prob: give it `cells`")

    def log_prob_observed(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        """log p of those entries that are not NaN, where values are independent: the factors of the others drop out."""
        missing = value.isnan()
        return self.cells(params, value.masked_fill(missing, 0), given).masked_fill(missing, 0).sum(-1)

    def impute(self, params: Params, value: Tensor, missing: Tensor, given: Tensor, rng: torch.Generator) -> Drawn:
        """The missing entries drawn anew, beside the log density of the others.

        Where values are independent, the draw is from p(missing | given) and the density is p(others | given).
        """
        shape = broadcast(value.shape[:-1], given.shape[:-1])
        drawn = self.draw(params, given.expand(*shape, given.shape[-1]), rng).value
        completed = torch.where(missing, drawn, value)
        return Drawn(completed, self.cells(params, completed, given).masked_fill(missing, 0).sum(-1))

    def linear_log_odds(self, params: Params) -> LogOdds | None:
        """The log-odds of binary values where they are linear in what is given: Gibbs sampling needs them."""
        return None

    def weights(self, rng: torch.Generator, n_out: int, n_in: int) -> Tensor:
        """Uniform weights in ±sqrt(6 / (n_in + n_out)) (Glorot & Bengio 2010), as a matrix (n_out, n_in)."""
        bound = math.sqrt(6 / max(n_in + n_out, 1))
        if self.start == "reference":
            bound /= max(n_in, 1)
        return (2 * torch.rand(n_out, n_in, generator=rng, device=rng.device) - 1) * bound

    def bias(self, rng: torch.Generator, mean: Tensor | None, reference: float) -> Tensor:
        """Log-odds to start from: the data's where they are known, else zero; `reference` is the reference's."""
        if self.start == "reference":
            return torch.full((self.n_out,), reference, device=rng.device)
        return torch.zeros(self.n_out, device=rng.device) if mean is None else log_odds(mean)


VJPS = ("log_prob_vjp", "draw_vjp", "log_prob_pathwise_vjp", "draw_pathwise_vjp")


def _overrides(cls: type, owner: type) -> bool:
    """Whether the class has its own version of a function of the owner or of what that is made of."""
    bases = owner.__mro__[: owner.__mro__.index(Layer)]
    theirs = {name for base in bases for name, each in vars(base).items() if callable(each)}
    own = {name for name, each in vars(cls).items() if callable(each) and name not in VJPS and name[:2] != "__"}
    return bool(own & theirs - getattr(owner, "__abstractmethods__", frozenset()))


def log_odds(mean: Tensor) -> Tensor:
    """Log-odds of a mean in [0, 1], kept finite where a variable never or always is 1."""
    return torch.logit(mean.clamp(0.005, 0.995))


def _gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor], weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of the weighted outputs; a layer without weights may have outputs that depend on none of the inputs."""
    pairs = [(output, weight) for output, weight in zip(outputs, weights, strict=True) if output.requires_grad]
    if not inputs or not pairs:
        return tuple(torch.zeros_like(each) for each in inputs)
    found, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(found, inputs, grads, materialize_grads=True)


def _by_autograd(params: Params, grad: bool, look: Callable[[Params], Drawn]) -> LayerVJP:
    watched = {name: value.detach().requires_grad_(grad) for name, value in params.items()}
    with torch.set_grad_enabled(grad):
        value, log_prob = look(watched)

    def vjp(weight: Tensor, into: Params) -> None:
        if not watched:
            return
        found = torch.autograd.grad(log_prob, tuple(watched.values()), weight, materialize_grads=True)
        for name, grad in zip(watched, found, strict=True):
            into[name].copy_(grad)

    return LayerVJP(value, log_prob.detach(), vjp)
