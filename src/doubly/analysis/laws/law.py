"""What a law is: a function of a member that returns if the law holds and says what is wrong if it does not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Law = Callable[[Any], None]


class Broken(Exception):
    """A law does not hold; the message says what was expected and what came."""


class LeftOut(Exception):
    """A law of something that the member does not claim; the message says what that is."""


@dataclass(frozen=True)
class Finding:
    """What came of one law."""

    law: str
    verdict: Literal["ok", "broken", "left out"]
    message: str = ""

    def line(self) -> str:
        return f"{self.verdict:<9} {self.law}" + (f": {self.message}" if self.message else "")


def examine(name: str, law: Law, cases: Mapping[str, Any]) -> Finding:
    """Try a law on each case of a member; the first case that breaks it is told."""
    left_out = []
    for case, member in cases.items():
        where = f" ({case})" if case else ""
        try:
            law(member)
        except LeftOut as reason:
            left_out.append(str(reason))
        except Broken as found:
            return Finding(name, "broken", f"{found}{where}")
        except Exception as error:  # whatever the member does wrong is a finding, not the end of the check
            said = str(error).strip().split("\n")[0]
            return Finding(name, "broken", f"expected an answer, got {type(error).__name__}: {said}{where}")
    if len(left_out) == len(cases):
        return Finding(name, "left out", left_out[0])
    return Finding(name, "ok")


def expect(holds: bool, message: str) -> None:
    """Say this if something does not hold."""
    if not holds:
        raise Broken(message)


def expect_close(what: str, got: Tensor, expected: Tensor, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Two tensors agree; if not, the entry that differs most is told."""
    expect(got.shape == expected.shape, f"{what}: expected shape {tuple(expected.shape)}, got {tuple(got.shape)}")
    got, expected = got.detach().double(), expected.detach().double()
    excess = (got - expected).abs() - atol - rtol * expected.abs()
    excess = torch.where(got == expected, -1.0, excess.nan_to_num(nan=torch.inf)).flatten()  # equal infinities agree
    if len(excess) and excess.max() > 0:
        worst = int(excess.argmax())
        raise Broken(f"{what}: expected {expected.flatten()[worst]:.6g}, got {got.flatten()[worst]:.6g}")
