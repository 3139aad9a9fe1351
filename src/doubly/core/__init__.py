"""What every room stands on; it knows nothing of models.

errors       the one exception that is the user's to mend
types        choices that go by name: literal types
own_files    a user's own Python file: executed once, known by its checksum
registry     names on the command line become objects with options
statistics   errors of means
random       a random generator for each purpose
cache        results that took long to compute, stored under names that say all they depend on
codec        state to tensors and back, for checkpoints and caches
files        files written whole or not at all, locks
"""
