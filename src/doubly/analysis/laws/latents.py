"""The laws of estimators and objectives, on models small enough to enumerate, or to know their posterior.

An estimator's gradients approach the enumerated ones as its draws grow. An objective may be any function, but each has
its optimum where the proposal is the posterior p(z | x): there its gradient is 0 in the mean, and near it the gradient
leads back.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubly.analysis.laws.law import Law, LeftOut, expect, expect_close
from doubly.analysis.laws.layers import bits
from doubly.core.registry import options
from doubly.kernels.weights import summarise
from doubly.latents import ESTIMATORS, NAIS, OBJECTIVES, Batch, Estimate, Estimator, Objective, Pair, Wake, Wanted
from doubly.latents.objectives import Round
from doubly.layers import Chain

ROWS, BLOCKS = 2000, 30


def estimator_cases(spec: str) -> dict[str, str]:
    ESTIMATORS.make(spec, objective=Wake())
    return {"": spec}


def objective_cases(spec: str) -> dict[str, Objective]:
    return {"": OBJECTIVES.make(spec)}


class _Mean(NamedTuple):
    mean: Tensor
    error: Tensor


def gradients_approach_the_exact_ones(spec: str) -> None:
    """theta's is that of log p(x), phi's that of E_{p(z|x)}[log q(z|x)], by enumeration, as draws grow.

    The bias of importance sampling falls like 1 / draws: with 64 draws, a sixteenth of that with 4 is expected, twice
    that is allowed, and five standard errors.
    """
    pair, x = _binary_pair()
    exact = _enumerated(pair, x)
    counts = (4, 64) if "draws" in options(ESTIMATORS.read(spec)[0]) else (4,)
    allowed = [torch.zeros_like(grad) for grad in exact]
    for draws in counts:
        for i, (name, expected, found) in enumerate(
            zip(("theta", "phi"), exact, _estimated(_estimator(spec, draws), pair, x), strict=True)
        ):
            bias = (found.mean - expected).abs()
            if draws == counts[-1]:
                beyond = bias - 5 * found.error - 2 * allowed[i] / 16 - 1e-9
                worst = int(beyond.argmax())
                slack = float(5 * found.error[worst] + allowed[i][worst] / 8)
                expect(not beyond[worst] > 0, f"mean gradient for {name} with {draws} draws: expected "
                       f"{expected[worst]:.5g} ± {slack:.2g}, got {found.mean[worst]:.5g}")  # fmt: skip
            allowed[i] = bias + 5 * found.error


def gradients_are_as_wanted(spec: str) -> None:
    """Of both gradients those are given that were wanted, of the shapes of theta and phi; the other is None."""
    pair, x = _binary_pair()
    estimator = _estimator(spec, 4)
    shown: dict[Wanted, tuple[str, ...]] = {"both": ("theta", "phi"), "theta": ("theta",), "phi": ("phi",)}
    for wanted, names in shown.items():
        found = _call(estimator, pair, x, wanted, {}, torch.Generator().manual_seed(0))
        expect(isinstance(found, Estimate), f"expected an Estimate, got {type(found).__name__}")
        for name, grad, vector in (("theta", found.theta_grad, pair.theta), ("phi", found.phi_grad, pair.phi)):
            if name not in names:
                expect(grad is None, f"{name}_grad: expected None where {wanted} is wanted, got a tensor")
                continue
            got = None if grad is None else tuple(grad.shape)
            expect(got == tuple(vector.shape), f"{name}_grad: expected shape {tuple(vector.shape)}, got {got}")
        for name in ("train", "ess"):
            expect(name in found.stats, f"stats: expected {name!r} among them, got {sorted(found.stats)}")


ESTIMATOR_LAWS: dict[str, Law] = {
    "gradients are given as wanted": gradients_are_as_wanted,
    "gradients approach the enumerated ones as draws grow": gradients_approach_the_exact_ones,
}


def a_number_for_each_row(objective: Objective) -> None:
    """An objective gives a finite number for each row, and tensors to remember."""
    pair, x = _pair_with_posterior(objective)
    batch = Batch(pair, x, torch.arange(len(x)), _memory(objective.init(pair.model, torch.Generator())), _rng(0))
    drawn = NAIS(_draws(objective), objective).draw(batch, objective.pathwise)
    rows, memory = objective(Round(batch, drawn, summarise(drawn.log_p, drawn.log_q)[0]))
    expect(rows.shape == (len(x),), f"rows: expected shape {(len(x),)}, got {tuple(rows.shape)}")
    expect(bool(rows.isfinite().all()), "rows: expected finite numbers, got others")
    expect(all(isinstance(value, Tensor) for value in memory.values()), "memory: expected tensors by name, got others")


def gradient_vanishes_at_the_posterior(objective: Objective) -> None:
    """Where the proposal is p(z | x), the mean of the gradient for phi is 0, within five standard errors."""
    pair, x = _pair_with_posterior(objective)
    found = _estimated(NAIS(_draws(objective), objective), pair, x, "phi")[0]
    beyond = found.mean.abs() - 5 * found.error - 1e-9
    worst = int(beyond.argmax())
    expect(not beyond[worst] > 0, f"mean gradient for phi at the exact posterior: expected 0 ± "
           f"{5 * found.error[worst]:.2g}, got {found.mean[worst]:.3g}")  # fmt: skip


def gradient_leads_to_the_posterior(objective: Objective) -> None:
    """Beside the posterior, the mean of the gradient points back to it, by more than five standard errors."""
    pair, x = _pair_with_posterior(objective)
    away = 0.3 * torch.randn(pair.phi.shape, generator=_rng(8), dtype=torch.float64)
    moved = pair._replace(phi=pair.phi + away)
    found = _estimated(NAIS(_draws(objective), objective), moved, x, "phi", along=-away)[0]
    expect(bool(found.mean > 5 * found.error), f"mean gradient for phi beside the posterior, along the way back: "
           f"expected more than {5 * found.error:.2g}, got {found.mean:.3g}")  # fmt: skip


def gradient_of_theta_is_left_alone(objective: Objective) -> None:
    """Whatever phi ascends, theta's gradient is the importance-weighted one, for the same draws."""
    pair, x = _pair_with_posterior(objective)
    draws = _draws(objective)
    mine, theirs = (
        _call(NAIS(draws, each), pair, x, "both", each.init(pair.model, torch.Generator()), _rng(1)).theta_grad
        for each in (objective, Wake())
    )
    assert mine is not None
    assert theirs is not None
    expect_close("gradient for theta beside that of wake", mine, theirs)


