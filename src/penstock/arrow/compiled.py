"""Loops as machine code, compiled once and kept where the next process finds it.

numba compiles. But the import of numba takes a second and more, which is longer than most micro-batches, and
every worker of Spark would pay it. So this module keeps the object file. It loads it with llvmlite alone, the
part of numba that knows the machine, in some hundredths of a second. It imports numba only if a loop was
never compiled before, for this version of the code on this kind of processor.

A kernel is a function with a signature, such as "i64(r:u8, i64, w:i64:2)": its result, then its arguments. An
argument is a number, or an array that is read (r) or written (w), with the type of its elements and its
dimensions if not one. The functions that a kernel calls are marked with `helper`. All of them are ordinary
Python, and do the same if they are not compiled. Arrays must be contiguous. A call checks its arguments
against the signature, since machine code would not notice.

Object files lie beside the source file if one may write there, else in the user's cache directory. If an
executor has neither, they lie in a private directory for temporary files. They are run as code, so a
directory that others could write to is not used.
"""

import ctypes
import functools
import hashlib
import os
import platform
import stat
import sys
import tempfile
import types
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

_DIGEST_BYTES = 32
_KINDS = {"u8": np.uint8, "i32": np.int32, "i64": np.int64}
_helpers: set[Any] = set()


def helper(function: Callable[..., Any]) -> Any:
    """A decorator: a function that kernels call."""
    _helpers.add(function)
    return function


def copy_bytes(dst: Any, to: int, src: Any, at: int, length: int) -> None:
    """Copy between arrays of bytes that do not overlap. Compiled, it is the machine's memcpy: assigning
    slices compiles to a loop over bytes, which is ten times slower."""
    dst[to : to + length] = src[at : at + length]


class _Argument(NamedTuple):
    """An array's elements, dimensions, and whether it is written to; no elements for a number."""

    kind: Any
    dimensions: int
    written: bool


