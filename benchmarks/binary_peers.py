"""Densities of binary tables by simpler ways, for benchmarks/binary_tables.py: each learns, chooses by validation, and
gives the log-likelihood of each test row."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BATCH, STEP, PATIENCE, MOST_EPOCHS = 100, 1e-3, 10, 200
CLASSES = (5, 20, 60)


class Table(NamedTuple):
    """Rows of 0 and 1, as floats."""

    train: Tensor
    valid: Tensor
    test: Tensor


class Scored(NamedTuple):
    """What a method says of the rows."""

    valid: float
    """Mean log-likelihood of the validation rows, by which settings are chosen."""
    test: Tensor
    """Log-likelihood of each test row."""
    told: str = ""


def alone(table: Table, seed: int) -> Scored:
    """Independent columns, by frequency."""
    share = (table.train.sum(0) + 0.5) / (len(table.train) + 1)
    valid, test = (x @ share.log() + (1 - x) @ (1 - share).log() for x in (table.valid, table.test))
    return Scored(float(valid.mean()), test)


def mixture(table: Table, seed: int) -> Scored:
    """A mixture of independent columns by EM, its number of classes by validation."""
    return max((_mixture(table, classes, seed) for classes in CLASSES), key=lambda found: found.valid)


def _mixture(table: Table, classes: int, seed: int, iterations: int = 60) -> Scored:
    rng = torch.Generator().manual_seed(seed)
    x = table.train
    response = torch.softmax(2 * torch.randn(len(x), classes, generator=rng), 1)
    best = Scored(-math.inf, x.new_zeros(0))
    for _ in range(iterations):
        number = response.sum(0)
        share, chance = number / len(x), (response.T @ x + 0.5 * x.mean(0) + 0.05) / (number[:, None] + 0.6)

        def joint(rows: Tensor, share: Tensor = share, chance: Tensor = chance) -> Tensor:
            return share.log() + rows @ chance.log().T + (1 - rows) @ (1 - chance).log().T

        response = torch.softmax(joint(x), 1)
        valid = float(joint(table.valid).logsumexp(1).mean())
        if valid > best.valid:
            best = Scored(valid, joint(table.test).logsumexp(1), f"{classes} classes")
    return best


class MADE:
    """A masked autoencoder for distribution estimation, in the order of the columns, with direct connections.

    Without hidden layers it is a chain of logistic regressions.
    """

    def __init__(self, width: int, layers: int, mean: Tensor, rng: torch.Generator):
        n = len(mean)
        degrees = [torch.arange(n), *(torch.arange(width) % (n - 1) for _ in range(layers))]
        # a unit of degree d has seen the columns 0 to d; the output of a column sees those before it
        self._masks = [(after[:, None] >= before).float() for before, after in itertools.pairwise(degrees)]
        self._last, self._direct = (
            (degrees[0][:, None] > degrees[-1]).float(),
            (degrees[0][:, None] > degrees[0]).float(),
        )
        sizes = [n, *[width] * layers]
        self.weights: list[Tensor] = []
        for before, after in itertools.pairwise(sizes):
            self.weights += [torch.randn(after, before, generator=rng) * math.sqrt(2 / before), torch.zeros(after)]
        self.weights += [torch.zeros(n, n), torch.logit(mean.clamp(1e-3, 1 - 1e-3))]
        if layers:
            self.weights.append(torch.randn(n, width, generator=rng) * 0.5 / math.sqrt(width))
        for each in self.weights:
            each.requires_grad_()

    def log_prob(self, x: Tensor) -> Tensor:
        """Of each row."""
        hidden = x
        for at, mask in enumerate(self._masks):
            hidden = F.relu(F.linear(hidden, self.weights[2 * at] * mask, self.weights[2 * at + 1]))
        direct, bias = self.weights[2 * len(self._masks) : 2 * len(self._masks) + 2]
        logits = F.linear(x, direct * self._direct, bias)
        if self._masks:
            logits = logits + F.linear(hidden, self.weights[-1] * self._last)
        return -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)


def made(table: Table, seed: int, width: int, layers: int) -> Scored:
    """By Adam, stopped by validation: the weights that were best on the validation rows."""
    rng = torch.Generator().manual_seed(seed)
    model = MADE(width, layers, table.train.mean(0), rng)
    optimiser = torch.optim.Adam(model.weights, STEP)
    best, at, epoch = Scored(-math.inf, table.test), 0, 0
    while epoch - at < PATIENCE and epoch < MOST_EPOCHS:
        epoch += 1
        for rows in torch.randperm(len(table.train), generator=rng).split(BATCH):
            optimiser.zero_grad()
            (-model.log_prob(table.train[rows]).mean()).backward()
            optimiser.step()
        with torch.no_grad():
            valid = float(model.log_prob(table.valid).mean())
            if valid > best.valid:
                best, at = Scored(valid, model.log_prob(table.test), f"epoch {epoch}"), epoch
    return best


PEERS: dict[str, Callable[[Table, int], Scored]] = {
    "independent columns": alone,
    "mixture of Bernoullis": mixture,
    "chain of logistic regressions": lambda table, seed: made(table, seed, 0, 0),
    "MADE 100": lambda table, seed: made(table, seed, 100, 1),
    "MADE 500": lambda table, seed: made(table, seed, 500, 1),
    "MADE 300-300": lambda table, seed: made(table, seed, 300, 2),
}
