"""`python -m doubly` is the command line."""

from doubly.cli import main

main()
