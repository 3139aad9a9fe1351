"""Samplers of the weights, one algorithm a file; priors and step schedules.

sampler      what a sampler is: ask / tell
prior        what a prior is: the log density of the weights, and what it learns
log_concave  exact draws of one variable
learnt       scales that are learnt
priors       the log density of the weights and its gradient
schedules    what the step is multiplied with as the epochs go by
sgld         Langevin dynamics
psgld        the same, preconditioned
sghmc        Hamiltonian dynamics with friction
sgnht        Nosé–Hoover thermostats, the paper's
sgnht_split  the same by symmetric splitting
thermostat   the same with a time constant that does not depend on the step
sms_ubu      Langevin dynamics in symmetric passes over the mini-batches
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
from doubly.samplers.sms_ubu import SMSUBU
from doubly.samplers.thermostat import ScalarThermostat, Thermostat

SAMPLERS = Registry(
    "sampler",
    thermostat=Thermostat,
    thermostat_scalar=ScalarThermostat,
    sgnht=SGNHT,
    sgnht_split=SplitSGNHT,
    sgnht_scalar=ScalarSGNHT,
    sms_ubu=SMSUBU,
    sghmc=SGHMC,
    sgld=SGLD,
    psgld=PSGLD,
    adam=Adam,
    sgd=SGD,
)

__all__ = [
    "PSGLD",
    "SAMPLERS",
    "SGD",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SMSUBU",
    "Adam",
    "Sampler",
    "ScalarSGNHT",
    "ScalarThermostat",
    "SplitSGNHT",
    "Thermostat",
]
