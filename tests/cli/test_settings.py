"""`penstock settings` shows the table of settings."""

import json

from click.testing import CliRunner

from penstock.cli.app import app


def test_settings_by_a_part_of_their_name() -> None:
    done = CliRunner().invoke(app, ["settings", "retention.hours", "--json"])
    assert done.exit_code == 0
    (row,) = json.loads(done.output)
    assert (row["name"], row["default"]) == ("log.retention.hours", "168 (7 days)")
    assert (row["scope"], row["changes"]) == ("cluster", "read-only")


def test_a_name_that_no_setting_has() -> None:
    done = CliRunner().invoke(app, ["settings", "xyzzy"])
    assert done.exit_code == 1
    assert "No setting has 'xyzzy' in its name." in done.output
