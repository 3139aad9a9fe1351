"""The laws of a layer: it is a distribution, it draws what it says, and its gradients are its own.

Binary values, and the levels of categories, are enumerated. Real ones are integrated over a grid of one or two
dimensions whose points lie closer together where draws fall, and reach ten thousand times as far. Weights are drawn
with standard deviation 1, so that every term of the layer matters.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubly.analysis.laws.law import Broken, Law, LeftOut, expect, expect_close
from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.core.registry import options
from doubly.layers import LAYERS, Drawn, Layer, Params

WIDTH = 4  # of binary values: all 16 of them are enumerated
COLUMNS = {"r": 1, "2r": 2, "b-c3": 4, "o4-c2": 6, "2o2-b-c2": 7, "b-r-c3": 5, "o3-r": 4}  # and their entries
DRAWS = 40_000
SIGNIFICANCE = 1e-4


def cases(spec: str) -> dict[str, Layer]:
    """The layer at the top of a model and below another layer; of real values, also with two of them."""
    member, given = LAYERS.read(spec)
    widths = {f"n_out={n}": n for n in ((WIDTH,) if getattr(member, "kind", None) == "binary" else (1, 2))}
    if getattr(member, "kind", None) == "mixed" and "columns" in options(member) and "columns" not in given:
        widths = {f"columns={text}": n for text, n in COLUMNS.items()}
    found, refused = {}, None
    for n_in, (what, n_out) in [(n_in, each) for n_in in (0, 3) for each in widths.items()]:
        try:
            more = {"columns": what.partition("=")[2]} if what.startswith("columns") else {}
            found[f"n_in={n_in}, {what}"] = LAYERS.make(spec, n_in, n_out, **more)
        except UserError as error:  # some layers are only for the top of a model
            refused = error
    if not found:
        raise refused or UserError(f"layer {spec!r} cannot be built")
    return found


def bits(n: int) -> Tensor:
    """All 2^n binary vectors, (2^n, n), in the order of the numbers that they spell."""
    return torch.tensor([[number >> (n - 1 - i) & 1 for i in range(n)] for number in range(2**n)], dtype=torch.float64)


def random_params(layer: Layer, seed: int = 0) -> Params:
    """Weights of standard deviation 1: far from zero, so that every term of the layer matters.

    Where more than four of them are summed (in the deterministic layers of a perceptron), the sum is kept as wide as if
    there were four, or every probability would be 0 or 1.
    """
    rng = torch.Generator().manual_seed(seed)
    params = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in layer.shapes().items()}
    return {k: v / math.sqrt(max(1, v.shape[-1] / 4)) if v.ndim == 2 else v for k, v in params.items()}


def some_given(layer: Layer) -> Tensor:
    """A vector to condition on: 101… of the layer's width."""
    return torch.arange(1, layer.n_in + 1, dtype=torch.float64) % 2


def some_rows(layer: Layer) -> Tensor:
    """Three vectors to condition on."""
    return torch.stack([some_given(layer), 1 - some_given(layer), torch.ones(layer.n_in, dtype=torch.float64)])


def kind_and_options(layer: Layer) -> None:
    """A layer says what it draws, and is the same as another one of the same options."""
    kind = getattr(layer, "kind", None)
    expect(kind in ("binary", "real", "mixed"), f"expected kind = 'binary', 'real' or 'mixed', got {kind!r}")
    width = sum(block.width for block in layer.blocks())
    expect(width == layer.n_out, f"blocks: expected {layer.n_out} entries in all, got {width}")
    again = type(layer)(**{field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)})
    expect(again == layer, f"expected two layers of the same options to be equal, got {again} and {layer}")
    expect(hash(again) == hash(layer), "expected equal layers to have the same hash: declare @dataclass(frozen=True)")


