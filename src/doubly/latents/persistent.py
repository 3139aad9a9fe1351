"""Remembered latents for every row: moved, then put to compete with fresh draws of the proposal."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.annealing import Annealing
from doubly.latents.batch import Batch, Memory, Wanted
from doubly.latents.estimator import Estimate, Estimator
from doubly.latents.importance import Draws, Marginal, ess, is_exact, join, log_mean_weight, propose, weigh
from doubly.latents.memory import recalled, stored
from doubly.latents.moves import Move, choose_move
from doubly.latents.objectives import Objective, Wake
from doubly.latents.pair import Pair
from doubly.latents.phases import phi_gradient, sleep_phase
from doubly.layers import Chain, Values

VISITED = "visited"
FRESH = 5  # draws, at least, that compete with the states while a proposal is fitted


class Competition(NamedTuple):
    """What C remembered states and S fresh draws of each of B rows are worth, and which of them are remembered next."""

    weight: Tensor
    """Weights (C + S, B), which sum to one over the C + S."""
    chosen: Tensor
    """For each state and row (C, B), one of the C + S."""


def compete(log_weight: Tensor, states: int, rng: torch.Generator) -> Competition:
    """Iterated sampling importance resampling (Andrieu, Lee & Vihola 2018), for each state with the same fresh draws.

    Of state c and the S fresh draws, with weights p / q, one is chosen by its weight: z_c <- z_c or z_s. That leaves
    p(z | x) as it is, for any S. Under that law, the mean over these S + 1, by their weights, is right in the mean for
    any function of z; the mean over the states is taken of it. `log_weight` (C + S, B) has the states first.
    """
    own, fresh = log_weight[:states], log_weight[states:]
    candidates = torch.cat([own[None], fresh[:, None].expand(-1, states, -1)])  # (1 + S, C, B)
    share = torch.softmax(candidates, 0) / states
    uniform = torch.rand(candidates.shape, generator=rng, dtype=own.dtype, device=own.device)
    winner = (candidates - torch.log(-torch.log(uniform.clamp(1e-30, 1 - 1e-7)))).argmax(0)  # the Gumbel trick
    itself = torch.arange(states, device=own.device)[:, None].expand_as(winner)
    return Competition(torch.cat([share[0], share[1:].sum(1)]), torch.where(winner == 0, itself, states + winner - 1))


@dataclass(frozen=True)
class Persistent(Estimator):
    """One or more remembered states of the latents for every row, moved locally, then in competition with fresh draws.

    At each visit of a row, its C states make `sweeps` local moves that leave p(z | x, theta) as it is. Then S draws of
    q(z | x; phi) compete with each of them by importance weight, and one of the S + 1, drawn by its weight, is the
    state that is remembered. All of them, weighted, give both gradients:
    theta follows sum w grad log p(x, z), phi sum w grad log q(z | x). Without states (C = 0) this is `nais`, without
    fresh draws (S = 0) `gibbs`. The states of a row that was never visited come from q.

    Where values are missing, p(x_observed, z) takes the place of p(x, z). Under a data layer whose values are
    independent, missing values are drawn given z before a local move; where they have an order, they are remembered
    with z and compete with it.

    Where bits are drawn anew from greys at each visit, the state of a row was left for other bits: then p(z | x) is
    kept only nearly, the better the more fresh draws there are.

    The memory holds state.z1, … (C, N, ceil(H / 8)) with a bit for each binary unit, state.x (C, N, …) where missing
    values are remembered, which rows were visited, and what the move tunes. The statistic `train` is the bound L_S of
    the fresh draws; without any, the mean of log p(x, z).
    """

    validation = "annealed from the proposal, T"
    takes_objective = True
    takes_moves = True
    draws: int = 5
    """Fresh draws of the proposal at each visit (S)."""
    objective: Objective = field(default_factory=Wake)
    """What the proposal ascends: wake, sleep or both."""
    chains: int = 1
    """Remembered states for each row (C)."""
    sweeps: int = 1
    """Local moves at each visit."""
    moves: str = "auto"
    """Which: gibbs, langevin, hmc; auto takes the first that serves the model."""
    valid_rows: int = 200
    """At most so many rows, evenly spaced, by which an epoch is validated."""
    remembers_rows: bool = False
    """Whether missing values are remembered, too: where those of a row depend on each other (see `for_missing`)."""

    def __post_init__(self) -> None:
        for name, least in (("draws", 0), ("chains", 1), ("sweeps", 0), ("valid_rows", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} of remembered states must be at least {least}, got {getattr(self, name)}")
        if self.draws == self.sweeps == 0:
            raise UserError("remembered states need fresh draws or local moves, got neither: raise draws or sweeps")

    @property
    def has_moves(self) -> bool:
        return self.sweeps > 0

    def check(self, model: Chain, proposal: Chain) -> None:
        if not self.objective.plain:
            raise UserError(
                f"the objective {type(self.objective).__name__.lower()} needs draws of the proposal alone, which "
                "remembered states are not: choose wake, sleep or wake-sleep, or take estimator nais"
            )
        self.objective.check(model, max(self.draws, 1))
        if model.layers[1:] and self.sweeps:
            self._move(model)

    def with_objective(self, objective: Objective) -> "Persistent":
        return dataclasses.replace(self, objective=objective)

    def for_refit(self, objective: Objective) -> "Persistent | None":
        """States that move find p(z | x) where draws of the proposal, which is yet to be fitted to it, do not."""
        refitter = dataclasses.replace(self, draws=max(self.draws, FRESH), objective=objective)
        return refitter if self.sweeps and objective.plain else None

    def for_missing(self, model: Chain) -> "Persistent":
        if not (self.draws or model.layers[0].factorised):  # local moves leave missing values as they are
            raise UserError(
                f"missing values under {type(model.layers[0]).__name__}, which depend on each other, need fresh draws, "
                "got none: raise draws"
            )
        return dataclasses.replace(self, remembers_rows=not model.layers[0].factorised)

    def init(self, chain: Chain, n_data: int, rng: torch.Generator) -> Memory:
        """Nothing yet: no row was visited."""
        states = {
            # one row, repeated: as floats, all rows would take 32 times what their bits do
            name: stored(layer, torch.zeros(self.chains, 1, layer.n_out, device=rng.device)).repeat(1, n_data, 1)
            for name, layer in zip(_names(chain), chain.layers, strict=True)
            if name != "state.x" or self.remembers_rows
        }
        tuned = self._move(chain).init(chain) if self.sweeps and chain.layers[1:] else {}
        return states | tuned | {VISITED: torch.zeros(n_data, dtype=torch.uint8, device=rng.device)}

    def __call__(self, batch: Batch, wanted: Wanted = "both") -> Estimate:
        if is_exact(batch.pair.model, batch.pair.proposal):
            return self._exact(batch, wanted)
        state, memory = self._recall(batch), batch.memory
        if self.sweeps and (wanted != "phi" or batch.remember):
            state, memory = self._moved(batch, state)
        if batch.pair.proposal.masked:
            found = self._with_missing(batch, state, wanted)
        else:
            found = self._complete(batch, state, wanted)
        return found._replace(memory=memory)

    def _exact(self, batch: Batch, wanted: Wanted) -> Estimate:
        """Without latents there is nothing to draw."""
        theta = batch.pair.theta.detach().requires_grad_(wanted != "phi")
        drawn = propose(batch.pair._replace(theta=theta), batch.x, 1, batch.rng)
        log_p = drawn.log_p.mean()
        theta_grad = torch.autograd.grad(log_p, theta)[0] if wanted != "phi" else None
        phi_grad = torch.zeros_like(batch.pair.phi) if wanted != "theta" else None
        return Estimate(theta_grad, phi_grad, batch.memory, {"train": log_p.detach(), "ess": log_p.new_ones(())})

    @torch.no_grad()
    def advance(self, batch: Batch) -> "Advanced":
        """Move and compete as in training, without gradients: for weights that stand still."""
        state, memory = self._recall(batch), batch.memory
        if self.sweeps:
            state, memory = self._moved(batch, state)
        drawn = weigh(batch.pair, batch.x, state.latents, batch.x if state.completed is None else state.completed)
        if self.draws:
            drawn = join(drawn, propose(batch.pair, batch.x, self.draws, batch.rng))
        return Advanced(drawn, self._compete(batch, drawn, "theta").weight, memory)

    # The state of the rows

    def _recall(self, batch: Batch) -> "_State":
        """The states of these rows; of rows that were never visited, draws of the proposal."""
        model, index, memory = batch.pair.model, batch.row_index, batch.memory
        kept = {
            name: recalled(layer, memory[name][:, index], batch.pair.theta.dtype)
            for name, layer in zip(_names(model), model.layers, strict=True)
            if name in memory
        }
        completed = kept.pop("state.x", None)
        latents = tuple(kept.values())
        new = memory[VISITED][index] == 0
        if not new.is_cpu or new.any():  # a device is not asked: that would make the step wait
            with torch.no_grad():
                first = propose(batch.pair, batch.x, self.chains, batch.rng)
            pairs = zip(latents, first.latents, strict=True)
            latents = tuple(torch.where(new[:, None], drawn, value) for value, drawn in pairs)
            if completed is not None and first.completed is not None:
                completed = torch.where(new[:, None], first.completed, completed)
        if completed is not None:
            completed = torch.where(batch.x.isnan(), completed, batch.x)
        return _State(latents, completed)

    def _remember(self, batch: Batch, state: "_State") -> None:
        model = batch.pair.model
        values = (state.completed, *state.latents)
        for name, layer, value in zip(_names(model), model.layers, values, strict=True):
            if name in batch.memory and value is not None:
                batch.memory[name][:, batch.row_index] = stored(layer, value)
        batch.memory[VISITED][batch.row_index] = 1

    def _moved(self, batch: Batch, state: "_State") -> tuple["_State", Memory]:
        """After the local moves, of complete rows."""
        if not state.latents:
            return state, batch.memory
        pair, x, memory, latents = batch.pair, batch.x, batch.memory, state.latents
        move, (layer, params) = self._move(pair.model), pair.data_layer
        for _ in range(self.sweeps):
            whole = x
            if state.completed is not None:
                whole = state.completed
            elif pair.proposal.masked:
                with torch.no_grad():
                    shape = (*latents[0].shape[:-1], x.shape[-1])
                    whole = layer.impute(params, x.expand(shape), x.isnan(), latents[0], batch.rng).value
            moved = move(pair, whole, x, latents, memory, batch.rng, batch.tuning)
            latents, memory = moved.latents, moved.tuned
        return _State(latents, state.completed), memory

    def _move(self, model: Chain) -> Move:
        return choose_move(self.moves, model)

    # Both gradients, from states and fresh draws alike

    def _complete(self, batch: Batch, state: "_State", wanted: Wanted) -> Estimate:
        """Of complete rows: both gradients are weighted sums, which layers know without a graph."""
        model, theta, proposal, phi = batch.pair
        theta, phi, of_draws = theta.detach(), phi.detach(), wanted != "theta" and self.objective.sleep_weight < 1
        values = state.latents[::-1]
        if self.draws:
            with torch.no_grad():
                fresh = proposal.draw(phi, batch.x, batch.rng, self.draws).values
            values = tuple(torch.cat(both) for both in zip(values, fresh, strict=True))
        q = proposal.log_prob_vjp(phi, values, batch.x, grad=of_draws)
        p = model.log_prob_vjp(theta, (batch.x, *values[::-1]), grad=wanted != "phi")
        found = self._compete(batch, Draws(values[::-1], p.log_prob, q.log_prob), wanted)
        slept = sleep_phase(self.objective, batch, wanted)
        share = found.weight / len(batch.x)
        theta_grad = p.vjp(share) if wanted != "phi" else None
        wake_grad = q.vjp((1 - self.objective.sleep_weight) * share) if of_draws else None
        phi_grad = phi_gradient(self.objective, batch, wanted, wake_grad, slept)
        return Estimate(theta_grad, phi_grad, batch.memory, found.stats)

    def _with_missing(self, batch: Batch, state: "_State", wanted: Wanted) -> Estimate:
        """Of rows with missing values, by autograd."""
        theta = batch.pair.theta.detach().requires_grad_(wanted != "phi")
        phi = batch.pair.phi.detach().requires_grad_(wanted != "theta")
        batch = batch._replace(pair=batch.pair._replace(theta=theta, phi=phi))
        completed = batch.x if state.completed is None else state.completed
        drawn = weigh(batch.pair, batch.x, state.latents, completed)
        if self.draws:
            drawn = join(drawn, propose(batch.pair, batch.x, self.draws, batch.rng))
        found = self._compete(batch, drawn, wanted)
        theta_grad = wake_grad = None
        if wanted != "phi":
            objective = (found.weight * drawn.log_p).sum(0).mean()
            (theta_grad,) = torch.autograd.grad(objective, theta, retain_graph=True)
        if wanted != "theta" and batch.pair.proposal.layers:
            wake = (1 - self.objective.sleep_weight) * (found.weight * drawn.log_q).sum(0).mean()
            (wake_grad,) = torch.autograd.grad(wake, phi, materialize_grads=True)
        slept = sleep_phase(self.objective, batch, wanted)
        phi_grad = phi_gradient(self.objective, batch, wanted, wake_grad, slept)
        return Estimate(theta_grad, phi_grad, batch.memory, found.stats)

    def _compete(self, batch: Batch, drawn: Draws, wanted: Wanted) -> "_Found":
        """Weights of states and fresh draws; the states that win are remembered, unless only phi moves for now."""
        log_weight = drawn.log_weight.detach()
        if self.draws:
            weight, chosen = compete(log_weight, self.chains, batch.rng)
            train, worth = log_mean_weight(log_weight[self.chains :]).mean(), ess(weight).mean()
        else:
            weight = torch.full_like(log_weight, 1 / self.chains)
            chosen = torch.arange(self.chains, device=weight.device)[:, None].expand_as(weight)
            train, worth = drawn.log_p.detach().mean(), log_weight.new_tensor(float(self.chains))
        if wanted != "phi" or batch.remember:
            latents = tuple(_picked(value, chosen) for value in drawn.latents)
            completed = None if drawn.completed is None else _picked(drawn.completed, chosen)
            self._remember(batch, _State(latents, completed))
        return _Found(weight, {"train": train, "ess": worth})

    def validated(self, pair: Pair, x: Tensor) -> Tensor:
        return x if is_exact(pair.model, pair.proposal) else x[:: math.ceil(len(x) / self.valid_rows)]

    def validate(self, pair: Pair, x: Tensor, draws: int, rng: torch.Generator) -> Marginal:
        """log p(x) of some of the rows, annealed from the proposal through as many temperatures as draws are asked for.

        The posterior of the latents need not be of the proposal's shape, and then its draws alone miss most of it.
        """
        annealing = Annealing(temperatures=draws, chains=1, start="proposal")
        some, masked = self.validated(pair, x), pair.proposal.masked
        if is_exact(pair.model, pair.proposal) or masked or not annealing.serves(pair.model, pair.proposal):
            return super().validate(pair, some, draws, rng)
        return annealing.log_likelihood(pair, some.float(), rng)


class Advanced(NamedTuple):
    """States and fresh draws (C + S, B, …) for rows, their weights (C + S, B), and the memory from now on."""

    draws: Draws
    weight: Tensor
    memory: Memory


class _State(NamedTuple):
    """Latents (C, B, H), and where they are remembered, completed rows (C, B, D)."""

    latents: Values
    completed: Tensor | None


class _Found(NamedTuple):
    weight: Tensor
    stats: dict[str, Tensor]


def _picked(values: Tensor, chosen: Tensor) -> Tensor:
    """Of values (C + S, B, H), those that were chosen (C, B)."""
    return values.gather(0, chosen[..., None].expand(*chosen.shape, values.shape[-1]))


def _names(chain: Chain) -> list[str]:
    return ["state.x", *(f"state.z{level}" for level in range(1, len(chain.layers)))]
