"""An earlier version of Penstock, out of git's history: its brokers run truly the code of that time."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

from conformance import parts

REVISIONS = {
    1: "59bdac753ccbf326c5143dfdf99b1cd0d2610af6",
    2: "68894786b3cea56c71afd6d57972d42894b81637",
}
"""By feature level: the last version that knows no later one."""


def unpack(folder: Path, level: int) -> Path:
    """The source folder of that version, put into `folder`. PartMissing if the history does not hold it."""
    revision = REVISIONS[level]
    done = subprocess.run(
        ["git", "-C", str(parts.ROOT), "archive", revision, "src"], capture_output=True, check=False
    )
    if done.returncode:
        raise parts.PartMissing(
            f"the earlier version {revision[:7]} is not in the history of this repository: fetch all of it "
            f"(git fetch --unshallow). git says: {done.stderr.decode(errors='replace').strip()}"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        parts.unpack(archive, folder)
    return folder / "src"


def environment(source: Path) -> dict[str, str]:
    """That of a process in which `import penstock` finds the version whose source folder is given."""
    return {**os.environ, "PYTHONPATH": str(source)}