def shapes_and_init_agree(layer: Layer) -> None:
    """`init` gives finite parameters of the names, order and shapes of `shapes`, by the generator alone."""
    for mean in (None, torch.linspace(0, 1, layer.n_out)):
        params, again = (layer.init(torch.Generator().manual_seed(7), mean) for _ in range(2))
        expect(list(params) == list(layer.shapes()), f"init: expected {list(layer.shapes())}, got {list(params)}")
        for name, shape in layer.shapes().items():
            got = tuple(params[name].shape)
            expect(got == tuple(shape), f"init of {name}: expected shape {tuple(shape)}, got {got}")
            expect(bool(params[name].isfinite().all()), f"init of {name}: expected finite numbers, got others")
            expect(torch.equal(params[name], again[name]), f"init of {name}: one seed gave two results: use the rng")


def draws_have_their_shape(layer: Layer) -> None:
    """A value for each row that is given, or `draws` of them along a new leading axis; binary ones are 0 or 1."""
    params = random_params(layer)
    for given in (some_given(layer), some_rows(layer)):
        for draws in (None, 5):
            axes = (*((draws,) if draws else ()), *given.shape[:-1])
            value, log_prob = layer.draw(params, given, torch.Generator().manual_seed(0), draws)
            what = f"draw of {tuple(given.shape)} with draws={draws}"
            shapes = tuple(value.shape), tuple(log_prob.shape)
            expect(shapes == ((*axes, layer.n_out), axes), f"{what}: expected {(*axes, layer.n_out)}, got {shapes[0]} "
                   f"with log_prob {shapes[1]}")  # fmt: skip
            for block, part in zip(layer.blocks(), value.split([b.width for b in layer.blocks()], -1), strict=True):
                fits = not block.discrete or bool(((part == 0) | (part == 1)).all())
                expect(fits, f"{what}: expected 0 or 1, got other values")
                fits = block.width == 1 or bool((part.sum(-1) == 1).all())
                expect(fits, f"{what}: expected one 1 in a block of {block.width} entries, got none or several")


def axes_broadcast(layer: Layer) -> None:
    """Axes before the last broadcast, as in value (B, D) against given (S, B, n_in); each row is as if alone."""
    params, rng = random_params(layer), torch.Generator().manual_seed(9)
    for value_axes, given_axes in [((), ()), ((5,), ()), ((), (5,)), ((5,), (2, 5)), ((2, 5), (5,)), ((2, 1), (5,))]:
        value = _some_value(layer, value_axes, rng)
        given = torch.randint(2, (*given_axes, layer.n_in), generator=rng).double()
        axes = torch.broadcast_shapes(value_axes, given_axes)
        values, givens = value.expand(*axes, layer.n_out), given.expand(*axes, layer.n_in)
        for method in ("log_prob", "mean", *(["cells"] if _has(layer, "cells") else [])):
            found = getattr(layer, method)(params, value, given)
            shape = axes if method == "log_prob" else (*axes, layer.n_out)
            what = f"{method} of value {tuple(value.shape)} and given {tuple(given.shape)}"
            expect(found.shape == shape, f"{what}: expected shape {tuple(shape)}, got {tuple(found.shape)}")
            for row in np.ndindex(axes):
                alone = getattr(layer, method)(params, values[row], givens[row])
                expect_close(f"{what}, row {row} beside that row alone", found[row], alone, 1e-12, 1e-12)


def probabilities_sum_to_one(layer: Layer) -> None:
    """sum over value of p(value | given) = 1, for every given."""
    params = random_params(layer)
    for given in bits(layer.n_in) if layer.kind == "binary" else some_rows(layer):
        total = _support(layer, params, given).probability.sum()
        tolerance = 1e-10 if is_discrete(layer) else 1e-3
        expect_close("the sum over all values", total, torch.ones_like(total), 0, tolerance)


