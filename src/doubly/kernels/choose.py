"""Which kernels run: the plain ones of PyTorch, anywhere and in any precision, or the fused ones of Numba.

The environment variable DOUBLY_KERNELS decides: 0 takes the plain ones, 1 the fused ones or an error; without it, the
fused ones wherever they can be used, that is for float32 on a CPU with Numba installed.
"""

import contextlib
import contextvars
import ctypes
import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from doubly.core.errors import RunWarning, UserError
from doubly.kernels.threads import set_threads

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
VARIABLE = "DOUBLY_KERNELS"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def fused(*tensors: Tensor, fixed: tuple[Tensor, ...] = ()) -> bool:
    """Whether the fused kernel runs on these tensors; to the `fixed` ones it can give no gradient."""
    wish = os.environ.get(VARIABLE, "")
    if wish not in ("", "0", "1"):
        raise UserError(f"{VARIABLE} must be 0 (plain), 1 (fused) or unset (choose), got {wish!r}")
    if wish == "0":
        return False
    obstacle = _obstacle(*tensors, *fixed)
    if obstacle is None and wants_grad(*fixed):
        obstacle = "a gradient is wanted of a value, which only the plain kernels give"
    if obstacle is not None and wish == "1":
        raise UserError(f"{VARIABLE}=1 asks for the fused kernels, but {obstacle}: set it to 0, or not at all")
    return obstacle is None


def wants_grad(*tensors: Tensor) -> bool:
    """Whether autograd is watching any of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def compile_seconds() -> float:
    """The seconds that this process has spent on compiling fused kernels; none once they are stored on a machine."""
    loops = sys.modules.get("doubly.kernels.loops")
    return 0.0 if loops is None else float(loops.announcement.seconds)


_compiling = contextvars.ContextVar("compiling", default=False)


@contextlib.contextmanager
def compiling(wanted: bool) -> Iterator[None]:
    """Put the plain kernels through torch.compile, or not."""
    before = _compiling.set(wanted)
    try:
        yield
    finally:
        _compiling.reset(before)


def compilable(kernel: Kernel) -> Kernel:
    """A plain kernel for torch.compile, which makes one pass over memory of its many where `compiling` asks for it."""
    compiled = functools.cache(lambda: torch.compile(kernel))

    @functools.wraps(kernel)
    def call(*args: Any) -> Any:
        return (compiled() if _compiling.get() else kernel)(*args)

    return cast(Kernel, call)


def loops() -> ModuleType:
    """The compiled loops, set to run on as many threads as PyTorch does."""
    numba = _numba()
    # the number belongs to the calling thread, so it cannot be set once and for all
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    return _loops()


def in_use() -> dict[str, Any]:
    """Whether fused kernels are on, and what they run on, for people to look at."""
    numba = _numba()
    return {
        "fused": numba is not None and os.environ.get(VARIABLE) != "0",
        "numba": numba and numba.__version__,
        "threading_layer": numba and numba.config.THREADING_LAYER,
        "threads": torch.get_num_threads(),
    }


def _obstacle(*tensors: Tensor) -> str | None:
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_cpu:
            return f"they need float32 on a CPU, not {tensor.dtype} on {tensor.device}"
    if _numba() is None:
        return "Numba cannot be imported"
    if _forked:
        _tell_fork()
        return "this process was forked from one that has computed, which OpenMP does not survive"
    return None


@functools.cache
def _numba() -> Any:
    """Numba, loaded when it is first asked for and after PyTorch, so that they share one OpenMP and its threads."""
    try:
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    with contextlib.suppress(ImportError):  # without OpenMP its own choice of layer will do, with threads of its own
        importlib.import_module("numba.np.ufunc.omppool")
        numba.config.THREADING_LAYER = "omp"
    threads = torch.get_num_threads()
    numba.set_num_threads(1)  # starts Numba's threads, and thereby sets the number of OpenMP's, which is PyTorch's
    set_threads(threads)
    _keep_freed_memory()
    return numba


def _keep_freed_memory(threshold: int = 2**28) -> None:
    """Ask the C library not to give memory back to the system at once.

    It returns what a step has freed, some MB at a time, and the next step gets it anew, page by page: on a virtual
    machine that takes longer than many a kernel. Up to `threshold` bytes are kept now. Only glibc has this setting.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that it takes; beyond, each tensor is a mapping of its own
        mallopt(_M_TRIM_THRESHOLD, threshold)


@functools.cache
def _loops() -> ModuleType:
    return importlib.import_module("doubly.kernels.loops")


# Forks. Threads of a parent are not in its child, but OpenMP waits for them there: for ever, or Numba ends the process.

_forked = False
_told = False


def forked() -> bool:
    """Whether this process was forked from one that had computed: it computes with plain kernels on one thread."""
    return _forked


def _after_fork() -> None:
    global _forked
    if _numba.cache_info().currsize or torch.get_num_threads() > 1:
        _forked = True
        torch.set_num_threads(1)


def _tell_fork() -> None:
    global _told
    if not _told:
        _told = True
        warnings.warn(
            "this process was forked from one that had computed, and takes the plain kernels on one thread: the same "
            "laws, but other random numbers; for the same bits, start it by spawn "
            "(multiprocessing.get_context('spawn'))",
            RunWarning,
            stacklevel=4,
        )


os.register_at_fork(after_in_child=_after_fork)
