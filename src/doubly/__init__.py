"""Bayesian deep generative models by doubly stochastic gradient MCMC.

>>> import doubly
>>> sorted(doubly.PRIORS)
['flat', 'laplace', 'learnt-laplace', 'learnt-normal', 'learnt-student-t', 'normal', 'student-t']
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doubly.analysis.hub import pull, push
    from doubly.analysis.pool import Pooled, pool
    from doubly.core.errors import UserError
    from doubly.data import DATASETS, Data
    from doubly.latents import ESTIMATORS, OBJECTIVES, Batch, Estimate, Estimator, Objective, Pair
    from doubly.latents.objectives import Ascent, Round
    from doubly.layers import LAYERS, Drawn, Layer, LayerVJP, LogOdds, Params
    from doubly.layers.chain import Chain
    from doubly.posterior.store import Posterior
    from doubly.runs.config import Config
    from doubly.runs.fit import fit, load, resume
    from doubly.runs.folder import Run
    from doubly.runs.presets import PRESETS
    from doubly.samplers import SAMPLERS, Sampler
    from doubly.samplers.priors import PRIORS, Prior
    from doubly.samplers.schedules import SCHEDULES, Schedule
    from doubly.sklearn import DeepGenerativeModel, DeepImputer

__version__ = "0.2.0"

# each name and where it lives: nothing is imported before it is used, so that the command line starts at once
_HOMES = {
    "Ascent": "latents.objectives",
    "Batch": "latents",
    "Chain": "layers",
    "Config": "runs.config",
    "DATASETS": "data",
    "Data": "data",
    "DeepGenerativeModel": "sklearn",
    "DeepImputer": "sklearn",
    "Drawn": "layers",
    "ESTIMATORS": "latents",
    "Estimate": "latents",
    "Estimator": "latents",
    "LAYERS": "layers",
    "Layer": "layers",
    "LayerVJP": "layers",
    "LogOdds": "layers",
    "OBJECTIVES": "latents",
    "Objective": "latents",
    "PRESETS": "runs.presets",
    "PRIORS": "samplers.priors",
    "Pair": "latents",
    "Params": "layers",
    "Pooled": "analysis.pool",
    "Posterior": "posterior.store",
    "Prior": "samplers.priors",
    "Round": "latents.objectives",
    "Run": "runs.folder",
    "SAMPLERS": "samplers",
    "SCHEDULES": "samplers.schedules",
    "Sampler": "samplers",
    "Schedule": "samplers.schedules",
    "UserError": "core.errors",
    "fit": "runs.fit",
    "load": "runs.fit",
    "pool": "analysis.pool",
    "pull": "analysis.hub",
    "push": "analysis.hub",
    "resume": "runs.fit",
}

__all__ = [
    "DATASETS",
    "ESTIMATORS",
    "LAYERS",
    "OBJECTIVES",
    "PRESETS",
    "PRIORS",
    "SAMPLERS",
    "SCHEDULES",
    "Ascent",
    "Batch",
    "Chain",
    "Config",
    "Data",
    "DeepGenerativeModel",
    "DeepImputer",
    "Drawn",
    "Estimate",
    "Estimator",
    "Layer",
    "LayerVJP",
    "LogOdds",
    "Objective",
    "Pair",
    "Params",
    "Pooled",
    "Posterior",
    "Prior",
    "Round",
    "Run",
    "Sampler",
    "Schedule",
    "UserError",
    "fit",
    "load",
    "pool",
    "pull",
    "push",
    "resume",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'doubly' has no attribute {name!r}")
    return getattr(import_module(f"doubly.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
