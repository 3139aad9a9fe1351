"""Registries: a name on the command line becomes an object, with its options, from here or from the user's own file.

A spec is `name`, `name:option=value,option=value`, or `my_file.py:MyClass` with options after a further colon.
Several specs are separated by commas: `nade:width=100,sbn` is two of them.
"""

import ast
import dataclasses
import inspect
import typing
from typing import Any

from doubly.core import own_files
from doubly.core.errors import UserError, near


class Registry(dict[str, Any]):
    """Names and what they stand for. `noun` is what one member is called in messages.

    >>> fruit = Registry("fruit", apple=dict)
    >>> fruit.make("pear")
    Traceback (most recent call last):
    doubly.core.errors.UserError: no fruit is called 'pear'; there are: apple
    """

    def __init__(self, noun: str, **members: Any):
        super().__init__({name.replace("_", "-"): member for name, member in members.items()})
        self.noun = noun

    def find(self, name: str) -> Any:
        """The member of that name."""
        if name not in self:
            there = ", ".join(self) or "none"
            raise UserError(f"no {self.noun} is called {name!r}{near(name, self)}; there are: {there}")
        return self[name]

    def make(self, spec: str, *args: Any, **shared: Any) -> Any:
        """Build the member that `spec` names; of `shared` it is given the fields it has, and the spec's options win.

        >>> from doubly.samplers.priors import PRIORS
        >>> PRIORS.make("student-t:scale=0.2")
        StudentT(df=2.2, scale=0.2)
        """
        member, given = self.read(spec)
        if not (isinstance(member, type) and dataclasses.is_dataclass(member)):
            raise UserError(f"{self.noun} {spec!r} must be a dataclass: its fields are its options")
        if lacking := sorted(getattr(member, "__abstractmethods__", ())):
            raise UserError(f"{self.noun} {spec!r} lacks {', '.join(lacking)}: every {self.noun} must give them")
        known, open_to_choice = {field.name for field in dataclasses.fields(member)}, options(member)
        for name, value in given.items():
            if name not in open_to_choice:
                choices = ", ".join(sorted(open_to_choice)) or "none"
                meant = near(name, open_to_choice)
                raise UserError(f"{self.noun} {spec!r} has no option {name!r}{meant}; its options are: {choices}")
            given[name] = _fitting(value, typing.get_type_hints(member)[name], f"{name} of {self.noun} {spec!r}")
        return member(*args, **{name: value for name, value in shared.items() if name in known} | given)

    def read(self, spec: str) -> tuple[Any, dict[str, Any]]:
        """The member that a spec names, and its options, without building it."""
        name, *rest = spec.split(":")
        if own_files.is_own_file(name):
            if not rest:
                raise UserError(f"{self.noun} {spec!r} names a file but no class or function; write {name}:NAME")
            member = own_files.member(name, rest.pop(0))
        else:
            member = self.find(name)
        if len(rest) > 1:
            raise UserError(f"{self.noun} {spec!r} has too many colons; write name:option=value,option=value")
        return member, dict(_option(text, spec) for text in rest[0].split(",") if text) if rest else {}


def split(specs: str) -> list[str]:
    """The single specs in a comma-separated text.

    >>> split("nade:width=100,activation=tanh,sbn")
    ['nade:width=100,activation=tanh', 'sbn']
    """
    found: list[str] = []
    for part in specs.split(","):
        if "=" in part and ":" not in part and found:
            found[-1] += "," + part
        else:
            found.append(part.strip())
    return found


def describe(member: Any) -> str:
    """The first line of a member's documentation."""
    return (inspect.getdoc(member) or "").strip().split("\n")[0]


def options(member: Any) -> dict[str, Any]:
    """The options of a member and their defaults."""
    if not dataclasses.is_dataclass(member):
        return {}
    return {f.name: f.default for f in dataclasses.fields(member) if f.default is not dataclasses.MISSING}


def _option(text: str, spec: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"option {text!r} in {spec!r} has no value; write {text}=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _fitting(value: Any, hint: Any, what: str) -> Any:
    """The value, if it is what the annotation of its field asks for."""
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type)]
    if float in kinds and type(value) is int:
        return float(value)
    if typing.get_origin(hint) is typing.Literal or type(value) in kinds:
        return value
    if not kinds or any(typing.get_origin(kind) for kind in kinds):
        return value  # an annotation too rich to check here: the member checks it
    raise UserError(f"{what} must be {' or '.join(kind.__name__ for kind in kinds)}, got {value!r}")
