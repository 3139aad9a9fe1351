"""Settings become objects, checked against each other and against the data."""

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.core.registry import split
from doubly.core.rows import StoredRows
from doubly.data import Data, check_binary
from doubly.data.formats import check_room
from doubly.latents import ESTIMATORS, NAIS, OBJECTIVES, Estimator, Wake
from doubly.latents.sweep import is_swept
from doubly.layers.chain import Chain
from doubly.runs.config import Config
from doubly.samplers import SAMPLERS, Adam, Sampler
from doubly.samplers.priors import PRIORS, Prior
from doubly.samplers.schedules import SCHEDULES
from doubly.training.method import Every, Method
from doubly.training.shards import check_shards

AUTO = "auto"
PATIENCE_STEPS, LEAST_PATIENCE = 2_000, 10  # without a rise, and at least so many epochs
SAMPLE_STEPS = 100  # between samples of the weights
MOST_STEPS, LEAST_EPOCHS = 40_000, 100  # in all, and at least so many epochs
HOTTEST = 3  # of one weight, p(theta | s) p(s) falls as s^-3: to the power 1 / 3 it could not be normalised
# bytes: weights, momentum, thermostat, gradient, and the successors of two of them; two means in double precision
WEIGHT = 6 * 4 + 2 * 8
PHI_WEIGHT = 7 * 4  # weights, two moments, their successors, a gradient
CELL = 2 * 4  # a value, and its log-odds or residual


class Facts(NamedTuple):
    """What a model has to know of its data."""

    width: int
    kind: str
    shape: tuple[int, ...]
    dynamic: bool = False
    has_missing: bool = False


def build(config: Config, data: Data | Facts) -> Method:
    """The objects that the settings name, checked against each other and against the data.

    What the settings leave open is planned by the number of rows; where only facts are known, for a single mini-batch.
    """
    config = with_plan(config, len(data.all_train) if isinstance(data, Data) else config.batch)
    model = Chain.build(config.model, data=data.width, hidden=config.hidden, start=config.start)
    proposal = Chain.build_proposal(
        config.proposal, data=data.width, hidden=config.hidden, start=config.start, masked=data.has_missing
    )
    if isinstance(data, Data):
        check_shards(config.shards, len(data.all_train), config.batch)
        check_size(config, model, proposal, len(data.all_train))
    _check_data_layer(config, model, data)
    _check_latent_layers(model, proposal)
    estimator, refitter = _estimators(config, model, proposal)
    sampler = SAMPLERS.make(config.sampler, friction=config.friction)
    _check_sampler(config, sampler)
    if data.has_missing:
        estimator, refitter = estimator.for_missing(model), refitter.for_missing(model)
    prior, phi_prior = PRIORS.make(config.prior), PRIORS.make(config.phi_prior)
    _check_learnt(config, prior, phi_prior, sampler)
    return Method(
        **config.plain(),
        model=model,
        proposal=proposal,
        prior=prior,
        sampler=sampler,
        estimator=estimator,
        optimiser=Adam(),
        refitter=refitter,
        shards=max(1, config.shards),
        dynamic=data.dynamic,
        collect_every=Every.parse(config.collect_every),
        schedule=SCHEDULES.make(config.schedule),
        phi_schedule=SCHEDULES.make(config.phi_schedule),
        phi_prior=phi_prior,
    )


def chosen_estimator(config: Config, model: Chain) -> str:
    """The estimator by name; auto remembers states where a sweep can move them and the objective allows it."""
    if config.estimator != AUTO:
        return config.estimator
    moved = bool(model.layers[1:]) and is_swept(model) and OBJECTIVES.make(config.objective).plain
    return "persistent" if moved or config.moves != AUTO else "nais"


def with_plan(config: Config, rows: int) -> Config:
    """Numbers in the place of what the settings leave open, for so many training rows: the plan is made in steps.

    >>> found = with_plan(Config(batch=100, patience=30), rows=1000)
    >>> found.patience, found.collect_every, found.epochs
    (30, '10epochs', 4000)
    """
    steps = math.ceil(rows / config.batch) * config.theta_steps  # in an epoch
    epochs = config.epochs or config.warmup + max(LEAST_EPOCHS, math.ceil(MOST_STEPS / steps))
    every = config.collect_every
    if every == AUTO and steps > SAMPLE_STEPS:
        every = f"{SAMPLE_STEPS}steps"
    elif every == AUTO:  # no further apart than lets all samples be taken in half of the epochs
        every = f"{max(1, min(SAMPLE_STEPS // steps, (epochs - config.warmup) // (2 * max(1, config.collect))))}epochs"
    sampler = SAMPLERS.make(config.sampler, friction=config.friction)
    return dataclasses.replace(
        config,
        model="sbn" if config.model == AUTO else config.model,
        step=sampler.usual_step if config.step == AUTO and not sampler.takes_scales else config.step,
        patience=config.patience or max(LEAST_PATIENCE, math.ceil(PATIENCE_STEPS / steps)),
        epochs=epochs,
        collect_every=every,
    )


