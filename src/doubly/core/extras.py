"""Packages that only some answers need: imported where they are used, and named with what installs them.

The core needs torch, numpy, numba and safetensors. All else is an extra of `pyproject.toml`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from doubly.core.errors import UserError

# the modules that each extra brings
EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": ("tyro", "rich"),
    "plots": ("matplotlib", "jinja2"),
    "sklearn": ("sklearn", "scipy"),
    "data": ("pooch", "requests", "PIL"),
    "parquet": ("pyarrow",),
    "xlsx": ("openpyxl",),
    "arviz": ("arviz", "xarray", "h5netcdf", "h5py"),
    "serve": ("starlette", "uvicorn"),
    "hub": ("huggingface_hub",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Around imports of an extra: a package that is not here is one line, with what to run. `what` needs it.

    >>> with extra("hub", "doubly push"):
    ...     raise ModuleNotFoundError(name="huggingface_hub")
    Traceback (most recent call last):
    doubly.core.errors.UserError: doubly push needs huggingface_hub, which is not here: pip install 'doubly[hub]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[name]:
            raise
        raise UserError(f"{what} needs {package}, which is not here: pip install 'doubly[{name}]'") from None
