"""Perceptrons with their vector-Jacobian product: what autograd would do, without a graph.

Everything goes by rows, matrices (rows, width): a layer is one product, its bias, and an activation in place. In
the backward pass the activation is differentiated from its output, which is all that is kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

aten: Any = torch.ops.aten


class Activation(NamedTuple):
    """A function of each number, the same in place, and what a gradient becomes behind it, in place, by its output."""

    of: Callable[[Tensor], Tensor]
    in_place: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


def _tanh_backward(grad: Tensor, output: Tensor) -> Tensor:
    aten.tanh_backward.grad_input(grad, output, grad_input=grad)
    return grad


def _sigmoid_backward(grad: Tensor, output: Tensor) -> Tensor:
    aten.sigmoid_backward.grad_input(grad, output, grad_input=grad)
    return grad


def _relu_backward(grad: Tensor, output: Tensor) -> Tensor:
    aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)
    return grad


def _softplus_backward(grad: Tensor, output: Tensor) -> Tensor:
    return grad.mul_(torch.expm1(-output).neg_())  # the derivative is sigmoid(input) = 1 - exp(-output)


ACTIVATIONS = {
    "tanh": Activation(torch.tanh, torch.tanh_, _tanh_backward),
    "sigmoid": Activation(torch.sigmoid, torch.sigmoid_, _sigmoid_backward),
    "relu": Activation(torch.relu, torch.relu_, _relu_backward),
    "softplus": Activation(F.softplus, F.softplus, _softplus_backward),
}


class Weights(NamedTuple):
    """Of one deterministic layer, or of its gradient."""

    matrix: Tensor
    bias: Tensor


class Features(NamedTuple):
    """What rows were given, and the output of each deterministic layer, the last of which are the features."""

    given: Tensor
    outputs: list[Tensor]

    @property
    def rows(self) -> Tensor:
        """The features themselves."""
        return self.outputs[-1] if self.outputs else self.given


def forward(given: Tensor, layers: list[Weights], activation: str) -> Features:
    """Rows through the deterministic layers."""
    activate, outputs, rows = ACTIVATIONS[activation].in_place, [], given
    for matrix, bias in layers:
        rows = activate(torch.addmm(bias, rows, matrix.transpose(0, 1)))
        outputs.append(rows)
    return Features(given, outputs)


def backward(
    found: Features, grad: Tensor, layers: list[Weights], activation: str, into: list[Weights] | None, to_given: bool
) -> Tensor | None:
    """The gradient with respect to the weights, written into others, and to what was given; `grad` is used up."""
    derive = ACTIVATIONS[activation].backward
    inputs = [found.given, *found.outputs]
    for i in range(len(layers) - 1, -1, -1):
        grad = derive(grad, inputs[i + 1])
        if into is not None:
            torch.mm(grad.transpose(0, 1), inputs[i], out=into[i].matrix)
            torch.sum(grad, 0, out=into[i].bias)
        if i == 0 and not to_given:
            return None
        grad = torch.mm(grad, layers[i].matrix)
    return grad if to_given else None
