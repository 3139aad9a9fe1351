"""Base lines in closed form: independent columns, and a multivariate normal of the real ones, by EM where cells miss.

What is learnt has to beat them; the normal is also where learning starts from.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.layers.chain import Chain
from doubly.layers.mixed import LEAST_NOISE, Mixed

RIDGE = 1e-3  # of a standardised column's variance: keeps columns that others determine from a density without bound
MOST_WORK = 2e8  # rows x columns^3 in an iteration
ITERATIONS = 30
WIDEST = 300  # entries, beyond which a normal of all of them takes too long


class Gaussian(NamedTuple):
    """A multivariate normal."""

    mean: Tensor
    covariance: Tensor

    def log_prob(self, rows: Tensor) -> Tensor:
        """log p of the observed entries of each row."""
        found = []
        for block in rows.double().split(max(1, int(1e7 / max(1, rows.shape[1]) ** 2))):
            known = _conditioned(self, block)
            n_observed = (~block.isnan()).sum(-1).double()
            found.append(-(known.distance + known.log_determinant + n_observed * math.log(2 * math.pi)) / 2)
        return torch.cat(found)


class _Conditioned(NamedTuple):
    completed: Tensor
    spread: Tensor
    """Covariances of the missing entries given the observed, summed over the rows."""
    distance: Tensor
    log_determinant: Tensor


def gaussian_by_em(rows: Tensor) -> Gaussian:
    """The likeliest normal given the observed entries of standardised rows (n, D), with a small ridge."""
    n, width = rows.shape
    rows = rows.double()
    most = max(200, int(MOST_WORK / max(1, width) ** 3))
    if n > most:
        rows, n = rows[torch.linspace(0, n - 1, most).long()], most
    ridge = RIDGE * torch.eye(width, dtype=torch.float64)
    found = Gaussian(rows.nanmean(0).nan_to_num(), torch.eye(width, dtype=torch.float64))
    for _ in range(ITERATIONS if rows.isnan().any() else 1):
        parts = [_conditioned(found, block) for block in rows.split(max(1, int(1e7 / max(1, width) ** 2)))]
        completed = torch.cat([part.completed for part in parts])
        mean = completed.mean(0)
        around = completed - mean
        spread = torch.stack([part.spread for part in parts]).sum(0)
        found = Gaussian(mean, (around.T @ around + spread) / n + ridge)
    return found


def _conditioned(gaussian: Gaussian, rows: Tensor) -> _Conditioned:
    """What the observed entries of each row say of the missing ones: E[x_m | x_o] and its covariance."""
    mean, covariance = gaussian
    missing = rows.isnan()
    observed = (~missing).double()
    # the covariance of the observed entries, with ones on the diagonal in the place of the missing
    kernel = covariance * observed[:, :, None] * observed[:, None, :] + torch.diag_embed(1 - observed)
    factor = torch.linalg.cholesky(kernel)
    residual = torch.where(missing, 0.0, rows - mean)
    solved = torch.cholesky_solve(residual[..., None], factor)[..., 0] * observed
    completed = torch.where(missing, mean + solved @ covariance, rows)
    inside = torch.cholesky_inverse(factor) * observed[:, :, None] * observed[:, None, :]
    left = (covariance - covariance @ inside @ covariance) * (1 - observed)[:, :, None] * (1 - observed)[:, None, :]
    log_determinant = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return _Conditioned(completed, left.sum(0), (residual * solved).sum(-1), log_determinant)


class Baselines(NamedTuple):
    """Both base lines of a table for a mixed data layer."""

    alone: Chain
    """Independent columns: a model without latents."""
    theta: Tensor
    gaussian: Gaussian | None
    """Of the real columns, where there are two at least."""
    reals: Tensor
    """Which entries are real."""
    everything: Gaussian | None = None
    """Of all entries, as if levels were numbers: no density of the table, but a place to start from."""

    def log_prob(self, rows: Tensor) -> dict[str, Tensor]:
        """log p of the observed cells of each row: with independent columns, and with a normal of the real ones."""
        layer, params = self.alone.layers[0], self.alone.unflatten(self.theta)[0]
        nothing = self.theta.new_zeros(0)
        found = {"independent columns": layer.log_prob_observed(params, rows, nothing).double()}
        if self.gaussian is not None:
            others = rows.clone()
            others[:, self.reals] = math.nan
            discrete = layer.log_prob_observed(params, others, nothing).double()
            found["normal by EM"] = discrete + self.gaussian.log_prob(rows[:, self.reals])
        return found


def baselines(layout: str, rows: Tensor) -> Baselines:
    """The base lines, fitted to these rows."""
    alone = Chain.build(f"mixed:columns={layout}" if layout else "mixed", data=rows.shape[1])
    layer = alone.layers[0]
    assert isinstance(layer, Mixed)
    theta = alone.init(torch.Generator().manual_seed(0), rows.nanmean(0).nan_to_num())
    reals = torch.tensor([at for at, block in _starts(layer) if not block])
    params = alone.unflatten(theta)[0]
    if len(reals):
        values = rows[:, reals]
        mean = values.nanmean(0).nan_to_num()
        variance = (values - mean).square().nanmean(0).nan_to_num(1.0).clamp(min=1e-4)
        params["b_sigma"].copy_(variance.log() / 2)
    if len(reals) < 2:
        return Baselines(alone, theta, None, reals)
    gaussian = gaussian_by_em(rows[:, reals])
    everything = gaussian_by_em(rows) if len(reals) < rows.shape[1] <= WIDEST else gaussian
    return Baselines(alone, theta, gaussian, reals, everything if len(everything.mean) == rows.shape[1] else None)


def _starts(layer: Mixed) -> list[tuple[int, bool]]:
    at, found = 0, []
    for block in layer.blocks():
        found.append((at, block.discrete))
        at += block.width
    return found


def started_from(base: Baselines, model: Chain, theta: Tensor) -> Tensor:
    """Weights of a model over normal latents that begin as a normal of all entries: its main axes are the latents.

    covariance = V diag(e) V^T: with latents z, the columns of V sqrt(e - noise) are loadings L, and what is left of the
    diagonal is the variance of each real column by itself. Of the other columns, the scores get the slopes that give
    the means of their entries the derivative L, to first order:
    of a bit L / (p (1 - p)), of a level k L_k / p_k, and of an ordinal one by least squares over its cut points.
    """
    layer = model.layers[0]
    if (
        base.everything is None
        or not isinstance(layer, Mixed)
        or len(model.layers) < 2
        or model.layers[1].kind != "real"
    ):
        return theta
    started = theta.clone()
    loadings = _loadings(base.everything, layer.n_in).to(theta)
    layer.start_linear(model.unflatten(started)[0], loadings, base.everything.mean, base.everything.covariance)
    return started


def _loadings(gaussian: Gaussian, axes: int) -> Tensor:
    values, vectors = torch.linalg.eigh(gaussian.covariance)
    noise = values[0] if axes >= len(values) else values[: len(values) - axes].mean()
    axes = min(axes, len(values))
    found: Tensor = vectors[:, -axes:] * (values[-axes:] - noise.clamp(min=LEAST_NOISE)).clamp(min=0).sqrt()
    return found