def compiled(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function as a kernel."""
    return functools.partial(Kernel, signature)


class Kernel:
    """A compiled function. It is compiled, or its object file loaded, when it is first called."""

    def __init__(self, signature: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        result, _, rest = signature.partition("(")
        self._returns = result != "void"
        self._arguments = [_argument(text.strip()) for text in rest.rstrip(")").split(",")]
        self._code: Any = None

    def __call__(self, *arguments: Any) -> int:
        if self._code is None:
            self._code = self._load()
        # How numba passes things: a place for the result and one for an exception, then each field of each
        # array by itself: owner, parent, elements, bytes of one, address, shape, strides.
        answer = array("q", (0, 0))
        at = answer.buffer_info()[0]
        words = [at, at + answer.itemsize]
        for wanted, given in zip(self._arguments, arguments, strict=True):
            if wanted.kind is None:
                words.append(int(given))
                continue
            flags = given.flags
            if (
                given.dtype != wanted.kind
                or given.ndim != wanted.dimensions
                or not flags.c_contiguous
                or (wanted.written and not flags.writeable)
            ):
                raise TypeError(f"{self.__name__} was given {given.dtype} {given.shape} for {wanted}")
            address = given.__array_interface__["data"][0]
            words += (0, 0, given.size, given.itemsize, address, *given.shape, *given.strides)
        packed = array("q", words)
        status = self._code(packed.buffer_info()[0])
        if status:
            raise RuntimeError(f"{self.__name__} failed with {status}")
        return answer[0]

    def _load(self) -> Any:
        stored = _find(self._key())
        if stored is None:
            stored = self._build()
            _keep(self._key(), stored)
        return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(_machine().load(self._entry, stored))

    @property
    def _entry(self) -> str:
        return f"penstock_{self.__name__}"

    def _key(self) -> str:
        """Everything that the machine code depends on."""
        facts = hashlib.sha256(_machine().facts)
        for module in (globals(), self.function.__globals__):
            # By its loader: the package may lie in an archive.
            facts.update(module["__spec__"].loader.get_data(module["__file__"]))
        return f"{self.__name__}-{facts.hexdigest()[:24]}.o"

    def _build(self) -> bytes:
        """The object file."""
        from numba.core import types as numba_types

        kinds = [
            numba_types.int64
            if one.kind is None
            else numba_types.Array(
                getattr(numba_types, np.dtype(one.kind).name), one.dimensions, "C", readonly=not one.written
            )
            for one in self._arguments
        ]
        result = numba_types.int64 if self._returns else numba_types.void
        made = _dispatcher(self.function, result(*kinds))
        (overload,) = made.overloads.values()
        return _machine().emit(overload.library.get_llvm_str(), overload.fndesc.llvm_func_name, self._entry)


def _argument(text: str) -> _Argument:
    if ":" not in text:
        assert text == "i64", text
        return _Argument(None, 0, written=False)
    access, kind, *dimensions = text.split(":")
    return _Argument(_KINDS[kind], int(dimensions[0]) if dimensions else 1, written=access == "w")


def _dispatcher(function: Callable[..., Any], signature: Any = None) -> Any:
    """The function for numba, with the helpers that it calls; compiled, if there is a signature."""
    import numba

    compiler: Any = numba.njit
    namespace: dict[str, Any] = dict(function.__globals__)
    for name in function.__code__.co_names:
        used = namespace.get(name)
        if used is copy_bytes:
            namespace[name] = _copy_intrinsic()
        elif isinstance(used, types.FunctionType) and used in _helpers:
            namespace[name] = _dispatcher(used)
    twin = types.FunctionType(function.__code__, namespace, function.__name__)
    # Without the ways in from Python, the machine code refers to nothing of numba's or the interpreter's.
    return compiler(
        signature, nogil=True, boundscheck=False, error_model="numpy",
        no_cpython_wrapper=True, no_cfunc_wrapper=True,
    )(twin)  # fmt: skip


def _copy_intrinsic() -> Any:
    from numba.core import cgutils
    from numba.core import types as numba_types
    from numba.core.extending import intrinsic

    def memcpy(typing: Any, dst: Any, to: Any, src: Any, at: Any, length: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            dst_type, _to, src_type, _at, _length = signature.args
            into, to_value, out_of, at_value, count = arguments
            into = context.make_array(dst_type)(context, builder, into)
            out_of = context.make_array(src_type)(context, builder, out_of)
            copy: Any = cgutils.raw_memcpy
            copy(builder, builder.gep(into.data, [to_value]), builder.gep(out_of.data, [at_value]), count, 1)
            return context.get_dummy_value()

        number = numba_types.int64
        return numba_types.void(dst, number, src, number, number), generate

    return intrinsic(memcpy)


class _Machine:
    """This processor and the code that was loaded for it."""

    def __init__(self) -> None:
        import llvmlite
        import llvmlite.binding as llvm

        try:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
        except RuntimeError as error:
            raise RuntimeError(f"llvmlite {llvmlite.__version__} knows no code for this processor") from error
        self._llvm: Any = llvm
        processor, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        self._target: Any = llvm.Target.from_default_triple().create_target_machine(
            cpu=processor,
            features=features,
            opt=3,
            # As numba has it: what is loaded into this process needs no indirection on such machines.
            reloc="static" if platform.machine().lower() in ("x86_64", "amd64") else "default",
            jit=True,
        )
        facts = (
            _version("numba"),
            llvmlite.__version__,
            self._target.triple,
            processor,
            features,
            sys.version,
        )
        self.facts = "\n".join(facts).encode()
        self._engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target)
        # Called when an array that numba counts references of is dropped. There is none: owners are null.
        self._never = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _owner: None)
        llvm.add_symbol("NRT_MemInfo_call_dtor", _address(self._never))

    def emit(self, code: str, name: str, entry: str) -> bytes:
        """The object file of a module with one more function, `entry`: it takes the address of all arguments
        of the function `name`, a word each. To hand over a hundred arguments one by one costs too much."""
        inner = self._llvm.parse_assembly(code).get_function(name)
        kinds = [str(argument.type) for argument in inner.arguments]
        lines = [f"define i32 @{entry}(ptr %words) {{"]
        for at, kind in enumerate(kinds):
            lines.append(f"  %p{at} = getelementptr i64, ptr %words, i64 {at}")
            lines.append(f"  %v{at} = load {kind}, ptr %p{at}")
        handed = ", ".join(f"{kind} %v{at}" for at, kind in enumerate(kinds))
        lines += [f'  %status = call i32 @"{name}"({handed})', "  ret i32 %status", "}"]
        emitted: bytes = self._target.emit_object(self._llvm.parse_assembly("\n".join([code, *lines])))
        return emitted

    def load(self, name: str, data: bytes) -> int:
        self._engine.add_object_file(self._llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()
        address: int = self._engine.get_function_address(name)
        if not address:
            raise RuntimeError(f"the object file has no function {name}")
        return address


@functools.cache
def _machine() -> _Machine:
    return _Machine()


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


# Where object files are kept. They are run as they are, so only what this user, root or the owner of the
# package could have written is read, however well its digest fits.


def _find(name: str) -> bytes | None:
    for directory in _directories():
        if not _is_ours(directory):
            continue
        try:
            handle = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        with open(handle, "rb") as file:
            if not _is_ours(handle):
                continue
            stored = file.read()
        digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() == digest:
            return data
    return None


def _keep(name: str, data: bytes) -> None:
    for directory in _directories():
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            if not _is_ours(directory):
                continue
            handle, path = tempfile.mkstemp(dir=directory)
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(path, os.path.join(directory, name))
        except OSError:
            continue
        return


def _directories() -> Iterator[str]:
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isabs(home):
        yield os.path.join(home, "penstock")
    yield os.path.join(tempfile.gettempdir(), f"penstock-kernels-{os.getuid()}")


def _is_ours(place: str | int) -> bool:
    """Whether nobody else can have written a file or directory, by its path or as it is open."""
    try:
        found = os.fstat(place) if isinstance(place, int) else os.lstat(place)
        trusted = {os.getuid(), 0, os.stat(__file__).st_uid}
    except OSError:
        return False
    return found.st_uid in trusted and not stat.S_ISLNK(found.st_mode) and not found.st_mode & 0o022
