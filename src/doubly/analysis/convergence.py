"""What traces of chains say of their mixing, in numbers.

The measures are those of Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021): rank-normalised split R-hat, bulk and
tail effective sample size (ESS) and the Monte Carlo standard error. Traces are arrays (chains, samples).
"""

import math
from typing import NamedTuple

import numpy as np
import torch


class Summary(NamedTuple):
    """What the collected part of a trace comes to, over all chains."""

    mean: float
    sd: float
    mcse: float
    """The Monte Carlo standard error of the mean."""
    rhat: float
    ess_bulk: float
    ess_tail: float


def summarise(values: np.ndarray, own_draws: bool = False) -> Summary:
    """Values (chains, samples) of a trace.

    With `own_draws`, each chain had random numbers of its own that stayed the same from epoch to epoch. They shift a
    chain as a whole, which says nothing about mixing, so each chain is compared with itself only: without its mean.
    So it is with rows drawn from the model: of 100 rows the mean is off by a tenth of their spread, more than it moves.
    Validation has such draws too. They matter less, the more valid_draws and rows there are, and are left in: where a
    chain hardly moves, they may add something to its R-hat.
    """
    compared = values - values.mean(1, keepdims=True) + values.mean() if own_draws else values
    sd = float(compared.std(ddof=1))
    return Summary(
        mean=float(values.mean()),
        sd=sd,
        mcse=sd / math.sqrt(_ess(_halves(compared))),
        rhat=rhat(compared),
        ess_bulk=ess_bulk(compared),
        ess_tail=ess_tail(compared),
    )


def rhat(values: np.ndarray) -> float:
    """Rank-normalised split R-hat of (chains, samples): the larger of that of location and that of spread.

    sqrt(((n - 1) W / n + B / n) / W) for the normal scores of the chains' halves, each of length n, where W is the mean
    of their variances and B is n times the variance of their means; for the spread, of distances to the median.
    """
    halves = _halves(values)
    return max(_plain_rhat(_normal_scores(halves)), _plain_rhat(_normal_scores(np.abs(halves - np.median(halves)))))


def ess_bulk(values: np.ndarray) -> float:
    """How many independent samples would tell as much about where the bulk lies."""
    return _ess(_normal_scores(_halves(values)))


def ess_tail(values: np.ndarray) -> float:
    """The same for the quantiles at 5 % and 95 %, whichever is known less well."""
    return min(_ess(_halves(values <= quantile)) for quantile in np.quantile(values, (0.05, 0.95)))


class Rank(NamedTuple):
    """Where the values of a chain lie among those of all chains."""

    mean: float
    """The mean of their ranks, from 0 (lowest) to 1 (highest): about 1/2 if the chains agree."""
    stderr: float
    """Of that mean if the chains agree, by their effective samples."""

    @property
    def apart(self) -> float:
        """By how many standard errors the chain lies apart."""
        return abs(self.mean - 0.5) / self.stderr


def mean_ranks(values: np.ndarray) -> list[Rank]:
    """Of values (chains, samples), where each chain lies among all.

    If the chains agree, ranks are uniform, so the mean over a chain worth n effective samples, of C n in all, has the
    variance (1 - 1 / C) / (12 n). What a chain is worth is estimated from all of them, each about its own mean, and
    taken to be no more than its samples.
    """
    chains, samples = values.shape
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = ((np.cumsum(counts) - counts / 2)[which] / values.size).reshape(values.shape)
    centred = ranks - ranks.mean(1, keepdims=True)
    worth = max(1.0, min(samples, _ess(_halves(centred)) / chains))
    error = math.sqrt((1 - 1 / chains) / (12 * worth))
    return [Rank(float(chain.mean()), error) for chain in ranks]


def chance_rhat(chains: int, samples: int, trials: int = 1000) -> float:
    """The R-hat that independent samples exceed once in a hundred times; ranks make it the same for all densities."""
    rng = np.random.default_rng(0)
    return float(np.quantile([rhat(rng.standard_normal((chains, samples))) for _ in range(trials)], 0.99))


def _halves(values: np.ndarray) -> np.ndarray:
    """Each chain cut in two, so that a chain that drifts differs from itself; a sample in the middle is left out."""
    half = values.shape[1] // 2
    return np.concatenate([values[:, :half], values[:, -half:]]).astype(float)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Each value's rank among all (equal ones share theirs) as the quantile of a normal that belongs to it."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    scores = torch.special.ndtri(torch.from_numpy((ranks - 3 / 8) / (values.size + 1 / 4))).numpy()
    found: np.ndarray = scores[which].reshape(values.shape)
    return found


def _plain_rhat(values: np.ndarray) -> float:
    n = values.shape[1]
    within, between = values.var(1, ddof=1).mean(), n * values.mean(1).var(ddof=1)
    if within == 0:  # chains that stand still agree, or never will
        return math.inf if between > 0 else math.nan
    return math.sqrt((n - 1 + between / within) / n)


def _ess(values: np.ndarray) -> float:
    """Effective sample size of (chains, samples): their number / tau, tau = 1 + 2 sum_t rho_t.

    The sum of the autocorrelations rho is that of Geyer's initial monotone sequence: they are taken in pairs, which
    must be positive and not rise, and the first pair that is not positive ends the sum, but for its even half.
    """
    chains, n = values.shape
    if np.ptp(values) < 1e-15:
        return float(values.size)
    centred = values - values.mean(1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * n)) ** 2  # twice as long, so that the ends do not meet
    covariance = np.fft.irfft(spectrum, 2 * n)[:, :n].mean(0) / n
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + (values.mean(1).var(ddof=1) if chains > 1 else 0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(1)
    last = max(0, (n - 3) // 2)
    end = int(np.argmax(np.append(pairs[:last] <= 0, True)))
    even = rho[2 * end] if pairs[end] >= 0 else max(0.0, rho[2 * end])
    tau = -1 + 2 * np.minimum.accumulate(pairs[:end]).sum() + even
    # few samples may seem better than independent ones; so much better is not believed
    return float(values.size / max(tau, 1 / math.log10(values.size)))
