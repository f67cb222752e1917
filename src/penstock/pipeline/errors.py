"""Errors for users of pipelines: one sentence each, however long the report of Spark, Java or Python is."""

import re


class PipelineError(Exception):
    """A pipeline cannot be defined, started or continued. The message is one sentence for a person."""


def no_spark(missing: str | None) -> PipelineError:
    return PipelineError(f"Pipelines run on Spark, and {missing} is missing: pip install 'penstock[spark]'.")


_RAISED = re.compile(r"^((?:\w+\.)*)(\w+): (.+)$")
_STATE = re.compile(r"\s*SQLSTATE: \w+;?.*", re.DOTALL)
_CALLING = re.compile(r"^(?:py4j\.protocol\.\w+: )?An error occurred while calling [^\n]*\n: ")
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_JAVA = re.compile(
    r"^(?:(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)|Job aborted due to stage failure: .* executor \w+\))"
    r": (.+)$"
)
_OURS = re.compile(r"\bpenstock\.[\w.]+Error: (.+)$")
"""Our own exceptions are sentences already, whoever tells of them."""


def no_worker(error: BaseException) -> bool:
    """Whether Spark only waited in vain for a Python process, which it gives ten seconds to start, whatever
    else the machine does. Nothing has been done yet then, and starting again may help."""
    return "Python worker failed to connect back" in str(error)


def sentence(error: BaseException) -> str:
    """The one line of an exception that says what is wrong."""
    text = getattr(error, "_desc", None) or getattr(error, "desc", None) or str(error)
    raised = _last_raised(text)
    if raised is not None:
        return raised
    return _of_java(_CALLING.sub("", text.strip()), type(error).__name__)


def _of_java(text: str, otherwise: str) -> str:
    """The first line of what Java says, without its decorations."""
    line = _STATE.sub("", text).strip().splitlines()
    first = _ERROR_CLASS.sub("", line[0].strip()) if line else otherwise
    # Java puts the names of its exceptions in front, sometimes several of them, and Spark the task's.
    while (java := _JAVA.match(first)) is not None:
        first = _ERROR_CLASS.sub("", java[1])
    if (ours := _OURS.search(first)) is not None:
        first = ours[1]
    first = first.rstrip(";")
    return first if first.endswith((".", "?", "!")) else f"{first}."


def _last_raised(text: str) -> str | None:
    """What the last line of a Python traceback inside of a text says."""
    _before, found, traceback = text.rpartition("Traceback (most recent call last):")
    if not found:
        return None
    lines = traceback.splitlines()[1:]
    for at, line in enumerate(lines):
        # The line that names the exception is the first one that is not indented.
        if not line or line.startswith(" "):
            continue
        rest = "\n".join(lines[at:])
        if _CALLING.match(rest):
            return _of_java(_CALLING.sub("", rest), line.strip())
        match = _RAISED.match(line.strip())
        if match is None:
            return line.strip()
        said = _ERROR_CLASS.sub("", _STATE.sub("", match[3]).strip())
        # One of a user's own code says little without its name: KeyError: 'x'.
        return said if match[1].startswith(("penstock.", "pyspark.")) else f"{match[2]}: {said}."
    return None
