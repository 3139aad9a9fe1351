"""A proposal refined for each row by itself, where many draws are to come from it.

A recognition network has one set of weights for all rows, so its proposal for a single row is not the best possible.
Here each row gets numbers of its own, which are added to the biases of the proposal's layers. They ascend
E_{p(z|x)}[log q(z|x)] of that row, with self-normalised weights: the objective wake, for one row. The draws that find
them are not used again, so those that follow are as independent as before.
"""

import torch
from torch import Tensor

from doubly.core.errors import UserError
from doubly.latents.importance import normalised, propose
from doubly.latents.pair import Pair
from doubly.layers.chain import Chain
from doubly.samplers import Adam

DRAWS_A_STEP = 50  # for each row
STEP = 0.1  # of log-odds, or in the units of a real value; it falls to zero
# As large as gradients are: with a small epsilon every gradient, however small, would move its bias by a whole step.
# Most sets of draws show a unit that is seldom on as never on, and such steps would add up to just that.
CALM = Adam(epsilon=0.1)


def check_refinable(proposal: Chain) -> None:
    """Refuse where no layer of the proposal has biases that a row may have of its own, if there is any to refine."""
    if proposal.layers and not proposal.n_row_biases:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in proposal.layers}))
        raise UserError(f"a proposal of {kinds} layers cannot be refined row by row: leave --refine out")


def refine(pair: Pair, x: Tensor, steps: int, rng: torch.Generator) -> Tensor:
    """What is to be added for each row (rows, proposal.n_row_biases), after so many steps."""
    shape = len(x), pair.proposal.n_row_biases
    state = CALM.init(pair.phi.new_zeros(shape).flatten(), rng)
    for step in range(steps):
        with torch.enable_grad():
            shifts = state.theta.requires_grad_()
            drawn = propose(pair, x, DRAWS_A_STEP, rng, shifts=shifts.view(shape))
            found = (normalised(drawn.log_weight) * drawn.log_q).sum()
        (grad,) = torch.autograd.grad(found, shifts)
        grad = grad.nan_to_num(0, 0, 0)  # of rows that no draw makes possible
        with torch.no_grad():
            state = CALM.tell(state._replace(theta=shifts.detach()), grad, STEP * (1 - step / steps), rng)
    return state.theta.view(shape)
