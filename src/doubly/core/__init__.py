"""What every room stands on; it knows nothing of models.

errors       the exceptions that are the user's to mend
extras       packages that only some answers need
documented   what things say of themselves: texts of fields, tables for notebooks
types        choices that go by name: literal types
own_files    a user's own Python file: executed once, known by its checksum
registry     names on the command line become objects with options
statistics   errors of means
random       a random generator for each purpose
launch       what torchrun tells the processes that it starts
ranks        the processes that torchrun has started, which share the work on a run
rows         rows that are read when they are asked for
cache        results that took long to compute, stored under names that say all they depend on
codec        state to tensors and back, for checkpoints and caches
files        files: opened in one place, without following links; written whole or not at all; locks
sealed       JSON and tensors that carry their own checksum
"""
