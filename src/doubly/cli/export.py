"""One file of a run: export."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from doubly.cli.formatting import RunFolder


@dataclass(frozen=True)
class Export:
    """Write what a run has learnt into one file, without code and without rows; `doubly.load` opens it."""

    folder: RunFolder
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.doubly")]
    """The file to write, ending in .doubly."""
    refit: int = 100
    """Passes over the training rows that fit the proposal to the mean of the weights."""

    def run(self) -> None:
        from doubly.runs.export import export
        from doubly.runs.fit import use_threads
        from doubly.runs.folder import Run

        run = Run(self.folder)
        with use_threads(run.config.threads or 1):
            path = export(run, self.file, self.refit)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB; open it with doubly.load({str(path)!r})")