def values_are_independent(layer: Layer) -> None:
    """p(value | given) = prod_i p(value_i | given) over the blocks, as `factorised` says: missing values rely on it."""
    blocks = layer.blocks()
    if not layer.factorised or len(blocks) == 1:
        raise LeftOut("factorised is False" if not layer.factorised else "one value alone")
    law = _support(layer, random_params(layer), some_given(layer))
    product = torch.ones_like(law.probability)
    for part in law.value.split([block.width for block in blocks], -1):
        points, place = part.unique(dim=0, return_inverse=True)
        product = product * law.probability.new_zeros(len(points)).index_add_(0, place, law.probability)[place]
    distance = (law.probability - product).abs().sum().item()
    expect(distance < 1e-3, f"expected values that are independent given `given`, got a law at a distance of "
           f"{distance:.3g} from that: set factorised = False")  # fmt: skip


def draws_follow_log_prob(layer: Layer) -> None:
    """draw ~ exp(log_prob), by chi-square: of one row that is given many times, and of many draws of three rows."""
    params, rows = random_params(layer), some_rows(layer)
    rng = torch.Generator().manual_seed(1)
    assert_drawn(layer, layer.draw(params, rows[0].expand(DRAWS, -1), rng).value, params, rows[0])
    value = layer.draw(params, rows, rng, DRAWS).value
    for row, given in enumerate(rows):
        assert_drawn(layer, value[:, row], params, given)


def draw_returns_its_log_prob(layer: Layer) -> None:
    """The log_prob that comes with a draw is that of the value drawn, and so is its gradient."""
    given = some_rows(layer)
    for draws in (None, 7):
        mine, theirs = ({k: v.requires_grad_() for k, v in random_params(layer).items()} for _ in range(2))
        drawn = layer.draw(mine, given, torch.Generator().manual_seed(3), draws)
        log_prob = layer.log_prob(theirs, drawn.value.double(), given)
        expect_close("log_prob that comes with a draw, beside log_prob of its value", drawn.log_prob, log_prob)
        for name, got, expected in zip(
            mine, _gradients(drawn.log_prob, mine), _gradients(log_prob, theirs), strict=True
        ):
            expect_close(f"gradient for {name} of the log_prob that comes with a draw", got, expected)


def draws_come_from_the_generator(layer: Layer) -> None:
    """The same generator gives the same values, whatever the global seed, which is left alone."""
    params, found = random_params(layer), []
    before = torch.get_rng_state()
    for seed in (4, 4, 5):
        found.append(layer.draw(params, some_given(layer), torch.Generator().manual_seed(seed), 50).value)
    expect(
        torch.equal(before, torch.get_rng_state()), "expected draws from `rng` alone, got the global generator moved"
    )
    expect(torch.equal(found[0], found[1]), "expected the same draws from the same seed, got others")
    expect(not torch.equal(found[0], found[2]), "expected other draws from another seed, got the same")


def gradients_are_those_of_log_prob(layer: Layer) -> None:
    """Autograd agrees with finite differences, for each parameter, for the given, and for a real value."""
    inputs = dict(random_params(layer))
    rng = torch.Generator().manual_seed(2)
    given, value = some_rows(layer) + 0.1, _some_value(layer, (3,), rng)
    inputs |= {"the given": given} | ({"the value": value} if layer.kind == "real" else {})

    def log_prob(at: Params) -> Tensor:
        params = {name: at[name] for name in layer.shapes()}
        return layer.log_prob(params, at.get("the value", value), at["the given"]).sum()

    followed = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    for name, gradient in zip(followed, _gradients(log_prob(followed), followed), strict=True):
        if not gradient.numel():
            continue
        for _ in range(3):
            direction = torch.randn(gradient.shape, generator=rng, dtype=torch.float64)
            direction /= direction.norm()
            step = 1e-5
            above, below = (log_prob(inputs | {name: inputs[name] + s * direction}) for s in (step, -step))
            what = f"derivative of log_prob along {name}, by finite differences"
            expect_close(what, (gradient * direction).sum(), (above - below) / (2 * step), 1e-5, 1e-6)


