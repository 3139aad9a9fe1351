"""What finished runs say: evaluation, diagnosis, imputation, profile, report. No chain is moved.

config          the settings of an evaluation
results         what all results share: one way to text, one to JSON
convergence     R-hat and effective sample sizes of traces
traces          what a run has recorded, epoch by epoch
temperature     the kinetic temperature of a chain beside the expected one
verdict         a diagnosis in words
diagnose        have the chains mixed, and do they sample at their temperature
outcome         what a fit came to, in words
inference_data  weights and traces for ArviZ
accuracy        how well hidden cells are imputed, beside simpler imputers
estimators      by draws or by annealing: which bound is larger, and is it settled
evaluation      the results of evaluations: of one run, a comparison, a curve
evaluate        evaluate one run, compare several, curves
tables          what a learnt table answers, cell by cell
report          pictures and the HTML page
pool            estimates of several completed copies as one
impute          `doubly impute`: files with missing values, hidden cells
table_runs      what a run has learnt of a table, ready to answer cell by cell
table_files     `doubly fill`, `doubly odd`: tables in files
laws            what members of the registries keep, for `doubly check`
verify          the state of a run folder, and what can be kept of a damaged one
card            the model card of a run, from its report
hub             push and pull: runs on the Hugging Face Hub
profile         where the time of a training step goes
"""
