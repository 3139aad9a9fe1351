"""Learning: what stays (method), what moves (state), one step, and the protocol around it.

method       all that stays fixed in a run
state        all that moves
step         one step: ask, estimate, tell, move the proposal
protocol     epochs, validation, when to stop and when to collect
refit        a copy of the proposal fitted to weights that stand still
"""
