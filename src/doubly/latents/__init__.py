"""Latent variables given data: draws, weights, moves, and what is estimated with them.

psis         how far importance weights can be trusted: Pareto k̂
pair         model and proposal with their weights
memory       what is remembered of a row from one epoch to the next
importance   draws of a proposal, their weights, and what can be read off them
batch        a mini-batch as it is handed to an estimator
refine       a proposal refined for each row by itself
likelihood   log p(x) by any number of draws
sweep        Gibbs sweeps
annealing    annealed importance sampling
objectives   what the proposal ascends
estimator    what an estimator is: both gradients on a mini-batch
nais         importance sampling with the proposal, the paper's
gibbs        persistent Gibbs chains
completions  missing values given the others, by a Markov chain
"""

from doubly.core.registry import Registry
from doubly.latents.annealing import Annealing, Gap, Mean
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.gibbs import Gibbs
from doubly.latents.importance import Draws, Marginal, choose, is_exact, join, normalised, pick, propose, weigh
from doubly.latents.likelihood import RELIABLE, LikelihoodConfig, PartialSums, RowLikelihoods, bound, log_likelihood
from doubly.latents.nais import NAIS
from doubly.latents.objectives import OBJECTIVES, Objective, Wake
from doubly.latents.pair import Pair
from doubly.latents.refine import check_refinable

ESTIMATORS = Registry("estimator", nais=NAIS, gibbs=Gibbs)

__all__ = [
    "ESTIMATORS",
    "NAIS",
    "OBJECTIVES",
    "RELIABLE",
    "Annealing",
    "Batch",
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
    "RowLikelihoods",
    "Wake",
    "Wanted",
    "bound",
    "check_refinable",
    "choose",
    "is_exact",
    "join",
    "log_likelihood",
    "normalised",
    "pick",
    "propose",
    "weigh",
]
