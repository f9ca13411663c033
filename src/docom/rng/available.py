"""Whether compiled kernels can be used here, determined once; without numba everything runs in plain torch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

FEW, PATIENCE = 2**18, 32  # words, and draws of no more than so many, that are not worth compiled code
_draws = itertools.count()


@cache
def numba_is_available() -> bool:
    """True if numba can be imported; if it is missing or broken, plain torch is used without an error."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def triton_is_available() -> bool:
    """True if Triton can be imported: it comes with the CUDA builds of torch."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def compiled_pays(words: int) -> bool:
    """Whether to draw words by compiled code.

    Loading it takes a second, which a process that draws little on the host (its steps are on a GPU) can save.
    """
    return (words > FEW or next(_draws) >= PATIENCE) and numba_is_available()


_deciding = threading.Lock()


def jit(**options: Any) -> Callable[[Function], Function]:
    """``numba.njit`` with a cache that nobody else can write to, typed so that strict checking sees the plain function."""
    import numba

    from docom.rng.cache import kernel_folder

    def compiled(function: Function) -> Function:
        folder, config = kernel_folder(), cast(Any, numba.config)
        if folder is None:
            return cast(Function, numba.njit(nogil=True, **options)(function))
        with _deciding:  # numba reads the setting as it decorates; kernels that are not ours keep the user's
            before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
            try:
                return cast(Function, numba.njit(cache=True, nogil=True, **options)(function))
            finally:
                config.CACHE_DIR = before

    return compiled
