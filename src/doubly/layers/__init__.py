"""Stochastic layers p(value | given), one family a file, and chains of them.

layer           what a layer is
autoregressive  layers whose values depend on each other in an order
sbn             sigmoid belief network
darn            deep autoregressive network
nade            neural autoregressive distribution estimator
mlp             perceptrons: binary values, normal values
normal          the standard normal top
mixed           the columns of a table, each with the density of its kind
registry        all families by name
chain           layers in a row, weights in one flat vector
"""

from doubly.layers.chain import Chain, Values
from doubly.layers.darn import DARN
from doubly.layers.layer import Block, Drawn, Layer, LayerVJP, LogOdds, Params
from doubly.layers.mixed import Mixed
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
    "Block",
    "Chain",
    "Drawn",
    "Gaussian",
    "Layer",
    "LayerVJP",
    "LogOdds",
    "Mixed",
    "Normal",
    "Params",
    "Values",
]
