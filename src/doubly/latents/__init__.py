"""Latent variables given data: draws, weights, moves, and what is estimated with them.

psis         how far importance weights can be trusted: Pareto k̂
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
missing      estimators for rows with missing values
completions  missing values given the others, by a Markov chain
"""

from doubly.core.registry import Registry
from doubly.latents.annealing import Annealing, Gap, Mean
from doubly.latents.batch import Memory, Visit, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.gibbs import Gibbs
from doubly.latents.importance import Draws, Marginal, choose, is_exact, join, normalised, pick, propose, weigh
from doubly.latents.likelihood import RELIABLE, Scored, Scoring, Tally, log_marginal, score
from doubly.latents.missing import for_holes
from doubly.latents.nais import NAIS
from doubly.latents.objectives import OBJECTIVES, Objective, Wake
from doubly.latents.refine import check_refinable

ESTIMATORS = Registry("estimator", nais=NAIS, gibbs=Gibbs)

__all__ = [
    "ESTIMATORS",
    "NAIS",
    "OBJECTIVES",
    "RELIABLE",
    "Annealing",
    "Draws",
    "Estimate",
    "Estimator",
    "Gap",
    "Gibbs",
    "Marginal",
    "Mean",
    "Memory",
    "Objective",
    "Scored",
    "Scoring",
    "Tally",
    "Visit",
    "Wake",
    "Wanted",
    "check_refinable",
    "choose",
    "for_holes",
    "is_exact",
    "join",
    "log_marginal",
    "normalised",
    "pick",
    "propose",
    "score",
    "weigh",
]
