"""Every score that the test rows of a table's row have had: a list that only grows, kept beside the results."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from doubly.analysis.results import Result
from doubly.core.errors import UserError
from doubly.core.files import Folder
from doubly.paper.result import RowResult

FILE = "scores.jsonl"  # in the folder of the results; one object a line


@dataclass(frozen=True)
class Score(Result):
    """One look at the test rows."""

    title: str
    """The file of the result, without its ending."""
    row: str
    log_likelihood: float
    how: str
    """The estimate, in a few words."""
    samples: int
    """Samples of the weights in the mean; 0 for the last weights of an optimiser."""
    cut: bool
    commit: str | None
    """Of the code."""

    def text(self) -> str:
        return f"{self.log_likelihood:.2f} ({self.how}{', cut' if self.cut else ''})"


def score_of(title: str, result: RowResult) -> Score:
    """What a result says of the test rows, as one more look at them."""
    return Score(
        title=title,
        row=result.name,
        log_likelihood=round(result.log_likelihood, 4),
        how=result.estimate().split(", bounds")[0].split(", k̂")[0] + (", refined" if result.refine else ""),
        samples=result.samples,
        cut=result.cut,
        commit=result.commit,
    )


def read_scores(results: str | Path) -> list[Score]:
    """All scores, the oldest first."""
    file = Path(results) / FILE
    if not file.exists():
        return []
    try:
        return [Score(**json.loads(line)) for line in file.read_text().splitlines()]
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is no list of scores ({error!r}): restore it from the repository") from None


def is_listed(results: str | Path, score: Score) -> bool:
    """Whether this number of this title is in the list: the same weights, scored the same way."""
    before = {(each.title, each.log_likelihood) for each in read_scores(results)}
    return (score.title, score.log_likelihood) in before


def add_score(results: str | Path, score: Score) -> None:
    """Append one; several rows may be made at once, so what is there is not written again."""
    folder = Folder(Path(results))
    folder.append(FILE, (json.dumps(score.to_json()) + "\n").encode())
    folder.sync(FILE)


def told(scores: Sequence[Score], row: str) -> str:
    """The scores of a row's test rows in the order in which they were made."""
    return " → ".join(score.text() for score in scores if score.row == row)
