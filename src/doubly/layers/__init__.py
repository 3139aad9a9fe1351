"""Stochastic layers, one family a file."""

from doubly.layers.darn import DARN
from doubly.layers.layer import Drawn, Layer, Params, Tracked
from doubly.layers.mlp import MLP, Gaussian
from doubly.layers.nade import NADE
from doubly.layers.normal import Normal
from doubly.layers.sbn import SBN
from doubly.registry import Registry

LAYERS = Registry("layer", sbn=SBN, darn=DARN, nade=NADE, mlp=MLP, gaussian=Gaussian, normal=Normal)

__all__ = ["DARN", "LAYERS", "MLP", "NADE", "SBN", "Drawn", "Gaussian", "Layer", "Normal", "Params", "Tracked"]
