"""The fused kernels against the plain ones, the plain ones against autograd, and both against enumeration."""

import itertools
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from doubly.core.errors import UserError
from doubly.kernels import bernoulli, choose, compiled, darn, gibbs, linear, nade, noise
from doubly.kernels.compiled import PREFIX, _Files
from doubly.kernels.rows import as_arrays, as_rows, rows_that_count

pytest.importorskip("numba")

EPSILON = torch.finfo(torch.float32).eps
# Sums of some hundred float32 numbers: rounding grows like the root of their number, and errors of a few units in the
# last place stand behind each term. The tolerance is relative to the largest entry.
TOLERANCE = 64 * EPSILON
# (c or r or logits, value): draws share a row, a top layer has no row, all alike, and what is not at the front
BATCHES = [((), ()), ((), (5, 3)), ((3,), (5, 3)), ((5, 3), (3,)), ((5, 3), (5, 3)), ((5, 1), (3,)), ((19,), (19,))]
Inputs = Sequence[Tensor]
Nade = tuple[Tensor, Tensor, Tensor, Tensor]
Gibbs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
PLAIN_AND_FUSED = pytest.mark.parametrize("wish", ["0", "1"], ids=["plain", "fused"])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=rng(seed))


def bits(*shape: int, seed: int = 1, ones: float = 0.5) -> Tensor:
    return (torch.rand(shape, generator=rng(seed)) < ones).float()