def cells_sum_to_log_prob(layer: Layer) -> None:
    """`cells` share log_prob out over the entries."""
    if not _has(layer, "cells"):
        raise LeftOut("it has no `cells`: no missing values in the data, no impute")
    params, given = random_params(layer), some_rows(layer)
    value = _some_value(layer, (7, 1), torch.Generator().manual_seed(3))
    cells = layer.cells(params, value, given)
    expect_close("sum of cells beside log_prob", cells.sum(-1), layer.log_prob(params, value, given), 1e-9, 1e-9)


def mean_is_the_expectation(layer: Layer) -> None:
    """E[mean(value)] = E[value]; where values are independent, mean is E[value] whatever the value."""
    params, given = random_params(layer), some_given(layer)
    law = _support(layer, params, given)
    expected = law.probability @ law.value
    size = 1 + law.value.abs().T @ law.probability
    tolerance = 1e-9 if is_discrete(layer) else 1e-3 * float(size.max())
    mean = layer.mean(params, law.value, given)
    expect(mean.shape == law.value.shape, f"mean: expected shape {tuple(law.value.shape)}, got {tuple(mean.shape)}")
    expect_close(
        "mean(value), averaged over the values, beside E[value]", law.probability @ mean, expected, 0, tolerance
    )
    if layer.factorised:
        expect_close("mean beside E[value]", mean, expected.expand_as(mean), 0, tolerance)
    elif layer.kind == "binary":
        product = torch.where(law.value == 1, mean, 1 - mean).prod(-1)
        expect_close(
            "prod_i of p(value_i | those before), by mean, beside p(value)", product, law.probability, 1e-9, 1e-9
        )


def vjps_agree_with_autograd(layer: Layer) -> None:
    """`log_prob_vjp` and `draw_vjp` give the values of `log_prob` and `draw`, and the gradients of autograd."""
    rng = torch.Generator().manual_seed(0)
    params = {name: value.requires_grad_() for name, value in random_params(layer).items()}
    given = some_rows(layer)
    for draws in (None, 4):
        drawn = layer.draw_vjp(params, given, torch.Generator().manual_seed(1), draws)
        again = layer.draw(params, given, torch.Generator().manual_seed(1), draws)
        expect_close("value of draw_vjp beside draw of the same seed", drawn.value, again.value)
        there = layer.log_prob_vjp(params, again.value.double(), given)
        for what, found in (("draw_vjp", drawn), ("log_prob_vjp", there)):
            expected = layer.log_prob(params, found.value.double(), given)
            expect_close(f"log_prob of {what}", found.log_prob, expected)
            weight = torch.rand(expected.shape, generator=rng, dtype=torch.float64)
            into = {name: torch.full_like(value, math.nan) for name, value in params.items()}
            found.vjp(weight, into)
            for name, gradient in zip(params, _gradients(expected, params, weight), strict=True):
                expect_close(f"gradient for {name} by {what}", into[name], gradient)


