"""What is kept of a chain, and the questions it answers.

scores       what the scores of rows come to, of one set of weights or of an ensemble
store        Posterior: the mean and the samples of the weights
"""
