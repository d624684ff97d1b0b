"""library/chrony_info.py through main(), with recorded answers of chronyc."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chrony_info
import pytest
from ansible.module_utils.steadyrack import time_checks
from fake_node import FakeNode, run_module

Call = Callable[..., dict[str, Any]]
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/chrony"


@pytest.fixture(autouse=True)
def note(node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the role's note would be; the machine's own is never read."""
    path = tmp_path / "time_sync.json"
    monkeypatch.setattr(time_checks, "POLICY_PATH", str(path))
    monkeypatch.setattr(chrony_info, "LOOK_S", 0.01)
    node.set_units({"chrony.service": {"active": "active", "file_state": "enabled", "asked": True}})
    return path


@pytest.fixture
def call(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> Call:
    def run(check: bool = False, **params: Any) -> dict[str, Any]:
        return run_module(chrony_info, params, capsys, check)

    return run


def recorded(node: FakeNode, prefix: str, at: str = "") -> None:
    """chronyc answers from the fixtures; with ``at`` its last update is made recent."""
    edit = f"sed 's/17960[0-9.]*/{at}/'" if at else "cat"
    node.program("chronyc", f"#!/bin/sh\n{edit} '{FIXTURES}'/{prefix}-$3.csv\n")


def now() -> str:
    return f"{time.time():.9f}"  # as chronyc prints it


@pytest.mark.parametrize("check", [True, False])
def test_a_healthy_clock_reads_the_same_in_check_mode(check: bool, call: Call, node: FakeNode) -> None:
    recorded(node, "client-4.6", now())
    answer = call(check=check, mode="client", expected_sources=["10.88.0.51"])
    assert not answer["changed"]
    assert answer["state"] == "synchronised"
    assert answer["bound_s"] == pytest.approx(0.00014275, abs=1e-8)
    assert [row["verdict"] for row in answer["checks"]] == ["pass"] * 4
    assert (answer["may_start"], answer["policy"]["mode"]) == (True, "client")
    assert answer["sources"][0]["reach"] == 255
    assert answer["activity"]["online"] == 1


def test_a_daemon_that_is_down_is_a_state_and_its_offset_null_c28(call: Call, node: FakeNode) -> None:
    """C28."""
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    answer = call()
    assert "failed" not in answer
    assert (answer["state"], answer["offset_s"], answer["bound_s"], answer["tracking"]) == ("down", None, None, None)


def test_waiting_in_vain_ends_with_the_reason_c37(call: Call, node: FakeNode) -> None:
    """C37."""
    node.program(
        "chronyc",
        f"#!/bin/sh\ncase $3 in tracking) cat '{FIXTURES}'/unsynced-4.6-tracking.csv;;"
        f" sources) echo '^,?,10.9.9.9,0,4,0,4294967295,0.0,0.0,0.0';; *) cat '{FIXTURES}'/relay-4.3-$3.csv;; esac\n",
    )
    answer = call(wait_s=1, expected_sources=["10.9.9.9"])
    assert answer["failed"]
    assert "no source answers: 10.9.9.9" in answer["msg"]
    assert "unsynchronised" in answer["msg"]


def test_waiting_ends_when_the_clock_follows(call: Call, node: FakeNode) -> None:
    recorded(node, "client-4.6", now())
    assert call(wait_s=60)["waited_s"] < 5


def test_a_clock_that_is_still_unsure_is_waited_for_and_accepted(call: Call, node: FakeNode) -> None:
    line = (FIXTURES / "client-4.6-tracking.csv").read_text().split(",")
    line[3], line[9] = now(), "1000000.000"
    files = f"sources) cat '{FIXTURES}'/client-4.6-sources.csv;; *) cat '{FIXTURES}'/client-4.6-$3.csv;;"
    node.program("chronyc", f"#!/bin/sh\ncase $3 in tracking) echo '{','.join(line).strip()}';; {files} esac\n")
    answer = call(wait_s=1)
    assert "failed" not in answer
    assert answer["waited_s"] >= 1


def test_there_is_nothing_to_wait_for_where_the_daemon_may_not_run_c33(call: Call, node: FakeNode) -> None:
    """C33."""
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    node.set_units({"chrony.service": {"asked": True, "condition": "ConditionCapability=CAP_SYS_TIME"}})
    answer = call(wait_s=60)
    assert "failed" not in answer
    assert answer["waited_s"] < 5
    assert {row["verdict"] for row in answer["checks"]} == {"not_judged"}


def test_the_note_of_the_role_is_the_default_and_options_win(call: Call, node: FakeNode, note: Path) -> None:
    wanted = {"version": 1, "mode": "client", "sources": ["10.88.0.51"], "alarm_ms": 0.1, "unit": "chrony"}
    note.write_text(json.dumps(wanted))
    recorded(node, "client-4.6", now())
    assert [row["verdict"] for row in call()["checks"]] == ["pass", "pass", "fail", "pass"]
    assert [row["verdict"] for row in call(alarm_ms=30)["checks"]] == ["pass"] * 4


def test_a_note_that_cannot_be_used_is_an_error(call: Call, node: FakeNode, note: Path) -> None:
    note.write_text("{")
    assert call()["error"]["kind"] == "StateFileError"


def test_a_report_that_cannot_be_read_is_an_error_or_unknown(call: Call, node: FakeNode) -> None:
    node.answers("chronyc", "gibberish\n")
    answer = call()
    assert answer["state"] == "unreadable"
    assert answer["checks"][0]["verdict"] == "unknown"


def test_the_gate_asks_for_no_statistics_and_gets_a_reason_in_one_line(call: Call, node: FakeNode) -> None:
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    node.calls()
    answer = call(statistics=False)
    assert not answer["may_start"]
    assert "506 Cannot talk to daemon" in answer["gate_line"]
    recorded(node, "client-4.6", now())
    assert call(statistics=False)["activity"] is None
