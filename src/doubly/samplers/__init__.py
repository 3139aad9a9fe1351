"""Samplers of the weights, one algorithm a file."""

from doubly.registry import Registry
from doubly.samplers.adam import Adam
from doubly.samplers.sampler import Sampler
from doubly.samplers.sgnht import SGNHT

SAMPLERS = Registry("sampler", sgnht=SGNHT, adam=Adam)

__all__ = ["SAMPLERS", "SGNHT", "Adam", "Sampler"]
