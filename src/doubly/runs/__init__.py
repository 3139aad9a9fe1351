"""Runs: settings, the folder, and the loop between training and folder.

config       the settings, as the command line, Python and config.json have them
presets      settings that stand for whole methods
build        settings become objects
sources      members of the user's own: their source goes with the run
progress     what a person sees while waiting
folder       the run folder
fit          fit and resume
"""
