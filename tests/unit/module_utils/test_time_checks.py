"""The clock's rows for the node's own command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import time_checks
from fake_node import FakeNode

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/chrony"
NOTE = {"version": 1, "mode": "client", "sources": ["10.88.0.51"], "alarm_ms": 30, "warn_ms": 5, "unit": "chrony"}


def leave_note(root: Path, note: Any) -> None:
    path = root / time_checks.POLICY_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(note if isinstance(note, str) else json.dumps(note))


def chronyc(node: FakeNode, tracking: str, sources: str) -> None:
    cases = f"tracking) cat '{FIXTURES}'/{tracking}.csv;; sources) cat '{FIXTURES}'/{sources}.csv;;"
    node.program("chronyc", f"#!/bin/sh\ncase $3 in {cases} esac\n")


def running(node: FakeNode) -> None:
    node.set_units({"chrony.service": {"active": "active", "file_state": "enabled", "asked": True}})


def verdicts(rows: list[dict]) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in rows}


def test_a_healthy_client_passes(node: FakeNode, tmp_path: Path) -> None:
    leave_note(tmp_path, NOTE)
    chronyc(node, "client-4.6-tracking", "client-4.6-sources")
    running(node)
    rows = time_checks.checks(str(tmp_path), now=1796010930.0)
    assert verdicts(rows) == {
        "time.synchronised": "pass", "time.sources": "pass", "time.offset": "pass", "time.daemon": "pass",
        "time.egress": "not_judged",
    }  # fmt: skip


def test_another_source_than_the_relay_fails(node: FakeNode, tmp_path: Path) -> None:
    leave_note(tmp_path, {**NOTE, "sources": ["10.88.0.99"]})
    chronyc(node, "client-4.6-tracking", "client-4.6-sources")
    rows = time_checks.checks(str(tmp_path), now=1796010930.0)
    assert {row["subject"]: row["verdict"] for row in rows if row["id"] == "time.sources"} == {
        "10.88.0.51": "fail",
        "10.88.0.99": "fail",
    }


def test_where_the_role_never_ran_nothing_is_judged(node: FakeNode, tmp_path: Path) -> None:
    (row,) = time_checks.checks(str(tmp_path))
    assert row["verdict"] == "not_judged"
    assert "time_sync" in row["reason"]


@pytest.mark.parametrize(
    "note",
    [
        "",
        "{",
        "[]",
        {**NOTE, "version": 3},
        {**NOTE, "mode": "server"},
        {**NOTE, "sources": []},
        {**NOTE, "sources": "10.0.0.1"},
        {**NOTE, "sources": [1]},
        {**NOTE, "alarm_ms": "30"},
        {**NOTE, "alarm_ms": 0},
        {**NOTE, "warn_ms": True},
        {**NOTE, "unit": None},
        {**NOTE, "version": 2, "operators": ["a"]},
        {**NOTE, "version": 2, "peers": "10.0.0.22"},
        {**NOTE, "version": 2, "other_sites": {"10.9.0.41": 1}},
        {**NOTE, "version": 2, "site_skew_alarm_ms": 0},
        {**NOTE, "version": 2, "min_upstreams": -1},
        {**NOTE, "version": 2, "rivals": None, "site": 4},
    ],
)
def test_a_note_that_cannot_be_used_is_unknown_never_ok(note: Any, node: FakeNode, tmp_path: Path) -> None:
    leave_note(tmp_path, note)
    (row,) = time_checks.checks(str(tmp_path))
    assert row["verdict"] == "unknown"
    assert "time_sync.json" in row["reason"]


def test_a_daemon_that_is_down_fails_c28(node: FakeNode, tmp_path: Path) -> None:
    """C28."""
    leave_note(tmp_path, NOTE)
    node.set_units({"chrony.service": {"file_state": "enabled", "active": "failed"}})
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    rows = time_checks.checks(str(tmp_path))
    assert verdicts(rows) == {
        "time.synchronised": "fail", "time.sources": "unknown", "time.offset": "unknown", "time.daemon": "fail",
        "time.egress": "not_judged",
    }  # fmt: skip


def test_a_daemon_that_may_not_run_in_a_container_is_not_judged_c33(node: FakeNode, tmp_path: Path) -> None:
    """C33."""
    leave_note(tmp_path, NOTE)
    condition = "ConditionCapability=CAP_SYS_TIME"
    node.set_units({"chrony.service": {"file_state": "enabled", "asked": True, "condition": condition}})
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    rows = time_checks.checks(str(tmp_path))
    assert set(verdicts(rows).values()) == {"not_judged"}
    assert all(condition in row["reason"] for row in rows if row["id"] != "time.egress")


def test_without_systemd_a_silent_daemon_is_down(node: FakeNode, tmp_path: Path) -> None:
    leave_note(tmp_path, NOTE)
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    node.answers("systemctl", "", 1, "no systemd")
    assert verdicts(time_checks.checks(str(tmp_path)))["time.synchronised"] == "fail"


# --- the note ------------------------------------------------------------------------------------------


def test_a_note_of_version_1_gets_the_defaults_of_what_it_lacks(tmp_path: Path) -> None:
    leave_note(tmp_path, {**NOTE, "warn_ms": None})
    policy = time_checks.load_policy(str(tmp_path))
    assert policy is not None
    assert policy.warn_ms == pytest.approx(10.0)  # a third of the alarm
    assert (policy.min_upstreams, policy.site_skew_alarm_ms, policy.peers) == (3, 100.0, ())
    assert "ntpsec.service" in policy.rivals


def test_a_note_of_version_2_is_read_whole(tmp_path: Path) -> None:
    about = {
        "site": "site-a", "operators": {"ntp1": "A"}, "peers": ["10.0.0.22"], "other_sites": {"10.9.0.41": "site-b"},
        "site_skew_alarm_ms": 80.0, "min_upstreams": 2, "rivals": ["x.service"],
    }  # fmt: skip
    leave_note(tmp_path, {**NOTE, "version": 2, "mode": "relay", **about})
    policy = time_checks.load_policy(str(tmp_path))
    assert policy is not None
    assert {key: getattr(policy, key) for key in about} == about
    assert policy.neighbours.peers == ["10.0.0.22"]


def test_a_relay_judges_the_skew_to_each_other_site(node: FakeNode, tmp_path: Path) -> None:
    leave_note(tmp_path, {**NOTE, "version": 2, "mode": "relay", "other_sites": {"10.9.0.41": "site-b"}})
    running(node)
    chronyc(node, "client-4.6-tracking", "client-4.6-sources")
    rows = time_checks.checks(str(tmp_path), now=1796010930.0)
    (row,) = [row for row in rows if row["id"] == "time.skew"]
    assert (row["subject"], row["state"]) == ("10.9.0.41", "missing")
