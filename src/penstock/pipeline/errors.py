"""What users of pipelines are told: one sentence, whatever Spark, Java or Python had to say."""

import re


class PipelineError(Exception):
    """A pipeline cannot be defined, started or continued. The message is one sentence for a person."""


_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$")
_STATE = re.compile(r"\s*SQLSTATE: \w+;?.*", re.DOTALL)
_CALLING = re.compile(r"^An error occurred while calling [^\n]*\n: ")
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")


def sentence(error: BaseException) -> str:
    """The one line of an exception that says what is wrong."""
    text = getattr(error, "_desc", None) or getattr(error, "desc", None) or str(error)
    raised = _last_raised(text)
    if raised is not None:
        return raised
    text = _CALLING.sub("", text.strip())
    line = _STATE.sub("", text).strip().splitlines()
    first = _ERROR_CLASS.sub("", line[0].strip()) if line else type(error).__name__
    # Java puts the names of its exceptions in front, sometimes several of them.
    while (java := re.match(r"^(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): (.+)$", first)) is not None:
        first = _ERROR_CLASS.sub("", java[1])
    return first if first.endswith((".", "?", "!")) else f"{first}."


def _last_raised(text: str) -> str | None:
    """What the last line of a Python traceback inside of a text says."""
    _before, found, traceback = text.rpartition("Traceback (most recent call last):")
    if not found:
        return None
    for line in traceback.splitlines()[1:]:
        # The line that names the exception is the first one that is not indented.
        if line and not line.startswith(" "):
            match = _RAISED.match(line.strip())
            return _ERROR_CLASS.sub("", _STATE.sub("", match[2]).strip()) if match else line.strip()
    return None
