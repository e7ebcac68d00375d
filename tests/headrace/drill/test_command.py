"""`headrace drill` where it starts no fleet."""

from __future__ import annotations

from click.testing import CliRunner

from headrace.commands.drill import command
from headrace.drill.catalogue import DRILLS


def test_the_list_names_every_drill():
    result = CliRunner().invoke(command, ["--list"])
    assert result.exit_code == 0
    assert [name for name in DRILLS if name not in result.output] == []


def test_an_unknown_drill_is_a_usage_error():
    result = CliRunner().invoke(command, ["engine-sloow"])
    assert result.exit_code == 2
    assert "no drill 'engine-sloow'" in result.output