def gradients(function, inputs: Inputs, value: Tensor) -> tuple[Tensor, list[Tensor]]:
    """log_prob, and the gradients of a sum of it with weights that tell the rows apart."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    log_prob = function(*inputs, value)
    weight = torch.linspace(0.5, 1.5, log_prob.numel(), dtype=log_prob.dtype).view(log_prob.shape)
    return log_prob.detach(), list(torch.autograd.grad((weight * log_prob).sum(), inputs, materialize_grads=True))


def assert_close(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max() + 1e-30  # float32 ends at some 1e-38


def assert_fused_is_plain(module, inputs: Inputs, value: Tensor, tolerance: float = TOLERANCE) -> None:
    """Value and gradients of the fused float32 kernel against the plain one in float64."""
    found, found_gradients = gradients(module.fused_log_prob, inputs, value)
    expected, expected_gradients = gradients(module.plain_log_prob, [t.double() for t in inputs], value.double())
    for a, b in zip([found, *found_gradients], [expected, *expected_gradients], strict=True):
        assert_close(a, b, tolerance)


def nade_inputs(batch: tuple[int, ...], n_out: int = 37, n_hidden: int = 21, scale: float = 0.5) -> Nade:
    c, r = normal(*batch, n_hidden, seed=2), normal(*batch, n_out, seed=3)
    return c, r, scale * normal(n_out, n_hidden, seed=4), scale * normal(n_out, n_hidden, seed=5)


def watched(inputs: Nade) -> Nade:
    for tensor in inputs:
        tensor.requires_grad_()
    return inputs


# which kernels


def test_the_environment_chooses(monkeypatch):
    single, double = torch.zeros(2), torch.zeros(2, dtype=torch.float64)
    monkeypatch.delenv("DOUBLY_KERNELS", raising=False)
    assert choose.fused(single)
    assert not choose.fused(single, double)
    assert not choose.fused(single, fixed=(single.clone().requires_grad_(),))
    monkeypatch.setenv("DOUBLY_KERNELS", "0")
    assert not choose.fused(single)
    assert choose.in_use()["fused"] is False
    monkeypatch.setenv("DOUBLY_KERNELS", "1")
    assert choose.fused(single)
    assert choose.in_use().keys() == {"fused", "numba", "threading_layer", "threads"}
    with pytest.raises(UserError, match="float64"):
        choose.fused(double)
    monkeypatch.setenv("DOUBLY_KERNELS", "yes")
    with pytest.raises(UserError, match="'yes'"):
        choose.fused(single)


@PLAIN_AND_FUSED
def test_the_choice_is_followed(monkeypatch, wish):
    def forbidden(*arguments):
        raise AssertionError("not this one")

    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    for module in (bernoulli, nade, darn):
        for name in ("log_prob", "draw"):
            monkeypatch.setattr(module, f"{'fused' if wish == '0' else 'plain'}_{name}", forbidden, raising=False)
    logits = normal(2, 4)
    bernoulli.log_prob(logits, bernoulli.draw(logits, rng()))
    nade.log_prob(*nade_inputs((2,)), nade.draw(*nade_inputs((2,)), rng())[0])
    darn.draw(logits, torch.zeros(4, 4), rng())


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def test_plain_kernels_do_not_load_numba():
    code = "import sys, torch, doubly; from doubly.kernels import bernoulli as b; g = torch.Generator()"
    code += "; b.draw(torch.zeros(3), g); print('numba' in sys.modules)"
    assert run(code, DOUBLY_KERNELS="0").stdout == "False\n"


def test_compiling_is_announced_once_and_cached_and_gives_the_same_bits(tmp_path):
    """`heated` calls functions that LLVM optimises otherwise where they stand alone, as in a process that compiles."""
    code = "import numpy as np, torch; from doubly.kernels import choose; torch.set_num_threads(1)"
    code += "; a = [abs(np.random.default_rng(0).standard_normal((146), np.float32)) for _ in range(8)]"
    code += "; choose.loops().heated(*a[:5], 0.1, 1.0, 0.01, 30.0, 0.001, 20.0, *a[5:], np.uint32(7), np.uint32(8))"
    code += "; print(torch.get_num_threads(), np.concatenate(a).tobytes().hex())"
    first, second = (run(code, NUMBA_CACHE_DIR=str(tmp_path), DOUBLY_KERNELS="1") for _ in range(2))
    assert first.stderr.count("\n") == 1
    assert "compiling" in first.stderr
    assert second.stderr == ""
    assert first.stdout == second.stdout
    assert first.stdout.startswith("1 ")  # Numba has not changed the number of PyTorch's threads


def test_compiled_code_is_kept_by_what_it_is_for_and_damage_is_noticed(tmp_path):
    first, second = _Files(tmp_path / "folder", "f"), _Files(tmp_path / "folder", "f")
    first.save("one type", "its code")
    second.save("another", "other code")  # as a process does that began at the same time
    assert (first.load("one type"), first.load("another"), first.load("a third")) == ("its code", "other code", None)
    file = first._file("one type")
    file.write_bytes(file.read_bytes()[:-1])
    assert first.load("one type") is None
    (tmp_path / "file").touch()
    _Files(tmp_path / "file", "f").save("one type", "its code")  # cannot be written: it is not kept


def test_old_versions_of_compiled_code_are_swept(tmp_path):
    for i in range(6):
        folder = tmp_path / f"{PREFIX}{i}"
        _Files(folder, "f").save("key", "code")
        os.utime(folder, (i, i))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [f"{PREFIX}{i}" for i in range(2, 6)]


def test_loops_run_where_nothing_can_be_kept(monkeypatch):
    monkeypatch.setattr(compiled, "_Cache", Mock(side_effect=RuntimeError("no locator available")))
    assert compiled.kernel()(lambda x: x + 1)(2) == 3


@pytest.mark.parametrize("own", [(4,), (3, 4), (1, 4), (1, 3, 4), (2, 1, 4), (2, 3, 4), (2, 3, 1)])
def test_rows_wrap_around(own):
    tensor = normal(*own)
    rows = as_rows(tensor, (2, 3, 4))
    assert torch.equal(rows.repeat(6 // len(rows), 1).view(2, 3, 4), tensor.expand(2, 3, 4))


# values and gradients


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_kernels_are_the_plain_ones(monkeypatch):
    """--compile: one kernel with its gradient; outside of `compiling` nothing is compiled."""
    monkeypatch.setenv("DOUBLY_KERNELS", "0")
    logits, value = 3 * normal(4, 50), bits(4, 50)
    expected, (expected_gradient,) = gradients(bernoulli.log_prob, [logits], value)
    compiled = Mock(wraps=torch.compile)
    monkeypatch.setattr(torch, "compile", compiled)
    with choose.compiling(True):
        found, (gradient,) = gradients(bernoulli.log_prob, [logits], value)
    compiled.assert_called_once()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    with choose.compiling(False):
        assert torch.equal(gradients(bernoulli.log_prob, [logits], value)[0], expected)


@pytest.mark.parametrize(("own", "other"), BATCHES)
@pytest.mark.parametrize("width", [1, 7, 113, 784])
def test_fused_bernoulli_is_the_plain_one(own, other, width):
    assert_fused_is_plain(bernoulli, [3 * normal(*own, width)], bits(*other, width))


@pytest.mark.parametrize("offsets", [(), (3,), (2, 3)])
@pytest.mark.parametrize("values", [(), (3,), (2, 3)])
def test_fused_linear_bernoulli_is_the_plain_one(offsets, values):
    """One offset for all, for each row, for each draw; the same of values."""
    inputs, value = [normal(2, 3, 11), normal(150, 11), 3 * normal(*offsets, 150, seed=2)], bits(*values, 150)
    found, found_gradients = gradients(linear.log_prob, inputs, value)
    exact = [t.double() for t in inputs]
    expected, expected_gradients = gradients(linear.log_prob, exact, value.double())
    for a, b in zip([found, *found_gradients], [expected, *expected_gradients], strict=True):
        assert_close(a, b)


def nearly_alike(draws: int, rows: int, width: int, flips: float, seed: int = 3) -> Tensor:
    """Draws (draws, rows, width) around a vector for each row, from which every entry departs with a probability."""
    return (bits(rows, width, seed=seed) - bits(draws, rows, width, seed=seed + 1, ones=flips)).abs()


def pulled(found: linear.Linear, outputs: int, width: int) -> list[Tensor]:
    """The gradients of the sum that `gradients` takes, too."""
    weight = torch.linspace(0.5, 1.5, found.log_prob.numel()).view(found.log_prob.shape)
    grads = [torch.empty(outputs, width), torch.empty(outputs)]
    found.vjp(weight, *grads)
    return grads


@pytest.mark.parametrize("flips", [0.0, 0.05, 0.2, 0.5], ids=["alike", "nearly", "forth only", "unlike"])
@pytest.mark.parametrize(("draws", "rows", "values"), [(5, 3, (3,)), (5, 3, (5, 3)), (50, 1, (1,)), (4, 7, ())])
def test_draws_that_are_nearly_alike_have_the_density_and_gradient_of_any(draws, rows, values, flips):
    given, value = nearly_alike(draws, rows, 40, flips), bits(*values, 150, seed=9)
    inputs = normal(150, 40, seed=5), normal(150, seed=6)
    found = linear.log_prob_vjp(given, *inputs, value, grad=True)
    assert (found.alike is not None) == (flips < 0.5)
    expected, (_, *expected_gradients) = gradients(
        linear.log_prob, [given.double(), *(t.double() for t in inputs)], value.double()
    )
    for a, b in zip([found.log_prob, *pulled(found, 150, 40)], [expected, *expected_gradients], strict=True):
        assert_close(a, b)
    assert_close(linear.log_prob(given, *inputs, value), expected)


def concentrated(n: int) -> Tensor:
    """Weights between 1 and e^-60, most of which are nothing beside the largest."""
    return torch.exp(-60 * torch.rand(n, generator=rng(4)))


@pytest.mark.parametrize("flips", [0.05, 0.5], ids=["alike", "unlike"])
def test_rows_without_weight_are_left_out_of_gradients_to_rounding(monkeypatch, flips):
    monkeypatch.setattr(linear, "WORK", 0)
    given, value, weight = nearly_alike(5, 30, 40, flips), bits(30, 150), concentrated(150)
    counted = rows_that_count(weight)
    assert counted is not None
    assert len(counted) < 60
    inputs = normal(150, 40, seed=5), normal(150, seed=6)
    found = linear.log_prob_vjp(given, *inputs, value, grad=True)
    assert (found.alike is not None) == (flips < 0.5)
    grads = torch.empty(150, 40), torch.empty(150)
    found.vjp(weight.view(5, 30), *grads)
    exact = linear.log_prob_vjp(given.double(), inputs[0].double(), inputs[1].double(), value.double(), grad=True)
    left = weight.double()[:, None] * exact.residual
    # no residual is larger than 1: what is left out and what is rounded, of each of 150 terms, are both within eps
    for a, b in zip(grads, (left.T @ given.view(150, 40).double(), left.sum(0)), strict=True):
        assert (a - b).abs().max() <= 4 * EPSILON * weight.sum()


def test_nade_leaves_rows_without_weight_out_of_its_gradients():
    inputs, value, weight = nade_inputs((5, 30)), bits(30, 37), concentrated(150).view(5, 30)

    def weighted(log_prob, inputs: Inputs, value: Tensor) -> tuple[Tensor, ...]:
        inputs = [tensor.clone().requires_grad_() for tensor in inputs]
        return torch.autograd.grad((weight * log_prob(*inputs, value)).sum(), inputs)

    expected = weighted(nade.plain_log_prob, [tensor.double() for tensor in inputs], value.double())
    for a, b in zip(weighted(nade.fused_log_prob, inputs, value), expected, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("weight", [[0.0] * 9, [math.nan] + [0.0] * 8, [math.inf] + [0.1] * 8, [1.0] * 8 + [0.0]])
def test_all_rows_count_where_weights_are_no_numbers_or_nearly_all_are_large(weight):
    assert rows_that_count(torch.tensor(weight)) is None
    assert rows_that_count(torch.tensor(weight, device="meta")) is None


@pytest.mark.parametrize(
    ("batch", "offsets"),
    [
        ((3,), (3,)),
        ((3,), (5, 3)),
        ((2, 3), ()),
        ((2, 3), (3,)),
        ((2, 3), (2, 3)),
        ((2, 3), (2, 1)),
        ((2, 3), (5, 2, 3)),
    ],
)
def test_an_offset_for_each_row_goes_with_draws_that_are_alike(batch, offsets):
    given = nearly_alike(5, math.prod(batch), 40, 0.05).view(5, *batch, 40)
    value, weight, offset = bits(*batch, 150), normal(150, 40), normal(*offsets, 150, seed=7)
    expected = linear.log_prob(given.double(), weight.double(), offset.double(), value.double())
    assert_close(linear.log_prob(given, weight, offset, value), expected)


@pytest.mark.parametrize(
    "given",
    [
        *(normal(5, 3, 40), nearly_alike(5, 3, 8, 0.0), nearly_alike(5, 3, 40, 0.0)[0]),
        *(nearly_alike(2, 3, 40, 0.0), nearly_alike(5, 0, 40, 0.0)),
    ],
    ids=["real", "narrow", "no draws", "two draws", "no rows"],
)
def test_other_rows_are_multiplied_as_they_are(given):
    width, rows = given.shape[-2:][::-1]
    found = linear.log_prob_vjp(given, normal(150, width), normal(150), bits(rows, 150), grad=True)
    assert found.alike is None
    assert found.log_prob.shape == given.shape[:-1]


def test_values_are_drawn_the_same_from_draws_that_are_alike(monkeypatch):
    given, weight, bias = nearly_alike(5, 30, 40, 0.05), normal(150, 40), normal(150, seed=8)
    value, found = linear.draw_vjp(given, weight, bias, rng(), None, grad=True)
    monkeypatch.setattr(linear, "compare", lambda *arguments: None)
    same, expected = linear.draw_vjp(given, weight, bias, rng(), None, grad=True)
    assert found.alike is not None
    assert torch.equal(value, same)
    for a, b in zip(
        [found.log_prob, *pulled(found, 150, 40)], [expected.log_prob, *pulled(expected, 150, 40)], strict=True
    ):
        assert_close(a, b, 2 * TOLERANCE)


def test_fused_bernoulli_takes_values_between_0_and_1():
    assert_fused_is_plain(bernoulli, [3 * normal(4, 50)], torch.rand(4, 50, generator=rng()))


@pytest.mark.parametrize("size", [30.0, 50.0, 88.0, 1e4])
def test_extreme_logits_are_exact(size):
    logits = torch.tensor([[size, -size], [-size, size], [size, size]])
    found, (gradient,) = gradients(bernoulli.fused_log_prob, [logits], torch.tensor([1.0, 0.0]))
    expected, (expected_gradient,) = gradients(
        bernoulli.plain_log_prob, [logits.double()], torch.tensor([1.0, 0.0]).double()
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-5, atol=1e-12)


def test_a_thousand_logits_at_zero_do_not_overflow():
    found = bernoulli.fused_log_prob(torch.zeros(1000), torch.ones(1000))
    torch.testing.assert_close(found, torch.tensor(-1000 * np.log(2), dtype=torch.float32))


@pytest.mark.parametrize(("own", "other"), BATCHES)
@pytest.mark.parametrize("ones", [0.1, 0.6])
def test_fused_nade_is_the_plain_one(own, other, ones):
    assert_fused_is_plain(nade, nade_inputs(own), bits(*other, 37, ones=ones))


def test_fused_nade_with_c_and_r_of_different_batches():
    c, r, W, V = nade_inputs((5, 3))
    assert_fused_is_plain(nade, [c[0], r, W, V], bits(3, 37))
    assert_fused_is_plain(nade, [c, r[0, 0], W, V], bits(3, 37))


@pytest.mark.parametrize(("scale", "shift"), [(40.0, 0.0), (300.0, 0.0), (1.0, 75.0), (1.0, -200.0), (0.1, 100.0)])
def test_fused_nade_is_right_where_its_shortcut_is_not(scale, shift):
    """Hidden layers far out on either side, from the start or on the way, which exp(-a) cannot follow."""
    c, r, W, V = nade_inputs((19,))
    c, W = c + shift, scale * W
    reach = c.abs().max() + W.abs().sum(0).max()  # rounding is relative to the largest that the sum in it comes to
    assert_fused_is_plain(nade, [c, r, W, V], bits(19, 37), tolerance=TOLERANCE + EPSILON * float(reach))


def test_fused_nade_takes_values_between_0_and_1():
    assert_fused_is_plain(nade, nade_inputs((19,)), torch.rand(19, 37, generator=rng()))


@pytest.mark.parametrize(("n_out", "n_hidden"), [(1, 1), (2, 9), (200, 64), (784, 200)])
def test_fused_nade_of_other_sizes(n_out, n_hidden):
    assert_fused_is_plain(nade, nade_inputs((3,), n_out, n_hidden, 0.1), bits(3, n_out, ones=0.2))


@PLAIN_AND_FUSED
def test_nade_logits_are_those_of_its_log_prob(monkeypatch, wish):
    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    inputs, value = nade_inputs((5, 3)), bits(3, 37)
    logits = nade.logits(*inputs, value)
    assert logits.shape == (5, 3, 37)
    torch.testing.assert_close(bernoulli.log_prob(logits, value), nade.log_prob(*inputs, value))


@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_square_is_made_of_its_triangle(n):
    triangle = normal(n * (n - 1) // 2).requires_grad_()
    fused, plain = darn.fused_square(triangle, n), darn.plain_square(triangle, n)
    assert torch.equal(fused, plain)
    assert torch.equal(fused, fused.tril(-1))
    weight = normal(n, n, seed=6)
    gradient = [torch.autograd.grad((weight * square).sum(), triangle)[0] for square in (fused, plain)]
    assert torch.equal(*gradient)
    with pytest.raises(ValueError, match="entries"):
        darn.square(triangle, n + 1)


@pytest.mark.parametrize("n", [1, 3, 64, 65, 300])
def test_sums_before_are_the_product_with_the_square(n):
    """In blocks, of which the smallest widths have one and the largest five: in float64 the product and its gradient
    differ from the fused ones by no more than float32's rounding of n terms."""
    triangle, value, weight = normal(n * (n - 1) // 2, seed=3).requires_grad_(), bits(2, 7, n), normal(2, 7, n, seed=5)
    fused, exact = darn.fused_sums_before(value, triangle), value.double() @ darn.plain_square(triangle.double(), n).T
    torch.testing.assert_close(fused.double(), exact, rtol=0, atol=n * 4 * torch.finfo(torch.float32).eps)
    of_fused, of_exact = (torch.autograd.grad((out * weight).sum(), triangle)[0] for out in (fused, exact))
    torch.testing.assert_close(of_fused, of_exact, rtol=0, atol=14 * 4 * torch.finfo(torch.float32).eps)
    with pytest.raises(ValueError, match="entries"):
        darn.sums_before(bits(2, n + 1), triangle)


def test_plain_gradients_are_those_of_finite_differences():
    inputs, value = [tensor.double().requires_grad_() for tensor in nade_inputs((2, 3), 5, 4)], bits(3, 5).double()
    assert torch.autograd.gradcheck(lambda c, r, W, V: nade.plain_log_prob(c, r, W, V, value), inputs)
    logits = normal(2, 3, 5).double().requires_grad_()
    assert torch.autograd.gradcheck(bernoulli.plain_log_prob, (logits, value.requires_grad_()))


def test_neither_nade_keeps_its_hidden_layers():
    """Kept for the gradient: some D + H numbers a row, not D H; the plain one may have sqrt(D) H."""
    inputs, value, kept = watched(nade_inputs((50,), 100, 40)), bits(50, 100), 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    for log_prob, limit in ((nade.fused_log_prob, 4 * (100 + 40)), (nade.plain_log_prob, 4 * (100 + 10 * 40))):
        kept = 0
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            log_prob(*inputs, value)
        assert kept <= 50 * limit


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_not_swallowed(bad):
    logits = torch.zeros(3, 20)
    logits[1, 17] = bad
    found, (gradient,) = gradients(bernoulli.fused_log_prob, [logits], torch.zeros(20))
    assert torch.isfinite(found).tolist() == [True, False, True]
    if np.isnan(bad):
        assert gradient.isnan().nonzero().tolist() == [[1, 17]]
    for k in range(4):
        inputs = nade_inputs((9,))
        inputs[k][2, 3] = bad
        value = torch.ones(9, 37)
        expected, expected_gradients = gradients(nade.plain_log_prob, inputs, value)
        found, found_gradients = gradients(nade.fused_log_prob, inputs, value)
        assert torch.equal(found.isfinite(), expected.isfinite())
        for a, b in zip(found_gradients, expected_gradients, strict=True):
            assert not (a.isfinite() & b.isnan()).any()


def test_the_number_of_threads_changes_nothing():
    threads = torch.get_num_threads()

    def everything() -> list[Tensor]:
        logits, value = normal(5, 40, 300), bits(40, 300)
        results = [noise.normal((10_001,), rng()), bernoulli.fused_draw(logits, rng(), 3)]
        results += bernoulli.fused_draw_with_log_prob(logits, rng())
        log_prob, grads = gradients(bernoulli.fused_log_prob, [logits[0]], bits(5, 40, 300))
        results += [log_prob, *grads]
        for batch in ((5, 40), ()):
            log_prob, grads = gradients(nade.fused_log_prob, nade_inputs(batch, 300), bits(5, 40, 300))
            results += [log_prob, *grads, *nade.fused_draw(*nade_inputs(batch, 300), rng(), 20)]
        alike = linear.compare(nearly_alike(5, 40, 60, 0.05).view(-1, 60), (5, 40, 60))
        assert alike is not None
        columns = torch.zeros(60, 300)
        choose.loops().alike_backward(*as_arrays(normal(200)), *alike.arrays, *as_arrays(normal(200, 300), columns))
        return [
            alike.common,
            torch.from_numpy(alike.number),
            columns,
            *results,
            darn.fused_draw(logits, 0.1 * normal(300, 300), rng()),
            *gibbs.fused_sweep(*gibbs_inputs((5, 41), 60, 300), rng(), ((100, 0.3), (200, 1.0))),
            bernoulli.fused_log_prob(logits, value),
        ]

    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(alone, everything(), strict=True))
    finally:
        torch.set_num_threads(threads)


