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
from numba.core import cgutils, types
from numba.core.extending import intrinsic


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


def _copy_bytes(typing: Any, dst: Any, to: Any, src: Any, at: Any, length: Any) -> Any:
    """dst[to : to + length] = src[at : at + length], for arrays of bytes that do not overlap.

    The machine's memcpy: assigning slices compiles to a loop over bytes, which is ten times slower.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dst_type, _to, src_type, _at, _length = signature.args
        into, to_value, out_of, at_value, count = arguments
        into = context.make_array(dst_type)(context, builder, into)
        out_of = context.make_array(src_type)(context, builder, out_of)
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, builder.gep(into.data, [to_value]), builder.gep(out_of.data, [at_value]), count, 1)
        return context.get_dummy_value()

    return types.void(dst, types.int64, src, types.int64, types.int64), generate


copy_bytes: Any = intrinsic(_copy_bytes)


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
