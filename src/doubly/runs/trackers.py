"""Who is told of a fit: functions of the user's, and trackers, to which the numbers of each epoch are also sent.

A tracker needs two methods; three adapters are here.

The packages behind them are extras, imported when a tracker is made.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from doubly.core.extras import extra
from doubly.core.registry import Registry
from doubly.runs.progress import Progress


class Tracker(Protocol):
    """What `doubly.fit(tracker=…)` talks to."""

    def start(self, name: str, settings: dict[str, Any]) -> None:
        """A run begins, or goes on: its folder, and its settings by name."""

    def log(self, epoch: int, numbers: dict[str, float]) -> None:
        """An epoch has ended: its numbers by name, such as valid, train and sampler/temperature."""


class Listeners(NamedTuple):
    """Who is told of a fit while it goes on."""

    on_epoch: Callable[[dict[str, Any]], bool | None] | None = None
    """Given the record of each epoch, as in metrics.jsonl; True stops the fit, which can be resumed."""
    on_sample: Callable[[int, Tensor], bool | None] | None = None
    """Given the number of each sample and the weights; True stops the fit, which can be resumed."""
    tracker: Tracker | None = None
    progress: Progress | None = None
    """What shows where the fit stands, in place of a display of its own."""


NOBODY = Listeners()


class TensorBoard:
    """TensorBoard, into the folder tensorboard/RUN."""

    def __init__(self, folder: str = "tensorboard"):
        self._folder = folder
        self._writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter

    def start(self, name: str, settings: dict[str, Any]) -> None:
        self._open = self._writer(log_dir=f"{self._folder}/{name.strip('/').replace('/', '-')}")
        self._open.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))

    def log(self, epoch: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._open.add_scalar(name, value, epoch)
        self._open.flush()


class MLflow:
    """MLflow, with the server and the experiment that its environment names."""

    def __init__(self) -> None:
        self._mlflow = _imported("mlflow", "mlflow")

    def start(self, name: str, settings: dict[str, Any]) -> None:
        if self._mlflow.active_run() is None:
            self._mlflow.start_run(run_name=name)
        self._mlflow.log_params(settings)

    def log(self, epoch: int, numbers: dict[str, float]) -> None:
        self._mlflow.log_metrics(numbers, step=epoch)


class WandB:
    """Weights & Biases, with the project and the key that its environment names."""

    def __init__(self) -> None:
        self._wandb = _imported("wandb", "wandb")

    def start(self, name: str, settings: dict[str, Any]) -> None:
        self._run = self._wandb.run or self._wandb.init(name=name, config=settings)

    def log(self, epoch: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=epoch)


TRACKERS = Registry("tracker", tensorboard=TensorBoard, mlflow=MLflow, wandb=WandB)


def tracker(given: Tracker | str | None) -> Tracker | None:
    """A tracker by name, or the one that is given."""
    found: Tracker | None = TRACKERS.find(given)() if isinstance(given, str) else given
    return found


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in the record of an epoch, flat.

    >>> numbers({"epoch": 3, "phase": "collect", "valid": -1.5, "sampler": {"temperature": 1.0}})
    {'valid': -1.5, 'sampler/temperature': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": number for inner, number in numbers(value).items()}
        elif isinstance(value, int | float) and name != "epoch":
            found[name] = float(value)
    return found


def _imported(module: str, name: str) -> Any:
    with extra(name, f"the tracker {name}"):
        return import_module(module)