# random numbers


def words(n: int, row: int = 0, low: int = 0, high: int = 0) -> np.ndarray:
    return choose.loops().random_words(n, row, np.uint32(low), np.uint32(high))[:n]


def test_words_are_those_of_philox():
    """Known answers of Philox4x32-10, which its authors publish with it (Random123, kat_vectors)."""
    philox = choose.loops().philox
    answer = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox(0, 0, np.uint32(0), np.uint32(0)) == answer
    assert words(1)[0] == 0x6627E8D5
    assert not np.array_equal(words(64, row=0), words(64, row=1))


def test_words_are_uniform_and_independent():
    many = words(200_000, low=5)
    uniform = (many + 0.5) / 2**32
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    ones = np.unpackbits(many.view(np.uint8)).reshape(-1, 32).mean(0)  # every bit, over the words
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(len(many))
    others = [words(200_000, low=6), words(200_000, low=5, high=1), words(200_000, row=1, low=5)]
    for other in [*others, *(np.roll(many, lag) for lag in (1, 2, 4, 16, 64, 784))]:
        assert abs(np.corrcoef(uniform, other)[0, 1]) < 5 / np.sqrt(len(many))


def test_normals_are_normal_and_independent():
    n = 400_001
    found = noise.normal((n,), rng()).numpy().astype(float)
    halves = found[: n // 1024 * 1024].reshape(-1, 2, 512)  # of Box and Muller's pairs
    for part in (found, halves[:, 0].ravel(), halves[:, 1].ravel()):
        assert stats.kstest(part, "norm").pvalue > 1e-3
    for k, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((found**k).mean() - moment) < 5 * np.sqrt(variance / n)
    assert 4.2 < np.abs(found).max() < 7
    first, second = halves[:, 0].ravel(), halves[:, 1].ravel()
    angle = np.arctan2(second, first) / (2 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > 1e-3
    assert stats.kstest(np.exp(-(first**2 + second**2) / 2), "uniform").pvalue > 1e-3
    for lag in (1, 2, 16, 512, 1024):
        for transform in (found, found**2):
            assert abs(np.corrcoef(transform, np.roll(transform, lag))[0, 1]) < 5 / np.sqrt(n)


def test_the_generator_is_the_only_state():
    one, other = rng(7), rng(7)
    draws = [noise.normal((3, 1025), one), noise.normal((3, 1025), one)]
    assert not torch.equal(*draws)
    assert torch.equal(draws[0], noise.normal((3, 1025), other))
    state = other.get_state()
    assert torch.equal(draws[1], noise.normal((3, 1025), other))
    assert torch.equal(draws[1], noise.normal((3, 1025), other.set_state(state)))


@PLAIN_AND_FUSED
def test_normals_of_any_shape_and_type(monkeypatch, wish):
    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    assert noise.normal((), rng()).shape == ()
    assert noise.normal((0, 3), rng()).shape == (0, 3)
    monkeypatch.delenv("DOUBLY_KERNELS")
    assert noise.normal((2, 3), rng(), torch.float64).dtype == torch.float64


# draws


def darn_log_prob(r: Tensor, W: Tensor, value: Tensor) -> Tensor:
    return bernoulli.plain_log_prob(r + value @ W.tril(-1).T, value)


def frequencies_fit(value: Tensor, log_prob: Tensor) -> bool:
    """Chi-square of draws (n, D) against log probabilities of all 2^D values, in the order of counting."""
    index = 2 ** torch.arange(value.shape[-1]).flip(0)
    counts = torch.bincount((value.long() * index).sum(-1), minlength=len(log_prob))
    expected = log_prob.double().exp()
    assert abs(expected.sum() - 1) < 1e-5
    return stats.chisquare(counts.numpy(), (expected / expected.sum() * len(value)).numpy()).pvalue > 1e-3


@PLAIN_AND_FUSED
@pytest.mark.parametrize("shared", [True, False], ids=["draws", "rows"])
@pytest.mark.parametrize("n_out", [1, 4])
def test_draws_follow_the_log_probability(monkeypatch, wish, shared, n_out):
    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n_out)))
    c, r, W, V = nade_inputs((), n_out, 3, 1.0)
    square = normal(n_out, n_out)
    n = 20_000
    rows, draws = ((), n) if shared else ((n,), None)
    logits, start = r.expand(*rows, n_out), c.expand(*rows, 3)
    assert frequencies_fit(bernoulli.draw(logits, rng(), draws), bernoulli.plain_log_prob(r, every))
    value, log_prob = bernoulli.draw_with_log_prob(logits, rng(), draws)
    assert frequencies_fit(value, bernoulli.plain_log_prob(r, every))
    torch.testing.assert_close(log_prob, bernoulli.plain_log_prob(r, value))
    value, log_prob = nade.draw(start, logits, W, V, rng(), draws)
    assert frequencies_fit(value, nade.plain_log_prob(c, r, W, V, every))
    torch.testing.assert_close(log_prob, nade.plain_log_prob(c, r, W, V, value), rtol=1e-5, atol=1e-5)
    assert frequencies_fit(darn.draw(logits, square.tril(-1), rng(), draws), darn_log_prob(r, square, every))


