"""The hot loops: fused (Numba) beside plain (PyTorch), chosen in one place.

threads      how many threads compute
choose       which kernels run
rows         tensors as the rows of arrays
compiled     how fused loops are compiled and kept on disk
loops        all fused loops, in one file for Numba's cache
noise        counter-based random numbers
weights      importance weights and what they are worth
moves        one move of a sampler or optimiser over the whole vector
bernoulli    Bernoulli log-likelihood and residual in one pass
gaussian     the normal density
linear       log-odds that are linear in what is given
perceptron   deterministic layers and their gradient
nade         NADE, which skips zeros
darn         the triangular layer
gibbs        Gibbs sweeps
"""
