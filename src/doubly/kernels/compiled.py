"""How the fused loops are compiled and kept on disk, so that a loop gives the same bits whoever compiled it.

Numba puts the functions that a loop calls into the loop's machine code, under their own names, and of one name the
linker takes what it has met first: the copy of another loop, or the one that stands alone in the process that compiles.
The copies are optimised for their places and differ in last bits. Here the copies of each loop have names of their own.

Numba's cache has one folder for all versions of a source and numbers the files of a function, so that processes which
compile at once can store the code for one type under the name of another. Here the folder is named by a digest of the
source and of all versions, and a file by a digest of what it is for. A file that is damaged is as good as none.
"""

import hashlib
import inspect
import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
from numba.core.caching import FunctionCache
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.serialize import dumps
from numba.core.typed_passes import NopythonTypeInference

from doubly import __version__

PREFIX = "doubly-"
SHARED = ("linkonce_odr", "weak_odr")  # names of which there may be several
KEPT = 3  # folders of other versions that stay
# of what Numba can spread over threads, only loops over prange: it need not look for the rest
OTHERWISE_PARALLEL = ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion")


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` for a loop that other code calls: with names of its own, and kept on disk where that is possible."""

    def compiled(function: Callable[..., Any]) -> Any:
        if options.get("parallel"):
            options["parallel"] = dict.fromkeys(OTHERWISE_PARALLEL, False)  # a new one, which Numba empties
        found: Any = numba.njit(pipeline_class=_Compiler, **options)(function)
        with suppress(RuntimeError, OSError):  # no folder can be written to: it is compiled in every process
            found._cache = _Cache(function)
        return found

    return compiled


@register_pass(mutates_CFG=False, analysis_only=True)
class _OwnNames(FunctionPass):
    """Gives what is linked into a loop names that no other loop has, before it is optimised."""

    _name = "doubly_own_names"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        name = state.func_id.func_qualname
        if state.library is None:  # made here as lowering, which comes later, would make it
            state.library = state.targetctx.codegen().create_library(name)
            state.library.enable_object_caching()
        library, of = state.library, _digest(name, repr(state.args))
        optimise = library._optimize_final_module

        def renamed() -> None:
            shared = [each for each in library._final_module.functions if each.linkage.name in SHARED]
            for function in shared:
                if not function.is_declaration and not function.name.startswith("NRT_"):  # Numba knows these by name
                    function.name = f"{function.name}.{of}"
            optimise()

        library._optimize_final_module = renamed
        return False


class _Compiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_OwnNames, NopythonTypeInference)
        passes.finalize()
        return [passes]


def apart(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` for a function whose body is not to be put in the place of its calls, and is compiled once for all.

    It is for what is long or seldom called, beside a loop that needs all registers.
    """
    found: Callable[[Callable[..., Any]], Any] = numba.njit(pipeline_class=_ApartCompiler, forceinline=False, **options)
    return found


@register_pass(mutates_CFG=False, analysis_only=True)
class _Apart(FunctionPass):
    """Tells LLVM, as soon as it sees the function, to leave it one."""

    _name = "doubly_apart"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        name = state.func_id.func_name
        library = state.library = state.targetctx.codegen().create_library(state.func_id.func_qualname)
        optimise = library._optimize_functions

        def marked(module: Any) -> None:
            for function in module.functions:
                if not function.is_declaration and f"{len(name)}{name}B" in function.name:
                    function.add_function_attribute("noinline")
            optimise(module)

        library._optimize_functions = marked
        return False


class _ApartCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Apart, NopythonTypeInference)
        passes.finalize()
        return [passes]


class _Cache(FunctionCache):
    """Numba's cache of a function, with files of another kind in a folder of their own."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._cache_path = str(Path(self._cache_path) / f"{PREFIX}{_version(inspect.getfile(function))}")
        self._cache_file: Any = _Files(Path(self._cache_path), function.__qualname__)


class _Files:
    """The code of one function, a file for each combination of types and each kind of processor."""

    def __init__(self, folder: Path, name: str):
        self._folder, self._name = folder, name

    def load(self, key: object) -> Any:
        with suppress(Exception):  # absent, cut short, or of another world: it will be compiled and written anew
            content = self._file(key).read_bytes()
            if hashlib.sha256(content[32:]).digest() == content[:32]:
                return pickle.loads(content[32:])
        return None

    def save(self, key: object, data: object) -> None:
        with suppress(OSError):  # a full disk: the code is there, only not kept
            self._make()
            content = dumps(data)
            temporary = self._folder / f".{self._name}-{os.getpid()}-{threading.get_native_id()}.tmp"
            temporary.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(temporary, self._file(key))

    def flush(self) -> None:
        for file in self._folder.glob(f"{self._name}-*.code"):
            file.unlink(missing_ok=True)

    def _file(self, key: object) -> Path:
        return self._folder / f"{self._name}-{_digest(repr(key))}.code"

    def _make(self) -> None:
        if self._folder.is_dir():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        others = [each for each in self._folder.parent.glob(f"{PREFIX}*") if each.is_dir() and each != self._folder]
        for other in sorted(others, key=lambda each: each.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(other, ignore_errors=True)


def _version(file: str) -> str:
    """A digest of the source and of all that makes code of it."""
    sources = (hashlib.sha256(Path(each).read_bytes()).hexdigest() for each in (file, __file__))
    return _digest(*sources, __version__, numba.__version__, llvmlite.__version__, sys.version)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
