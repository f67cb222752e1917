"""What `Log` refuses, what it says of a hurt store, and what it costs those who do not use it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Log
from penstock.arrow.errors import LostRecordsError, SourceError, StoreAccessError
from penstock.testing.waiting import until
from tests.spark.workshop import Workshop

PLACES = "'earliest', 'latest', a datetime, or offsets as {0: 5, 1: 7}"
EVENTS, FIRST = "The topic 'events'", "topic 'events' partition 0"


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    with Workshop(str(tmp_path / "store")) as made:
        made.create("events", 2)
        made.write("events", [b"a", b"b", b"c"])
        yield made


class NoTime(datetime):
    """pandas has such a datetime for what is missing."""

    def utcoffset(self) -> timedelta | None:
        raise ValueError("NaTType does not support utcoffset")


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"columns": ["value", "size"]}, ValueError, "There is no column 'size': a topic has key, value,"),
        ({"columns": "value"}, ValueError, "columns is a list of names, such as ['value'], not a text."),
        ({"columns": []}, ValueError, "columns names each column once, and at least one."),
        ({"columns": ["key", "key"]}, ValueError, "columns names each column once, and at least one."),
        ({"isolation": "all"}, ValueError, "isolation is read_committed or read_uncommitted, not 'all'."),
        ({"start": "now"}, ValueError, f"start is {PLACES}, not 'now'."),
        ({"end": 5}, ValueError, f"end is {PLACES}, not 5."),
        ({"start": date(2026, 1, 1)}, ValueError, f"start is {PLACES}, not datetime.date("),
        ({"start": NoTime(2026, 1, 1)}, ValueError, f"start is {PLACES}, not "),
        ({"start": {0: -1, 1: 0}}, ValueError, "start has -1 for partition 0: an offset is 0 or more,"),
        ({"start": {0: 1.5, 1: 0}}, ValueError, "start has 1.5 for partition 0: an offset is 0 or more,"),
        ({"start": {0: True, 1: 0}}, ValueError, "start has True for partition 0: an offset is 0 or more,"),
        ({"end": {0: 1, 1: 0, 2: 0}}, LookupError, f"{EVENTS} has no partition 2: it has 2 of them."),
        ({"start": {"0": 1}}, LookupError, f"{EVENTS} has no partition '0': it has 2 of them."),
        ({"start": {0: 4, 1: 0}}, ValueError, f"start asks for offset 4 of {FIRST}, which ends at 3."),
        ({"end": {0: 4, 1: 0}}, ValueError, f"end asks for offset 4 of {FIRST}, which ends at 3."),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_sentence(
    workshop: Workshop, arguments: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with Log(workshop.store) as log, pytest.raises(kind) as refused:
        log.topic("events").scan(**arguments)
    assert isinstance(refused.value, SourceError)
    assert str(refused.value).startswith(sentence)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value)
    assert "failOnDataLoss" not in str(refused.value), "there is no such option here"


def test_a_topic_that_does_not_exist(workshop: Workshop) -> None:
    with Log(workshop.store) as log:
        for asked in (log.topic("nothing").scan, log.topic("nothing").offsets):
            with pytest.raises(LookupError, match=r"^The topic 'nothing' does not exist\.$"):
                asked()
        assert log.topics() == ["events"]


def test_places_without_a_cluster(tmp_path: Path) -> None:
    with Log(tmp_path / "none") as log, pytest.raises(StoreAccessError, match="No Penstock cluster lives in"):
        log.topics()
    assert not (tmp_path / "none").exists()
    with Log("ftp://host/x") as log, pytest.raises(StoreAccessError, match="cannot be opened"):
        log.topics()


def test_records_that_were_deleted(workshop: Workshop) -> None:
    workshop.settle()
    workshop.delete_records("events", 2)
    with Log(workshop.store) as log:
        topic = log.topic("events")
        assert topic.scan().read_all()["value"].to_pylist() == [b"c"]
        assert topic.offsets() == {0: (2, 3), 1: (0, 0)}
        with pytest.raises(LostRecordsError) as lost:
            topic.scan(start={0: 0, 1: 0})
        said = "Records 0 to 1 of topic 'events' partition 0 are gone: the log begins at 2 now."
        assert str(lost.value) == said
        assert topic.scan(end={0: 1, 1: 0}).read_all().num_rows == 0


def test_records_that_are_damaged_are_named(workshop: Workshop) -> None:
    for number in range(4):
        workshop.write("events", [b"record %d " % number * 20])
    path = next(one for one in Path(workshop.store).glob("wal/*/*/*") if b"record 2" in one.read_bytes())
    stored = bytearray(path.read_bytes())
    stored[stored.index(b"record 2 ") + 20] ^= 1
    path.write_bytes(stored)
    with Log(workshop.store) as log:
        reader = log.topic("events").scan()
        with pytest.raises(LostRecordsError) as lost:
            reader.read_all()
        assert (lost.value.first, lost.value.last) == (5, 5)
        assert str(lost.value).startswith("Records 5 to 5 of topic 'events' partition 0 are gone: ")
        assert "failOnDataLoss" not in str(lost.value), "there is no such option here"
        around = log.topic("events").scan({0: 6, 1: 0}).read_all()
        assert around["offset"].to_pylist() == [6]


def test_a_scan_goes_on_when_its_records_were_settled_meanwhile(workshop: Workshop) -> None:
    with Log(workshop.store) as log:
        reader = log.topic("events").scan(columns=["value"])
        workshop.settle()
        workshop.collect()
        assert reader.read_all()["value"].to_pylist() == [b"a", b"b", b"c"]


def test_memory_is_that_of_some_batches_and_not_of_the_topic(workshop: Workshop) -> None:
    size, count = 1 << 20, 160
    for at in range(count):
        workshop.write("events", [bytes(size)], index=at % 2)
    before = most = pa.total_allocated_bytes()
    rows = 0
    with Log(workshop.store) as log:
        for batch in log.topic("events").scan(columns=["value"]):
            rows += batch.num_rows
            most = max(most, pa.total_allocated_bytes())
            del batch
    assert rows == count + 3
    assert most - before < size * count // 2


def test_a_closed_log_is_done(workshop: Workshop) -> None:
    log = Log(workshop.store)
    begun, waiting = log.topic("events").scan(), log.topic("events").scan()
    assert begun.read_next_batch().num_rows == 3
    log.close()
    log.close()
    for asked in (log.topics, log.topic("events").scan, begun.read_next_batch, waiting.read_next_batch):
        with pytest.raises(ValueError, match=r"^The log of .* was closed\.$"):
            asked()


def test_a_log_that_nobody_closes_lets_go_of_its_thread(workshop: Workshop) -> None:
    def threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "penstock-io"}

    before = threads()  # Those of earlier tests may still be ending.
    reader = Log(workshop.store).topic("events").scan()
    gc.collect()
    assert reader.read_next_batch().num_rows == 3, "the reader keeps its log"
    (own,) = threads() - before  # A reader that is at its end may have let go already.
    del reader
    gc.collect()
    until(lambda: not own.is_alive(), 30, "the end of the thread")


def says(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_scan_loads_no_spark_and_a_forked_process_can_scan(workshop: Workshop) -> None:
    program = """
import os, sys
from penstock import Log
topic = Log(sys.argv[1]).topic("events")
assert topic.scan().read_all().num_rows == 3
child = os.fork()
if not child:
    os._exit(topic.scan().read_all().num_rows)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), {"pyspark", "py4j"}.isdisjoint(sys.modules))
"""
    assert says(program, workshop.store) == "3 True"


def test_who_does_not_use_it_loads_nothing_of_it() -> None:
    program = """
import sys
before = set(sys.modules)
import penstock
print(sorted(set(sys.modules) - before), hasattr(penstock, "Lag"))
"""
    assert says(program) == "['penstock'] False"


@pytest.mark.parametrize("module", ["pyarrow", "llvmlite", "numpy"])
def test_what_is_not_installed_is_named(workshop: Workshop, module: str) -> None:
    program = """
import sys
sys.modules[sys.argv[2]] = None
from penstock import Log
log = Log(sys.argv[1])
print(log.topics())
try:
    log.topic("events").scan()
except ModuleNotFoundError as error:
    print(error)
"""
    said = f"Scans are Arrow, and {module} is missing: pip install 'penstock[arrow]'."
    assert says(program, workshop.store, module) == f"['events']\n{said}"
