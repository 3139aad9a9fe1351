"""Names of registered members, read from the source: a wrong one is refused before PyTorch is imported.

PyTorch takes seconds to import, and a typing error should not. What is not sure here (options, files of the user's own)
is left to the registries.
"""

import ast
import re
from pathlib import Path

import doubly
from doubly.core.errors import UserError, near
from doubly.core.own_files import is_own_file
from doubly.core.registry import split
from doubly.runs.config import Config

# where each registry is made, and the settings that name its members
REGISTRIES = {
    "layers/registry.py": ("model", "proposal"),
    "samplers/__init__.py": ("sampler",),
    "samplers/priors.py": ("prior", "phi_prior"),
    "samplers/schedules.py": ("schedule", "phi_schedule"),
    "latents/__init__.py": ("estimator",),
    "latents/objectives.py": ("objective",),
    "latents/moves.py": ("moves",),
}
TABLES = "TABULAR"  # the name of a table of sizes in data/named.py, whose sets are registered together
AUTO = ("model", "estimator", "moves")  # for which auto stands, too


def check_names(config: Config) -> None:
    """Refuse the first setting that differs from its default and names no member."""
    default = Config()
    if config.data != default.data:
        check_data(config.data)
    for file, settings in REGISTRIES.items():
        for setting in settings:
            text = getattr(config, setting)
            if text == getattr(default, setting) or (setting in AUTO and text == "auto"):
                continue
            noun, names = _registry(file)
            for spec in split(text) if setting in ("model", "proposal") else [text]:
                name = spec.partition(":")[0]
                if name not in names and not is_own_file(name):
                    raise UserError(f"no {noun} is called {name!r}{near(name, names)}; there are: {', '.join(names)}")


def check_data(spec: str) -> None:
    """A set by name, or a file that is there."""
    name = spec.partition(":")[0]
    if re.fullmatch(r"[\w-]+", name) and not Path(name).exists():
        names = _data_sets()
        if name.replace("_", "-") not in names:
            raise UserError(
                f"no data set is called {name!r}{near(name, names)}; there are: {', '.join(names)}; "
                "a file by its path is also fine, as in rows.csv (see doubly fit --help)"
            )
        return
    from doubly.data.load import DATASETS, file_options

    if name in DATASETS or is_own_file(name):
        return
    path = file_options(spec)[0]
    if not path.exists():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"there is no file {path}{near(path.name, beside)}")


def _data_sets() -> list[str]:
    """The names of all data sets: those of the registry, and those that it takes from a table of sizes."""
    source = (Path(doubly.__file__).parent / "data/named.py").read_text(encoding="utf-8")
    sizes = next(
        node.value.keys
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and ast.unparse(node.target) == TABLES
    )
    tables = [str(ast.literal_eval(key)).replace("_", "-") for key in sizes if key]
    return _registry("data/load.py")[1] + tables


def _registry(file: str) -> tuple[str, list[str]]:
    """The noun and the names of the registry that this file makes."""
    source = (Path(doubly.__file__).parent / file).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Registry":
            (noun,) = (ast.literal_eval(arg) for arg in node.args)
            return noun, [keyword.arg.replace("_", "-") for keyword in node.keywords if keyword.arg]
    raise LookupError(f"{file} makes no registry")
