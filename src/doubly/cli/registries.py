"""What there is to choose from: list."""

from dataclasses import dataclass

from doubly.cli.formatting import show


@dataclass(frozen=True)
class List:
    """Every registered layer, sampler, prior, estimator, objective, data set and preset."""

    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.cli.listing import registries

        show(registries(), self.json)
