"""One training step on a device that holds no numbers: every tensor is on it, and nothing waits for it.

PyTorch's meta device works out shapes and places only. An operation that mixes devices fails there, and so does what
asks for a number, by which a step on a GPU would have to wait for it.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from doubly import LAYERS, OBJECTIVES, SAMPLERS
from doubly.runs.build import Facts, build
from doubly.runs.config import from_dict
from doubly.training.state import State, init
from doubly.training.step import step

VAE = {"model": "mlp:widths=7,normal", "proposal": "gaussian:widths=7"}
BINARY = [name for name in LAYERS if getattr(LAYERS[name], "kind", "") == "binary"]
CASES: dict[str, dict[str, Any]] = {
    **{f"layer-{name}": {"model": name, "proposal": name, "hidden": (5, 4)} for name in BINARY},
    "layer-gaussian": VAE,
    **{f"sampler-{name}": {"sampler": name} for name in SAMPLERS},
    **{f"objective-{name}": {"objective": name} | (VAE if OBJECTIVES[name].pathwise else {}) for name in OBJECTIVES},
    "gibbs": {"estimator": "gibbs"},
    "remembered": {"estimator": "persistent:chains=2", "hidden": (5, 4)},
    "remembered-some-units": {"estimator": "persistent", "moves": "gibbs:share=0.5"},
    "remembered-langevin": {"estimator": "persistent", "moves": "langevin"},
    "resampled": {"resample": True},
    "phi-first": {"phi_first": True, "phi_prior": "normal:scale=1"},
}


def moved(value: Any) -> Any:
    """The same on the meta device; counters stay with the host."""
    if isinstance(value, dict):
        return {name: moved(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return type(value)(*(moved(each) for each in value))
    return value.to("meta") if isinstance(value, Tensor) and (value.dim() or value.is_floating_point()) else value


@pytest.mark.parametrize("name", CASES)
def test_a_step_stays_on_its_device_and_waits_for_nothing(name, monkeypatch):
    monkeypatch.setenv("DOUBLY_KERNELS", "0")
    method = build(from_dict({"hidden": (5,)} | CASES[name]), Facts(6, "binary", (6,)))
    x = (torch.rand(20, 6, generator=torch.Generator().manual_seed(0)) < 0.5).byte()
    state = State(*(moved(value) for value in init(method, x)))
    after = step(method, state, x[:10].float().to("meta"), torch.arange(10, device="meta"), 20)
    for vector in (after.theta.theta, after.phi.theta, after.totals, *after.memory.values()):
        assert vector.device.type == "meta" or (vector.dim() == 0 and not vector.is_floating_point())
    assert after.theta.theta.shape == (method.model.size,)
