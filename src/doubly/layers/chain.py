"""A chain of layers: the generative model, which starts from nothing and ends in the data, and equally the proposal,
which starts from the data and ends in the top latent layer.

The weights of a chain are one flat vector, so that samplers and priors are vector algebra and nothing that looks at a
chain can write into it.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.registry import split
from doubly.core.types import Start
from doubly.layers.layer import DrawPathwiseVJP, Layer, LayerVJP, LogProbPathwiseVJP, Params
from doubly.layers.registry import LAYERS

Values = tuple[Tensor, ...]
Prepared = dict[str, Any]
"""What several draws from one chain, with the same weights and the same given, need to compute only once."""


class ChainDraw(NamedTuple):
    """Values of all the layers of a chain and their joint log density."""

    values: Values
    log_prob: Tensor


class ChainVJP(NamedTuple):
    """As `ChainDraw`, constants, with the vector-Jacobian product for the weights."""

    chain: "Chain"
    theta: Tensor
    layers: list[LayerVJP]

    @property
    def values(self) -> Values:
        """Of all the layers, as in `ChainDraw`."""
        return tuple(each.value for each in self.layers)

    @property
    def log_prob(self) -> Tensor:
        """Their joint log density."""
        return functools.reduce(torch.add, [each.log_prob for each in self.layers])

    def vjp(self, weight: Tensor) -> Tensor:
        """sum_rows weight d log_prob / d theta, of a weight for each row."""
        grad = torch.empty_like(self.theta)
        for each, into in zip(self.layers, self.chain.unflatten(grad), strict=True):
            each.vjp(weight if weight.shape == each.log_prob.shape else weight.sum_to_size(each.log_prob.shape), into)
        return grad


class ChainPathwiseVJP(NamedTuple):
    """The joint log density of values, which are constants, with its vector-Jacobian product for weights and values."""

    chain: "Chain"
    theta: Tensor
    layers: list[LogProbPathwiseVJP]

    @property
    def log_prob(self) -> Tensor:
        """Of all the values."""
        return functools.reduce(torch.add, [each.log_prob for each in self.layers])

    def vjp(self, weight: Tensor, to_theta: bool) -> tuple[Tensor | None, Values]:
        """The gradient with respect to theta, if it is wanted, and to all values but the first (x)."""
        grad = torch.empty_like(self.theta) if to_theta else None
        into: Sequence[Params | None] = self.chain.unflatten(grad) if grad is not None else [None] * len(self.layers)
        sent: list[Tensor] = []
        below: Tensor | None = None
        for each, params in zip(self.layers, into, strict=True):
            of_value, of_given = each.vjp(weight, params)
            if of_value is not None and below is not None:
                sent.append(of_value + below)
            below = of_given
        return grad, tuple(sent)


class ChainDrawPathwiseVJP(NamedTuple):
    """Draws that are smooth functions of the weights, likewise."""

    chain: "Chain"
    theta: Tensor
    layers: list[DrawPathwiseVJP]

    @property
    def values(self) -> Values:
        """Of all the layers, as in `ChainDraw`."""
        return tuple(each.value for each in self.layers)

    @property
    def log_prob(self) -> Tensor:
        """Their joint log density."""
        return functools.reduce(torch.add, [each.log_prob for each in self.layers])

    def vjp(self, weight: Tensor, of_values: Values) -> Tensor:
        """The gradient with respect to theta, of weights of the log density and gradients for all values."""
        grad, sent = torch.empty_like(self.theta), list(of_values)
        last = len(self.layers) - 1
        for i, (each, into) in enumerate(zip(self.layers, self.chain.unflatten(grad), strict=True)):
            of_given = each.vjp(weight, sent[i], into, i < last)
            if of_given is not None:
                sent[i + 1] = sent[i + 1] + of_given
        return grad


def nothing(like: Tensor) -> Tensor:
    """What a top layer is given: a vector of width 0."""
    return like.new_empty(0)


class _View(NamedTuple):
    """Where a parameter, a vector or a matrix, stands among the weights."""

    name: str
    shape: tuple[int, ...]
    start: int

    def of(self, theta: Tensor) -> Tensor:
        """It itself, in one call instead of two."""
        stride = (math.prod(self.shape[1:]), 1)[-len(self.shape) :]
        return theta.as_strided(self.shape, stride, theta.storage_offset() + self.start)


@dataclass(frozen=True)
class Chain:
    """p(values | given) = prod_i p(values[i] | values[i + 1]), with the `given` after the last.

    Values are listed from the end of the chain to its start: for a model (x, z1, …, zL), from the data upward;
    for a proposal (zL, …, z1), given x. The layers are in the same order: layers[i] draws values[i].

    >>> rng = torch.Generator().manual_seed(0)
    >>> chain = Chain.build("sbn", data=4, hidden=(3, 2))
    >>> theta = chain.init(rng)
    >>> [tuple(value.shape) for value in chain.sample(theta, 5, rng)]
    [(5, 4), (5, 3), (5, 2)]
    """

    layers: tuple[Layer, ...]
    n_given: int = 0
    masked: bool = False
    """Whether values that are given may be missing (NaN): the chain then starts from n_given = 2 D values, the D that
    are given, with 0 for those missing, and which these are."""

    def __post_init__(self) -> None:
        widths = [*(layer.n_out for layer in self.layers), self.n_given][1:]
        for i, (layer, width) in enumerate(zip(self.layers, widths, strict=True)):
            if layer.n_in != width:
                above = f"layer {i + 1} draws" if i + 1 < len(self.layers) else "the chain is given"
                raise UserError(f"layer {i} takes {layer.n_in} values but {above} {width}: widths must meet")

    @classmethod
    def build(
        cls,
        names: str | Sequence[str],
        *,
        data: int,
        hidden: Sequence[int] = (),
        given: int = 0,
        start: Start = "glorot",
    ) -> "Chain":
        """A model: layer types by name (data layer first, one name serves all) and widths from the data upward."""
        widths = [data, *hidden, given]
        if min([data, *hidden]) < 1:
            raise UserError(f"every layer needs at least one unit, got widths {[data, *hidden]}")
        specs = _one_for_each(names, len(widths) - 1)
        shapes = zip(specs, widths[1:], widths, strict=False)
        return cls(tuple(LAYERS.make(spec, n_in, n_out, start=start) for spec, n_in, n_out in shapes), given)

    @classmethod
    def build_proposal(
        cls,
        names: str | Sequence[str],
        *,
        data: int,
        hidden: Sequence[int],
        start: Start = "glorot",
        masked: bool = False,
    ) -> "Chain":
        """A proposal for that model's latent layers: the names again from the data upward (x to z1 first)."""
        given = 2 * data if masked else data
        if not hidden:
            return cls((), given, masked)
        specs = _one_for_each(names, len(hidden))
        chain = cls.build(specs[::-1], data=hidden[-1], hidden=hidden[-2::-1], given=given, start=start)
        return cls(chain.layers, given, masked)

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(self._sizes)

    @functools.cached_property
    def groups(self) -> dict[str, int]:
        """The weights in groups, one for each named tensor of each layer, in their order: the size of each.

        >>> Chain.build("sbn", data=4, hidden=(3,)).groups
        {'x.W': 12, 'x.b': 4, 'z1.b': 3}
        """
        named = [(f"z{i}" if i else "x", views) for i, views in enumerate(self._views)]
        sizes = {f"{layer}.{view.name}": math.prod(view.shape) for layer, views in named for view in views}
        return {name: size for name, size in sizes.items() if size}

    @property
    def n_row_biases(self) -> int:
        """How many weights every row that is given may have of its own."""
        return sum(self._row_bias_sizes)

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Tensor:
        """Weights to start from; `mean` is the mean of the data, for the bias of a model's data layer."""
        drawn = [layer.init(rng, mean if i == 0 else None) for i, layer in enumerate(self.layers)]
        parts = [
            params[name].reshape(-1)
            for layer, params in zip(self.layers, drawn, strict=True)
            for name in layer.shapes()
        ]
        return torch.cat([torch.zeros(0, device=rng.device), *parts])

    def unflatten(self, theta: Tensor) -> list[Params]:
        """Named views of the weights, a dictionary for each layer."""
        if theta.shape != (self.size,):
            raise UserError(f"this chain has {self.size} weights, got a tensor of shape {tuple(theta.shape)}")
        if not theta.requires_grad and theta.is_contiguous():
            return [{view.name: view.of(theta) for view in views} for views in self._views]
        parts = iter(theta.split(self._sizes))  # one split, whose backward is one concatenation
        return [{name: next(parts).view(shape) for name, shape in shapes.items()} for shapes in self._shapes]

    def log_prob(self, theta: Tensor, values: Values, given: Tensor | None = None) -> Tensor:
        """log p(values | given), one number for each row."""
        if len(values) != len(self.layers):
            raise UserError(f"this chain draws {len(self.layers)} values, got {len(values)}: (x, z1, …, zL) is meant")
        givens = (*values[1:], nothing(theta) if given is None else self.seen(given))[: len(values)]
        log_prob = theta.new_zeros(())
        for layer, params, value, above in zip(self.layers, self.unflatten(theta), values, givens, strict=True):
            log_prob = log_prob + layer.log_prob(params, value, above)
        return log_prob

    def log_prob_latents(self, theta: Tensor, hidden: Values) -> Tensor:
        """log p(z1, …, zL) of a model: all but its data layer."""
        above = Chain(self.layers[1:])
        return above.log_prob(theta[self.size - above.size :], hidden)

    def draw(
        self,
        theta: Tensor,
        given: Tensor,
        rng: torch.Generator,
        draws: int | None = None,
        pathwise: bool = False,
        shifts: Tensor | None = None,
    ) -> ChainDraw:
        """Draw all the values; `draws` of each given make a new leading axis.

        With `pathwise`, the values carry the gradient with respect to theta, if every layer is reparameterised.
        `shifts` (rows, n_row_biases) are added to those weights that every row given may have of its own.
        """
        values: Values = ()
        given = self.seen(given)
        log_prob = given.new_zeros((1,) * (draws is not None) + given.shape[:-1])
        weights = self.unflatten(theta) if shifts is None else self._shifted(self.unflatten(theta), shifts)
        for layer, params in zip(reversed(self.layers), reversed(weights), strict=True):
            draw = layer.draw_pathwise if pathwise else layer.draw
            given, term = draw(params, given, rng, None if values else draws)
            values, log_prob = (given, *values), log_prob + term
        return ChainDraw(values, log_prob)

    def log_prob_vjp(self, theta: Tensor, values: Values, given: Tensor | None = None, grad: bool = True) -> ChainVJP:
        """`log_prob` of complete rows, with its vector-Jacobian product if that is wanted."""
        givens = (*values[1:], nothing(theta) if given is None else given)
        parts = zip(self.layers, self.unflatten(theta), values, givens, strict=True)
        return ChainVJP(
            self, theta, [layer.log_prob_vjp(params, value, above, grad) for layer, params, value, above in parts]
        )

    def draw_vjp(
        self,
        theta: Tensor,
        given: Tensor,
        rng: torch.Generator,
        draws: int,
        grad: bool = True,
        prepared: Prepared | None = None,
    ) -> ChainVJP:
        """`draw`, likewise. What is `prepared` is that of the same weights and the same given, or empty."""
        found: list[LayerVJP] = []
        weights, first = self._prepared(theta, given, prepared)
        for layer, params in zip(reversed(self.layers), weights, strict=True):
            if not found and first is not None:
                found.insert(0, layer.draw_vjp(params, given, rng, draws, grad, prepared=first))  # type: ignore[call-arg]
            else:
                found.insert(0, layer.draw_vjp(params, given, rng, None if found else draws, grad))
            given = found[0].value
        return ChainVJP(self, theta, found)

    def _prepared(self, theta: Tensor, given: Tensor, prepared: Prepared | None) -> tuple[list[Params], object]:
        """The weights of the layers in the order in which they are drawn, and what the first has prepared, if any."""
        prepared = {} if prepared is None else prepared
        if not prepared:
            weights = self.unflatten(theta)[::-1]
            first = self.layers[-1].prepare(weights[0], given) if self.layers else None
            prepared |= {"weights": weights, "first": first}
        return prepared["weights"], prepared["first"]

    def log_prob_pathwise_vjp(self, theta: Tensor, values: Values) -> ChainPathwiseVJP:
        """A model's `log_prob` of complete rows, with its vector-Jacobian product for theta and for the latents."""
        givens = (*values[1:], nothing(theta))
        parts = enumerate(zip(self.layers, self.unflatten(theta), values, givens, strict=True))
        found = [
            layer.log_prob_pathwise_vjp(params, value, above, to_value=i > 0)
            for i, (layer, params, value, above) in parts
        ]
        return ChainPathwiseVJP(self, theta, found)

    def draw_pathwise_vjp(
        self, theta: Tensor, given: Tensor, rng: torch.Generator, draws: int, prepared: Prepared | None = None
    ) -> ChainDrawPathwiseVJP:
        """`draw` with `pathwise`, likewise."""
        found: list[DrawPathwiseVJP] = []
        weights, first = self._prepared(theta, given, prepared)
        for layer, params in zip(reversed(self.layers), weights, strict=True):
            if not found and first is not None:
                found.insert(0, layer.draw_pathwise_vjp(params, given, rng, draws, prepared=first))  # type: ignore[call-arg]
            else:
                found.insert(0, layer.draw_pathwise_vjp(params, given, rng, None if found else draws))
            given = found[0].value
        return ChainDrawPathwiseVJP(self, theta, found)

    @torch.no_grad()
    def sample(self, theta: Tensor, n: int, rng: torch.Generator) -> Values:
        """n independent draws of a model's (x, z1, …, zL)."""
        return self.draw(theta, nothing(theta), rng, n).values

    def _shifted(self, weights: list[Params], shifts: Tensor) -> list[Params]:
        parts = iter(shifts.split(self._row_bias_sizes, -1))
        return [
            params | {name: params[name] + next(parts) for name in layer.row_biases()}
            for layer, params in zip(self.layers, weights, strict=True)
        ]

    def seen(self, given: Tensor) -> Tensor:
        """What the first layer is given: rows as they are, or completed with zeros beside which values are missing."""
        if not self.masked:
            return given
        missing = given.isnan()
        return torch.cat([given.masked_fill(missing, 0), missing.to(given.dtype)], -1)

    @functools.cached_property
    def _shapes(self) -> list[dict[str, tuple[int, ...]]]:
        return [layer.shapes() for layer in self.layers]

    @functools.cached_property
    def _views(self) -> list[list["_View"]]:
        starts = itertools.accumulate(self._sizes, initial=0)
        return [[_View(name, shape, next(starts)) for name, shape in shapes.items()] for shapes in self._shapes]

    @functools.cached_property
    def _row_bias_sizes(self) -> list[int]:
        return [math.prod(layer.shapes()[name]) for layer in self.layers for name in layer.row_biases()]

    @functools.cached_property
    def _sizes(self) -> list[int]:
        return [math.prod(shape) for shapes in self._shapes for shape in shapes.values()]


def _one_for_each(names: str | Iterable[str], n_layers: int) -> list[str]:
    specs = split(names) if isinstance(names, str) else list(names)
    if len(specs) == 1:
        specs *= n_layers
    if len(specs) != n_layers:
        raise UserError(
            f"{len(specs)} layer types ({', '.join(specs)}) for {n_layers} layers: give one, or one for each"
        )
    return specs
