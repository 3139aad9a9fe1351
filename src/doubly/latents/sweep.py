"""Gibbs sweeps over the latent layers of a chain: every unit is drawn in turn, given all others.

They serve layers with linear log-odds (sbn, darn), and leave f(z) = prod_l p_l^a_l prod_l q_l^b_l as it is, where p_l
are the factors p(z_l | z_{l+1}) of the model (l = 0 is the data) and q_l those of a proposal, q(z_l | z_{l-1}). With
all a_l = 1 and no proposal, that is the posterior; between the powers lie the paths of annealing.

Values of x may be missing (NaN) where the data layer is factorised: p(x_observed | z1) takes the place of p(x | z1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import gibbs
from doubly.layers import Chain, LogOdds, Values
from doubly.layers.chain import nothing

NEVER = -1e4  # log-odds of a missing value in the place of its own: with x = 0, its factor is 1 whatever z is


class Powers(NamedTuple):
    """To which power each factor is raised."""

    data: float = 1.0
    """p(x | z1)."""
    prior: float = 1.0
    """p(z1 | z2) … p(zL)."""
    proposal: float = 0.0
    """q(z1 | x) … q(zL | zL-1)."""


class Odds(NamedTuple):
    """The linear log-odds of a model, data layer first, and of a proposal, z1 first."""

    model: list[LogOdds]
    proposal: Sequence[LogOdds] = ()
    of_data: Tensor | None = None
    """What complete rows x add to the field of z1, where it was computed before: x times the weights of x given z1."""


def sweep(
    chain: Chain, theta: Tensor, x: Tensor, latents: Values, rng: torch.Generator, chosen: Values | None = None
) -> Values:
    """One sweep that leaves p(z | x) as it is; see `sweep_path`."""
    return sweep_path(Odds(log_odds(chain, theta)), x, latents, rng, Powers(), chosen)


@torch.no_grad()
def sweep_path(
    odds: Odds,
    x: Tensor,
    latents: Values,
    rng: torch.Generator,
    powers: Powers,
    chosen: Values | None = None,
    seen: Tensor | None = None,
    logits: Tensor | None = None,
) -> Values:
    """One sweep over all latent layers (…, H), from the bottom to the top; x broadcasts with them.

    `chosen`, for each layer (…, H), says which units are drawn; by default all are. The choice must not depend on z.
    `seen` is what the proposal is given in the place of x. `logits` are those of complete rows x given the present z1,
    where the caller has them.
    """
    values = _all(odds, x, latents)
    for level in range(1, len(odds.model)):
        units = None if chosen is None else chosen[level - 1]
        values[level] = _law(odds, values, level, powers, seen, logits).sweep(rng, units)
    return tuple(values[1:-1])


@torch.no_grad()
def sweep_back(odds: Odds, x: Tensor, latents: Values, rng: torch.Generator, logits: Tensor | None = None) -> Values:
    """A sweep that leaves p(z | x) as it is, in the opposite order: from the top to the bottom, the last unit first.

    It is the reverse T~ of `sweep`, T: p(z | x) T(z' <- z) = p(z' | x) T~(z <- z'). For that holds of the draw of each
    single unit, which is its own reverse.
    """
    values = _all(odds, x, latents)
    for level in reversed(range(1, len(odds.model))):
        values[level] = _law(odds, values, level, Powers(), None, logits).reversed().sweep(rng).flip(-1)
    return tuple(values[1:-1])


@torch.no_grad()
def log_transition(odds: Odds, x: Tensor, latents: Values, to: Values, logits: Tensor | None = None) -> Tensor:
    """log T(to <- latents): how likely it is that `sweep` makes one of the other."""
    values, total = _all(odds, x, latents), x.new_zeros(())
    for level, value in enumerate(to, 1):
        total = total + _law(odds, values, level, Powers(), None, logits).log_transition(value)
        values[level] = value
    return total


def _all(odds: Odds, x: Tensor, latents: Values) -> list[Tensor]:
    """The values of all layers, data first, and the nothing that the top layer is given."""
    return [x, *latents, nothing(odds.model[0].bias)]


def _law(
    odds: Odds, values: list[Tensor], level: int, powers: Powers, seen: Tensor | None, logits: Tensor | None
) -> "_Law":
    """The law of a layer's units given all other values, and each other."""
    above, under = values[level + 1], values[level - 1]
    own = [_Factor(odds.model[level], above, powers.prior)]
    fed = [_Factor(odds.model[level - 1], under, powers.prior)]
    if level == 1:
        fed = [_Factor(odds.model[0], under, powers.data, logits, odds.of_data)]
    if powers.proposal:
        given = seen if level == 1 and seen is not None else under
        own.append(_Factor(odds.proposal[level - 1], given, powers.proposal))
        if level < len(odds.proposal):
            fed.append(_Factor(odds.proposal[level], above, powers.proposal))
    return _of_factors(values[level], own, fed)


class _Factor(NamedTuple):
    """A layer's density raised to a power, as a function of the units that are swept."""

    odds: LogOdds
    other: Tensor
    """What the layer is given, if the units are its values; its values, if the units are what it is given."""
    power: float
    logits: Tensor | None = None
    """Those of a layer that is given the units, and what its values add to their field, where these are known."""
    added: Tensor | None = None


class _Law(NamedTuple):
    """Units and their law as `kernels.gibbs` takes it."""

    value: Tensor
    field: Tensor
    logits: Tensor
    W: Tensor
    V: Tensor | None
    blocks: gibbs.Blocks

    def sweep(self, rng: torch.Generator, chosen: Tensor | None = None) -> Tensor:
        return gibbs.sweep(*self[:-1], rng, self.blocks, chosen).value

    def log_transition(self, to: Tensor) -> Tensor:
        return gibbs.log_transition(*self[:-1], to, self.blocks)

    def reversed(self) -> "_Law":
        """The same with the last unit first."""
        V = None if self.V is None else self.V.flip(0, 1)
        return self._replace(value=self.value.flip(-1), field=self.field.flip(-1), W=self.W.flip(0), V=V)


def _of_factors(value: Tensor, own: list[_Factor], fed: list[_Factor]) -> _Law:
    """The law of units that are the values of the layers `own` and are given to the layers `fed`.

    log f = sum_k z_k f_k + 1/2 z V z - sum_blocks power sum_i softplus(logits_i(z)) + constant (`kernels.gibbs`)
    """
    field, V = value.new_zeros(()), None
    blocks: list[tuple[Tensor, Tensor, float]] = []  # logits, how the units enter them, power
    for odds, given, power, *_ in own:
        logits = F.linear(given, odds.given, odds.bias)
        field = field + power * logits
        if odds.before is not None:  # the units feed each other as they feed the layer below
            square = power * (odds.before + odds.before.T)
            V = square if V is None else V + square
            blocks.append((logits + F.linear(value, odds.before), odds.before.T, power))
    for i, factor in enumerate(fed):
        logits, added = _fed(value, factor)
        field = field + factor.power * added
        blocks.insert(i, (logits, factor.odds.given.T, factor.power))
    if V is not None:
        field = field + F.linear(value, V)
    shape = value.shape[:-1]
    logits = torch.cat([part.expand(*shape, -1) for part, _, _ in blocks], -1) if len(blocks) > 1 else blocks[0][0]
    W = torch.cat([into for _, into, _ in blocks], -1) if len(blocks) > 1 else blocks[0][1]
    counts = tuple((into.shape[1], power) for _, into, power in blocks)
    return _Law(value, field, logits, W, V, counts)


def _fed(value: Tensor, factor: _Factor) -> tuple[Tensor, Tensor]:
    """The logits of a layer that is given the units, and what its values add to their field."""
    odds, child, _, logits, added = factor
    if logits is None:
        logits = F.linear(value, odds.given, odds.bias)
        if odds.before is not None:
            logits = logits + F.linear(child, odds.before)
    if added is None:
        missing = child.isnan()
        if not missing.is_cpu or missing.any():  # a device is not asked: that would make the step wait
            child, logits = child.masked_fill(missing, 0), logits.masked_fill(missing, NEVER)
        added = F.linear(child, odds.given.T)
    return logits, added


def log_odds(chain: Chain, theta: Tensor) -> list[LogOdds]:
    """The linear log-odds of every layer of a chain, in its order; an error where a layer has none."""
    found = []
    for layer, params in zip(chain.layers, chain.unflatten(theta), strict=True):
        odds = layer.linear_log_odds(params)
        if odds is None:
            raise UserError(
                f"Gibbs sampling needs sbn or darn layers, got {type(layer).__name__}: change the model, or take "
                "estimator persistent or nais"
            )
        found.append(odds)
    return found


def is_swept(chain: Chain) -> bool:
    """Whether Gibbs sweeps serve every layer: binary, with linear log-odds."""
    return all(layer.is_linear for layer in chain.layers)
