"""Data sets and files: data."""

import json
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from doubly.cli.names import check_data
from doubly.core.errors import UserError


@dataclass(frozen=True)
class Data:
    """The data sets there are (list), what is in one (info), and what is wrong with it (check)."""

    what: Annotated[Literal["list", "info", "check"], tyro.conf.Positional] = "list"
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = ""
    """For info and check: a data set by name, or a path."""
    download: bool = False
    """Fetch a set that is not here."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from doubly.data import describe

        if self.what == "list":
            print(json.dumps(describe.listing()) if self.json else describe.listing_text())
            return
        if not self.name:
            raise UserError(f"name a data set or a file, as in: doubly data {self.what} digits")
        if self.what == "info":
            text = json.dumps(describe.info(self.name, self.download)) if self.json else None
            print(text or describe.info_text(self.name, self.download))
            return
        check_data(self.name)
        problems = describe.check(self.name, self.download)
        print(json.dumps(problems) if self.json else "\n".join(problems) or f"{self.name}: nothing is wrong")
