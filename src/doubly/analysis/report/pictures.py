"""Pictures beside results: of traces, of a curve, of completed rows."""

from pathlib import Path

import numpy as np

from doubly.analysis.diagnose import Diagnosis
from doubly.analysis.evaluation import Curve
from doubly.analysis.report import figures
from doubly.analysis.report.files import save

SHOWN = 12  # rows in a picture of completions


def save_traces(folder: str | Path, found: Diagnosis) -> Path:
    """Draw the traces of a diagnosis into a run folder."""
    path = Path(folder) / "figures" / "traces.png"
    save(path, figures.png(figures.traces(found.histories)))
    return path


def save_curve(folder: str | Path, found: Curve) -> Path:
    """Draw a curve into a run folder."""
    path = Path(folder) / "figures" / f"curve-over-{found.over}.png"
    save(path, figures.png(figures.curve(found)))
    return path


def save_completions(
    path: Path, x: np.ndarray, missing: np.ndarray, completed: np.ndarray, shape: tuple[int, ...]
) -> None:
    """Three lines of images: originals, what was left of them (hidden cells grey), and one completion of each."""
    left = np.where(missing, 0.4, x)
    lines = [x[:SHOWN], left[:SHOWN], completed[:SHOWN]]
    save(path, figures.png(figures.image_rows(lines, ["original", "left", "completed"], shape)))
