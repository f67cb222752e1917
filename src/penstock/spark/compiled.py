"""Compiling loops with numba, and keeping the machine code where the next process finds it.

Signatures are explicit, so a function is compiled when its module is imported, or its machine code loaded
from the cache: never inside a task. numba keeps the cache beside the source file if it may write there, else
in the user's cache directory. An executor may have neither; then a private directory for temporary files
serves, so that at least the workers of one machine share the work.
"""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import numba


def compiled(signature: Any = None) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as machine code, without Python objects and without the interpreter lock."""

    def decorate(function: Callable[..., Any]) -> Any:
        config: Any = numba.config
        compiler = numba.njit(signature, cache=True, nogil=True, boundscheck=False, error_model="numpy")
        try:
            return compiler(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error) or config.CACHE_DIR:
                raise
            config.CACHE_DIR = _private_directory()
            return compiler(function)

    return decorate


def _private_directory() -> str:
    """A directory for temporary files that belongs to this user alone: what lies in it is run as code."""
    path = os.path.join(tempfile.gettempdir(), f"penstock-numba-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or os.path.islink(path):
            return tempfile.mkdtemp(prefix="penstock-numba-")
    return path