@PLAIN_AND_FUSED
def test_the_log_prob_of_a_draw_has_its_gradient(monkeypatch, wish):
    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    inputs = watched(nade_inputs((3,)))
    value, log_prob = nade.draw(*inputs, rng(), 5)
    assert value.shape == (5, 3, 37)
    assert not value.requires_grad
    found = torch.autograd.grad(log_prob.sum(), inputs)
    expected = torch.autograd.grad(nade.plain_log_prob(*inputs, value).sum(), inputs)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
    value, log_prob = bernoulli.draw_with_log_prob(inputs[1], rng(), 5)
    (found_logits,) = torch.autograd.grad(log_prob.sum(), inputs[1])
    assert_close(found_logits, (value - torch.sigmoid(inputs[1])).sum(0).detach())


@PLAIN_AND_FUSED
def test_what_is_all_but_certain_is_drawn(monkeypatch, wish):
    """A million draws with log-odds of 40: the other value would be a matter of coarse random numbers."""
    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    logits = torch.tensor([40.0, -40.0])
    value = bernoulli.draw(logits, rng(), 1_000_000)
    assert torch.equal(value, (logits > 0).float().expand_as(value))


def test_rare_values_are_as_rare_as_they_should_be():
    """Log-odds of -15: some 3 in 10 million."""
    value = bernoulli.fused_draw(torch.full((1000,), -15.0), rng(), 20_000)
    expected = value.numel() / (1 + np.exp(15))
    assert abs(value.sum() - expected) < 4 * np.sqrt(expected)


