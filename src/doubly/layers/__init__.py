"""Stochastic layers p(value | given), one family a file, and chains of them.

layer           what a layer is
autoregressive  layers whose values depend on each other in an order
sbn             sigmoid belief network
darn            deep autoregressive network
nade            neural autoregressive distribution estimator
mlp             perceptrons: binary values, normal values
normal          the standard normal top
registry        all families by name
chain           layers in a row, weights in one flat vector
"""

from doubly.layers.chain import Chain, Values
from doubly.layers.darn import DARN
from doubly.layers.layer import Drawn, Layer, LayerVJP, LogOdds, Params
from doubly.layers.mlp import MLP, Gaussian
from doubly.layers.nade import NADE
from doubly.layers.normal import Normal
from doubly.layers.registry import LAYERS
from doubly.layers.sbn import SBN

__all__ = [
    "DARN",
    "LAYERS",
    "MLP",
    "NADE",
    "SBN",
    "Chain",
    "Drawn",
    "Gaussian",
    "Layer",
    "LayerVJP",
    "LogOdds",
    "Normal",
    "Params",
    "Values",
]
