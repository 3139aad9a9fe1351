"""What the tests compare with: all values of small layers, their laws, and weights that make every term matter."""

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from doubly import LAYERS, Chain
from doubly.analysis.laws.layers import bits, chi_square, random_params
from doubly.latents import Pair

D = 4  # width of the values: all 16 of them can be enumerated
BINARY = [name for name in LAYERS if LAYERS[name].kind == "binary"]


def wanted(grad: Tensor | None) -> Tensor:
    """A gradient that was asked for."""
    assert grad is not None
    return grad


def assert_same_law(drawn: Tensor, log_prob: Tensor) -> None:
    """Chi-square, at significance 1e-4, of the rows of `drawn` against the law exp(log_prob) over bits(n)."""
    n = drawn.shape[-1]
    numbers = drawn.double() @ 2.0 ** torch.arange(n - 1, -1, -1, dtype=torch.float64)
    observed = torch.bincount(numbers.long().flatten(), minlength=2**n).numpy()
    expected = log_prob.exp().numpy() * observed.sum()
    np.testing.assert_allclose(expected.sum(), observed.sum(), rtol=1e-8)
    assert chi_square(observed, expected) > 1e-4


# Latents of complete rows

X = bits(4)[[3, 10, 13]]  # three different rows


def random_pair(
    names: str, proposal: str, hidden: tuple[int, ...], dtype: torch.dtype = torch.float32, data: int = 4
) -> Pair:
    """Weights of standard deviation 1 in the model, and 1/2 in the proposal, which is wrong but of use."""
    model = Chain.build(names, data=data, hidden=hidden)
    chain = Chain.build_proposal(proposal, data=data, hidden=hidden)
    theta = torch.randn(model.size, generator=torch.Generator().manual_seed(32)).to(dtype)
    phi = torch.randn(chain.size, generator=torch.Generator().manual_seed(33)).to(dtype) / 2
    return Pair(model, theta, chain, phi)


def in_double(pair: Pair) -> Pair:
    """The same in double precision."""
    return pair._replace(theta=pair.theta.double(), phi=pair.phi.double())


def every_z(model: Chain) -> tuple[Tensor, ...]:
    """All values of binary latents, (2^H, widths), in the order of bits()."""
    widths = [layer.n_out for layer in model.layers[1:]]
    return bits(sum(widths)).split(widths, 1)


def log_posterior(pair: Pair, x: Tensor) -> Tensor:
    """log p(z | x) of a row, for every z, in double precision."""
    log_p = pair.model.log_prob(pair.theta.double(), (x.double(), *every_z(pair.model)))
    return log_p - log_p.logsumexp(0)


def posterior_draws(pair: Pair, x: Tensor, n: int, rng: torch.Generator) -> tuple[Tensor, ...]:
    """n exact draws of z given each of the rows x, (n, rows, H), in the model's precision."""
    law = torch.stack([log_posterior(pair, row).exp() for row in x])
    numbers = torch.multinomial(law, n, replacement=True, generator=rng).T
    return tuple(z[numbers].to(pair.theta.dtype) for z in every_z(pair.model))


# Rows with missing values

ROW = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
MISSING = torch.tensor([False, True, False, True])
MISSING_MODELS = {
    "sbn": (3,),
    "darn": (3,),
    "nade": (3,),
    "mlp:widths=5": (3,),
    "darn:order=3": (3,),
    "nade:order=reversed": (),
}


class MissingCase:
    """A model of four bits, two of them missing, all values of which are enumerated; a proposal that knows nothing."""

    def __init__(self, name: str, masked: bool = False):
        hidden = MISSING_MODELS[name]
        types = [name, *(["sbn"] * len(hidden))]
        self.model = Chain.build(types, data=4, hidden=hidden)
        self.theta = torch.cat([
            value.flatten() for i, layer in enumerate(self.model.layers) for value in random_params(layer, i).values()
        ])  # fmt: skip
        self.proposal = Chain.build_proposal("sbn", data=4, hidden=hidden, masked=masked)
        self.phi = 0.3 * torch.randn(
            self.proposal.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        self.z = bits(3) if hidden else torch.zeros(1, 0, dtype=torch.float64)

    @property
    def pair(self) -> Pair:
        return Pair(self.model, self.theta, self.proposal, self.phi)

    def log_joint(self) -> Tensor:
        """log p(x, z) for all 16 x and all z."""
        values = (bits(4)[:, None], self.z.expand(16, *self.z.shape)) if self.model.layers[1:] else (bits(4)[:, None],)
        return self.model.log_prob(self.theta, values).view(16, -1)

    def fits(self) -> Tensor:
        """Which of the 16 x have the observed entries."""
        return (bits(4) == ROW)[:, ~MISSING].all(1)

    def target(self) -> Tensor:
        """p(x_missing | x_observed), over the four values that there are."""
        return self.log_joint().logsumexp(1)[self.fits()].softmax(0)


def numbers(rows: Tensor) -> np.ndarray:
    """The missing entries of the rows as a number from 0 to 3."""
    two = rows[..., MISSING].reshape(-1, 2)
    return (2 * two[:, 0] + two[:, 1]).long().numpy()


def assert_law(found: np.ndarray, expected: Tensor) -> None:
    """Chi-square at significance 1e-4."""
    counts = np.bincount(found, minlength=len(expected))
    assert stats.chisquare(counts, expected.numpy() * counts.sum()).pvalue > 1e-4
