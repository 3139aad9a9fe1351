"""Batches as rows: the compiled loops see matrices only."""

import math

import numpy as np
import torch
from torch import Tensor


def as_rows(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A matrix whose rows, counted around and around, are those of the tensor broadcast to `shape`.

    Row k of the broadcast batch is row k % n of the n that are given back: draws share what they have in common.

    >>> import torch
    >>> as_rows(torch.zeros(100, 784), (5, 100, 784)).shape, as_rows(torch.zeros(784), (5, 100, 784)).shape
    (torch.Size([100, 784]), torch.Size([1, 784]))
    """
    if tensor.is_contiguous() and tensor.shape == shape[len(shape) - len(tensor.shape) :]:  # most often
        return tensor if len(tensor.shape) == 2 else tensor.view(math.prod(tensor.shape[:-1]), tensor.shape[-1])
    own = tuple(tensor.shape)
    while len(own) > 1 and own[0] == 1:
        own = own[1:]
    if own != tuple(shape[len(shape) - len(own) :]):  # what repeats is not at the front, so it has to be written out
        tensor, own = tensor.expand(shape), tuple(shape)
    return tensor.reshape(math.prod(own[:-1]), own[-1]).contiguous()


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that these have together. (PyTorch's own takes as long as a small kernel.)"""
    if len(set(shapes)) == 1:
        return shapes[0]
    return np.broadcast_shapes(*shapes)


def as_arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    """The same memory, as NumPy sees it."""
    return tuple(tensor.numpy(force=tensor.requires_grad) for tensor in tensors)


def new(*shape: int, dtype: type = np.float32) -> tuple[Tensor, np.ndarray]:
    """An empty tensor for a loop to fill, and the same memory as NumPy sees it: quicker than one from the other."""
    array: np.ndarray = np.empty(shape, dtype)
    return torch.from_numpy(array), array


def constants(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same, without a gradient."""
    return tuple(each.detach() if each.requires_grad else each for each in tensors)


FEW = 0.8  # of the rows: where more count, all are taken as they are


def rows_that_count(weight: Tensor) -> np.ndarray | None:
    """Which rows of a weighted sum count, if some do not: what the others weigh together is lost in rounding.

    Once a proposal has learnt, most of the weight of a row is on one or two of its draws. A device is not asked, for
    that would make the step wait.

    >>> import torch
    >>> rows_that_count(torch.tensor([0.5, 1e-12, 1e-9, 0.5]))
    array([0, 3])
    """
    if not weight.is_cpu:
        return None
    size = np.abs(*as_arrays(weight))
    # if the sum is NaN or infinite, no number is below this bound, or all are: then all count
    count = ~(size <= size.sum() * (np.finfo(size.dtype).eps / (2 * max(1, len(size)))))
    (found,) = count.nonzero()
    return found if 0 < len(found) < FEW * len(size) else None


def taken(index: np.ndarray, *tensors: Tensor) -> list[Tensor]:
    """The rows of each that have this index."""
    return [torch.from_numpy(array.take(index, 0)) for array in as_arrays(*tensors)]
