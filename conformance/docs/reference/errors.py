"""docs/errors.md: the exit codes as the command says them, and Kafka's error codes that answers of a broker carry."""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import penstock
from penstock.cli.app import app
from penstock.wire.errors import ErrorCode

_SOURCE = Path(penstock.__file__).parent
_INTRODUCTION = """\
# Errors and exit codes

Written by `make reference` from the code; a test fails while the two differ.

What goes wrong is told in one sentence that says what is wrong and what to do, never by a traceback. A traceback is a
bug: please report it.

## Exit codes

| code | when |
|---|---|
"""

_ANSWERS = """
## Error codes in answers

The codes that a broker gives, with Kafka's numbers and names, and the sentences that go with them where an answer has
room for one. `...` stands for names and numbers. Which code is given when is Kafka's choice: `make differential`
compares.

| code | name | sentences |
|---|---|---|
"""

_LOCAL = """
## Sentences of the command line, of Spark and of scans

What commands, settings, Spark's options and [scans](arrow.md) say when they refuse something.

"""
_LOUD = (
    "ClientError",
    "ClickException",
    "UsageError",
    "BadParameter",
    "SettingsError",
    "OptionError",
    "SourceError",
)
_SENTENCE = re.compile(r"[A-Z`'\".].*[ ].*[.?]", re.DOTALL)


def markdown() -> str:
    codes = "".join(f"| {code} | {when} |\n" for code, when in _exit_codes())
    answers = "".join(
        f"| {int(code)} | {code.name} | {'<br>'.join(_answers().get(code.name, []))} |\n"
        for code in ErrorCode
        if code is not ErrorCode.NONE and code.name in _used()
    )
    rows = "".join(f"- {sentence}\n" for sentence in _told())
    return _INTRODUCTION + codes + _ANSWERS + answers + _LOCAL + rows


def _exit_codes() -> list[tuple[str, str]]:
    """From the help of the command itself."""
    text = inspect.cleandoc(app.help or "").partition("Exit codes:")[2]
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if code := re.match(r"\s*(\d+)  (.*)", line):
            found.append((code[1], code[2]))
        elif line.strip() and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


@cache
def _calls() -> list[ast.Call]:
    found = []
    for file in sorted(_SOURCE.rglob("*.py")):
        found += [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return found


@cache
def _used() -> set[str]:
    """Codes that the package names anywhere but in their own table."""
    found: set[str] = set()
    for file in _SOURCE.rglob("*.py"):
        if file.name != "errors.py" or file.parent.name != "wire":
            found |= set(re.findall(r"ErrorCode\.([A-Z_]+)", file.read_text()))
    return found


@cache
def _answers() -> dict[str, list[str]]:
    """Sentences that stand beside a code in one call, as in Refusal(ErrorCode.X, "...")."""
    found: dict[str, set[str]] = {}
    for call in _calls():
        codes = [one.attr for one in call.args if isinstance(one, ast.Attribute) and _is_code(one)]
        texts = [text for one in call.args if (text := _text(one))]
        if len(codes) == 1 and texts:
            found.setdefault(codes[0], set()).update(texts)
    return {code: sorted(texts) for code, texts in found.items()}


@cache
def _told() -> list[str]:
    found: set[str] = set()
    for call in _calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in _LOUD and call.args and (text := _text(call.args[0])):
            found.add(text)
    return sorted(found)


def _is_code(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "ErrorCode"


def _text(node: ast.expr) -> str:
    """A sentence of the code, for a table of Markdown. Empty: it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[-1], ast.Constant):
        words = "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
    else:
        return ""
    if not _SENTENCE.fullmatch(words) or not re.search("[a-z]{3}", words):
        return ""
    return re.sub(r"([|<*_\[\]`\\])", r"\\\1", " ".join(words.split()))
