"""Settings become objects, checked against each other and against the data."""

from typing import NamedTuple

from doubly.core.errors import UserError
from doubly.data import Data, check_binary
from doubly.latents import ESTIMATORS, NAIS, OBJECTIVES, Estimator, Wake
from doubly.layers.chain import Chain
from doubly.runs.config import Config
from doubly.samplers import SAMPLERS, Adam
from doubly.samplers.priors import PRIORS
from doubly.samplers.schedules import SCHEDULES
from doubly.training.method import Every, Method


class Facts(NamedTuple):
    """What a model has to know of its data."""

    width: int
    kind: str
    shape: tuple[int, ...]
    dynamic: bool = False
    has_missing: bool = False


def build(config: Config, data: Data | Facts) -> Method:
    """The objects that the settings name, checked against each other and against the data."""
    model = Chain.build(config.model, data=data.width, hidden=config.hidden, start=config.start)
    proposal = Chain.build_proposal(
        config.proposal, data=data.width, hidden=config.hidden, start=config.start, masked=data.has_missing
    )
    _check_data_layer(config, model, data)
    _check_latent_layers(model, proposal)
    estimator, refitter = _estimators(config, model, proposal)
    if data.has_missing:
        estimator, refitter = estimator.for_missing(model), refitter.for_missing(model)
    return Method(
        **config.plain(),
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


def _check_data_layer(config: Config, model: Chain, data: Data | Facts) -> None:
    name, kind = config.model.split(",")[0], model.layers[0].kind
    if kind == "binary" and isinstance(data, Data):
        check_binary(data, f"the data layer {name!r} draws 0 or 1")
    elif kind == "real" and data.kind == "binary":
        raise UserError(f"the data layer {name!r} draws real numbers, but the data are 0 or 1")


def _check_latent_layers(model: Chain, proposal: Chain) -> None:
    for level, (p, q) in enumerate(zip(model.layers[1:], proposal.layers[::-1], strict=True), start=1):
        if p.kind != q.kind:
            raise UserError(
                f"latent layer {level} is {p.kind} in the model but {q.kind} in the proposal: they must agree"
            )


def _estimators(config: Config, model: Chain, proposal: Chain) -> tuple[Estimator, Estimator]:
    """The estimator of the gradients, and the one that fits a copy of the proposal to fixed weights."""
    objective = OBJECTIVES.make(config.objective)
    estimator = ESTIMATORS.make(config.estimator, draws=config.draws, objective=objective, moves=config.moves)
    estimator.check(model, proposal)
    if config.objective != "wake" and not estimator.takes_objective:
        raise UserError(
            f"the estimator {config.estimator} fits the proposal to its own draws of p(z|x), the objective wake; "
            f"got objective {config.objective}: leave it out, or take estimator nais"
        )
    if config.moves != "auto" and not estimator.takes_moves:
        raise UserError(
            f"the estimator {config.estimator} has no moves to choose, got moves {config.moves}: leave them out, or "
            "take estimator persistent"
        )
    # objectives by score functions or with a learnt baseline gain nothing for fixed weights: wake takes their place
    return estimator, NAIS(max(config.draws, 5), objective if objective.pathwise else Wake())
