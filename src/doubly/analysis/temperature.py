"""The kinetic temperature of a chain, mean(u^2) / eta, beside the one its sampler should have."""

from dataclasses import dataclass

from doubly.analysis.convergence import Summary
from doubly.analysis.results import Result
from doubly.samplers import Sampler
from doubly.samplers.sampler import NEAR


@dataclass(frozen=True)
class Temperature(Result):
    """The mean kinetic temperature beside the expected one."""

    mean: float
    mcse: float
    expected: float
    """Where the sampler would hold it with exact gradients: 1, unless it was set otherwise or friction changes it."""
    noise: float
    """About where the noise of mini-batches would bring it without a thermostat."""
    compatible: bool
    """Whether it is within 5 % or two standard errors of the expected one."""
    sampler: Sampler

    def text(self) -> str:
        measured = f"kinetic temperature {self.mean:.3f} ± {self.mcse:.3f}"
        target = f"{self.expected:.3g}"
        if self.expected != self.sampler.temperature:
            target += f", which Euler's friction makes of {self.sampler.temperature:g}"
        if self.compatible:
            return f"{measured}: compatible with {target}"
        share = abs(self.mean / self.expected - 1)
        if self.mean < self.expected:
            return "; ".join(
                [f"warning: {measured}: {share:.0%} below {target}", *filter(None, [self.sampler.too_cold])]
            )
        if self.sampler.has_thermostat:
            return (
                f"warning: {measured}: {share:.0%} above {target}; without the thermostat, mini-batch noise would "
                f"bring it to about {self.noise:.2f}, and the thermostat has not taken up all of that yet; "
                f"{self.sampler.too_hot}"
            )
        return (
            f"warning: {measured}: {share:.0%} above {target}; the rest is mini-batch noise, which this sampler does "
            "not take up, so that samples are spread wider than the posterior; take a smaller step, larger batches, or "
            "the sampler thermostat"
        )

    def to_json(self) -> dict[str, float | bool]:
        found: dict[str, float | bool] = super().to_json()
        del found["sampler"]  # it has told what it should
        return found


def temperature(sampler: Sampler, traces: dict[str, Summary]) -> Temperature | None:
    """The kinetic temperature of the collected phase; None where the sampler has no momentum.

    In a steady state, friction takes as much from u^2 in a step as noise adds: with Euler's step
    (2 alpha - alpha^2) u^2 = 2 a eta T + eta^2 var(grad). A thermostat moves alpha until u^2 = eta T. Without one,
    alpha is a, and u^2 / eta is T / (1 - a / 2) for an exact gradient and more for a noisy one. A chain that still
    rises adds the heat of its rise, which cannot be told from that of the noise.
    """
    expected = sampler.expected_temperature()
    if expected is None or "temperature" not in traces:
        return None
    found = traces["temperature"]
    loss = sampler.relative_loss(traces["thermostat"].mean) if sampler.has_thermostat else 1.0
    return Temperature(
        mean=found.mean,
        mcse=found.mcse,
        expected=expected,
        noise=found.mean * loss,
        compatible=abs(found.mean - expected) <= max(NEAR * expected, 2 * found.mcse),
        sampler=sampler,
    )
