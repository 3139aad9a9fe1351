"""The command line: a file for each group of commands.

formatting   run folders as arguments, results as JSON
listing      the registries in words
fit          fit, resume, profile
evaluate     evaluate, compare, curve, diagnose
impute       sample, impute
data         data
report       report
paper        reproduce
registries   list
check        check
parser       the parser, and what becomes of errors
"""

from doubly.cli.parser import main

__all__ = ["main"]
