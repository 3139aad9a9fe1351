"""log p(x) and codes, row by row: what a row is told depends on nothing but the row and what was learnt."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.core.random import generator
from doubly.latents.pair import Pair
from doubly.latents.sweep import is_swept
from doubly.posterior.codes import read
from doubly.posterior.estimates import Estimator, ScoreConfig, larger, trial_stride

TEMPERATURES, CHAINS = 50, 8  # of a row that is annealed: some 30 ms for each of the weights that answer
PAYS = 0.5  # nats by which annealing must be ahead: it takes fifty times as long as draws do
BLOCK = 256  # rows at a time, where they are read together


class Answers(NamedTuple):
    """What the draws for each row say."""

    log_likelihood: np.ndarray
    codes: np.ndarray


class Reader(NamedTuple):
    """The weights that answer, and how they are asked."""

    pairs: Sequence[Pair]
    draws: int
    estimate: Estimator
    seed: int

    def read(self, rows: Tensor, codes: bool) -> Answers:
        """Rows one at a time, each with a generator of its own, made from what the row is.

        A batch would be some three times as fast, but then a row's answer would depend on which rows came with it.
        Of 0/1 tables, codes of rows with few effective draws are found by chains that move, some 40 ms a row.
        """
        annealed, moves = self.estimate == "annealing", codes and is_swept(self.pairs[0].model)
        log_likelihood, found_codes = np.empty(len(rows)), []
        for i, row in enumerate(rows.split(1)):
            rng = generator("cpu", self.seed, "look", row.numpy().tobytes().hex())
            bounds = self._annealed(row, rng) if annealed and (len(self.pairs) > 1 or not codes) else None
            if codes or bounds is None:
                found = read(self.pairs, row, self.draws, rng, moves=moves, log_likelihood=bounds)
                bounds = found.log_likelihood
                found_codes.append(np.concatenate([[], *(layer[0].numpy() for layer in found.codes)]))
            log_likelihood[i] = np.logaddexp.reduce(bounds[:, 0].double().numpy()) - math.log(len(self.pairs))
        return Answers(log_likelihood, np.array(found_codes))

    def glance(self, rows: Tensor) -> np.ndarray:
        """log p(x) of rows read together: quicker than one by one, and not to the last digit the same."""
        rng, parts = generator("cpu", self.seed, "glance"), []
        for block in rows.split(BLOCK):
            annealed = self.estimate == "annealing"
            bounds = self._annealed(block, rng) if annealed else read(self.pairs, block, self.draws, rng).log_likelihood
            parts.append(bounds.double().logsumexp(0) - math.log(len(self.pairs)))
        return torch.cat(parts).numpy()

    def _annealed(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """log p(x) by each of the pairs (pairs, rows)."""
        how = ScoreConfig(temperatures=TEMPERATURES).annealing(self.pairs[0].model, self.pairs[0].proposal)
        how = dataclasses.replace(how, chains=CHAINS)
        found = [how.log_likelihood(pair, rows.float(), rng).log_likelihood.float() for pair in self.pairs]
        return torch.stack(found)

    def choose(self, valid: Tensor) -> Estimator:
        """By what rows are scored, from a few of the validation rows."""
        pair, trial = self.pairs[0], valid[:: trial_stride(len(valid))]
        rng = generator("cpu", self.seed, "trial")
        if len(pair.model.layers) == 1 or not is_swept(pair.model):  # Hamiltonian moves would take a second a row
            return "draws"
        if trial.isnan().any() and not pair.data_layer[0].factorised:
            return "draws"
        return larger(
            lambda: read(self.pairs, trial, self.draws, rng).log_likelihood.logsumexp(0),
            lambda: self._annealed(trial, rng).logsumexp(0),
            PAYS,
        ).estimator
