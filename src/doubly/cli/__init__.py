"""The command line: a file for each group of commands.

formatting   what commands share: run folders, settings, results as text or JSON
flags        the flags of a command: help in groups, wrong ones, settings from a file
names        names of members, checked before PyTorch is imported
listing      the registries, as text or JSON
fit          fit, resume, profile
evaluate     evaluate, compare, curve, diagnose
impute       sample, impute
tables       fill, odd
export       export
hub          push, pull
verify       verify, repair
data         data
report       report
serve        serve
paper        reproduce
registries   list
check        check
parser       the parser, and what becomes of errors
"""

import sys

from doubly.core.errors import UserError
from doubly.core.extras import extra

__all__ = ["main"]


def main(args: list[str] | None = None) -> None:
    """Run one command; without the packages of the command line, say in one line what to install."""
    try:
        with extra("cli", "the command line"):
            from doubly.cli import parser
    except UserError as error:
        print(f"doubly: {error}", file=sys.stderr)
        sys.exit(2)
    parser.main(args)