# Gibbs sweeps


def gibbs_inputs(batch: tuple[int, ...], units: int, fed: int, scale: float = 0.3) -> Gibbs:
    """value, field, logits, W and V; the field belongs to the rows, and the logits to each value."""
    value, W, V = bits(*batch, units), scale * normal(units, fed, seed=2), normal(units, units, seed=3)
    field, logits = 3 * normal(*batch[-1:], units, seed=4), normal(fed, seed=5) + value @ W
    return value, field, logits, W, 0.1 * (V + V.T).fill_diagonal_(0)


def plain_along(found: gibbs.Swept, inputs: Gibbs, monkeypatch, **options) -> gibbs.Swept:
    """The plain sweep in float64 that draws what the fused one has drawn, so that it has the same conditionals."""
    rows = found.value.double().flatten(0, -2)
    drawn = ~found.log_odds.isnan().flatten(0, -2)
    columns = iter([rows[drawn[:, k], k] for k in range(rows.shape[1])])
    with monkeypatch.context() as patch:
        patch.setattr(bernoulli, "plain_draw", lambda odds, rng: next(columns))
        value, field, logits, W, V = (tensor.double() for tensor in inputs)
        return gibbs.plain_sweep(value, field, logits, W, V, rng(), **options)


def assert_gibbs_is_plain(inputs: Gibbs, monkeypatch, reach: float = 0.0, **options) -> gibbs.Swept:
    found = gibbs.fused_sweep(*inputs, rng(), **options)
    expected = plain_along(found, inputs, monkeypatch, **options)
    assert torch.equal(found.value.double(), expected.value)
    assert torch.equal(found.log_odds.isnan(), expected.log_odds.isnan())
    drawn = ~found.log_odds.isnan()
    # the logits go along with the value in single precision, and every odds is a sum over them
    error = (found.log_odds.double() - expected.log_odds)[drawn].abs().max()
    assert error <= TOLERANCE * max(float(expected.log_odds[drawn].abs().max()), 1.0) + EPSILON * reach
    return found


