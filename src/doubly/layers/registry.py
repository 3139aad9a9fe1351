"""The registry of layers: a new family is one class in one file, and one line here."""

from doubly.core.registry import Registry
from doubly.layers.darn import DARN
from doubly.layers.mixed import Mixed
from doubly.layers.mlp import MLP, Gaussian
from doubly.layers.nade import NADE
from doubly.layers.normal import Normal
from doubly.layers.sbn import SBN

LAYERS = Registry("layer", sbn=SBN, darn=DARN, nade=NADE, mlp=MLP, gaussian=Gaussian, normal=Normal, mixed=Mixed)
