"""`doubly push` and `doubly pull`: runs on the Hugging Face Hub, through its own client (the extra `hub`).

A push carries a model card made from the report. A run on a named data set goes as its folder. A run on data of one's
own goes as one file without rows (`runs/export.py`), unless the rows shall go along.

A pull takes only files that a run is made of, by their names, and keeps them only if all of them are as they were
sealed. It executes nothing. Pages and pictures of strangers stay where they are, for `doubly report` makes new ones.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubly.analysis.results import Result
from doubly.analysis.verify import verify
from doubly.core.errors import UserError
from doubly.core.extras import extra
from doubly.core.files import is_temporary
from doubly.data import DATASETS
from doubly.runs import sources
from doubly.runs.export import SUFFIX, export, load_file
from doubly.runs.fit import use_threads
from doubly.runs.folder import ROWS

Tell = Callable[[str], None]
FILE = f"model{SUFFIX}"  # the name of the one file in a repository
CARD = "README.md"
MOST_FILES = 10_000
# what a run is made of: the files that are read again
READ = ("config.json", "data.json", "metrics.jsonl", "scoring.json", ROWS)
FOLDERS = {
    "checkpoint": r"\.safetensors",
    "posterior": r"\.safetensors",
    "evaluations": r"\.(json|safetensors)",
    sources.FOLDER: r"\.(py|json)",
}
SHOWN = {"figures": r"\.(svg|png)"}  # and, with report.html, what only people look at
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}"


@dataclass(frozen=True)
class Pushed(Result):
    """What was sent."""

    repository: str
    address: str
    files: int
    megabytes: float
    rows: bool
    """Whether rows of data of one's own went along."""

    def text(self) -> str:
        return f"{self.address}: {self.files} files, {self.megabytes:.1f} MB"


@dataclass(frozen=True)
class Pulled(Result):
    """What came."""

    repository: str
    revision: str
    path: str
    files: int
    code: tuple[str, ...] = ()
    """Files of code that the run brings along; nothing of them was executed."""

    def text(self) -> str:
        lines = [f"{self.path}: {self.files} files of {self.repository} at {self.revision[:12]}, as they were sealed"]
        if self.code:
            lines.append(f"it brings code ({', '.join(self.code)}): read it, then open the run with --allow-code")
        return "\n".join(lines)


def push(
    folder: str | Path, repository: str, public: bool = False, with_rows: bool = False, tell: Tell = lambda what: None
) -> Pushed:
    """Send a run to a repository of the Hub, with a card made from its report. A new repository is private.

    Parameters
    ----------
    folder : str or Path
        The run folder.
    repository : str
        Its name on the Hub: owner/name.
    public : bool
        Let everybody see a repository that is new; one that exists stays as it is.
    with_rows : bool
        Send the folder also where the data are your own: the rows, and pictures of them, go along.
    tell : callable
        Is told what is under way.
    """
    client = _client("doubly push")
    from doubly.analysis.card import card  # only a push needs the report, and what that needs
    from doubly.analysis.report import tell_all, write_page
    from doubly.analysis.report.story import Story

    _check_name(repository)
    if not (state := verify(folder)).good:
        raise UserError(f"{folder} has damaged files: see doubly verify {state.path}, then doubly repair {state.path}")
    story = Story.open(folder)
    run = story.run
    own = run.config.data.partition(":")[0] not in DATASETS
    whole = with_rows or not own
    sections = tell_all(story, tell)
    if whole:
        write_page(story, sections)
    with tempfile.TemporaryDirectory() as nearby, run.locked():
        files = {name: run.path / name for name in _names_in(run.path)} if whole else {}
        if not whole:
            tell("push: a proposal for the mean of the weights")
            with use_threads(run.config.threads or 1):
                files[FILE] = export(run, Path(nearby) / FILE)
        files[CARD] = Path(nearby) / CARD
        files[CARD].write_text(card(story, sections, repository, whole))
        tell(f"push: {len(files)} files")
        with _asking(f"pushing to {repository}"):
            address = _send(client, repository, files, public)
        size = sum(path.stat().st_size for path in files.values()) / 1e6
    return Pushed(repository, address, len(files), size, rows=own and with_rows)