def pathwise_vjps_agree_with_autograd(layer: Layer) -> None:
    """`log_prob_pathwise_vjp` and `draw_pathwise_vjp` give the gradients of autograd, for value and given, too."""
    rng, to_value = torch.Generator().manual_seed(0), layer.kind == "real"
    params = {name: value.requires_grad_() for name, value in random_params(layer).items()}
    for value_axes, given_axes in [((3,), (3,)), ((3,), (2, 3)), ((2, 3), (3,)), ((2, 1), (3,)), ((), (3,))]:
        value = _some_value(layer, value_axes, rng).requires_grad_(to_value)
        given = torch.rand((*given_axes, layer.n_in), generator=rng, dtype=torch.float64).requires_grad_()
        found, expected = (
            layer.log_prob_pathwise_vjp(params, value, given, to_value),
            layer.log_prob(params, value, given),
        )
        expect_close("log_prob of log_prob_pathwise_vjp", found.log_prob, expected)
        weight = torch.rand(expected.shape, generator=rng, dtype=torch.float64)
        into = {name: torch.full_like(each, math.nan) for name, each in params.items()}
        got = found.vjp(weight, into)
        inputs = params | {"the given": given} | ({"the value": value} if to_value else {})
        sent = into | {"the given": got.given} | ({} if got.value is None else {"the value": got.value})
        for name, gradient in zip(inputs, _gradients(expected, inputs, weight), strict=True):
            expect_close(f"gradient for {name} by log_prob_pathwise_vjp", sent[name], gradient)
    if not layer.reparameterised:
        return
    for draws in (None, 4):
        given = some_rows(layer).requires_grad_()
        drawn = layer.draw_pathwise_vjp(params, given, torch.Generator().manual_seed(1), draws)
        again = layer.draw_pathwise(params, given, torch.Generator().manual_seed(1), draws)
        expect_close("value of draw_pathwise_vjp beside draw_pathwise of the same seed", drawn.value, again.value)
        expect_close("log_prob of draw_pathwise_vjp", drawn.log_prob, again.log_prob)
        weight = torch.rand(again.log_prob.shape, generator=rng, dtype=torch.float64)
        of_value = torch.rand(again.value.shape, generator=rng, dtype=torch.float64)
        into = {name: torch.full_like(each, math.nan) for name, each in params.items()}
        of_given = drawn.vjp(weight, of_value, into, True)
        objective = (weight * again.log_prob).sum() + (of_value * again.value).sum()
        inputs = params | {"the given": given}
        for name, gradient in zip(inputs, _gradients(objective, inputs), strict=True):
            got_here = of_given if name == "the given" else into[name]
            expect(got_here is not None, "draw_pathwise_vjp: expected a gradient for the given, got None")
            assert got_here is not None
            expect_close(f"gradient for {name} by draw_pathwise_vjp", got_here, gradient)


def pathwise_draws_carry_gradients(layer: Layer) -> None:
    """`draw_pathwise` draws from the same law, and its value has the gradient that finite differences find."""
    if not layer.reparameterised:
        raise LeftOut("reparameterised is False: not for the objectives iwae and dreg")
    params, given = random_params(layer), some_given(layer)
    assert_drawn(
        layer, layer.draw_pathwise(params, given, torch.Generator().manual_seed(5), DRAWS).value, params, given
    )

    def drawn(at: Params) -> Drawn:
        return layer.draw_pathwise(at, given, torch.Generator().manual_seed(6), 3)

    followed = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    value, log_prob = drawn(followed)
    expect_close("log_prob of draw_pathwise", log_prob, layer.log_prob(params, value.detach(), given))
    rng = torch.Generator().manual_seed(7)
    for name, gradient in zip(followed, _gradients(value.sum(), followed), strict=True):
        direction = torch.randn(gradient.shape, generator=rng, dtype=torch.float64)
        above, below = (drawn(params | {name: params[name] + s * direction}).value.sum() for s in (1e-5, -1e-5))
        what = f"derivative of the value drawn along {name}, by finite differences"
        expect_close(what, (gradient * direction).sum(), (above - below) / 2e-5, 1e-5, 1e-6)


def log_odds_are_linear(layer: Layer) -> None:
    """log_prob is that of the log-odds bias + given · y + before · value, where `is_linear` says so."""
    params = random_params(layer)
    found = layer.linear_log_odds(params)
    if not layer.is_linear:
        expect(found is None, "linear_log_odds: expected None where is_linear is False, got log-odds")
        raise LeftOut("is_linear is False: not for the estimator gibbs")
    if found is None:
        raise Broken("linear_log_odds: expected log-odds where is_linear is True, got None")
    value, given = bits(layer.n_out), bits(layer.n_in).unsqueeze(1)
    logits = found.bias + given @ found.given.T
    if found.before is not None:
        logits = logits + value @ found.before.T
    expected = torch.nn.functional.logsigmoid(torch.where(value == 1, logits, -logits)).sum(-1)
    expect_close("log_prob beside that of linear_log_odds", layer.log_prob(params, value, given), expected, 1e-9, 1e-9)


