"""What there is to choose from: list."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class List:
    """Every registered layer, sampler, prior, estimator, objective, data set and preset."""

    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.cli.listing import registries, table

        print(json.dumps(registries()) if self.json else table(), end="\n")
