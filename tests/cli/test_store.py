"""`penstock store`: what its commands print, their exit codes, and that they change only what they should."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.admin.records import Sender
from penstock.cli.app import app
from penstock.cli.client import Client
from penstock.testing import Broker
from penstock.wire.batch import Record

HOUR_SECONDS = 3600


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of a broker that stopped in order: its record is settled."""
    with Broker(store=str(tmp_path / "store")) as broker:
        with Client(broker.bootstrap_servers) as client:
            sender = Sender(client, "t", client.partitions("t", create=True), 0, -1)
            sender.send(Record(value=b"value"), 0)
            sender.flush()
        assert audited(tmp_path / "store")["missing"] == [], "while it runs"
    return tmp_path / "store"


def audit(store: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["store", "audit", "--store", str(store), *arguments])


def audited(store: Path, *arguments: str) -> Any:
    result = audit(store, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def leave_behind(store: Path, name: str, age_seconds: int) -> Path:
    path = store / "segments" / "9" / "1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 10)
    then = path.stat().st_mtime - age_seconds
    os.utime(path, (then, then))
    return path


def test_orphans_are_deleted_only_when_asked_for_and_old(store: Path) -> None:
    old = leave_behind(store, "000000000001", 2 * HOUR_SECONDS)
    young = leave_behind(store, "000000000002", HOUR_SECONDS // 2)
    found = audited(store)
    assert [one["key"] for one in found["orphaned"]] == ["segments/9/1/000000000001"]
    assert found["orphaned"][0]["size"] == 10 and found["orphaned"][0]["age_seconds"] >= 2 * HOUR_SECONDS
    # With the log of the broker that left a moment ago.
    young_keys = ["segments/9/1/000000000002", "wal/1/1/00000000000000000000"]
    assert [one["key"] for one in found["in_flight"]] == young_keys
    assert found["missing"] == [] and old.exists()
    assert audited(store, "--delete-orphans")["deleted"] == ["segments/9/1/000000000001"]
    assert not old.exists() and young.exists()
    assert audited(store, "--grace", "60", "--delete-orphans")["deleted"] == ["segments/9/1/000000000002"]


def test_what_is_missing_is_an_exit_code(store: Path) -> None:
    (manifest,) = [path for path in (store / "manifests").rglob("*") if path.is_file()]
    manifest.unlink()
    result = audit(store)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["missing"][0]["key"] == str(manifest.relative_to(store))


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/no/such/place", "No Penstock cluster lives in"),
        ("etcd://127.0.0.1:1", "no place for records"),
        ("nonsense://x", "cannot be read"),
    ],
)
def test_places_that_hold_no_cluster(location: str, words: str) -> None:
    result = audit(location)
    assert result.exit_code == 1
    assert words in result.output and "Traceback" not in result.output


def run(command: str, store: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["store", command, "--store", str(store), *arguments])


def flip(path: Path, at: int) -> None:
    stored = bytearray(path.read_bytes())
    stored[at] ^= 1
    path.write_bytes(bytes(stored))


def test_scrub_and_repair(store: Path) -> None:
    assert run("scrub", store).exit_code == 0
    (segment,) = [path for path in (store / "segments").rglob("*") if path.is_file()]
    whole = segment.read_bytes()
    flip(segment, 65)
    hurt = run("scrub", store)
    assert hurt.exit_code == 1
    (found,) = json.loads(hurt.stdout)["damaged"]
    assert (found["topic"], found["partition"], found["start"], found["end"]) == ("t", 0, 0, 1)
    assert run("scrub", store, "--topic", "another").exit_code == 0
    before = sorted(store.rglob("*"))
    planned = run("repair", store)
    assert planned.exit_code == 1 and sorted(store.rglob("*")) == before
    assert json.loads(planned.stdout)["applied"] is False
    healed = run("repair", store, "--apply")
    assert healed.exit_code == 0, healed.output
    (step,) = json.loads(healed.stdout)["steps"]
    assert step["how"] in ("corrected", "restored")
    assert run("scrub", store).exit_code == 0 and run("repair", store).exit_code == 0
    assert segment.read_bytes() != whole, "nothing is written over"
    with Broker(store=str(store)) as broker, Client(broker.bootstrap_servers) as client:
        assert client.partitions("t") == [0]
    assert run("scrub", store).exit_code == 0


@pytest.mark.parametrize("command", ["scrub", "repair"])
@pytest.mark.parametrize(
    ("location", "words"), [("/no/such/place", "No Penstock"), ("nonsense://x", "cannot be read")]
)
def test_places_that_cannot_be_scrubbed(command: str, location: str, words: str) -> None:
    result = run(command, location)
    assert result.exit_code == 1
    assert words in result.output and "Traceback" not in result.output


def test_what_people_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.store_health.wants_json", lambda _flag: False)
    whole = run("scrub", store)
    assert "Everything is whole." in whole.output and "1 records" in whole.output
    (manifest,) = [path for path in (store / "manifests").rglob("*") if path.is_file()]
    flip(manifest, 20)
    assert "damaged: t-0 (manifest in manifests/" in run("scrub", store).output
    assert "would be done: t-0 " in run("repair", store).output
    assert "Nothing is hurt any more." in run("repair", store, "--apply").output
    assert "Nothing is hurt." in run("repair", store).output
