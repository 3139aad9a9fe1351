"""Stochastic layers, one family a file."""

from doubly.layers.layer import Drawn, Layer, Params, Start
from doubly.layers.sbn import SBN
from doubly.registry import Registry

LAYERS = Registry("layer", sbn=SBN)

__all__ = ["LAYERS", "SBN", "Drawn", "Layer", "Params", "Start"]
