"""The data layer of a table: every column has the density of its kind, given latent variables."""

import functools
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import bernoulli, linear
from doubly.kernels.noise import normal
from doubly.kernels.rows import broadcast
from doubly.layers.layer import Block, Drawn, Params, log_odds
from doubly.layers.mlp import LOG_SIGMA, Perceptron

NOISES = ("normal", "student-t")
SPREADS = ("column", "given")
LEAST_NOISE = 0.1  # variance of a real column by itself to start from: with less, no proposal finds the latents
RAREST = 0.005  # a category's share to start from, at least, as for binary values


@dataclass(frozen=True)
class Mixed(Perceptron):
    """Columns of a table, each with the density of its kind: real, binary, category or ordinal; for data only.

    scores s = W [f(given), given] + b, with f a perceptron or nothing (widths=none), and then, independently,

    real      value ~ N(s, sigma^2), or Student's t around s      sigma^2 = floor^2 + exp(2 b_sigma)
    binary    p(1) = sigmoid(s)
    category  p(k) = softmax(s_1 … s_K)_k
    ordinal   p(at most k) = sigmoid(c_k - s), with cut points c_1 < … < c_{K-1}: whole numbers of few values, grades

    The density is with respect to length for real columns and to counting for the others, so that nothing has to be
    added to the data to keep it finite but `floor`, below which no sigma falls.

    A real or binary column is one entry of the value, a category or ordinal column of K levels is K entries, of which
    one is 1 (one-hot). A code in one entry would make the value narrower, but then `mean` would say nothing (the mean
    of codes of colours) and every proposal would need an encoding of its own. So `mean` is the probability of each
    level, what the proposal reads is the value itself, and the frequencies of the levels are the means of the data.
    Missing entries are summed out exactly, also where they are only a part of a column's.
    """

    kind = "mixed"
    widths: str | int | tuple[int, ...] = "none"
    """Widths of the deterministic layers, as in 50-50; `none` is a linear layer."""
    columns: str = ""
    """Kinds in the order of the columns: r (real), b (binary), c3 (category of 3 levels), o5 (ordinal of 5), with a
    number before for repetition, as in 4r-b-2c3; nothing stands for all real. A run fills it in from the table."""
    noise: str = "normal"
    """Of real columns: normal, or student-t, which bears outliers."""
    df: float = 4.0
    """Degrees of freedom of Student's t."""
    floor: float = 0.01
    """What no standard deviation falls below."""
    skip: bool = True
    """Whether what is given goes beside the perceptron's features: the linear layer is then a special case."""
    spread: str = "column"
    """What sigma depends on: the column alone, or what is given, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("noise", NOISES), ("spread", SPREADS)):
            if getattr(self, name) not in choices:
                raise UserError(f"{name} of a mixed layer must be {' or '.join(choices)}, got {getattr(self, name)!r}")
        if not 1 < self.df < math.inf:
            raise UserError(f"the degrees of freedom (df) must be more than 1 and finite, got {self.df}")
        if not 0 < self.floor < 1:
            raise UserError(f"floor must lie between 0 and 1, got {self.floor}")
        _parsed(self.columns, self.n_out)

    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block(column.width, column.kind != "r") for column in self._columns)

    # Weights

    def shapes(self) -> dict[str, tuple[int, ...]]:
        layout, last = self._layout, self._sizes()[-1] + self._n_beside
        found = super().shapes() | {"W_scores": (layout.n_scores, last), "b_scores": (layout.n_scores,)}
        if self.spread == "given":
            found["W_sigma"] = (len(layout.reals), last)
        return found | {"b_sigma": (len(layout.reals),), "b_cuts": (layout.n_cuts,)}

    def init(self, rng: torch.Generator, mean: Tensor | None = None) -> Params:
        params = super().init(rng)
        if mean is None:  # levels that are equally likely
            mean = torch.cat(
                [torch.full((c.width,), 0 if c.kind == "r" else 1 / max(c.width, 2)) for c in self._columns]
            )
        layout = self._layout
        scores, cuts = params["b_scores"], params["b_cuts"]
        scores[layout.of_reals] = mean[layout.reals].to(scores)
        scores[layout.of_bits] = log_odds(mean[layout.bits]).to(scores)
        for group in layout.groups:
            share = mean[group.entries].clamp(min=RAREST).to(scores)
            share = share / share.sum(-1, keepdim=True)
            if group.ordinal:
                below = torch.logit(share.cumsum(-1)[:, :-1].clamp(1e-4, 1 - 1e-4))
                cuts[group.cuts] = torch.cat([below[:, :1], below.diff(dim=-1).clamp(min=1e-3).log()], -1)
            else:
                scores[group.scores] = share.log()
        return params

    def start_linear(self, params: Params, loadings: Tensor, mean: Tensor, covariance: Tensor) -> None:
        """Let the means of the entries have these derivatives (n_out, axes) in the first of the given, at their mean.

        To first order, for what is not real; what the loadings leave of a real column's variance is its own.
        """
        layout, axes = self._layout, loadings.shape[1]
        into = params["W_scores"][:, params["W_scores"].shape[1] - self.n_in :]
        params["W_scores"].zero_()
        into[layout.of_reals, :axes] = loadings[layout.reals]
        rest = covariance.diagonal()[layout.reals] - loadings[layout.reals].square().sum(1).to(covariance)
        rest = (rest - self.floor**2).clamp(min=LEAST_NOISE)
        params["b_sigma"].copy_(rest.log() / 2)
        params["b_scores"][layout.of_reals] = mean[layout.reals].to(loadings)
        p = mean.clamp(RAREST, 1 - RAREST).to(loadings)
        into[layout.of_bits, :axes] = loadings[layout.bits] / (p * (1 - p))[layout.bits, None]
        for group in layout.groups:
            share = p[group.entries] / p[group.entries].sum(-1, keepdim=True)
            if group.ordinal:
                below = share.cumsum(-1)[:, :-1].clamp(RAREST, 1 - RAREST)
                density = (below * (1 - below))[..., None]  # of the logistic at the cut points
                moved = loadings[group.entries].cumsum(1)[:, :-1]
                into[group.scores, :axes] = -(density * moved).sum(1) / density.square().sum(1)
            else:
                into[group.scores.flatten(), :axes] = (loadings[group.entries] / share[..., None]).flatten(0, 1)

    # The density

    def log_prob(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found = self._distributions(params, given)
        return sum(part.sum(-1) for part in self._cells(found, value))  # type: ignore[return-value]

    def cells(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        return self._in_order(self._cells(self._distributions(params, given), value))

    def log_prob_observed(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found, layout = self._distributions(params, given), self._layout
        missing = value.isnan()
        value = value.masked_fill(missing, 0)
        reals, bits, *_ = self._cells(found, value)
        total = reals.masked_fill(missing[..., layout.reals], 0).sum(-1)
        total = total + bits.masked_fill(missing[..., layout.bits], 0).sum(-1)
        for group, log_p in zip(layout.groups, found.levels, strict=True):
            unseen = missing[..., group.entries]
            possible = _possible(value[..., group.entries], unseen)
            summed = log_p.masked_fill(~possible, -math.inf).logsumexp(-1)
            total = total + summed.masked_fill(unseen.all(-1), 0).sum(-1)
        return total

    def mean(self, params: Params, value: Tensor, given: Tensor) -> Tensor:
        found = self._distributions(params, given)
        levels = [log_p.exp().flatten(-2) for log_p in found.levels]
        mean = self._in_order([found.mu, torch.sigmoid(found.logits), *levels])
        return mean.expand(broadcast(mean.shape, value.shape))

    # Draws

    def draw(self, params: Params, given: Tensor, rng: torch.Generator, draws: int | None = None) -> Drawn:
        found = self._distributions(params, given)
        value = self._drawn(found.detach(), rng, draws)
        return Drawn(value, sum(part.sum(-1) for part in self._cells(found, value)))  # type: ignore[arg-type]

    def impute(self, params: Params, value: Tensor, missing: Tensor, given: Tensor, rng: torch.Generator) -> Drawn:
        axes = broadcast(value.shape[:-1], given.shape[:-1])
        value, missing = value.expand(*axes, self.n_out), missing.expand(*axes, self.n_out)
        found = self._distributions(params, given.expand(*axes, given.shape[-1]))
        observed = value.masked_fill(missing, 0)
        open_levels = [
            log_p.masked_fill(~_possible(observed[..., group.entries], missing[..., group.entries]), -math.inf)
            for group, log_p in zip(self._layout.groups, found.levels, strict=True)
        ]
        drawn = self._drawn(found._replace(levels=open_levels).detach(), rng, None)
        log_prob = self.log_prob_observed(params, value.masked_fill(missing, math.nan), given)
        return Drawn(torch.where(missing, drawn, value), log_prob)

    def nearest(self, value: Tensor) -> Tensor:
        found = value.clone()
        bits = self._layout.bits
        found[..., bits] = (value[..., bits] > 0.5).to(value.dtype)
        for group in self._layout.groups:
            levels = value[..., group.entries]
            found[..., group.entries] = F.one_hot(levels.argmax(-1), levels.shape[-1]).to(value.dtype)
        return found

    # In between

    @functools.cached_property
    def _columns(self) -> list["_Column"]:
        return _parsed(self.columns, self.n_out)

    @functools.cached_property
    def _layout(self) -> "_Layout":
        return _laid_out(self._columns)

    @property
    def _n_beside(self) -> int:
        return self.n_in if self.skip and self.widths else 0

    def _features(self, params: Params, given: Tensor) -> Tensor:
        features = super()._features(params, given)
        return torch.cat([features, given], -1) if self._n_beside else features

    def _distributions(self, params: Params, given: Tensor) -> "_Distributions":
        layout = self._layout
        features = self._features(params, given)
        scores = linear.affine(features, params["W_scores"], params["b_scores"])
        log_sigma = params["b_sigma"]
        if self.spread == "given":
            log_sigma = linear.affine(features, params["W_sigma"], log_sigma)
        log_sigma = log_sigma.clamp(*LOG_SIGMA)
        log_sigma = torch.logaddexp(2 * log_sigma, torch.full_like(log_sigma, 2 * math.log(self.floor))) / 2
        levels = [
            _ordinal(scores[..., group.scores], params["b_cuts"][group.cuts])
            if group.ordinal
            else torch.log_softmax(scores[..., group.scores], -1)
            for group in layout.groups
        ]
        return _Distributions(scores[..., layout.of_reals], log_sigma, scores[..., layout.of_bits], levels)

    def _cells(self, found: "_Distributions", value: Tensor) -> list[Tensor]:
        """The terms of log_prob: real columns, binary ones, then those of each group of levels."""
        layout = self._layout
        scaled = (value[..., layout.reals] - found.mu) * torch.exp(-found.log_sigma)
        if self.noise == "normal":
            reals = -(scaled**2 / 2 + math.log(2 * math.pi) / 2) - found.log_sigma
        else:
            half = (self.df + 1) / 2
            constant = math.lgamma(half) - math.lgamma(self.df / 2) - math.log(math.pi * self.df) / 2
            reals = constant - half * torch.log1p(scaled**2 / self.df) - found.log_sigma
        bits = bernoulli.cells(found.logits, value[..., layout.bits])
        levels = [
            (value[..., group.entries] * log_p).flatten(-2)
            for group, log_p in zip(layout.groups, found.levels, strict=True)
        ]
        return [reals, bits, *levels]

    def _drawn(self, found: "_Distributions", rng: torch.Generator, draws: int | None) -> Tensor:
        axes = () if draws is None else (draws,)
        shape = (*axes, *found.mu.shape)
        if self.noise == "normal":
            noise = normal(shape, rng, found.mu.dtype, found.mu.device)
        else:
            noise = _student(shape, self.df, rng, found.mu)
        bits = bernoulli.draw_with_log_prob(found.logits, rng, draws)[0]
        levels = []
        for log_p in found.levels:
            uniform = torch.rand((*axes, *log_p.shape), generator=rng, dtype=log_p.dtype, device=log_p.device)
            gumbel = -torch.log(-torch.log(uniform.clamp(1e-30, 1 - 1e-7)))
            levels.append(F.one_hot((log_p + gumbel).argmax(-1), log_p.shape[-1]).to(log_p.dtype).flatten(-2))
        return self._in_order([found.mu + torch.exp(found.log_sigma) * noise, bits, *levels])

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """Entries of all kinds, each where it stands in a row."""
        axes = broadcast(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*axes, part.shape[-1]) for part in parts], -1)[..., self._layout.back]


class _Column(NamedTuple):
    kind: str
    width: int


class _Distributions(NamedTuple):
    """What the columns are drawn from, given latents."""

    mu: Tensor
    log_sigma: Tensor
    logits: Tensor
    levels: list[Tensor]
    """Log probabilities of the levels, (…, columns, levels) for each group."""

    def detach(self) -> "_Distributions":
        levels = [each.detach() for each in self.levels]
        return _Distributions(self.mu.detach(), self.log_sigma.detach(), self.logits.detach(), levels)


class _Group(NamedTuple):
    """Columns of the same kind and number of levels: they are computed together."""

    ordinal: bool
    entries: Tensor
    """Of a row, (columns, levels)."""
    scores: Tensor
    """(columns, levels), or (columns,) where they are ordinal."""
    cuts: Tensor
    """Of ordinal columns, (columns, levels - 1)."""


class _Layout(NamedTuple):
    """Where the entries of each kind stand, and their scores."""

    reals: Tensor
    of_reals: Tensor
    bits: Tensor
    of_bits: Tensor
    groups: list[_Group]
    n_scores: int
    n_cuts: int
    back: Tensor
    """From entries by kind to their order in a row."""


def _parsed(text: str, n_out: int) -> list[_Column]:
    """The columns that a text such as 4r-b-2c3 names; widths are added up before anything is made of them."""
    if not text:
        return [_Column("r", 1)] * n_out
    found: list[_Column] = []
    for part in text.split("-"):
        match = re.fullmatch(r"(\d{0,9})(?:([rb])|([co])(\d{1,9}))", part)
        if not match:
            raise UserError(f"columns of a mixed layer are written as in 4r-b-2c3-o5, got {part!r}")
        column = _Column(match[2] or match[3], int(match[4] or 1))
        if match[3] and column.width < 2:
            raise UserError(f"a category or ordinal column needs at least 2 levels, got {part!r}")
        number = int(match[1] or 1)
        if sum(each.width for each in found) + number * column.width > n_out:
            raise UserError(f"the columns {text[:60]} of a mixed layer have more than the {n_out} entries of a row")
        found += [column] * number
    if (width := sum(each.width for each in found)) != n_out:
        raise UserError(f"the columns {text[:60]} of a mixed layer have {width} entries, but rows have {n_out}")
    return found


def _laid_out(columns: list[_Column]) -> _Layout:
    starts = [0, *torch.tensor([column.width for column in columns]).cumsum(0).tolist()]
    of_kind = {
        key: [at for at, column in enumerate(columns) if column == key]
        for key in sorted(set(columns), key=lambda column: ("rbco".index(column.kind), column.width))
    }
    reals, bits = (of_kind.pop(_Column(kind, 1), []) for kind in "rb")
    of_reals, of_bits = torch.arange(len(reals)), torch.arange(len(bits)) + len(reals)
    n_scores, n_cuts, groups = len(reals) + len(bits), 0, []
    for column, members in of_kind.items():
        ordinal, number = column.kind == "o", len(members)
        entries = torch.tensor([starts[at] for at in members])[:, None] + torch.arange(column.width)
        each = 1 if ordinal else column.width
        scores = n_scores + torch.arange(number * each).view(number, each)
        cuts = n_cuts + torch.arange(number * (column.width - 1)).view(number, -1)
        groups.append(_Group(ordinal, entries, scores.squeeze(-1) if ordinal else scores, cuts))
        n_scores, n_cuts = n_scores + number * each, n_cuts + ordinal * cuts.numel()
    first = [torch.tensor([starts[at] for at in members], dtype=torch.int64) for members in (reals, bits)]
    order = torch.cat([*first, *(group.entries.flatten() for group in groups)])
    return _Layout(first[0], of_reals, first[1], of_bits, groups, n_scores, n_cuts, order.argsort())


def _ordinal(scores: Tensor, cuts: Tensor) -> Tensor:
    """log p of each level: (…, columns) and (columns, levels - 1) to (…, columns, levels).

    The first cut is as it is, each further one exp of its parameter above. With a > b,
    log(sigmoid(a) - sigmoid(b)) = log sigmoid(a) + log sigmoid(-b) + log(1 - exp(b - a)), which loses no digits.
    """
    gaps = cuts[:, 1:].clamp(*LOG_SIGMA).exp()
    at = torch.cat([cuts[:, :1], cuts[:, :1] + gaps.cumsum(-1)], -1) - scores[..., None]
    below, above = F.logsigmoid(at), F.logsigmoid(-at)
    between = below[..., 1:] + above[..., :-1] + torch.log(-torch.expm1(-gaps))
    return torch.cat([below[..., :1], between, above[..., -1:]], -1)


def _possible(value: Tensor, missing: Tensor) -> Tensor:
    """Which levels agree with the entries that are observed; `value` is 0 where they are missing."""
    one = value == 1
    return torch.where(one.any(-1, keepdim=True), one, missing)


def _student(shape: tuple[int, ...], df: float, rng: torch.Generator, like: Tensor) -> Tensor:
    """Student's t from two uniform numbers (Bailey 1994): sqrt(df (u^(-2/df) - 1)) cos(2 pi v)."""
    u, v = torch.rand((2, *shape), generator=rng, dtype=like.dtype, device=like.device)
    return torch.sqrt(df * torch.expm1(-2 / df * torch.log1p(-u))) * torch.cos(2 * math.pi * v)
