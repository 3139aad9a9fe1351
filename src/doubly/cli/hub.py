"""Runs on the Hugging Face Hub: push, pull."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from doubly.cli.formatting import AllowCode, RunFolder, show

Repository = Annotated[
    str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME", help="A repository of the Hugging Face Hub.")
]


@dataclass(frozen=True)
class Push:
    """Send a run to the Hugging Face Hub, with a model card made from its report; a new repository is private.

    Data of your own stay here: what was learnt from them goes as one file without rows.
    """

    folder: RunFolder
    repository: Repository
    public: bool = False
    """Let everybody see a repository that is new; one that exists stays as it is."""
    with_rows: bool = False
    """Send the run folder also where the data are your own: the rows, and pictures of them, go along."""
    json: bool = False
    """Print one JSON object."""
    allow_code: AllowCode = False

    def run(self) -> None:
        from doubly.analysis.hub import push
        from doubly.runs.progress import Progress

        with Progress() as progress:
            found = push(self.folder, self.repository, self.public, self.with_rows, tell=progress.show)
        show(found, self.json)


@dataclass(frozen=True)
class Pull:
    """Fetch a run from the Hugging Face Hub into a new folder. It is checked, and nothing in it is executed."""

    repository: Repository
    out: str = ""
    """The run folder to make, or a file ending in .doubly (by default runs/NAME, or NAME.doubly)."""
    revision: str = "main"
    """A branch, a tag or a commit."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.hub import pull
        from doubly.runs.progress import Progress

        with Progress() as progress:
            found = pull(self.repository, self.out, self.revision, tell=progress.show)
        show(found, self.json)
