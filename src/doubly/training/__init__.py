"""Learning: what stays (method), what moves (state), one step, and the protocol around it.

settings     the plain numbers, with their checks; runs/config adds names to them
method       all that stays fixed in a run
centring     coordinates in which the automatic step is taken
tuning       the automatic step
shards       the training rows in parts, for ranks that share a step
state        all that moves
step         one step: ask, estimate, tell, move the proposal
protocol     epochs, validation, when to stop and when to collect
refit        a copy of the proposal fitted to fixed weights
"""
