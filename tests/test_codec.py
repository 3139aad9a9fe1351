"""The codec: every kind of field comes back as it went in, bit for bit, from a checkpoint and from a cache."""

import json
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from doubly.core.codec import Encoded, from_cache, from_tensors, to_cache, to_tensors


class Inner(NamedTuple):
    u: Tensor
    eta: float
    t: int


class Outer(NamedTuple):
    theta: Any
    rng: torch.Generator
    memory: dict[str, Tensor]
    counter: Tensor
    inner: Inner
    perhaps: Inner | None = None
    began: int | None = None
    best: float = -torch.inf
    flag: bool = False


def outer(**fields: Any) -> Outer:
    rng = torch.Generator().manual_seed(3)
    torch.rand(7, generator=rng)
    memory = {"z1": torch.arange(6, dtype=torch.uint8).reshape(2, 3), "missing.x": torch.zeros(0)}
    theta = Inner(torch.rand(4, dtype=torch.float64), 1 / 3, 5)
    return Outer(theta, rng, memory, torch.tensor(9), Inner(torch.rand(2, 3).T, 0.1, 2**40))._replace(**fields)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, torch.Generator):
        assert torch.equal(one.get_state(), other.get_state())
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        assert_same(tuple(one.values()), tuple(other.values()))
    elif isinstance(one, tuple):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


CASES = {
    "all there": outer(perhaps=Inner(torch.zeros(1), 2.5, 1), began=4, best=-1 / 3, flag=True),
    "nothing yet": outer(),
    "an empty memory": outer(memory={}),
}


@pytest.mark.parametrize("state", CASES.values(), ids=list(CASES))
def test_a_state_comes_back_from_tensors_and_json(state):
    tensors, numbers = to_tensors(state)
    assert all(isinstance(value, Tensor) for value in tensors.values())
    again = from_tensors(Outer, Encoded(tensors, json.loads(json.dumps(numbers))), kinds={"theta": Inner})
    assert_same(state, again)


@pytest.mark.parametrize("state", CASES.values(), ids=list(CASES))
def test_a_state_comes_back_from_tensors_alone(state):
    tensors = to_cache(state)
    assert all(isinstance(value, Tensor) for value in tensors.values())
    assert_same(state, from_cache(Outer, tensors, kinds={"theta": Inner}))


def test_names_are_joined_by_dots():
    tensors, numbers = to_tensors(outer())
    assert sorted(tensors) == ["counter", "inner.u", "memory.missing.x", "memory.z1", "rng", "theta.u"]
    assert sorted(numbers) == sorted(
        ["theta.eta", "theta.t", "inner.eta", "inner.t", "perhaps", "began", "best", "flag"]
    )


def test_a_field_without_value_or_place_is_an_error():
    tensors, numbers = to_tensors(outer())
    fewer = {name: tensor for name, tensor in tensors.items() if name != "counter"}
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'counter'"):
        from_tensors(Outer, Encoded(fewer, numbers), kinds={"theta": Inner})
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        from_tensors(Outer, Encoded(tensors, numbers | {"other": 1}), kinds={"theta": Inner})
    with pytest.raises(TypeError, match="unexpected"):
        from_tensors(Outer, Encoded(tensors, numbers), kinds={"theta": float})
    with pytest.raises(TypeError, match="unexpected keyword argument 'v'"):
        from_tensors(Outer, Encoded(tensors, numbers | {"inner.v": 1}), kinds={"theta": Inner})


def test_an_absent_field_has_its_default():
    tensors, numbers = to_tensors(outer(flag=True))
    del numbers["flag"], numbers["best"]
    again = from_tensors(Outer, Encoded(tensors, numbers), kinds={"theta": Inner})
    assert again.flag is False
    assert again.best == -torch.inf
