"""The reference, the dashboard and the alert rules name metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from penstock.monitor.families import FAMILIES, Family
from penstock.monitor.reference import markdown

ROOT = Path(__file__).parents[2]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/penstock.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_WINDOW = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w|\s*\()")
_WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool"}
_ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of buckets."""


def family_of(name: str) -> Family:
    for suffix in ("", "_bucket", "_count", "_sum"):
        family = FAMILIES.get(name.removesuffix(suffix) if suffix else name)
        if family is not None and name.endswith(suffix) and (family.kind == "histogram") == bool(suffix):
            return family
    raise AssertionError(f"there is no metric {name}")


def check(expression: str) -> set[str]:
    """Check one expression; the metrics that it names."""
    for open_one, close_one in ("()", "{}", "[]"):
        assert expression.count(open_one) == expression.count(close_one), expression
    text = _STRING.sub('""', _WINDOW.sub("", expression))
    labels: set[str] = set()
    for group in _GROUPING.findall(text):
        labels |= {one.strip() for one in group.split(",")}
    text = _GROUPING.sub("", text)
    for name, selector in _SELECTOR.findall(text):
        found = {re.split(r"[=!]", one)[0].strip() for one in selector.split(",") if one.strip()}
        if name != "up":
            unknown = found - set(family_of(name).labels) - _ADDED
            assert not unknown, f"{name} has no label {unknown}"
    text = re.sub(r"\{[^}]*\}", "", text)
    names = {name for name in _NAME.findall(text) if name not in _WORDS and not re.fullmatch(r"e\d*", name)}
    names.discard("up")
    families = [family_of(name) for name in names]
    assert families or "up" in text, expression
    for family in families:
        missing = labels - set(family.labels) - _ADDED
        assert not missing, f"{family.name} has no label {missing}"
    return {family.name for family in families}


def panels(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in found:
        yield panel
        yield from panels(panel.get("panels", []))


EXPRESSIONS = [
    target["expr"] for panel in panels(DASHBOARD["panels"]) for target in panel.get("targets", [])
] + [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_what_exists(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize(
    "expression",
    ["penstock_nothing", "penstock_ready_total", "rate(penstock_flush_seconds[1m])",
     'penstock_ready{topic="x"}', "sum by (topic) (penstock_ready)", "sum(penstock_ready",
     "penstock_topics_bucket"],
)  # fmt: skip
def test_the_check_finds_what_does_not_exist(expression: str) -> None:
    with pytest.raises(AssertionError):
        check(expression)


def test_each_rule_says_what_to_do() -> None:
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])


def test_panels_of_the_dashboard_have_names_and_places_of_their_own() -> None:
    found = list(panels(DASHBOARD["panels"]))
    assert len({panel["id"] for panel in found}) == len(found)
    taken: set[tuple[int, int]] = set()
    for panel in found:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_reference_is_the_table() -> None:
    stored = (ROOT / "docs/metrics.md").read_text()
    assert stored == markdown(), "docs/metrics.md is stale: `make reference` writes it"


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in FAMILIES.values():
        assert re.fullmatch(r"(penstock|process)_[a-z_]+", family.name)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.help.endswith("."), family.name
