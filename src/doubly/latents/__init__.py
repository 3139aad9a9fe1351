"""Latent variables given data: draws, weights, moves, and what is estimated with them.

psis         how far importance weights can be trusted: Pareto k̂
pair         model and proposal with their weights
memory       what is remembered of a row from one epoch to the next
importance   draws of a proposal, their weights, and what can be read off them
batch        a mini-batch as it is handed to an estimator
refine       a proposal refined for each row by itself
likelihood   log p(x) by any number of draws
sweep        Gibbs sweeps
moves        local moves that leave p(z | x) as it is
paths        from the prior or the proposal to the posterior
annealing    annealed importance sampling
short_chain  one chain around a state, and no temperatures
objectives   what the proposal ascends
estimator    what an estimator is: both gradients on a mini-batch
phases       wake and sleep: from what the proposal learns
persistent   remembered states, moved, in competition with fresh draws
gibbs        the same without fresh draws
nais         fresh draws alone, the paper's
expectation  E[z | x], and how much of a unit the row explains
completions  missing values given the others, by a Markov chain
"""

from doubly.core.registry import Registry
from doubly.latents.annealing import Annealing, Bounds, Gap, Mean
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.expectation import ACTIVE, expected_latents, explained
from doubly.latents.gibbs import Gibbs
from doubly.latents.importance import Draws, Marginal, choose, is_exact, join, normalised, pick, propose, weigh
from doubly.latents.likelihood import (
    HEAVY_ROWS,
    RELIABLE,
    LikelihoodConfig,
    PartialSums,
    RowLikelihoods,
    bound,
    log_likelihood,
)
from doubly.latents.moves import MOVES
from doubly.latents.nais import NAIS
from doubly.latents.objectives import OBJECTIVES, Objective, Wake
from doubly.latents.pair import Pair
from doubly.latents.persistent import Persistent
from doubly.latents.refine import check_refinable
from doubly.latents.short_chain import ShortChain

ESTIMATORS = Registry("estimator", nais=NAIS, persistent=Persistent, gibbs=Gibbs)

__all__ = [
    "ACTIVE",
    "ESTIMATORS",
    "HEAVY_ROWS",
    "MOVES",
    "NAIS",
    "OBJECTIVES",
    "RELIABLE",
    "Annealing",
    "Batch",
    "Bounds",
    "Draws",
    "Estimate",
    "Estimator",
    "Gap",
    "Gibbs",
    "LikelihoodConfig",
    "Marginal",
    "Mean",
    "Memory",
    "Objective",
    "Pair",
    "PartialSums",
    "Persistent",
    "RowLikelihoods",
    "ShortChain",
    "Wake",
    "Wanted",
    "bound",
    "check_refinable",
    "choose",
    "expected_latents",
    "explained",
    "is_exact",
    "join",
    "log_likelihood",
    "normalised",
    "pick",
    "propose",
    "weigh",
]