def missing_values_drop_out(layer: Layer) -> None:
    """`log_prob_observed` is the law of the values that are there; `impute` leaves these as they are."""
    if not _has(layer, "cells"):
        raise LeftOut("it has no `cells`: no missing values in the data, no impute")
    params, given = random_params(layer), some_given(layer)
    value = _some_value(layer, (6,), torch.Generator().manual_seed(4))
    missing = torch.arange(layer.n_out) % 2 == layer.n_out % 2
    completed = layer.impute(params, value, missing.expand_as(value), given, torch.Generator().manual_seed(5)).value
    expect(
        torch.equal(completed[:, ~missing].to(value), value[:, ~missing]), "impute: expected observed values to stay"
    )
    if not layer.factorised or not is_discrete(layer):
        return
    law = _support(layer, params, given)
    alike = (law.value[:, None] == value)[..., ~missing].all(-1).double()
    expected = (law.probability @ alike).log()
    got = layer.log_prob_observed(params, value.masked_fill(missing, math.nan), given)
    expect_close("log_prob_observed beside the sum over the missing", got, expected, 1e-9, 1e-9)
    drawn = layer.impute(params, value, missing.expand_as(value), given, torch.Generator().manual_seed(5))
    expect_close("log_prob of impute beside the sum over the missing", drawn.log_prob, expected, 1e-9, 1e-9)
    for row in range(2):  # draws given the observed entries, as in the law of the whole
        many = value[row].expand(DRAWS, -1)
        imputed = layer.impute(params, many, missing.expand_as(many), given, torch.Generator().manual_seed(6)).value
        within = law._replace(probability=law.probability * alike[:, row] / expected[row].exp())
        _expect_frequencies(within, imputed)


def row_biases_are_added(layer: Layer) -> None:
    """`draw` takes the parameters of `row_biases` with a row for each row that is given."""
    if not layer.row_biases():
        raise LeftOut("it has no `row_biases`: no refinement row by row")
    unknown = set(layer.row_biases()) - set(layer.shapes())
    expect(not unknown, f"row_biases: expected names of parameters, got {', '.join(sorted(unknown))}")
    params, given = random_params(layer), some_rows(layer)
    rows = {name: params[name] + torch.arange(3, dtype=torch.float64)[:, None] / 3 for name in layer.row_biases()}
    value = layer.draw(params | rows, given, torch.Generator().manual_seed(6), DRAWS).value
    for row in range(3):
        own = params | {name: bias[row] for name, bias in rows.items()}
        assert_drawn(layer, value[:, row], own, given[row])


def biases_take_up_shifts(layer: Layer) -> None:
    """W (given + shift) + b = W given + (b + W shift), for every matrix W of `bias_of` and its bias b."""
    matrices = layer.bias_of()
    if not matrices:
        raise LeftOut("it has no `bias_of`: an automatic step that learns more slowly")
    params, shapes = random_params(layer), layer.shapes()
    for weight, bias in matrices.items():
        expect(weight in shapes and bias in shapes, f"bias_of: expected names of parameters, got {weight} and {bias}")
        expected = (*shapes[bias], layer.n_in)
        expect(shapes[weight] == expected, f"bias_of {weight}: expected shape {expected}, got {shapes[weight]}")
    rng = torch.Generator().manual_seed(11)
    shift, value = torch.randn(layer.n_in, generator=rng, dtype=torch.float64), _some_value(layer, (7, 1), rng)
    moved = dict(params)
    for weight, bias in matrices.items():
        moved[bias] = moved[bias] + params[weight] @ shift
    there, here = (
        layer.log_prob(moved, value, some_rows(layer)),
        layer.log_prob(params, value, some_rows(layer) + shift),
    )
    expect_close("log_prob with the shift in the bias, beside the shift in what is given", there, here, 1e-10, 1e-10)


