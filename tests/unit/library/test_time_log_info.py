"""library/time_log_info.py through main()."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import time_log_info
from ansible.module_utils.steadyrack import chrony_curve
from fake_node import FakeNode, run_module

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/chrony/log"
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(node: FakeNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setattr(chrony_curve, "POLICY_PATH", "no/such/note.json")

    def run(check: bool = False, **params: Any) -> dict[str, Any]:
        return run_module(time_log_info, params, capsys, check)

    return run


@pytest.mark.parametrize("check", [True, False])
def test_a_recorded_log_reads_the_same_in_check_mode(check: bool, call: Call) -> None:
    answer = call(check, directory=str(FIXTURES / "node"), end=1796026690, hours=0.1)
    assert (answer["changed"], answer["state"], answer["reason"]) == (False, "ok", None)
    assert answer["summary"]["worst_us"] == pytest.approx(63980.1)
    assert answer["upstreams"] == []
    assert len(json.dumps(answer)) < 10000


def test_sources_by_name(call: Call, node: FakeNode) -> None:
    rows = "".join(f"^,*,${{name}}{number},1,0,377,9,0.0,0.0,0.001\n" for number in (11, 14))
    node.program("chronyc", f"#!/bin/sh\nname=127.0.0.\n[ $2 = -N ] && name=ntp\ncat <<E\n{rows}E\n")
    answer = call(directory=str(FIXTURES / "relay"), end=1796026690, hours=0.1, sources=True)
    assert [source["name"] for source in answer["upstreams"]] == ["ntp11", "127.0.0.12", "127.0.0.13", "ntp14"]


def test_no_log_is_an_answer(call: Call, tmp_path: Path) -> None:
    answer = call(directory=str(tmp_path / "none"))
    assert "failed" not in answer
    assert answer["state"] == "nothing"


def test_a_folder_that_may_not_be_read_is_an_answer(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("os.listdir", refuse)
    answer = call(directory=str(tmp_path))
    assert (answer["state"], "not readable by uid" in answer["reason"]) == ("unreadable", True)


@pytest.mark.parametrize("options", [{"hours": -1}, {"points": 1}, {"alarm_ms": -3}])
def test_malformed_options_are_refused(options: dict[str, Any], call: Call) -> None:
    answer = call(**options)
    assert answer["failed"]
    assert answer["error"]["kind"] == "InputError"
