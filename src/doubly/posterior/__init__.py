"""The samples of a chain, and the questions it answers.

work         long work: its progress, and what is stored of it until it is finished
rows         rows of the caller's, checked against the model's data layer
scores       log p(x) of rows, of one set of weights or of an ensemble; by importance sampling or annealing
estimates    which estimate of log p(x) answers: draws, or annealing
imputation   completions of rows with missing values, and how likely the true values are
codes        E[z | x] of rows
arviz        the samples of the weights for ArviZ
plots        pictures of a posterior, by matplotlib
store        Posterior: the mean and the samples of the weights, with proposals fitted to them; it asks the files above
units        the same of a table whose columns were scaled, in its own units and words
"""
