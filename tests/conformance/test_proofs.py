"""The list of proofs is the README's, and a night in which one fails goes on and says so."""

import json
import re
import shlex
from pathlib import Path

import pytest
from conformance.proofs import EACH_PUSH, PROOFS, Proof

from conformance import parts, proofs

STEPS = [step for proof in PROOFS for step in (*proof.steps, *proof.short)]


def test_the_readme_lists_them_in_this_order() -> None:
    readme = (parts.ROOT / "README.md").read_text()
    listed = re.findall(r"^\| `make ([a-z0-9-]+)` \|", readme, re.MULTILINE)
    assert ["check", *(name for name in listed if name != "nightly")] == [proof.name for proof in PROOFS]


def test_make_runs_them() -> None:
    makefile = (parts.ROOT / "Makefile").read_text()
    (listed,) = re.findall(r"^PROOFS := (.*)$", makefile, re.MULTILINE)
    own = {"check", "test", "soak"}
    assert {*listed.split(), *own} == {proof.name for proof in PROOFS}
    assert all(re.search(rf"^{proof.name}:", makefile, re.MULTILINE) for proof in PROOFS)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_names_a_program(step: str) -> None:
    for module in re.findall(r"python -m ([a-z_.0-9]+)", step):
        place = parts.ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists()


def test_each_push_runs_short_forms_of_proofs() -> None:
    known = {step for proof in PROOFS for step in proof.short or proof.steps}
    assert {step for steps in EACH_PUSH.values() for step in steps} <= known


def test_each_push_ends_with_the_first_that_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(proofs, "lacks_history", lambda: True)
    monkeypatch.setattr(proofs, "EACH_PUSH", {"one": ("echo 1",), "upgrade": ("exit 1",), "two": ("true",)})
    assert proofs.each_push() == 0
    said = capfd.readouterr().out
    assert re.findall(r"^== .*?(?= \d+ s$|:|$)", said, re.MULTILINE) == [
        "== one", "== one took", "== upgrade skipped", "== two", "== two took",
    ]  # fmt: skip
    monkeypatch.setattr(proofs, "EACH_PUSH", {"one": ("exit 3", "echo 1"), "two": ("echo 2",)})
    assert proofs.each_push() == 1
    assert re.sub(r"\d+ s", "0 s", capfd.readouterr().out) == "== one\n== one failed after 0 s\n"


def test_each_push_tries_the_few_tests_that_failed_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bin_, failed = tmp_path / ".venv" / "bin", tmp_path / "lastfailed"
    bin_.mkdir(parents=True)
    (bin_ / "pytest").write_text('#!/bin/sh\necho "alone $@"\ncase "$*" in *always*) exit 1;; esac\n')
    (bin_ / "pytest").chmod(0o755)
    monkeypatch.setattr(proofs, "ROOT", tmp_path)
    monkeypatch.setattr(proofs, "LAST_FAILED", failed)

    def said_of(*names: str) -> tuple[int, list[str]]:
        told = json.dumps(dict.fromkeys(names, True))
        test = (f"echo {shlex.quote(told)} >{failed}; exit 2",)
        monkeypatch.setattr(proofs, "TEST", test)
        monkeypatch.setattr(proofs, "EACH_PUSH", {"test": test, "two": ("true",)})
        return proofs.each_push(), re.findall(
            r"^(?:alone|FAILED|== two$).*", capfd.readouterr().out, re.MULTILINE
        )

    assert said_of("a.py::b", "a.py::c[1 2]") == (
        0,
        [
            "alone a.py::b a.py::c[1 2]",
            "FAILED once, and held alone: a.py::b",
            "FAILED once, and held alone: a.py::c[1 2]",
            "== two",
        ],
    )
    assert said_of("a.py::always") == (1, ["alone a.py::always"])
    assert said_of("a", "b", "c", "d") == (1, []), "so many are no accident"
    monkeypatch.setattr(proofs, "EACH_PUSH", {"test": ("exit 2",)})
    monkeypatch.setattr(proofs, "TEST", ("exit 2",))
    assert proofs.each_push() == 1, "nothing says which failed"


def test_a_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program = "import sys; from conformance import parts; "
    lacking = f"{program} sys.exit(parts.not_run(parts.PartMissing('no go on the PATH.')))"
    night = {
        "well": Proof("well", ("echo; echo 7 records; echo | cat",)),
        "ill": Proof("ill", ("echo FAILED: one is gone; seq 20; exit 4", "echo and yet it is run")),
        "lacking": Proof("lacking", (f"python -c {shlex.quote(lacking)}",)),
        "partly": Proof("partly", ("true", "exit 3"), short=("echo shorter",)),
    }
    monkeypatch.setattr(proofs, "BY_NAME", night)
    monkeypatch.setattr(proofs, "OUT", tmp_path / "out")
    report = tmp_path / "deep" / "report.md"
    assert proofs.nightly(list(night), False, report) == 1
    said = report.read_text()
    assert "1 held, 1 held in part, 1 not run, 1 FAILED." in said
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \|", said, re.MULTILINE)
    assert rows == [("well", "held"), ("ill", "FAILED"), ("lacking", "not run"), ("partly", "held in part")]
    assert "7 records" in said and "FAILED: one is gone" in said and "and yet it is run" in said
    assert "\n12\n" not in said and "\n20\n" in said, "the figures are at the end"
    assert "not run: no go on the PATH." in said
    assert "FAILED: echo FAILED: one is gone" in capsys.readouterr().out
    assert proofs.nightly(["partly"], True, report) == 0
    assert "in their short forms" in report.read_text() and "shorter" in report.read_text()


def test_a_step_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "STEP_LIMIT_S", 0.2)
    outcome = proofs.run_step("sleep 600 & sleep 600", tmp_path / "log")
    assert outcome.result == "FAILED" and outcome.said[-1].startswith("FAILED: it did not end")
    assert outcome.seconds < 60
