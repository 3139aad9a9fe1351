"""Presets: settings that stand for whole methods."""

from typing import Any

from doubly.core.errors import UserError, near
from doubly.runs.config import Config, from_dict

# the paper's settings, on which its method and its rivals are built; the defaults of `Config` are other ones
_PAPER = {
    "model": "sbn",
    "prior": "student-t",
    "sampler": "sgnht",
    "step": 0.005,
    "friction": 0.1,
    "estimator": "nais",
    "draws": 5,
    "phi_step": 3e-4,
    "theta_steps": 10,
    "patience": 10,
    "min_epochs": 10,
    "epochs": 1000,
    "collect_every": "1epoch",
}
_OPTIMISED = _PAPER | {"sampler": "adam", "step": 1e-3, "phi_step": 1e-3, "prior": "flat", "theta_steps": 1}


_VAE = {
    "model": "mlp:widths=200-200,normal",
    "proposal": "gaussian:widths=200-200",
    "hidden": (50,),
    "objective": "iwae",
}


PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "dsgnht-nais": ("the paper's method: thermostat, importance sampling, inclusive KL", _PAPER | {"resample": True}),
    "recommended": (
        "remembered latent states that move and compete with fresh draws (docs/reports/study.md); a mini-batch a step",
        {
            "prior": "student-t",
            "sampler": "thermostat",
            "friction": 0.1,
            "estimator": "persistent:chains=3,valid_rows=50",
            "draws": 1,
            "step": "auto",
            "phi_step": 1e-3,
            "resample": False,
            "theta_steps": 1,
            "valid_draws": 100,
            "patience": 100,
            "min_epochs": 100,
            "epochs": 10_000,
            "collect_every": "10epochs",
        },
    ),
    "dsgnht-nais-faithful": (
        "the same with the settings of the authors' released code, where they differ from the paper's",
        _PAPER
        | {
            "resample": True,
            "phi_first": True,
            "phi_prior": "normal:scale=1",
            "start": "reference",
            "prior": "student-t:scale=0.0953471",
            "step": 0.02,
        },
    ),
    "dsgnht-gibbs": (
        "the thermostat with persistent Gibbs chains for the latent variables",
        _PAPER | {"estimator": "gibbs"},
    ),
    "dsgnht-vae": (
        "the thermostat on a variational autoencoder, its proposal by the IWAE bound",
        _PAPER | _VAE | {"step": 0.001},
    ),
    "rws": (
        "reweighted wake-sleep: Adam on the same gradients, proposal by wake and sleep",
        _OPTIMISED | {"objective": "wake-sleep"},
    ),
    "wake-sleep": ("wake-sleep: one draw, proposal by sleep", _OPTIMISED | {"draws": 1, "objective": "sleep"}),
    "nvil": (
        "neural variational inference and learning: one draw, learnt baseline",
        _OPTIMISED | {"draws": 1, "objective": "nvil"},
    ),
    "vimco": ("VIMCO: the multi-sample bound by score functions", _OPTIMISED | {"objective": "vimco"}),
    "vae": ("variational autoencoder: one draw, reparameterised", _OPTIMISED | _VAE | {"draws": 1}),
    "iwae": ("importance weighted autoencoder: the multi-sample bound, reparameterised", _OPTIMISED | _VAE),
}


def preset(name: str, **overrides: Any) -> Config:
    """The settings that a preset stands for, with some of them changed.

    >>> preset("dsgnht-nais", step=0.01).resample
    True
    """
    if name not in PRESETS:
        raise UserError(f"no preset is called {name!r}{near(name, PRESETS)}; there are: {', '.join(PRESETS)}")
    return from_dict(PRESETS[name][1] | overrides)