def single_precision_is_enough(layer: Layer) -> None:
    """In float32, in which models are trained, log_prob and draws are those of float64, to rounding."""
    params, given = random_params(layer), some_rows(layer)
    value = _some_value(layer, (7, 1), torch.Generator().manual_seed(8))
    rough = {name: tensor.float() for name, tensor in params.items()}
    got = layer.log_prob(rough, value.float(), given.float())
    expect(got.dtype == torch.float32, f"log_prob in float32: expected float32, got {got.dtype}")
    expect_close("log_prob in float32 beside float64", got, layer.log_prob(params, value, given), 1e-3, 1e-3)
    drawn = layer.draw(rough, given.float(), torch.Generator().manual_seed(9), DRAWS).value
    expect(drawn.dtype == torch.float32, f"draw in float32: expected float32, got {drawn.dtype}")
    assert_drawn(layer, drawn[:, 0], params, given[0])


LAWS: dict[str, Law] = {
    "it says what it draws, and equal options make equal layers": kind_and_options,
    "shapes and init agree": shapes_and_init_agree,
    "draws have their shape": draws_have_their_shape,
    "axes before the last broadcast": axes_broadcast,
    "probabilities sum to one": probabilities_sum_to_one,
    "values are independent where factorised says so": values_are_independent,
    "draws follow log_prob": draws_follow_log_prob,
    "draw returns its own log_prob": draw_returns_its_log_prob,
    "draws come from the generator": draws_come_from_the_generator,
    "gradients agree with finite differences": gradients_are_those_of_log_prob,
    "cells sum to log_prob": cells_sum_to_log_prob,
    "mean is the expectation": mean_is_the_expectation,
    "log_prob_vjp and draw_vjp agree with autograd": vjps_agree_with_autograd,
    "log_prob_pathwise_vjp and draw_pathwise_vjp agree with autograd": pathwise_vjps_agree_with_autograd,
    "draw_pathwise carries the gradient": pathwise_draws_carry_gradients,
    "linear_log_odds are those of log_prob": log_odds_are_linear,
    "missing values drop out": missing_values_drop_out,
    "row_biases are added row by row": row_biases_are_added,
    "bias_of: a bias takes up a shift": biases_take_up_shifts,
    "single precision is enough": single_precision_is_enough,
}


class Support(NamedTuple):
    """Values that stand for all there are, with their probabilities."""

    value: Tensor
    probability: Tensor
    edges: list[np.ndarray]
    """For each entry, borders of bins of about the same probability."""


def assert_drawn(layer: Layer, drawn: Tensor, params: Params, given: Tensor) -> None:
    """Chi-square of drawn values (N, n_out) against exp(log_prob)."""
    _expect_frequencies(_support(layer, params, given), drawn)


def _expect_frequencies(law: Support, drawn: Tensor) -> None:
    shape = [len(edges) + 1 for edges in law.edges]

    def counted(values: Tensor, mass: np.ndarray | None = None) -> np.ndarray:
        places = [np.searchsorted(edges, values[:, i].double().numpy()) for i, edges in enumerate(law.edges)]
        return np.bincount(np.ravel_multi_index(places, shape), mass, math.prod(shape))

    observed, expected = counted(drawn.detach()), counted(law.value, law.probability.detach().numpy())
    p_value = chi_square(observed, expected)
    expect(p_value > SIGNIFICANCE, f"frequencies of {len(drawn)} draws beside exp(log_prob): expected a chi-square "
           f"p-value above {SIGNIFICANCE:g}, got {p_value:.2g}")  # fmt: skip


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """The p-value of counts against a law, where rare bins are pooled until 5 counts are expected."""
    with extra("sklearn", "a test of frequencies"):
        from scipy import stats
    expected = expected / expected.sum() * observed.sum()
    pools = [[0.0, 0.0]]
    for i in np.argsort(expected):
        if pools[-1][1] >= 5:
            pools.append([0.0, 0.0])
        pools[-1][0] += observed[i]
        pools[-1][1] += expected[i]
    return float(stats.chisquare(*zip(*pools, strict=True)).pvalue) if len(pools) > 1 else 1.0


