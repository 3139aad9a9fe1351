"""The report of runs: report."""

from dataclasses import dataclass

from doubly.cli.formatting import AllowCode, RunFolders, some


@dataclass(frozen=True)
class Report:
    """Make RUN/report.html: a verdict in words, then scores, curves, data beside samples and more, in one file.

    With several runs, the page of the first begins with a comparison.
    """

    folders: RunFolders = ()
    allow_code: AllowCode = False

    def run(self) -> None:
        from doubly.analysis.report import make
        from doubly.runs.progress import Progress

        with Progress() as progress:
            table, path = make(*some(self.folders), tell=progress.show)
        print(table)
        print(f"report: {path}")