@pytest.mark.parametrize("batch", [(1,), (3,), (4,), (5, 3), (2, 1, 9)], ids=str)
@pytest.mark.parametrize(
    "blocks", [None, ((83, 0.3), (20, 0.7)), ((16, -0.5), (0, 3.0), (70, 1.0), (17, 0.2))], ids=str
)
@pytest.mark.parametrize("share", [None, 0.0, 0.3, 1.0])
def test_fused_gibbs_is_the_plain_one(monkeypatch, batch, blocks, share):
    """Any number of rows, blocks that do not fill a vector, and any choice of units."""
    inputs = gibbs_inputs(batch, 37, 103)
    chosen = None if share is None else bits(*batch[-1:], 37, ones=share, seed=8).bool()
    found = gibbs.fused_sweep(*inputs, rng(), blocks, chosen)
    if chosen is not None:
        assert torch.equal(found.log_odds.isnan(), ~chosen.expand(*batch, 37))
        assert torch.equal(found.value[found.log_odds.isnan()], inputs[0][found.log_odds.isnan()])
    if share != 0:
        assert_gibbs_is_plain(inputs, monkeypatch, blocks=blocks, chosen=chosen)


def test_a_sweep_that_does_not_ask_which_units_are_chosen_draws_the_same(monkeypatch):
    """As on a device: all rows are computed, and those that are not drawn stay as they are."""
    inputs, chosen = gibbs_inputs((9,), 20, 30), bits(9, 20, ones=0.3).bool()
    wanted = bits(9, 20, seed=6)
    columns = iter(range(20))
    monkeypatch.setattr(bernoulli, "plain_draw", lambda odds, rng: wanted[chosen[:, k := next(columns)], k])
    expected = gibbs.plain_sweep(*inputs, rng(), chosen=chosen)
    columns = iter(range(20))
    monkeypatch.setattr(bernoulli, "plain_draw", lambda odds, rng: wanted[:, next(columns)])
    monkeypatch.setattr(gibbs, "_is_asked", lambda tensor: False)
    found = gibbs.plain_sweep(*inputs, rng(), chosen=chosen.to(torch.uint8))
    assert torch.equal(found.value, expected.value)
    torch.testing.assert_close(found.log_odds, expected.log_odds, equal_nan=True)