def is_discrete(layer: Layer) -> bool:
    """Whether all values of the layer can be enumerated."""
    return all(block.discrete for block in layer.blocks())


def _support(layer: Layer, params: Params, given: Tensor) -> Support:
    """All levels of discrete blocks, with a grid for each real entry."""
    blocks = layer.blocks()
    n_real = sum(not block.discrete for block in blocks)
    step, reach, n_bins = (0.01, 20.0, 40) if n_real == 1 else (0.08, 12.0, 8)
    t = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    middle, scale = _where(layer, params, given)
    points: list[Tensor] = []  # of each block: its values, and how much of the line each stands for
    volumes: list[Tensor] = []
    for block, at in zip(blocks, np.cumsum([0, *(block.width for block in blocks)]), strict=False):
        if block.discrete:
            points.append(torch.eye(block.width, dtype=torch.float64) if block.width > 1 else bits(1))
            volumes.append(torch.ones(len(points[-1]), dtype=torch.float64))
        else:
            points.append((middle[at] + scale[at] * torch.sinh(t))[:, None])
            volumes.append(scale[at] * torch.cosh(t) * step)
    index = torch.cartesian_prod(*(torch.arange(len(each)) for each in points)).view(-1, len(points))
    value = torch.cat([each[index[:, i]] for i, each in enumerate(points)], -1)
    volume = torch.stack([each[index[:, i]] for i, each in enumerate(volumes)]).prod(0)
    probability = layer.log_prob(params, value, given).detach().exp() * volume
    edges: list[np.ndarray] = []
    for i, (block, each) in enumerate(zip(blocks, points, strict=True)):
        mass = probability.new_zeros(len(each)).index_add_(0, index[:, i], probability)
        edges += [np.array([0.5])] * block.width if block.discrete else [_quantiles(each[:, 0], mass, n_bins)]
    return Support(value, probability, edges)


def _where(layer: Layer, params: Params, given: Tensor) -> tuple[Tensor, Tensor]:
    """Where real values lie: medians and half the distance between quartiles of draws."""
    drawn = layer.draw(params, given, torch.Generator().manual_seed(0), 1000).value.detach().double()
    low, middle, high = drawn.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), 0)
    return middle, ((high - low) / 2).clamp(min=1e-6)


def _quantiles(axis: Tensor, mass: Tensor, n_bins: int) -> np.ndarray:
    """Borders half-way between points of the axis."""
    share = mass.cumsum(0) / mass.sum()
    index = torch.searchsorted(share, torch.arange(1, n_bins, dtype=torch.float64) / n_bins).unique()
    index = index.clamp(max=len(axis) - 2).unique()
    return ((axis[index] + axis[index + 1]) / 2).numpy()


def _some_value(layer: Layer, axes: tuple[int, ...], rng: torch.Generator) -> Tensor:
    shape = (*axes, layer.n_out)
    if layer.kind == "binary":
        return torch.randint(2, shape, generator=rng).double()
    return layer.nearest(torch.randn(shape, generator=rng, dtype=torch.float64))


def _has(layer: Layer, method: str) -> bool:
    """Whether the layer gives a method that `Layer` leaves open."""
    return getattr(type(layer), method) is not getattr(Layer, method)


def _gradients(of: Tensor, inputs: Params, weight: Tensor | None = None) -> Iterator[Tensor]:
    """Gradients for all inputs, 0 where there is no way back."""
    if not inputs:
        return iter(())
    if not of.requires_grad:
        return iter([torch.zeros_like(tensor) for tensor in inputs.values()])
    weight = torch.ones_like(of) if weight is None else weight
    return iter(torch.autograd.grad(of, tuple(inputs.values()), weight, materialize_grads=True))
