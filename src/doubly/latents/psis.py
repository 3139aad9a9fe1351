"""How far importance weights can be trusted: the shape of their upper tail, Pareto k̂.

Above a high threshold the weights w = p(x, z) / q(z | x) are, nearly, generalised Pareto: P(w - u > y) is
(1 + k y / sigma)^(-1/k). They have 1/k moments: at k > 1/2 the variance of the mean weight is infinite, and in practice
it can be relied on up to k = 0.7 or so (Vehtari, Simpson, Gelman, Yao & Gabry 2024).
"""

import math

import torch
from torch import Tensor

from doubly.core.errors import UserError

FEWEST = 5  # with fewer draws in the tail there is nothing to fit
PRIOR_DRAWS, PRIOR_SHAPE = 10, 0.5  # k is drawn to 1/2 as if ten draws of the tail had said so


def tail_length(draws: int) -> int:
    """How many of `draws` weights make the tail: min(K / 5, 3 sqrt K), rounded up.

    >>> tail_length(100), tail_length(10_000)
    (20, 300)
    """
    return math.ceil(min(draws / 5, 3 * math.sqrt(draws)))


@torch.no_grad()
def khat(largest: Tensor, draws: int) -> Tensor:
    """The shape k of the tail of each row's weights, from the largest log-weights of `draws`, (tail + 1, rows).

    The smallest of these is the threshold, the others are the tail; more may be given (all of them, say), in any order.
    -inf says that the largest weights are all the same, as they are for an exact proposal: there is no tail to worry
    about. nan says that nothing can be said: fewer than five weights are above the threshold, or they are not numbers,
    or all are zero. Weights of zero, log-weights of -inf, are as good as any.

    >>> log_weight = torch.distributions.Exponential(1 / 0.4).icdf(torch.linspace(0.0005, 0.9995, 1000))
    >>> khat(log_weight[:, None], 1000)  # w is Pareto: P(w > y) = y^(-1 / 0.4)
    tensor([0.41...], dtype=torch.float64)
    """
    tail = tail_length(draws)
    if len(largest) <= tail:
        raise UserError(f"the tail of {draws} weights is {tail} of them and a threshold, got only {len(largest)}")
    log_weight = largest.double().sort(0).values[-tail - 1 :]
    # only the largest weight's own scale matters, and overflow is out of the question below it
    weight = torch.exp(log_weight - log_weight[-1])
    excess = weight[1:] - weight[0]
    # weights may come in few sizes, and those of the threshold's are not above it
    above = (excess > 0).sum(0)
    found = torch.full_like(log_weight[0], math.nan)
    found[log_weight[-1].isfinite() & (above == 0)] = -math.inf
    for n in sorted(set(above.tolist())):
        if n >= FEWEST:
            rows = (above == n) & log_weight[-1].isfinite()
            found[rows] = _shape(excess[-n:, rows])
    return found


def _shape(x: Tensor) -> Tensor:
    """The k of generalised Pareto draws x (n, rows), sorted, by the estimator of Zhang & Stephens (2009).

    With b = -k / sigma, the k that is most likely for a given b is k(b) = mean_i log(1 - b x_i), and its log-likelihood
    is l(b) = n (log(-b / k(b)) - k(b) - 1). The estimate is k at the mean of b under exp(l), on the m points

    b_j = 1 / x_n + (1 - sqrt(m / (j - 1/2))) / (3 x_q),  j = 1…m, with x_q the first quartile,

    which are the quantiles of a prior as wide as the data; then k <- (n k + 10 · 1/2) / (n + 10).
    """
    n = len(x)
    m = 30 + math.isqrt(n)
    j = torch.arange(1, m + 1, dtype=x.dtype, device=x.device)[:, None]
    b = 1 / x[-1] + (1 - torch.sqrt(m / (j - 0.5))) / (3 * x[int(n / 4 + 0.5) - 1])
    # point by point: all at once would be a tensor of m times the size
    k = torch.stack([torch.log1p(-point * x).mean(0) for point in b])
    log_likelihood = n * (torch.log(-b / k) - k - 1)
    log_likelihood[b == 0] = -math.inf  # 0 / 0: exponential draws to the last digit, and the points beside it will do
    k = torch.log1p(-(torch.softmax(log_likelihood, 0) * b).sum(0) * x).mean(0)
    return (n * k + PRIOR_DRAWS * PRIOR_SHAPE) / (n + PRIOR_DRAWS)