def _check_sampler(config: Config, sampler: Sampler) -> None:
    if sampler.there_and_back and config.theta_steps != 1:
        raise UserError(
            f"the sampler {config.sampler} takes one step on each mini-batch, forward and then backward through them, "
            f"got theta_steps {config.theta_steps}: set it to 1"
        )


def training_rows(data: Data, device: torch.device | str) -> Tensor | StoredRows:
    """The rows to learn from: a tensor on the device, or rows that come to it when they are asked for."""
    return torch.as_tensor(data.train).to(device) if data.stored is None else data.stored.on(device)


def check_size(config: Config, model: Chain, proposal: Chain, n_data: int) -> None:
    """Refuse what memory cannot hold, before any of it is made; sizes as far as all samplers have them in common."""
    weights = WEIGHT * model.size + PHI_WEIGHT * proposal.size
    check_room(
        weights,
        f"a model of {model.size:,} weights and a proposal of {proposal.size:,}",
        "take narrower layers (hidden)",
    )
    cells = sum(layer.n_out for layer in (*model.layers, *proposal.layers))
    rows = min(config.batch, n_data) * config.draws
    check_room(
        weights + CELL * rows * cells,
        f"a step of {config.draws:,} draws for {min(config.batch, n_data):,} rows",
        "take fewer draws, or a smaller batch",
    )


def _check_data_layer(config: Config, model: Chain, data: Data | Facts) -> None:
    name, kind = config.model.split(",")[0], model.layers[0].kind
    if kind == "binary" and isinstance(data, Data):
        check_binary(data, f"the data layer {name!r} draws 0 or 1")
    elif kind == "mixed":
        layout = data.columns.layout() if isinstance(data, Data) and data.columns else ""
        if layout and f"columns={layout}" not in split(config.model)[0]:
            raise UserError(f"the data layer {name!r} is not of the columns of the table, which are {layout}")
    elif kind == "real" and data.kind == "binary":
        raise UserError(f"the data layer {name!r} draws real numbers, but the data are 0 or 1")


def _check_latent_layers(model: Chain, proposal: Chain) -> None:
    for level, (p, q) in enumerate(zip(model.layers[1:], proposal.layers[::-1], strict=True), start=1):
        if "mixed" in (p.kind, q.kind):
            raise UserError(f"latent layer {level} is mixed, which is for data: choose sbn, mlp, gaussian or normal")
        if p.kind != q.kind:
            raise UserError(
                f"latent layer {level} is {p.kind} in the model but {q.kind} in the proposal: they must agree"
            )


def _check_learnt(config: Config, prior: Prior, phi_prior: Prior, sampler: Sampler) -> None:
    """What a prior learns is drawn while a sampler with noise moves the weights."""
    if phi_prior.learns:
        raise UserError(
            f"the prior {config.phi_prior} is learnt with weights that are sampled, but the proposal is optimised: "
            "take a phi_prior with a scale that is set, as in normal:scale=1"
        )
    if prior.learns and not sampler.noisy:
        raise UserError(
            f"the prior {config.prior} is learnt with weights that are sampled, but {config.sampler} optimises (the "
            "best weights and scales would all be 0): take a prior with a scale that is set, or another sampler"
        )
    if prior.learns and sampler.temperature >= HOTTEST:
        raise UserError(
            f"the prior {config.prior} is learnt, which needs a temperature below {HOTTEST}, "
            f"got {sampler.temperature:g} (above it the scales have no proper law)"
        )


def _estimators(config: Config, model: Chain, proposal: Chain) -> tuple[Estimator, Estimator]:
    """The estimator of the gradients, and the one that fits a copy of the proposal to fixed weights."""
    objective = OBJECTIVES.make(config.objective)
    name = chosen_estimator(config, model)
    estimator = ESTIMATORS.make(name, draws=config.draws, objective=objective, moves=config.moves)
    estimator.check(model, proposal)
    if config.objective != "wake" and not estimator.takes_objective:
        raise UserError(
            f"the estimator {name} fits the proposal to its own draws of p(z|x), the objective wake; "
            f"got objective {config.objective}: leave it out, or take estimator nais"
        )
    if config.moves != "auto" and not estimator.takes_moves:
        raise UserError(
            f"the estimator {name} has no moves to choose, got moves {config.moves}: leave them out, or "
            "take estimator persistent"
        )
    # objectives by score functions or with a learnt baseline gain nothing for fixed weights: wake takes their place
    target = objective if objective.pathwise else Wake()
    return estimator, estimator.for_refit(target) or NAIS(max(config.draws, 5), target)
