"""Functions, files and constructors of the package are rarely large (CONTRIBUTING.md)."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "penstock"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Measured = dict[str, int]


def functions() -> Iterator[tuple[str, Function]]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}", node


def large(sizes: Measured, limit: int) -> Sequence[str]:
    return [f"{name}: {size}" for name, size in sorted(sizes.items()) if size > limit]


def test_files_are_rarely_over_400_lines() -> None:
    sizes = {str(path): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert len(large(sizes, 400)) <= 0.03 * len(sizes), large(sizes, 400)
    assert not large(sizes, 600)


def test_functions_are_rarely_over_50_lines() -> None:
    sizes = {name: (one.end_lineno or one.lineno) - one.lineno + 1 for name, one in functions()}
    assert len(large(sizes, 50)) <= 0.005 * len(sizes), large(sizes, 50)
    assert not large(sizes, 90)


def test_constructors_rarely_have_more_than_8_parameters() -> None:
    sizes = {
        name: len(one.args.args) + len(one.args.kwonlyargs) - 1
        for name, one in functions()
        if one.name == "__init__"
    }
    assert len(large(sizes, 8)) <= 0.02 * len(sizes), large(sizes, 8)
    assert not large(sizes, 12)
