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
verify       verify, repair
data         data
report       report
serve        serve
paper        reproduce
registries   list
check        check
parser       the parser, and what becomes of errors
"""

from doubly.cli.parser import main

__all__ = ["main"]
