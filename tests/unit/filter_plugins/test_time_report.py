"""filter_plugins/time_report.py: a host and its log, or why there is none."""

from __future__ import annotations

from typing import Any

import pytest
import time_report


def entry(answer: Any, **variables: Any) -> dict[str, Any]:
    hostvars = {"gpu-a1": {"report_log": answer, **variables}}
    return time_report.time_report_hosts(hostvars, ["gpu-a1"], ["relay-a1"], "report_log")[0]


def test_an_answer_goes_through_with_the_inventorys_limits() -> None:
    found = entry({"points": []}, rack_site="site-a", time_sync_alarm_ms="20", time_sync_warn_ms=5)
    assert found == {
        "host": "gpu-a1", "relay": False, "site": "site-a", "alarm_ms": 20.0, "warn_ms": 5.0, "site_alarm_ms": None,
        "log": {"points": []},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "not asked"),
        ("nonsense", "not asked"),
        ({"unreachable": True, "msg": "Connection\nrefused"}, "unreachable (Connection refused)"),
        ({"msg": "no python"}, "could not be read (no python)"),
        ({"module_stderr": "Traceback"}, "could not be read (Traceback)"),
        ({}, "could not be read (no reason given)"),
    ],
)
def test_what_is_no_answer_has_a_reason(answer: Any, reason: str) -> None:
    found = entry(answer)
    assert "log" not in found
    assert found["reason"].startswith(reason)


def test_a_template_that_fails_hides_no_host() -> None:
    class Broken(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "rack_site":
                raise ValueError("undefined")
            return super().get(name, default)

    hostvars = {"gpu-a1": Broken(report_log={"points": []}), "gpu-a2": {}}
    first, second = time_report.time_report_hosts(hostvars, ["gpu-a1", "gpu-a2"], [], "report_log")
    assert (first["site"], "log" in first, "reason" in second) == (None, True, True)


def test_limits_that_are_none() -> None:
    assert entry({"points": []}, time_sync_alarm_ms=-1)["alarm_ms"] is None
