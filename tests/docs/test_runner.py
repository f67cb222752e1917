"""The runner of the documentation finds what is wrong with a page."""

from pathlib import Path

import pytest
from conformance.docs.comparing import agrees
from conformance.docs.pages import PageError, read
from conformance.docs.running import Reader, Step


def follow(tmp_path: Path, text: str) -> list[Step]:
    path = tmp_path / "page.md"
    path.write_text(text)
    directory = tmp_path / "run"
    directory.mkdir()
    return Reader(read(path), directory, {}).follow()


def problems(tmp_path: Path, text: str) -> list[str]:
    return [step.problem for step in follow(tmp_path, text) if step.problem]


def test_a_true_page_holds(tmp_path: Path) -> None:
    steps = follow(
        tmp_path,
        '# Page\n\n```toml title="a.toml"\nx = 1\n```\n\n```bash\ncat a.toml\nexport Y=2; mkdir d; cd d\n```\n\n'
        "```text\nx = 1\n```\n\n<!-- exit code: 3 -->\n```bash\npwd; echo $Y; exit 3\n```\n\n```text\n.../d\n2\n```\n\n"
        "```python\nprint(open('a.toml').read())\n```\n\n<!-- not run: it is not ours to run -->\n```bash\nfalse\n```\n",
    )
    assert [(step.did, step.problem) for step in steps] == [
        ("file", ""), ("run", ""), ("run", ""), ("run", ""), ("not run", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```bash\nfalse\n```\n", "it ended with 1, not 0"),
        ("```bash\nfalse\ntrue\n```\n", "it ended with 1, not 0"),
        ("```bash\ncat none | sort\n```\n", "it ended with 1, not 0"),
        ("```python\nraise ValueError('here')\n```\n", "it ended with 1, not 0"),
        ("<!-- exit code: 2 -->\n```bash\ntrue\n```\n", "it ended with 0, not 2"),
        ("```bash\necho 5\n```\n\n```text\n6\n```\n", "it prints something else"),
        ("```bash\necho 5; echo 6\n```\n\n```text\n5\n```\n", "it prints something else"),
        ("<!-- at most: 1 s -->\n```bash\nsleep 60\n```\n", "it did not end within 1 s"),
        ("<!-- until: 1 s -->\n```bash\necho 5\n```\n\n```text\n6\n```\n", "it prints something else"),
        ("<!-- background: b -->\n```bash\nfalse\n```\n\n```text\nready\n```\n", "it ended with 1"),
        (
            "<!-- background: b -->\n```bash\necho ready\n```\n\n```text\nready\n```\n\n```bash\nsleep 1\n```\n",
            "b ended before",
        ),
    ],
)
def test_a_wrong_page_is_found(tmp_path: Path, text: str, problem: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith(problem), found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```\nls\n```\n", "a nameless block is neither run"),
        ("```yaml\na: 1\n```\n", "a yaml block is neither run"),
        ("prose\n\n```text\n5\n```\n", "a text block is neither run"),
        ("```bash\nls\n```\n\nprose\n\n```text\n5\n```\n", "a text block is neither run"),
        ("<!-- nor run: a slip -->\n```bash\nls\n```\n", "does not know the comment"),
        ("<!-- not run -->\n```bash\nls\n```\n", "does not know the comment"),
        ("<!-- exit code: 1 -->\nprose\n", "no block follows"),
        ('```toml title="../a.toml"\nx = 1\n```\n', "not a file in the page's directory"),
        ("```bash\nls\n", "has no end"),
    ],
)
def test_a_page_that_could_hide_something_is_refused(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(PageError, match=wrong):
        follow(tmp_path, text)


def test_what_goes_on_in_the_background_is_stopped(tmp_path: Path) -> None:
    steps = follow(
        tmp_path,
        "<!-- background: b -->\n```bash\ntrap 'echo bye > said; exit 0' INT\necho ready; while true; do sleep 0.1; "
        "done\n```\n\n```text\nready\n```\n\nPress Ctrl-C.\n\n<!-- stop: b -->\n```bash\ncat said\n```\n\n```text\nbye\n```\n",
    )
    assert [(step.did, step.problem) for step in steps] == [("run", ""), ("stop", ""), ("run", "")]


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("a\nb\nc\n", "a\n...\n", True),
        ("a\nb\nc\n", "...\nc\n", True),
        ("a\nb\nc\n", "a\n...\nd\n", False),
        ("at 12:03, 5 s\n", "at ..., ... s\n", True),
        ("at 12:03\n", "at ..., ... s\n", False),
        ("\x1b[1mTOPIC\x1b[0m\n1 %\r2 %\r3 %\n", "TOPIC\n3 %\n", True),
        ("", "a\n", False),
    ],
)
def test_what_was_printed_beside_what_is_shown(printed: str, shown: str, same: bool) -> None:
    assert agrees(printed, shown) == same
