"""Questions to finished runs; no chain is moved.

config       the settings of an evaluation
convergence  R-hat and effective sample sizes of traces
accuracy     how well hidden cells are imputed, beside simpler ways
evaluate     one run, several compared, curves
diagnose     have the chains mixed, and at which temperature
report       pictures and the HTML page
impute       `doubly impute`: files with missing values
laws         what members of the registries keep, for `doubly check`
profile      where the time of a training step goes
"""
