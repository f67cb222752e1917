"""The table of settings: each row is whole, each value is read by something, secrets stay hidden."""

import ast
import re
from pathlib import Path

import msgspec
import pytest

from penstock.settings import Settings, SettingsError, load
from penstock.settings.brokers import BROKER_SETTINGS
from penstock.settings.checks import one_of
from penstock.settings.foreign import KEPT, REFUSED, foreign_setting
from penstock.settings.groups import GROUP_SETTINGS, GroupSettings
from penstock.settings.reference import default_words, markdown
from penstock.settings.setting import Kind, Rows, Setting, ValueProblem
from penstock.settings.topics import TOPIC_SETTINGS, TopicConfig

ROOT = Path(__file__).parents[2]
ALL = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values(), *KEPT.values()]


def test_the_reference_is_not_stale() -> None:
    stored = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert stored == markdown(), "docs/settings.md is stale: `make reference` writes it"


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: f"{setting.scope}-{setting.name}")
def test_a_row_is_whole(setting: Setting) -> None:
    assert setting.explained.endswith(".")
    assert not (setting.moot and setting.fixed)
    if setting.default is not None:
        assert setting.text(setting.default) == setting.default
        setting.parse(setting.default)
    assert not (setting.ours and setting.unlike)


def test_defaults_are_those_of_the_attributes() -> None:
    texts = {s.name: s.default for s in BROKER_SETTINGS.values() if hasattr(Settings(), s.field)}
    given = {name: text for name, text in texts.items() if text is not None}
    assert msgspec.structs.replace(load([f"{n}={t}" for n, t in given.items()]), given={}) == Settings()


def test_each_value_is_read() -> None:
    """What can be set and is read by nothing would be accepted and ignored."""
    read = {
        node.attr
        for file in (ROOT / "src" / "penstock").rglob("*.py")
        if file.parent.name != "settings" or file.name in ("groups.py", "topics.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    # Those of listeners are asked for by name, because each may be given for one listener alone.
    by_name = [ROOT / "src/penstock" / path for path in ("settings/doors.py", "cli/secure.py")]
    for node in (one for path in by_name for one in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            field = node.value.replace(".", "_")
            read |= {field, f"sasl_oauthbearer_{field}"}
        elif isinstance(node, ast.Attribute):
            read.add(node.attr)
    # Bounds of what groups set for themselves are asked for by name (`group_problem`).
    bounds = re.compile(r"group_consumer_(min|max)_(session|heartbeat|assignment)_")
    fields = {*Settings.__struct_fields__, *GroupSettings.__struct_fields__, *TopicConfig.__struct_fields__}
    only_pem = {"ssl_keystore_type", "ssl_truststore_type"}  # Nothing else can be set.
    assert {field for field in fields - read - only_pem if not bounds.match(field)} == set()


def test_settings_that_only_kafka_has() -> None:
    assert not (KEPT.keys() | REFUSED.keys()) & BROKER_SETTINGS.keys()
    assert not KEPT.keys() & REFUSED.keys()
    assert all(why.endswith(".") for why in REFUSED.values())
    assert foreign_setting("ssl.cipher.suites") is None
    for name in ("ssl.client.auth", "ssl.cipher.suites", "max.connections", "max.connection.creation.rate"):
        assert foreign_setting(f"listener.name.out.{name}") is None
    assert foreign_setting("listener.name.out.num.network.threads") is not None
    unknown = foreign_setting("plugin.token")
    assert unknown is not None and unknown.sensitive and unknown.moot


class Lock(msgspec.Struct, frozen=True, kw_only=True):
    row = Rows("broker", "per-broker")
    lock_code: str | None = row(Kind.PASSWORD, None, "Opens the lock.", one_of("1234"))
    lock_place: str = row(Kind.STRING, "", "Where the lock is.", place=True)


def test_a_secret_is_never_shown() -> None:
    rows = Lock.row.named(Lock, besides=("row",))
    code = rows["lock.code"]
    assert code.sensitive and code.shown("1234") is None
    with pytest.raises(ValueProblem) as caught:
        code.parse("hunter2")
    assert "hunter2" not in str(caught.value) and "[hidden]" in str(caught.value)
    assert rows["lock.place"].shown("s3://me:hunter2@bucket/x") == "s3://bucket/x"
    assert "hunter2" not in repr(load(["store=s3://me:hunter2@bucket/x", "metadata="]))


def test_no_url_shows_its_password() -> None:
    """DescribeConfigs shows settings to others."""
    for name, setting in BROKER_SETTINGS.items():
        if name.endswith((".url", ".endpoint")) and not setting.moot:
            assert "hunter2" not in (setting.shown("http://me:hunter2@host/x") or ""), name
    with pytest.raises(SettingsError) as caught:
        load(["otel.exporter.otlp.endpoint=htp://me:hunter2@host"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", ["console.registry.url", "otel.exporter.otlp.endpoint"])
@pytest.mark.parametrize("address", ["here", "ftp://host", "http://", "http://[::1", "http://host:port"])
def test_an_address_of_the_web_that_is_none(name: str, address: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{name}: String must ")):
        load([f"{name}={address}"])


def test_a_field_without_a_row_is_a_mistake() -> None:
    row = Rows("broker", "read-only")

    class Half(msgspec.Struct):
        one: int = row(Kind.INT, 1, "One.")
        two: int = 2

    with pytest.raises(ValueError, match="shorter"):
        row.named(Half)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("log.retention.hours", "168 (7 days)"),
        ("log.segment.bytes", "1073741824 (1 GiB)"),
        ("group.max.size", "2147483647 (no limit)"),
        ("log.retention.ms", "none"),
        ("metadata", "empty"),
        ("log.retention.bytes", "-1"),
    ],
)
def test_defaults_for_people(name: str, words: str) -> None:
    assert default_words(BROKER_SETTINGS[name]) == words
