"""The floor: nothing but the matrix products that a step cannot do without, on random matrices of those shapes.

With B rows, S draws and R = B S, a linear map from n to m takes (rows, n, m) forward and as much again for the gradient
of its matrix, and for that of what it is given. A step has these products:

- both estimates: the proposal forward (its first layer for B rows, those above for R) and the model forward (R rows);
- that for theta, backward: gradients of the model's matrices, and inside perceptrons of what their layers are given;
- that for phi, backward: gradients of the proposal's matrices, the draws of the first layer already added up (B rows);
  where the gradient goes through the draws (iwae), also back through the whole model to z, without its matrices.

So SBN 200 has 2 (B, 784, 200) + 2 (R, 200, 784) forward, 1 (R, 200, 784) and 1 (B, 784, 200) backward. A DARN layer has
the product of the value with its square matrix besides, for B rows in the data layer and R rows in one above. The loops
of NADE are no matrix products, and are not in the floor; the top layer of a belief network has no product at all.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from peers.side import Arrays, Side, Task, serve

BIG = 2048  # the edge of the matrices by which a rate is judged
Product = Callable[[], Tensor]


class Map(NamedTuple):
    """A linear map and the rows that go through it; `inner` if what it is given is itself computed in the layer."""

    rows: int
    n_in: int
    n_out: int
    inner: bool = False


def maps(kind: str, n_in: int, n_out: int, rows: int, values: int) -> Iterator[Map]:
    """The linear maps of one layer, `rows` of what it is given and `values` different values."""
    if kind == "darn":
        yield Map(values, n_out, n_out)
    if not n_in or kind == "normal":
        return
    if kind in ("sbn", "darn"):
        yield Map(rows, n_in, n_out)
    elif kind == "nade":
        yield Map(rows, n_in, min(n_in, n_out))
        yield Map(rows, n_in, n_out)
    else:  # perceptrons
        widths = [n_in, 200, 200]
        for i, (below, above) in enumerate(pairwise(widths)):
            yield Map(rows, below, above, inner=i > 0)
        for _ in range(2 if kind == "gaussian" else 1):
            yield Map(rows, widths[-1], n_out, inner=True)


def step_maps(task: Task) -> tuple[list[Map], list[Map]]:
    """Those of the model and those of the proposal."""
    many, widths = task.draws * task.batch, [*task.widths, 0]
    model = [
        each
        for i, kind in enumerate(task.model)
        for each in maps(kind, widths[i + 1], widths[i], many, many if i else task.batch)
    ]
    proposal = [
        each
        for i, kind in enumerate(task.proposal)
        for each in maps(kind, widths[i], widths[i + 1], many if i else task.batch, many)
    ]
    return model, proposal


def step_products(task: Task) -> Iterator[Product]:
    model, proposal = step_maps(task)
    for each in (*proposal, *model) * 2:
        yield forward(each)
    for each in model:
        yield to_matrix(each)
        if each.inner:
            yield to_given(each)
        if task.objective == "iwae":
            yield to_given(each)
    for each in proposal:
        yield to_matrix(each)
        if each.inner:
            yield to_given(each)


def forward(each: Map) -> Product:
    given, matrix = torch.randn(each.rows, each.n_in), torch.randn(each.n_out, each.n_in)
    return lambda: F.linear(given, matrix)


def to_matrix(each: Map) -> Product:
    sent_back, given = torch.randn(each.rows, each.n_out), torch.randn(each.rows, each.n_in)
    return lambda: sent_back.T @ given


def to_given(each: Map) -> Product:
    sent_back, matrix = torch.randn(each.rows, each.n_out), torch.randn(each.n_out, each.n_in)
    return lambda: sent_back @ matrix


def flops(task: Task) -> float:
    """Of the products of an evaluation: the proposal once for each row, the model for each draw."""
    model, proposal = step_maps(task)
    of_draws = sum(2 * each.rows * each.n_in * each.n_out for each in model) * task.score_draws / task.draws
    return of_draws + sum(2 * each.rows * each.n_in * each.n_out for each in proposal)


class Floor(Side):
    def load(self, task: Task, arrays: Arrays) -> None:
        self.products = list(step_products(task)) if task.work == "step" else [big_product()]

    @torch.no_grad()
    def run(self, times: int) -> None:
        for _ in range(times):
            for product in self.products:
                product()


def big_product() -> Product:
    """A plain big product, the rate of which is what the machine gives."""
    return forward(Map(BIG, BIG, BIG))


if __name__ == "__main__":
    serve(Floor())