@pytest.mark.parametrize(("units", "fed"), [(1, 1), (200, 784), (50, 15), (20, 1001)])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 3.0])
def test_fused_gibbs_of_other_sizes(monkeypatch, units, fed, scale):
    inputs = gibbs_inputs((6,), units, fed, scale)
    assert_gibbs_is_plain(inputs, monkeypatch, reach=float(inputs[3].abs().sum(1).max()))


@pytest.mark.parametrize("size", [8.0, 35.0, 60.0, 100.0])
@pytest.mark.parametrize("steep", [0.01, 0.3, 1.0], ids=["one", "some", "all"])
@pytest.mark.parametrize("shift", [0.0, 100.0, -100.0])
def test_gibbs_with_steep_weights_and_logits_far_out(monkeypatch, size, steep, shift):
    """Units that take logits from 100 to 0 and back, some of which no product or quotient can follow."""
    value, field, logits, W, V = gibbs_inputs((9,), 40, 100)
    W = torch.where(bits(40, 100, ones=steep, seed=6) > 0, size * W.sign(), W)
    logits = normal(100, seed=5) + shift * bits(100, seed=7) + (value - 0.5) @ W
    inputs = value, field, logits, W, V
    assert_gibbs_is_plain(inputs, monkeypatch, reach=4 * float(W.abs().sum(1).max() + logits.abs().max()))


