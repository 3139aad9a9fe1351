"""Pictures beside results: of traces, of a curve, of completed rows."""

from pathlib import Path

import numpy as np

from doubly.analysis.diagnose import Diagnosis
from doubly.analysis.evaluation import Curve
from doubly.analysis.report import figures
from doubly.analysis.report.files import save_figure

SHOWN = 12  # rows in a picture of completions


def save_traces(folder: str | Path, found: Diagnosis) -> Path:
    """Draw the traces of a diagnosis into a run folder."""
    return save_figure(folder, "traces", figures.png(figures.traces(found.histories)))


def save_curve(folder: str | Path, found: Curve) -> Path:
    """Draw a curve into a run folder."""
    return save_figure(folder, f"curve-over-{found.over}", figures.png(figures.curve(found)))


def completions(x: np.ndarray, missing: np.ndarray, completed: np.ndarray, shape: tuple[int, ...]) -> bytes:
    """Three lines of images: originals, what was left of them (hidden cells grey), and one completion of each."""
    left = np.where(missing, 0.4, x)
    lines = [x[:SHOWN], left[:SHOWN], completed[:SHOWN]]
    return figures.png(figures.image_rows(lines, ["original", "left", "completed"], shape))
