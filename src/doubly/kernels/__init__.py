"""The work that layers and samplers share: plain PyTorch, and beside it fused CPU kernels that do it in one pass.

`choose` says which of the two runs. A distribution is a file: its public functions pick between `plain_…`, which runs
on any device and in any precision, and `fused_…`, which calls the compiled `loops`.
"""
