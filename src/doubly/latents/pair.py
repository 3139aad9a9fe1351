"""Model and proposal with their weights: the four that go together wherever latent variables are drawn and weighed."""

from typing import NamedTuple

from torch import Tensor

from doubly.layers import Chain, Layer, Params, Values
from doubly.layers.chain import nothing


class Pair(NamedTuple):
    """p(x, z | theta), and q(z | x; phi) which proposes z."""

    model: Chain
    theta: Tensor
    proposal: Chain
    phi: Tensor

    @classmethod
    def alone(cls, model: Chain, theta: Tensor) -> "Pair":
        """A model without a proposal, for what needs none."""
        return cls(model, theta, Chain((), model.layers[0].n_out), theta.new_zeros(0))

    @property
    def data_layer(self) -> tuple[Layer, Params]:
        """The model's layer that draws x, and its parameters."""
        return self.model.layers[0], self.model.unflatten(self.theta)[0]

    def given(self, latents: Values) -> Tensor:
        """What the data layer is given: the first latent layer, or nothing where there is none."""
        return latents[0] if latents else nothing(self.theta)
