"""Samplers of the weights, one algorithm a file; priors and step schedules.

sampler      what a sampler is: ask / tell
priors       the log density of the weights and its gradient
schedules    what the step is multiplied with as the epochs go by
sgld         Langevin dynamics
psgld        the same, preconditioned
sghmc        Hamiltonian dynamics with friction
sgnht        Nosé–Hoover thermostats, the paper's
sgnht_split  the same by symmetric splitting
sgd          stochastic gradient ascent
adam         Adam
"""

from doubly.core.registry import Registry
from doubly.samplers.adam import Adam
from doubly.samplers.psgld import PSGLD
from doubly.samplers.sampler import Sampler
from doubly.samplers.sgd import SGD
from doubly.samplers.sghmc import SGHMC
from doubly.samplers.sgld import SGLD
from doubly.samplers.sgnht import SGNHT, ScalarSGNHT
from doubly.samplers.sgnht_split import SplitSGNHT

SAMPLERS = Registry(
    "sampler",
    sgnht=SGNHT,
    sgnht_split=SplitSGNHT,
    sgnht_scalar=ScalarSGNHT,
    sghmc=SGHMC,
    sgld=SGLD,
    psgld=PSGLD,
    adam=Adam,
    sgd=SGD,
)

__all__ = ["PSGLD", "SAMPLERS", "SGD", "SGHMC", "SGLD", "SGNHT", "Adam", "Sampler", "ScalarSGNHT", "SplitSGNHT"]
