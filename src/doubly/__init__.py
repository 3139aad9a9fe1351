"""Bayesian deep generative models by doubly stochastic gradient MCMC.

>>> import doubly
>>> sorted(doubly.PRIORS)
['flat', 'laplace', 'normal', 'student-t']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doubly.config import PRESETS, Config
    from doubly.data import DATASETS, Data
    from doubly.drive import fit, resume
    from doubly.drive import open_posterior as load
    from doubly.errors import UserError
    from doubly.estimator import DeepGenerativeModel
    from doubly.inference import ESTIMATORS, OBJECTIVES, Estimate, Estimator, Objective
    from doubly.layers import LAYERS, Layer
    from doubly.model import Chain
    from doubly.posterior import Posterior
    from doubly.priors import PRIORS, Prior
    from doubly.run import Run
    from doubly.samplers import SAMPLERS, Sampler

__version__ = "0.1.0"

# each name and where it lives: nothing is imported before it is used, so that the command line starts at once
_HOMES = {
    "Chain": "model",
    "Config": "config",
    "DATASETS": "data",
    "Data": "data",
    "DeepGenerativeModel": "estimator",
    "ESTIMATORS": "inference",
    "Estimate": "inference",
    "Estimator": "inference",
    "LAYERS": "layers",
    "Layer": "layers",
    "OBJECTIVES": "inference",
    "Objective": "inference",
    "PRESETS": "config",
    "PRIORS": "priors",
    "Posterior": "posterior",
    "Prior": "priors",
    "Run": "run",
    "SAMPLERS": "samplers",
    "Sampler": "samplers",
    "UserError": "errors",
    "fit": "drive",
    "load": "drive:open_posterior",
    "resume": "drive",
}

__all__ = [
    "DATASETS",
    "ESTIMATORS",
    "LAYERS",
    "OBJECTIVES",
    "PRESETS",
    "PRIORS",
    "SAMPLERS",
    "Chain",
    "Config",
    "Data",
    "DeepGenerativeModel",
    "Estimate",
    "Estimator",
    "Layer",
    "Objective",
    "Posterior",
    "Prior",
    "Run",
    "Sampler",
    "UserError",
    "fit",
    "load",
    "resume",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'doubly' has no attribute {name!r}")
    module, _, other = _HOMES[name].partition(":")
    return getattr(import_module(f"doubly.{module}"), other or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