def plain_is_true(objective: Objective) -> None:
    """What `plain`, `sleep_weight` and `bound` promise of the gradient for phi is what autograd finds of the rows."""
    if not (objective.plain or objective.bound):
        raise LeftOut("plain and bound are False: autograd finds the gradient")
    traced: Any = type("Traced", (type(objective),), {"plain": False, "bound": False})
    fields = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}  # type: ignore[arg-type]
    pair, x = _pair_with_posterior(objective)
    mine, theirs = (
        _call(NAIS(_draws(objective), each), pair, x, "both", {}, _rng(2)).phi_grad
        for each in (objective, traced(**fields))
    )
    assert mine is not None
    assert theirs is not None
    expect_close("gradient for phi beside that of autograd", mine, theirs)


OBJECTIVE_LAWS: dict[str, Law] = {
    "a number for each row": a_number_for_each_row,
    "the gradient vanishes at the posterior": gradient_vanishes_at_the_posterior,
    "the gradient leads to the posterior": gradient_leads_to_the_posterior,
    "the gradient for theta is left alone": gradient_of_theta_is_left_alone,
    "plain and bound are what they say": plain_is_true,
}


def _binary_pair() -> tuple[Pair, Tensor]:
    """A model of three bits and two latents, a proposal that is wrong but of use, and three rows many times over."""
    model, proposal = (build("sbn", data=3, hidden=(2,)) for build in (Chain.build, Chain.build_proposal))
    theta = torch.randn(model.size, generator=_rng(1), dtype=torch.float64)
    phi = torch.randn(proposal.size, generator=_rng(2), dtype=torch.float64) / 2
    return Pair(model, theta, proposal, phi), bits(3)[[1, 4, 7]].repeat(ROWS // 10, 1)


def _enumerated(pair: Pair, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the means over rows of log p(x) and E_{p(z|x)}[log q(z|x)]."""
    theta, phi = pair.theta.clone().requires_grad_(), pair.phi.clone().requires_grad_()
    z = bits(2)[:, None].expand(-1, 3, -1)
    log_joint = pair.model.log_prob(theta, (x[:3], z))
    evidence = log_joint.logsumexp(0)
    wake = ((log_joint - evidence).exp().detach() * pair.proposal.log_prob(phi, (z,), x[:3])).sum(0)
    (theta_grad,), (phi_grad,) = torch.autograd.grad(evidence.mean(), theta), torch.autograd.grad(wake.mean(), phi)
    return theta_grad, phi_grad


def _pair_with_posterior(objective: Objective) -> tuple[Pair, Tensor]:
    """A model whose posterior is known, and as the proposal that posterior; rows of the model."""
    model, theta, proposal, phi = _gaussian_posterior() if objective.pathwise else _binary_posterior()
    x = model.sample(theta, ROWS, _rng(5))[0]
    return Pair(model, theta, proposal, phi), x


def _binary_posterior() -> Pair:
    """One latent unit: log p(z=1 | x) - log p(z=0 | x) = a + sum_i [W_i x_i - softplus(W_i + b_i) + softplus(b_i)]."""
    model, proposal = (build("sbn", data=3, hidden=(1,)) for build in (Chain.build, Chain.build_proposal))
    theta = torch.randn(model.size, generator=_rng(7), dtype=torch.float64)
    below, above = model.unflatten(theta)
    weights, bias, softplus = below["W"][:, 0], below["b"], torch.nn.functional.softplus
    offset = above["b"] - softplus(weights + bias).sum() + softplus(bias).sum()
    return Pair(model, theta, proposal, torch.cat([weights, offset]))


def _gaussian_posterior() -> Pair:
    """z ~ N(0, 1) and x | z ~ N(w z + b, s²): z | x ~ N(k (x - b), v), v = 1 / (1 + w²/s²), k = v w / s²."""
    model = Chain.build("gaussian:widths=none,normal", data=1, hidden=(1,))
    proposal = Chain.build_proposal("gaussian:widths=none", data=1, hidden=(1,))
    w, b, s = 1.5, 0.4, 0.8
    v = 1 / (1 + w**2 / s**2)
    k = v * w / s**2
    layers = ({"W_mu": w, "b_mu": b, "W_sigma": 0.0, "b_sigma": math.log(s)},
              {"W_mu": k, "b_mu": -k * b, "W_sigma": 0.0, "b_sigma": math.log(v) / 2})  # fmt: skip
    theta, phi = (
        torch.tensor([values[name] for name in chain.layers[0].shapes()], dtype=torch.float64)
        for chain, values in zip((model, proposal), layers, strict=True)
    )
    return Pair(model, theta, proposal, phi)


def _draws(objective: Objective) -> int:
    return max(3, objective.least_draws)


def _estimator(spec: str, draws: int) -> Estimator:
    found: Estimator = ESTIMATORS.make(spec, draws=draws, objective=Wake())
    return found


def _estimated(
    estimator: Estimator, pair: Pair, x: Tensor, wanted: Wanted = "both", along: Tensor | None = None
) -> list[_Mean]:
    """Means of the gradients, or of their products with a direction, with errors by blocks of calls that follow."""
    estimator.check(pair.model, pair.proposal)
    rng, index = _rng(3), torch.arange(len(x))
    memory = _memory(estimator.init(pair.model, len(x), rng))
    found: dict[str, list[Tensor]] = {"theta": [], "phi": []}
    for _ in range(BLOCKS + 5):
        estimate = estimator(Batch(pair, x, index, memory, rng), wanted)
        memory = estimate.memory
        for name, grad in (("theta", estimate.theta_grad), ("phi", estimate.phi_grad)):
            if grad is not None:
                found[name].append(grad if along is None else grad @ along)
    means = []
    for grads in found.values():
        if grads:
            # the first ones are left out, where chains forget their start and baselines are learnt
            blocks = torch.stack(grads[5:]).unflatten(0, (-1, 3)).mean(1)
            means.append(_Mean(blocks.mean(0), blocks.std(0) / math.sqrt(len(blocks))))
    return means


def _call(
    estimator: Estimator, pair: Pair, x: Tensor, wanted: Wanted, memory: dict[str, Tensor], rng: torch.Generator
) -> Estimate:
    estimator.check(pair.model, pair.proposal)
    memory = _memory(memory or estimator.init(pair.model, len(x), rng))
    return estimator(Batch(pair, x, torch.arange(len(x)), memory, rng), wanted)


def _memory(memory: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() if value.is_floating_point() else value for name, value in memory.items()}


def _rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
