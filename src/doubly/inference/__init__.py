"""Hidden variables: draws, weights, and the gradients estimated with them."""

from doubly.inference.draws import Draws, Marginal, log_marginal, normalised, propose
from doubly.inference.estimator import Estimate, Estimator, Memory, Wanted
from doubly.inference.gibbs import Gibbs
from doubly.inference.nais import NAIS
from doubly.inference.objectives import OBJECTIVES, Objective, Wake
from doubly.registry import Registry

ESTIMATORS = Registry("estimator", nais=NAIS, gibbs=Gibbs)

__all__ = [
    "ESTIMATORS",
    "NAIS",
    "OBJECTIVES",
    "Draws",
    "Estimate",
    "Estimator",
    "Gibbs",
    "Marginal",
    "Memory",
    "Objective",
    "Wake",
    "Wanted",
    "log_marginal",
    "normalised",
    "propose",
]
