"""Records on pages: where they begin, how they are decoded, the tail, the search, and one that is written."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import fastavro
import pytest
from confluent_kafka import Producer
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.admin.records import Sender
from penstock.client import Client
from penstock.console.decoding import Decoding, hexadecimal
from penstock.wire.batch import Record
from tests.console.browser import Browser, text_of
from tests.console.records import make

_ROW = re.compile(r'<td class="right">(\d+)</td>\s*<th scope="row" class="right">([\d\u202f]+)</th>')


def send(client: Client, topic: str, records: list[tuple[int, Record]], partitions: int = 1) -> None:
    make(client, topic, partitions=partitions)
    sender = Sender(client, topic, list(range(partitions)), 0, -1)
    for partition, record in records:
        sender.send(record, partition)
    sender.flush()


def at(number: int, key: str | None = None, value: bytes | None = None) -> Record:
    return Record(0, 1_700_000_000_000 + number, key.encode() if key else None, value or b"v%d" % number, ())


def rows(page: str) -> list[tuple[int, int]]:
    return [(int(partition), int(offset.replace("\u202f", ""))) for partition, offset in _ROW.findall(page)]


def link(page: str, label: str) -> str:
    found = re.search(rf'href="([^"]+)">{label}</a>', page)
    assert found, label
    return found[1].replace("&amp;", "&")


def test_newest_and_oldest_and_pages_of_them(browser: Browser, client: Client) -> None:
    send(client, "ordered", [(number % 2, at(number)) for number in range(120)], 2)
    newest = browser.get("/topics/ordered/records?count=25")
    assert rows(newest)[:2] == [(1, 59), (0, 59)]
    seen = rows(newest)
    page = newest
    while "Earlier</a>" in page:
        page = browser.get(link(page, "Earlier"))
        seen += rows(page)
    assert len(seen) == len(set(seen)) == 120
    page = browser.get("/topics/ordered/records?from=oldest&count=25")
    seen = rows(page)
    assert seen[:2] == [(0, 0), (1, 0)]
    while "Later</a>" in page:
        page = browser.get(link(page, "Later"))
        seen += rows(page)
    assert len(seen) == len(set(seen)) == 120


@pytest.mark.parametrize(("start", "on"), [("oldest", "Later"), ("newest", "Earlier")])
def test_pages_leave_no_record_out_whose_time_is_before_that_of_the_one_ahead_of_it(
    browser: Browser, client: Client, start: str, on: str
) -> None:
    times = [900, 1, 2, 950, 3, 4, 5, 6, 960, 7]
    name = f"unordered-{start}"
    send(client, name, [(number % 2, at(times[number // 2] + number % 2)) for number in range(20)], 2)
    page = browser.get(f"/topics/{name}/records?from={start}&count=3")
    seen = rows(page)
    while f"{on}</a>" in page:
        page = browser.get(link(page, on))
        seen += rows(page)
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(10)]
    for partition in range(2):
        offsets = [offset for one, offset in seen if one == partition]
        assert offsets == sorted(offsets, reverse=start == "newest")


def test_a_page_of_large_records_has_fewer_and_the_next_ones_have_the_others(
    browser: Browser, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.console.reading.HELD_BYTES_MAX", 10_000)
    sizes = [900, 900, 20_000, 900, 3000, 3000, 3000, 3000]
    records = [(number % 2, at(number, value=b"x" * size)) for number, size in enumerate(sizes)]
    send(client, "bulky", records, 2)
    for start, on in (("oldest", "Later"), ("newest", "Earlier")):
        page = browser.get(f"/topics/bulky/records?from={start}")
        seen = rows(page)
        assert "fewer records here than were asked for" in page
        assert 0 < len(seen) < len(sizes)
        while f"{on}</a>" in page:
            page = browser.get(link(page, on))
            assert rows(page)
            seen += rows(page)
        assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(4)]
        assert len(seen) == len(sizes)
    assert len(browser.answer("/topics/bulky/value?partition=0&offset=1").content) == 20_000


def test_what_transactions_did_not_commit_is_marked_and_their_markers_take_no_place(
    browser: Browser, client: Client
) -> None:
    make(client, "paid")
    producer = Producer(
        {"bootstrap.servers": browser.console.options.bootstrap, "transactional.id": "paid", "linger.ms": 0}
    )
    producer.init_transactions(30)
    for number in range(60):
        producer.begin_transaction()
        producer.produce("paid", b"value-%d" % number, b"key-%d" % number)
        if number % 10 == 9:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce("paid", b"value-60", b"key-60")
    producer.flush(30)
    page = browser.get("/topics/paid/records?count=25")
    # Each transaction has a record and a marker, so those of even offsets are records.
    assert rows(page) == [(0, 2 * number) for number in range(60, 35, -1)]
    assert re.findall(r'<span class="state warn">(\w+)</span> value-(\d+)', page) == [
        ("uncommitted", "60"),
        ("aborted", "59"),
        ("aborted", "49"),
        ("aborted", "39"),
    ]
    for key, state in (("key-59", ["aborted"]), ("key-58", []), ("key-60", ["uncommitted"])):
        found = [
            data
            for name, data in events(browser, f"/topics/paid/search?by=key&find={key}")
            if name == "records"
        ]
        assert re.findall(r'<span class="state warn">(\w+)</span>', "".join(found)) == state
    producer.abort_transaction(30)


def test_from_an_offset_or_a_time_of_one_partition(browser: Browser, client: Client) -> None:
    send(client, "jumps", [(number % 2, at(number * 1000)) for number in range(100)], 2)
    assert rows(browser.get("/topics/jumps/records?from=offset&at=40&partition=1&count=3")) == [
        (1, 40),
        (1, 41),
        (1, 42),
    ]
    page = browser.get("/topics/jumps/records?from=time&at=1700000090000&count=25")
    assert rows(page)[0] == (0, 45)
    page = browser.get("/topics/jumps/records?from=time&at=2023-11-14T22:14:50&count=25")
    assert rows(page)[0] == (0, 45)
    assert "2023-11-14 22:14:50.000" in page


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("from=offset&at=ten", "An offset is a number, not 'ten'."),
        ("from=time&at=soon", "A date and time is"),
        ("from=somewhere", "not from 'somewhere'"),
        ("from=before&at=1", "Positions are partition:offset"),
        ("partition=7", "there is no '7'"),
    ],
)
def test_a_start_that_makes_no_sense(browser: Browser, client: Client, query: str, sentence: str) -> None:
    client.partitions("starts", create=True)
    assert sentence in text_of(browser.get(f"/topics/starts/records?{query}", 400))


def test_a_record_is_written_and_shown(browser: Browser, client: Client) -> None:
    make(client, "written", partitions=3)
    page = browser.sent(
        "/topics/written/records",
        {"key": "k", "value": '{"a":\r\n<1}', "headers": "trace: 7\n", "partition": "2"},
        on="/topics/written/records",
    )
    text = text_of(page)
    assert "Wrote a record to partition 2 at offset 0." in text
    assert "trace 7" in text
    assert '{"a":\n&lt;1}' in page.replace("&#34;", '"')
    for fields, sentence in (
        ({"value": "x", "headers": "nothing"}, "A header is NAME: VALUE"),
        ({"value": "x", "partition": "9"}, "no partition '9'"),
    ):
        answer = browser.send("/topics/written/records", fields, on="/topics/written/records")
        assert answer.status_code == 400
        assert sentence in text_of(answer.text)


@pytest.mark.parametrize(
    ("query", "ours", "theirs"),
    [
        (
            "from=offset&at=0&partition=0&count=25",
            "penstock consume --json --partition 0 --from 0 --max 25 --bootstrap SERVER commands",
            "kcat -C -b SERVER -t commands -p 0 -o 0 -e -c 25",
        ),
        (
            "count=25",
            "penstock consume --json --from -25 --bootstrap SERVER commands",
            "kcat -C -b SERVER -t commands -o -25 -e",
        ),
        (
            "from=time&at=2023-11-14T22:13:20&count=25",
            "penstock consume --json --from @1700000000000 --max 25 --bootstrap SERVER commands",
            "kcat -C -b SERVER -t commands -o s@1700000000000 -e -c 25",
        ),
        (
            "from=from&at=0:0&count=25",
            "penstock consume --json --from @1700000000001 --max 25 --bootstrap SERVER commands",
            "kcat -C -b SERVER -t commands -o s@1700000000001 -e -c 25",
        ),
        (
            "by=text&find=$(reboot) a.b",
            r"penstock consume --json --grep '(?i)\$\(reboot\)\ a\.b' --bootstrap SERVER commands",
            None,
        ),
    ],
)
def test_commands_do_what_a_page_does(
    browser: Browser, client: Client, query: str, ours: str, theirs: str | None
) -> None:
    if not any(topic.name == "commands" for topic in client.metadata().topics):
        send(client, "commands", [(0, at(1))])
    page = browser.get(f"/topics/commands/records?{query}")
    server = browser.console.options.bootstrap
    found = dict(re.findall(r'<pre id="command-(\w+)">(.*)</pre>', page))
    assert unescape(found["penstock"]) == ours.replace("SERVER", server)
    assert found.get("kcat") == (theirs and theirs.replace("SERVER", server))


def test_a_record_that_no_page_could_write_leaves_the_page_of_the_others(
    browser: Browser, client: Client
) -> None:
    """JSON can say half of a pair of surrogates, which has no form in UTF-8."""
    send(client, "halves", [(0, at(1, "half", b'{"a": "\\ud800", "b": "\\u00fc"}')), (0, at(2, "whole"))])
    page = browser.get("/topics/halves/records")
    assert rows(page) == [(0, 1), (0, 0)]
    assert '{"a": "\\ud800", "b": "ü"}' in unescape(page)


def test_sizes_of_value_and_key(browser: Browser, client: Client) -> None:
    send(client, "measured", [(0, at(0, "k" * 2000, b"12345"))])
    page = text_of(browser.get("/topics/measured/records"))
    assert re.findall(r"text, [\d.]+ \S+", page) == ["text, 5 B", "text, 2.0 KiB"]


def test_a_value_is_had_whole(browser: Browser, client: Client) -> None:
    large = json.dumps({"blob": "x" * 100_000, "last": "<end>"}).encode()
    send(client, "large", [(0, at(1, "a" * 1000, large)), (0, Record(0, 1, b"gone", None, ()))])
    page = browser.get("/topics/large/records?from=oldest")
    assert "The first 65536 of" in page
    assert "a" * 1000 in page  # a key that does not fit its column
    answer = browser.answer("/topics/large/value?partition=0&offset=0")
    assert answer.content == large
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="large-0-0"'
    assert "no value at offset 1" in text_of(browser.get("/topics/large/value?partition=0&offset=1", 404))
    assert "no value at offset 7" in text_of(browser.get("/topics/large/value?partition=0&offset=7", 404))
    browser.get("/topics/large/value?partition=0&offset=-1", 400)


@pytest.mark.parametrize("number", ["²", "1" * 5000, "9" * 19, "-1"])
def test_numbers_that_are_none_fail_nothing(browser: Browser, client: Client, number: str) -> None:
    client.partitions("numbers", create=True)
    for path in (
        f"/topics/numbers/records?from=offset&at={number}",
        f"/topics/numbers/records?partition={number}",
        f"/topics/numbers/value?partition=0&offset={number}",
        f"/brokers/{number}",
    ):
        assert browser.answer(path).status_code in (400, 404), path
    for path in (f"/topics/numbers/records?count={number}", f"/topics?page={number}"):
        assert browser.answer(path).status_code == 200, path
    assert browser.answer(f"/topics/numbers/records?from=time&at={number}").status_code in (200, 400)


# -- streams ------------------------------------------------------------------------------------------------


def events(browser: Browser, path: str) -> Iterator[tuple[str, str]]:
    with browser.http.stream("GET", path) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        data: list[str] = []
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name, data = line[7:], []
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and name:
                yield name, "\n".join(data)
                name = ""


def test_the_tail_shows_what_comes(browser: Browser, client: Client) -> None:
    send(client, "tailed", [(0, at(1))])
    for name, data in events(browser, "/topics/tailed/tail"):
        if name == "ready":
            sender = Sender(client, "tailed", [0], 0, -1)
            sender.send(at(2, "new", b"<b>bold</b>"), 0)
            sender.flush()
        elif name == "records":
            assert rows(data) == [(0, 1)]
            assert "&lt;b&gt;bold&lt;/b&gt;" in data
            return
    raise AssertionError("nothing came")


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ("by=key&find=key-4321", {4321}),
        ("by=text&find=NEEDLE", {777}),
        ("by=json&find=customer.id%3D42", {42}),
        ("by=json&find=%24.customer.tags%5B*%5D%3Drare", {5000}),
        ("by=json&find=odd", {9000}),
        ("by=key&find=key-43210000", set()),
    ],
)
def test_a_search_finds_all_that_is_there(
    browser: Browser, client: Client, query: str, offsets: set[int]
) -> None:
    if not any(topic.name == "searched" for topic in client.metadata().topics):
        documents = []
        for number in range(10_000):
            document: dict[str, object] = {"customer": {"id": number, "tags": ["a", "b"]}}
            if number == 777:
                document["note"] = "a needle in hay"
            if number == 5000:
                document["customer"] = {"id": number, "tags": ["a", "rare"]}
            if number == 9000:
                document["odd"] = None
            documents.append((0, at(number, f"key-{number}", json.dumps(document).encode())))
        send(client, "searched", documents)
    found: set[int] = set()
    last: dict[str, int] = {}
    for name, data in events(browser, f"/topics/searched/search?{query}"):
        if name == "records":
            found |= {offset for _, offset in rows(data)}
        elif name == "progress":
            last = json.loads(data)
        assert name != "failed", data
        if name == "end":
            break
    assert found == offsets
    assert (last["read"], last["total"], last["found"]) == (10_000, 10_000, len(offsets))


def test_a_search_that_makes_no_sense(browser: Browser, client: Client) -> None:
    make(client, "unsearched")
    for query, sentence in (
        ("by=key&find=", "needs something"),
        ("by=json&find=%3D7", "PATH=VALUE"),
        ("by=magic&find=a", "not by 'magic'"),
    ):
        (event, *_rest) = events(browser, f"/topics/unsearched/search?{query}")
        assert event[0] == "failed"
        assert sentence in event[1]


# -- decoding -----------------------------------------------------------------------------------------------

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    file = FileDescriptorProto(
        name="order.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, label=1, type=3)
    inner = message.nested_type.add(name="Line")
    inner.field.add(name="sku", number=1, label=1, type=9)
    serialized = base64.b64encode(file.SerializeToString()).decode()
    answers = {
        "/schemas/ids/1": {"schema": json.dumps(AVRO)},
        "/schemas/ids/2": {"schemaType": "PROTOBUF", "schema": "syntax ..."},
        "/schemas/ids/2?format=serialized": {"schemaType": "PROTOBUF", "schema": serialized},
        "/schemas/ids/3": {"schemaType": "JSON", "schema": "{}"},
    }

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found or {}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_values_with_a_schema_are_decoded(registry: str) -> None:
    assert Timestamp.DESCRIPTOR  # what comes with the language is supplied
    decoding = Decoding(registry)
    written = io.BytesIO()
    fastavro.schemaless_writer(written, AVRO, {"id": 7})
    avro = decoding.shown(b"\0\0\0\0\1" + written.getvalue())
    assert (avro.kind, json.loads(avro.text), avro.note) == ("avro", {"id": 7}, "schema 1")
    order = decoding.shown(b"\0\0\0\0\2\0" + b"\x08\x07")
    assert (order.kind, json.loads(order.text)) == ("protobuf", {"id": "7"})
    line = decoding.shown(b"\0\0\0\0\2\x04\0\0" + b"\x0a\x02A1")
    assert json.loads(line.text) == {"sku": "A1"}
    assert json.loads(decoding.shown(b'\0\0\0\0\3{"a": 1}').text) == {"a": 1}
    broken = decoding.shown(b"\0\0\0\0\1")
    assert broken.kind == "bytes"
    assert "does not fit its avro schema 1" in broken.note
    unknown = decoding.shown(b"\0\0\0\0\x09abc")
    assert (unknown.kind, unknown.text) == ("bytes", hexadecimal(b"\0\0\0\0\x09abc"))


def test_values_without_a_schema() -> None:
    decoding = Decoding("")
    assert decoding.shown(None).kind == "none"
    assert decoding.shown(b"plain\ntext")[:2] == ("text", "plain\ntext")
    assert decoding.shown(b'{"a":1}')[:2] == ("json", '{\n  "a": 1\n}')
    assert decoding.shown(b'{"a":')[:2] == ("text", '{"a":')
    assert decoding.shown(b"\xff\xfe").kind == "bytes"
    assert decoding.shown(b"{}", "hex").text == "000000  7b 7d" + " " * 44 + "{}"
    assert "100000 bytes" in decoding.shown(b"x" * 100_000).note
    assert decoding.shown(b"[" * 100_000).kind == "text"


def test_a_row_has_a_value_in_one_line() -> None:
    decoding = Decoding("")
    assert decoding.shown(b'{\n "a": [1,\n2]}').short == '{"a": [1, 2]}'
    assert decoding.shown(b"\0\1\2").short == "00 01 02"
    long = decoding.shown(json.dumps(list(range(1000))).encode())
    assert long.short.startswith("[0, 1, 2")
    assert len(long.short) == 301
    assert decoding.shown(b'{"a": NaN}').text == '{\n  "a": NaN\n}'
    many = decoding.shown(json.dumps([{"i": number} for number in range(20_000)]).encode())
    assert many.kind == "json"
    assert many.text.startswith('[\n  {\n    "i": 0\n  },')
    assert many.note.startswith("The first 65536 of ")
