"""The laws, run on a member of one's own: check."""

import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Check:
    """Run the laws on a layer, sampler, prior, estimator, objective, schedule or data set of your own."""

    member: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MY_FILE.py:MyClass[:OPTIONS]")]
    """The file and the class or function in it, with options if it has any; registered names are fine, too."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> None:
        from doubly.analysis.laws import check

        reports = check(self.member)
        if self.json:
            print(json.dumps({"member": self.member, "checks": [report.to_json() for report in reports]}))
        else:
            print("\n".join(report.text() for report in reports))
        if not all(report.ok for report in reports):
            sys.exit(1)
