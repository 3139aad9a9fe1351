"""The state of a run folder: verify, repair."""

import sys
from dataclasses import dataclass

from doubly.cli.formatting import RunFolder, show


@dataclass(frozen=True)
class Verify:
    """Tell the state of a run folder, file by file, by its checksums; exit code 1 if something is damaged."""

    folder: RunFolder
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.verify import verify

        found = verify(self.folder)
        show(found, self.json)
        if not found.good:
            sys.exit(1)


@dataclass(frozen=True)
class Repair:
    """Set aside what is damaged in a run folder, and restore what a checkpoint has a copy of; nothing is deleted."""

    folder: RunFolder
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.verify import repair

        show(repair(self.folder), self.json)
