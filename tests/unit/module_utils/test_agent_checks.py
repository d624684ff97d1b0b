"""agent.units: the agent's own units, by what systemd says and by what lies on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import agent_checks
from fake_node import FakeNode

RUNS = {"active": "active", "file_state": "enabled"}
UNITS = {
    agent_checks.BOOT_UNIT: RUNS,
    agent_checks.TIMER: RUNS,
    agent_checks.VERIFY_UNIT: {"active": "inactive", "file_state": "static"},
    agent_checks.GPU_WATCH_UNIT: RUNS,
    agent_checks.WATCH_UNIT: RUNS,
}


@pytest.fixture
def root(node: FakeNode) -> Path:
    node.set_units(UNITS)
    note = node.root / agent_checks.NOTE_PATH
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"gpus": True}))
    (node.root / "etc/systemd/system").mkdir(parents=True)
    return node.root


def rows(root: Path) -> dict[str, dict[str, Any]]:
    return {row["subject"]: row for row in agent_checks.checks(str(root))}


def test_all_units_as_they_should_be(root: Path) -> None:
    assert {name: row["verdict"] for name, row in rows(root).items()} == dict.fromkeys(UNITS, "pass")


@pytest.mark.parametrize("name", list(UNITS))
def test_a_unit_masked_by_hand_fails_before_systemd_has_read_it(root: Path, name: str) -> None:
    (root / "etc/systemd/system" / name).symlink_to("/dev/null")
    found = rows(root)
    assert {one for one, row in found.items() if row["verdict"] == "fail"} == {name}
    assert found[name]["state"] == "masked"
