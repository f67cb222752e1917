"""Kernels: compiled once, loaded without the compiler, and never given what they do not expect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.arrow import compiled, kernels
from penstock.wire.batch import Record, build_batch

BATCH = bytes(build_batch([Record(7, 1, b"k", b"v"), Record(8, 2, None, b"w")], base_offset=7))

LOADED = """
import sys
import numpy as np
from penstock.arrow import kernels
table = np.empty((4, len(kernels.FIELDS)), np.int64)
assert kernels.scan_batches(np.zeros(0, np.uint8), 0, 0, table) == 0
print("numba" in sys.modules)
"""


def table() -> Any:
    return np.empty((4, len(kernels.FIELDS)), np.int64)


def test_a_kernel_does_what_its_python_does() -> None:
    source = np.frombuffer(BATCH * 3, np.uint8)
    fast, slow = table(), table()
    assert kernels.scan_batches(source, 0, len(source), fast) == 3
    assert kernels.scan_batches.function(source, 0, len(source), slow) == 3
    assert (fast[:3] == slow[:3]).all()
    assert fast[0, kernels.BASE_OFFSET] == 7


def test_what_was_compiled_once_is_loaded_without_the_compiler() -> None:
    kernels.scan_batches(np.frombuffer(BATCH, np.uint8), 0, len(BATCH), table())
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, len(kernels.FIELDS)), np.int32),
        np.zeros(len(kernels.FIELDS), np.int64),
        np.zeros((4, 2 * len(kernels.FIELDS)), np.int64)[:, ::2],
        np.frombuffer(bytes(8 * len(kernels.FIELDS)), np.int64).reshape(1, -1),
    ],
    ids=["other numbers", "other dimensions", "not contiguous", "not writable"],
)
def test_arrays_of_another_kind_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="scan_batches was given"):
        kernels.scan_batches(np.frombuffer(BATCH, np.uint8), 0, len(BATCH), wrong)


def test_damaged_object_files_are_not_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_directories", lambda: iter([str(tmp_path)]))
    compiled._keep("some.o", b"code")
    assert compiled._find("some.o") == b"code"
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert compiled._find("some.o") is None
    assert compiled._find("other.o") is None


@pytest.mark.parametrize("what", ["directory", "file"])
def test_machine_code_that_others_could_have_written_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(compiled, "_directories", lambda: iter([str(tmp_path)]))
    tmp_path.chmod(0o700)
    compiled._keep("loop", b"code")
    assert compiled._find("loop") == b"code"
    (tmp_path if what == "directory" else tmp_path / "loop").chmod(0o777)
    assert compiled._find("loop") is None


def test_machine_code_is_not_followed_to_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_directories", lambda: iter([str(tmp_path)]))
    tmp_path.chmod(0o700)
    compiled._keep("elsewhere", b"code")
    (tmp_path / "loop").symlink_to(tmp_path / "elsewhere")
    assert compiled._find("loop") is None
