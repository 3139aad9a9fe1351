"""Settings become objects, checked against each other and against the data."""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple
from doubly.core.types import Binarise, Of, Refit, Split, Start
from doubly.core.errors import UserError
if TYPE_CHECKING:
    from doubly.data import Data
    from doubly.training.method import Method
from doubly.runs.config import Config


class Facts(NamedTuple):
    """What a model has to know of its data."""

    width: int
    kind: str
    shape: tuple[int, ...]
    dynamic: bool = False
    has_missing: bool = False


def build(config: Config, data: "Data | Facts") -> "Method":
    """The objects that the settings name, checked against each other and against the data."""
    from doubly.data import Data, check_binary
    from doubly.latents import ESTIMATORS, NAIS, OBJECTIVES, Estimator, Wake
    from doubly.layers.chain import Chain
    from doubly.samplers.priors import PRIORS
    from doubly.samplers import SAMPLERS, Adam
    from doubly.samplers.schedules import SCHEDULES
    from doubly.training.method import Every, Method

    model = Chain.build(config.model, data=data.width, hidden=config.hidden, start=config.start)
    proposal = Chain.build_proposal(
        config.proposal, data=data.width, hidden=config.hidden, start=config.start, masked=data.has_missing
    )
    if model.layers[0].kind == "binary" and isinstance(data, Data):
        check_binary(data, f"the data layer {config.model.split(',')[0]!r} draws 0 or 1")
    elif model.layers[0].kind == "real" and data.kind == "binary":
        raise UserError(f"the data layer {config.model.split(',')[0]!r} draws real numbers, but the data are 0 or 1")
    for level, (p, q) in enumerate(zip(model.layers[1:], proposal.layers[::-1], strict=True), start=1):
        if p.kind != q.kind:
            raise UserError(
                f"hidden layer {level} is {p.kind} in the model but {q.kind} in the proposal: they must agree"
            )
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    fixed = {field.name for field in dataclasses.fields(Method)} & set(settings)
    objective = OBJECTIVES.make(config.objective)
    estimator = ESTIMATORS.make(config.estimator, draws=config.draws, objective=objective)
    estimator.check(model, proposal)
    if config.objective != "wake" and not estimator.takes_objective:
        raise UserError(
            f"the estimator {config.estimator} fits the proposal to its own draws of p(z|x), the objective wake; "
            f"got objective {config.objective}: leave it out, or take estimator nais"
        )
    # an objective that takes several draws apart, or learns from them as it goes, is no help where nothing moves
    refitter: Estimator = NAIS(max(config.draws, 5), objective if objective.pathwise else Wake())
    if data.has_missing:
        estimator, refitter = estimator.for_missing(model), refitter.for_missing(model)
    return Method(
        **{name: settings[name] for name in fixed if not isinstance(settings[name], str)},
        model=model,
        proposal=proposal,
        prior=PRIORS.make(config.prior),
        sampler=SAMPLERS.make(config.sampler, friction=config.friction),
        estimator=estimator,
        optimiser=Adam(),
        refitter=refitter,
        dynamic=data.dynamic,
        collect_every=Every.parse(config.collect_every),
        schedule=SCHEDULES.make(config.schedule),
        phi_schedule=SCHEDULES.make(config.phi_schedule),
        phi_prior=PRIORS.make(config.phi_prior),
    )
