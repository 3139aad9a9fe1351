"""A cache in the run folder, or beside it where the folder cannot be written to."""

import errno
import hashlib
import os
import warnings
from pathlib import Path

import torch

from doubly.core.cache import Tensors
from doubly.core.errors import DiskError, RunWarning, UserError
from doubly.core.files import Folder
from doubly.core.sealed import dump_tensors, load_tensors
from doubly.runs.versions import FORMAT

NO_WRITING = (errno.EROFS, errno.EACCES, errno.EPERM)


class FileCache:
    """A cache in the run folder: one file of tensors for each name.

    What is damaged counts as nothing, and is computed again. Where the folder cannot be written to, the cache is in the
    user's own; where that cannot be either, there is none. A cache is never worth an end of the work.
    """

    def __init__(self, folder: Folder, device: torch.device, required: bool):
        self._places = [folder, *_elsewhere(folder)]
        self._first = 0
        self._device, self._required = device, required
        self._told = False

    def get(self, name: str) -> Tensors | None:
        for folder in self._places:
            file = f"{name}.safetensors"
            try:
                content = folder.read(file)
                if content is not None:
                    found = load_tensors(content, folder.path / file, self._required).tensors
                    return {key: tensor.to(self._device) for key, tensor in found.items()}
            except UserError as error:
                self._tell(f"{error}; it is computed again")
        return None

    def put(self, name: str, tensors: Tensors) -> None:
        content = dump_tensors(tensors, {"format": str(FORMAT)})
        for folder in self._places[self._first :]:
            try:
                if folder is not self._places[0]:
                    folder.make_itself()
                folder.write(f"{name}.safetensors", content)
            except DiskError as error:
                if error.number in NO_WRITING and folder is not self._places[-1]:
                    self._first += 1
                    continue
                self._tell(f"{error}; what is unfinished is not stored")
            return

    def drop(self, name: str) -> None:
        for folder in self._places:
            if folder.exists(f"{name}.safetensors"):
                try:
                    folder.remove(f"{name}.safetensors")
                except DiskError as error:
                    if error.number not in NO_WRITING:
                        raise

    def _tell(self, message: str) -> None:
        if not self._told:
            warnings.warn(message, RunWarning, stacklevel=3)
        self._told = True


def _elsewhere(folder: Folder) -> list[Folder]:
    """Where results for a run that cannot be written to are: in the user's cache, if there is a user with a home."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        return []
    name = hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:16]
    return [Folder(Path(home) / "doubly" / "runs" / name)]