@pytest.mark.parametrize("sign", [1, -1])
def test_gibbs_brings_a_logit_back_from_far_out(monkeypatch, sign):
    """From 100, where the smaller sigmoid is no number any more, to 55, 10 and -5: the fourth unit sees it."""
    W = torch.zeros(4, 20)
    W[:, 3] = sign * torch.tensor([-45.0, -45.0, -15.0, 10.0])
    field, logits = torch.tensor([1e3, 1e3, 1e3, 0.0]), 100.0 * sign * torch.eye(20)[3]
    inputs = torch.zeros(5, 4), field, logits, W, torch.zeros(4, 4)
    found = assert_gibbs_is_plain(inputs, monkeypatch)
    assert (found.value[:, :3] == 1).all()
    assert (found.log_odds[:, 3].abs() - 5).abs().max() < 0.01


def test_every_row_has_the_field_of_its_own():
    """Certain one way in some rows and the other way in the rest, in a tile of either."""
    value, _, logits, W, _ = gibbs_inputs((11,), 20, 30)
    wanted = bits(11, 20, seed=9)
    found = gibbs.fused_sweep(value, 1e3 * (2 * wanted - 1), logits, W, None, rng())
    assert torch.equal(found.value, wanted)


@PLAIN_AND_FUSED
@pytest.mark.parametrize("share", [False, True], ids=["all", "some"])
def test_a_sweep_leaves_the_law_of_powers_as_it_is(monkeypatch, wish, share):
    """From exact draws, a sweep of units that are chosen without a look at z gives exact draws again."""
    monkeypatch.setenv("DOUBLY_KERNELS", wish)
    n, blocks = 40_000, ((3, 0.3), (4, 0.7))
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)))
    f, given, W, V = normal(4, seed=2), normal(7, seed=3), normal(4, 7, seed=4), 0.3 * normal(4, 4, seed=5)
    V = (V + V.T).fill_diagonal_(0)
    power = torch.tensor([0.3] * 3 + [0.7] * 4)
    # log p(z) = sum_k z_k f_k + 1/2 sum_jk z_j V_jk z_k - sum_i c_i softplus(l_i + sum_k z_k W_ki) + constant
    law = every @ f + 0.5 * ((every @ V) * every).sum(-1)
    law = (law - torch.nn.functional.softplus(given + every @ W) @ power).log_softmax(0)
    value = every[torch.multinomial(law.exp(), n, replacement=True, generator=rng(6))]
    chosen = (torch.rand(n, 4, generator=rng(7)) < torch.tensor([0.2, 0.5, 0.9, 0.5])) if share else None
    generator = rng(8)
    for _ in range(3):
        value = gibbs.sweep(value, f + value @ V, given + value @ W, W, V, generator, blocks, chosen).value
    assert law.exp().min() * n > 5  # or chi-square would not be
    assert frequencies_fit(value, law)


def test_blocks_must_divide_the_logits():
    inputs = gibbs_inputs((2,), 3, 5)
    for blocks in (((4, 1.0),), ((6, 1.0), (-1, 1.0)), ()):
        for run in (gibbs.plain_sweep, gibbs.fused_sweep):
            with pytest.raises(ValueError, match="do not divide 5 logits"):
                run(*inputs, rng(), blocks)


def test_compiled_functions_have_names_of_their_own():
    """Two with the same name, compiled by different processes, would take each other's place when loaded from disk."""
    if not choose.fused(torch.zeros(1)):
        pytest.skip("there is no Numba")
    module = choose.loops()
    names = [value.py_func.__qualname__ for value in vars(module).values() if hasattr(value, "py_func")]
    assert len(names) > 50
    assert len(names) == len(set(names))
