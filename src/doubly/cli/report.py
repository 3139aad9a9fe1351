"""The report of a run: report."""

from dataclasses import dataclass

from doubly.cli.formatting import AllowCode, RunFolder


@dataclass(frozen=True)
class Report:
    """Make RUN/report.html: results, curves, data, samples and weights in one file."""

    folder: RunFolder
    allow_code: AllowCode = False

    def run(self) -> None:
        from doubly.analysis.report import make

        table, path = make(self.folder)
        print(table)
        print(f"report: {path}")