def pull(repository: str, out: str | Path = "", revision: str = "main", tell: Tell = lambda what: None) -> Pulled:
    """Fetch a run from a repository of the Hub, check it, and put it into a new folder (or one file) of this name.

    Parameters
    ----------
    repository : str
        Its name on the Hub: owner/name.
    out : str or Path
        The run folder to make, or a file ending in .doubly; by default runs/NAME, or NAME.doubly.
    revision : str
        A branch, a tag or a commit.
    tell : callable
        Is told what is under way.
    """
    client = _client("doubly pull")
    _check_name(repository)
    api = client.HfApi()
    with _asking(f"pulling {repository}"):
        commit = str(api.model_info(repository, revision=revision).sha)
        tree = api.list_repo_tree(repository, recursive=True, revision=commit)
        sizes = {each.path: int(each.size) for each in tree if hasattr(each, "size")}
    one_file = "config.json" not in sizes and FILE in sizes
    names = [FILE] if one_file else sorted(name for name in sizes if _is_read(name))
    if not one_file and "config.json" not in names:
        raise UserError(f"{repository} holds no run: expected config.json or {FILE}, as doubly push sends them")
    place = _place(repository, out, one_file)
    _check_room(place, repository, [sizes[name] for name in names])
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".pulling-") as nearby:
        got, run = Path(nearby) / "got", Path(nearby) / "run"
        for i, name in enumerate(names, 1):
            tell(f"pull: {name}, {i} of {len(names)}")
            with _asking(f"pulling {name} of {repository}"):
                api.hf_hub_download(repository, name, revision=commit, local_dir=got)
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            if (got / name).is_symlink() or not (got / name).is_file():
                raise UserError(f"{name} of {repository} did not come as a file: try again")
            os.replace(got / name, run / name)
        code = _checked(run, repository, one_file)
        os.replace(run / FILE if one_file else run, place)
    return Pulled(repository, commit, str(place), len(names), code)


def _checked(run: Path, repository: str, one_file: bool) -> tuple[str, ...]:
    """Refuse what is not as it was sealed; returns the files of code in it, of which none is executed."""
    if one_file:
        try:
            load_file(run / FILE)
        except UserError as error:
            raise UserError(f"{repository} is refused: {str(error).replace(f'{run}/', '')}") from None
        return ()
    bad = [finding for finding in verify(run).findings if finding.bad or finding.condition == "unsealed"]
    if bad:
        note = bad[0].note.partition(";")[0].replace(f"{run}/", "") or f"{bad[0].name} is {bad[0].condition}"
        raise UserError(f"{repository} is refused: {note}")
    return tuple(sorted(f"{sources.FOLDER}/{each.name}" for each in (run / sources.FOLDER).glob("*.py")))


def _is_read(name: str) -> bool:
    """Whether a file of this name is one that a run is made of.

    >>> [_is_read(name) for name in ("config.json", "checkpoint/state.safetensors", "checkpoint/../a.safetensors")]
    [True, True, False]
    """
    return name in READ or _in_one_of(FOLDERS, name)


def _is_sent(name: str) -> bool:
    return _is_read(name) or name == "report.html" or _in_one_of(SHOWN, name)


def _in_one_of(folders: dict[str, str], name: str) -> bool:
    folder, _, inside = name.partition("/")
    pattern = folders.get(folder)
    return pattern is not None and re.fullmatch(NAME + pattern, inside) is not None


def _names_in(folder: Path) -> Iterator[str]:
    """The files of a run that are sent: what is read again, the report and its figures."""
    yield from (name for name in (*READ, "report.html") if (folder / name).is_file())
    for inside in (*FOLDERS, *SHOWN):
        for file in sorted((folder / inside).glob("*")):
            name = f"{inside}/{file.name}"
            if file.is_file() and not is_temporary(file.name) and _is_sent(name):
                yield name


def _send(client: Any, repository: str, files: dict[str, Path], public: bool) -> str:
    """One commit with these files, and without those of an earlier push; returns the address."""
    api = client.HfApi()
    address = api.create_repo(repository, private=not public, exist_ok=True)
    ours = (name for name in api.list_repo_files(repository) if name == FILE or _is_sent(name))
    gone = [client.CommitOperationDelete(name) for name in ours if name not in files]
    new = [client.CommitOperationAdd(name, str(path)) for name, path in files.items()]
    api.create_commit(repository, operations=[*new, *gone], commit_message="A run of doubly")
    return str(address)


def _place(repository: str, out: str | Path, one_file: bool) -> Path:
    """Where a run goes that does not exist yet."""
    name = repository.rpartition("/")[2]
    place = Path(out or (f"{name}{SUFFIX}" if one_file else f"runs/{name}"))
    if one_file and place.suffix != SUFFIX:
        raise UserError(f"{repository} holds one file, not a folder: name --out with the ending {SUFFIX}, got {place}")
    if place.exists() and (one_file or not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} exists: choose another --out")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _check_room(place: Path, repository: str, sizes: list[int]) -> None:
    free = shutil.disk_usage(place.parent).free
    if len(sizes) > MOST_FILES:
        raise UserError(f"{repository} has {len(sizes)} files, at most {MOST_FILES} are pulled")
    if sum(sizes) > free:
        raise UserError(f"{repository} has {sum(sizes) / 1e6:.0f} MB, but {place.parent} has room for {free / 1e6:.0f}")


def _check_name(repository: str) -> None:
    if not re.fullmatch(f"{NAME}/{NAME}", repository):
        raise UserError(f"a repository of the Hub is named owner/name, got {repository!r}")


def _client(what: str) -> Any:
    with extra("hub", what):
        import huggingface_hub
    return huggingface_hub


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Errors of the client in one line: of its name rules, of the Hub, of the network (by three libraries so far)."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    quiet = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{what} failed: {said}; a private repository needs HF_TOKEN, or hf auth login") from None
    finally:
        if not quiet:
            enable_progress_bars()
