"""Hidden variables: draws, weights, and the gradients estimated with them."""

from doubly.inference.annealing import Annealing, Gap, Mean
from doubly.inference.draws import Draws, Marginal, choose, is_exact, join, normalised, pick, propose, weigh
from doubly.inference.estimator import Estimate, Estimator
from doubly.inference.gibbs import Gibbs
from doubly.inference.hollow import for_holes
from doubly.inference.nais import NAIS
from doubly.inference.objectives import OBJECTIVES, Objective, Wake
from doubly.inference.refine import check_refinable
from doubly.inference.scoring import RELIABLE, Scored, Scoring, Tally, log_marginal, score
from doubly.inference.visit import Memory, Visit, Wanted
from doubly.registry import Registry

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
