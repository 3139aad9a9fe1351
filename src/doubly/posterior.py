"""What a run has learnt: the posterior mean of the weights, draws of them, and the questions they answer."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from doubly.errors import UserError
from doubly.evaluate import ensemble, refit, score_rows
from doubly.inference import Marginal, normalised, propose
from doubly.model import Chain
from doubly.train import Method, generator

Of = Literal["mean", "last", "ensemble"]


@dataclass
class Posterior:
    """Weights sampled from their posterior, ready to score rows, draw new ones and give hidden codes.

    `of` chooses the weights: "mean" (the paper's estimator), "last" (one draw) or "ensemble" (all the draws kept:
    the Bayesian predictive, with the weights' uncertainty in it).
    """

    method: Method
    phi: Tensor
    last_theta: Tensor
    mean_theta: Tensor | None
    kept: list[Tensor]
    train: Callable[[], Tensor]
    """The training rows, to which proposals are fitted."""
    recall: Callable[[str], Tensor | None] = lambda name: None
    """A proposal fitted earlier, where one is stored under that name."""
    remember: Callable[[str, Tensor], None] = lambda name, phi: None
    epoch: int = 0
    """How long the chain had run."""
    collected: int = 0
    """How many samples the mean is of."""
    refit_passes: int = 100
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    _fitted: dict[str, Tensor] = field(default_factory=dict)

    @property
    def model(self) -> Chain:
        """The generative model's architecture; `model.unflatten(theta)` names the weights."""
        return self.method.model

    def mean(self) -> Tensor:
        """The posterior mean of the weights."""
        if self.mean_theta is None:
            raise UserError("this run has collected no samples yet: resume it, or ask for the last draw (--of last)")
        return self.mean_theta

    def last(self) -> Tensor:
        """The weights where the chain stands."""
        return self.last_theta

    def draws(self) -> list[Tensor]:
        """The samples of the weights that were kept, evenly spaced over the collection."""
        if not self.kept:
            raise UserError(
                "this run has kept no samples of the weights: resume it, or ask for the last draw (--of last)"
            )
        return self.kept

    def log_likelihood(self, x: np.ndarray, draws: int = 1000, of: Of = "mean", seed: int = 0) -> np.ndarray:
        """log p(x), one value for each row."""
        return self.score(x, draws, of, seed).log_likelihood.cpu().numpy()

    def score(self, x: np.ndarray, draws: int = 1000, of: Of = "mean", seed: int = 0) -> Marginal:
        """log p(x) of each row with the effective number of draws behind it."""
        _check_draws(draws)
        rows = self._rows(x)
        members = list(self._members(of))
        scores = []
        for i, (theta, phi) in enumerate(members):
            scores.append(score_rows(self.method, theta, phi, rows, draws, seed))
            self.progress("scoring", i + 1, len(members))
        return ensemble(scores)

    def sample(self, n: int, of: Of = "mean", seed: int = 0) -> np.ndarray:
        """n new rows; from an ensemble, each row with weights drawn anew."""
        if n < 1:
            raise UserError(f"the number of rows to sample must be at least 1, got {n}")
        rng = generator(self.phi.device, seed, "sample")
        thetas = self._thetas(of)
        which = torch.randint(len(thetas), (n,), generator=rng, device=rng.device)
        rows = torch.empty(n, self.model.layers[0].n_out, device=rng.device)
        for m, theta in enumerate(thetas):
            if count := int((which == m).sum()):
                rows[which == m] = self.model.sample(theta, count, rng)[0]
        return self._out(rows)

    def encode(self, x: np.ndarray, draws: int = 100, of: Of = "mean", seed: int = 0) -> list[np.ndarray]:
        """E[z | x] for each hidden layer, from the data upward, by importance sampling."""
        _check_draws(draws)
        rng = generator(self.phi.device, seed, "encode")
        members = list(self._members(of))
        blocks = []
        with torch.no_grad():
            for rows in self._rows(x).split(256):
                codes = []
                for theta, phi in members:
                    drawn = propose(self.model, theta, self.method.proposal, phi, rows.float(), draws, rng)
                    weight = normalised(drawn.log_weight)[..., None]
                    codes.append([(weight * z).sum(0) for z in drawn.hidden])
                blocks.append([torch.stack(layer).mean(0) for layer in zip(*codes, strict=True)])
        return [torch.cat(layer).cpu().numpy() for layer in zip(*blocks, strict=True)]

    def _thetas(self, of: Of) -> list[Tensor]:
        choices: dict[str, Callable[[], list[Tensor]]] = {
            "mean": lambda: [self.mean()],
            "last": lambda: [self.last()],
            "ensemble": self.draws,
        }
        if of not in choices:
            raise UserError(f"of must be one of {', '.join(choices)}, got {of!r}")
        return choices[of]()

    def _members(self, of: Of) -> Iterator[tuple[Tensor, Tensor]]:
        """The weights asked for, each with a proposal fitted to them."""
        for theta in self._thetas(of):
            yield theta, self._proposal(theta)

    def _proposal(self, theta: Tensor) -> Tensor:
        name = _name(theta, self.phi, self.refit_passes)
        if name not in self._fitted:
            phi = self.recall(name)
            if phi is None:
                phi = refit(
                    self.method,
                    theta,
                    self.phi,
                    self.train(),
                    self.refit_passes,
                    lambda done, total: self.progress("fitting the proposal", done, total),
                )
                self.remember(name, phi)
            self._fitted[name] = phi
        return self._fitted[name]

    def _rows(self, x: np.ndarray) -> Tensor:
        """Rows checked against the model's data layer."""
        layer = self.model.layers[0]
        rows = np.asarray(x)
        if rows.ndim != 2 or rows.shape[1] != layer.n_out:
            raise UserError(f"the model's rows have {layer.n_out} columns, got an array of shape {rows.shape}")
        if len(rows) == 0:
            raise UserError("there are no rows to score")
        if rows.dtype.kind not in "biuf":
            raise UserError(f"rows must be numbers, got {rows.dtype}")
        bad = ~np.isfinite(rows) if layer.kind == "real" else (rows != 0) & (rows != 1)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            expected = "0 or 1" if layer.kind == "binary" else "a finite number"
            raise UserError(f"row {row}, column {column} is {rows[row, column]}, but the model expects {expected}")
        return torch.as_tensor(rows.astype(np.uint8 if layer.kind == "binary" else np.float32)).to(self.phi.device)

    def _out(self, rows: Tensor) -> np.ndarray:
        values = rows.cpu().numpy()
        return values.astype(np.uint8) if self.model.layers[0].kind == "binary" else values


def _check_draws(draws: int) -> None:
    if draws < 1:
        raise UserError(f"draws must be at least 1, got {draws}")


def _name(theta: Tensor, phi: Tensor, passes: int) -> str:
    """A fitted proposal goes by all that it depends on, so that what is stored can never be out of date."""
    digest = hashlib.sha256(theta.cpu().numpy().tobytes() + phi.cpu().numpy().tobytes())
    return f"{digest.hexdigest()[:16]}-{passes}"
