"""Runs: settings, the folder, and the loop between training and folder.

config       the settings, as the command line, Python and config.json have them
fields       the same settings as keyword arguments, with their types and texts
presets      settings that stand for whole methods
build        settings become objects
baseline     base lines in closed form
automatic    settings that are chosen by looking at the data
mixture      mixtures for tables, by EM from incomplete rows
stack        weights for several models, by cells that were hidden from them
race         candidates that learn side by side, and the better ones go on
learn        a table under a budget of time: the best of several models, stacked
sources      members of the user's own: their source goes with the run
versions     of the format of files, and of what a run was computed with
records      metrics.jsonl: a line for each epoch, with a checksum
checkpoints  checkpoints and samples as files
file_cache   a cache in the run folder, or elsewhere where that cannot be written to
progress     what a person sees while waiting
stops        clean stops by signals
plan         a budget of time: epochs and samples that fit into it
trackers     who is told of a fit, and where the numbers of each epoch are also sent
watch        where a fit stands, in one line
folder       the run folder
export       a finished run as one file
chains       several chains at the same time, each in a process of its own
fit          fit and resume
worker       the process of a chain
"""
