"""Choices that go by name wherever they are made: in Python, on the command line and in files."""

from typing import Literal

Start = Literal["glorot", "reference"]
Binarise = Literal["threshold", "sample", "dynamic"]
Split = Literal["train", "valid", "test"]
Step = float | Literal["auto"]
Of = Literal["auto", "mean", "last", "ensemble"]
By = Literal["auto", "draws", "annealing", "short-chain"]
Refit = Literal["wake", "sleep", "wake-sleep"]
ImputeMethod = Literal["chain", "paper"]
Hide = Literal["random", "block", "lower-half"]
Over = Literal["samples", "draws", "training-draws"]
