"""What the play hands to the checks and how it shows the report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("acceptance_filters", ROOT / "filter_plugins" / "acceptance.py")
assert SPEC is not None
assert SPEC.loader is not None
filters = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(filters)

NO_PLAN: dict[str, Any] = {"hosts": {}, "racks": []}


def row(host: str, check: str, subject: str, verdict: str, **fields: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("state", "expected", "measured", "unit", "source", "reason", "hint"))
    return {**empty, "host": host, "id": check, "subject": subject, "verdict": verdict, "severity": "info", **fields}


def report(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    counts = {word: [one["verdict"] for one in rows].count(word) for word in filters.VERDICTS}
    return {"checks": list(rows), "counts": counts, "not_run": [], "problems": [], **fields}


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (["/r/inventory/demo"], "demo"),
        (["/r/inventory/demo/hosts.yml"], "demo"),
        (["/r/inventory/myrack.yml"], "myrack"),
        (["a1,a2,"], "inline"),
        ([], "inline"),
    ],
)
def test_the_report_lies_under_the_name_of_the_inventory(sources: list[str], name: str) -> None:
    assert filters.acceptance_paths(sources)["json"] == str(ROOT / "reports" / name / "acceptance.json")


def test_a_real_inventory_folder_gives_its_name() -> None:
    assert filters.acceptance_paths([str(ROOT / "inventory" / "demo")])["folder"].endswith("/reports/demo")


def test_the_checks_are_told_facts_and_inputs_but_no_secret() -> None:
    hostvars = {
        "gpu-a1": {
            "ansible_host": "10.0.0.1",
            "ansible_ssh_private_key_file": "/k",
            "ansible_password": "x",
            "ansible_become_pass": "x",
            "rack_site": "a",
            "rack_ipmi_password": "x",
            "time_sync_key": "x",
            "time_sync_keys": ["x"],
            "time_sync_alarm_ms": 30,
            "gpu_policy_token": "x",
            "other": 1,
            "rack_plan": {"racks": []},
        }
    }
    facts = filters.acceptance_facts(hostvars, ["gpu-a1"])
    found = filters.acceptance_inventory(facts, {"all": ["gpu-a1"], "gpu_nodes": ["gpu-a1"]}, NO_PLAN)
    assert found["all"]["hosts"]["gpu-a1"] == {
        "ansible_host": "10.0.0.1",
        "ansible_ssh_private_key_file": "/k",
        "rack_site": "a",
        "time_sync_alarm_ms": 30,
    }
    assert found["all"]["children"] == {"gpu_nodes": {"hosts": {"gpu-a1": {}}}}


def test_a_variable_that_cannot_be_evaluated_stays_a_template_that_no_check_takes() -> None:
    class Undefined(dict):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> Any:
            if name == "rack_site":
                raise KeyError(name)
            return super().__getitem__(name)

    facts = filters.acceptance_facts({"a": Undefined(rack_site="{{ nothing }}", rack_name="r")}, ["a"])
    assert facts == {"a": {"rack_site": "{{ cannot be evaluated: 'rack_site' }}", "rack_name": "r"}}


def test_the_plan_is_handed_over_host_by_host() -> None:
    plan = {"hosts": {"gpu-a1": 0}, "racks": [{"host_cap_w": {"gpu-a1": {"NVIDIA A30": 165}}}]}
    found = filters.acceptance_inventory({"gpu-a1": {}, "relay-a1": {}}, {}, plan)
    assert found["all"]["hosts"] == {"gpu-a1": {"acceptance_plan_cap_w": {"NVIDIA A30": 165}}, "relay-a1": {}}


@pytest.mark.parametrize(("user", "become"), [("root", None), (None, None), ("rack", True)])
def test_whoever_is_not_root_becomes_root(user: str | None, become: bool | None) -> None:
    facts = {"a": {"ansible_user": user} if user else {}}
    assert filters.acceptance_inventory(facts, {}, NO_PLAN)["all"]["hosts"]["a"].get("ansible_become") == become


def test_the_table_has_a_line_for_each_host_and_check_with_its_worst_row() -> None:
    found = report(
        row("gpu-a1", "gpu.power_cap", "GPU-1", "pass", measured=300.0, unit="W"),
        row("gpu-a1", "gpu.power_cap", "GPU-2", "fail", measured=200.0, expected=300.0, unit="W"),
        row("gpu-a1", "time.offset", "gpu-a1", "pass", measured=0.2, unit="ms"),
        row(
            "gpu-a1",
            "time.sources",
            "10.0.0.1",
            "pass",
            severity="warning",
            measured="silent",
            reason="others are usable",
        ),
    )
    assert filters.acceptance_lines(found) == [
        "HOST    CHECK          VERDICT  ROWS  MEASURED",
        "gpu-a1  gpu.power_cap  fail     2     GPU-2: 200.0 W, expected 300.0 W",
        "gpu-a1  time.offset    pass     1     0.2 ms",
        "gpu-a1  time.sources   warning  1     10.0.0.1: others are usable",
        "rows: 3 pass, 1 fail",
    ]


def test_a_host_that_does_not_answer_is_one_line() -> None:
    rows = [
        row("gpu-a2", check, "gpu-a2", "unknown", reason="unreachable: timed out")
        for check in ("gpu.count", "time.offset")
    ]
    lines = filters.acceptance_lines(report(*rows))
    assert lines[1] == "gpu-a2  (all)  unknown  2     unreachable: timed out"


def test_lost_hosts_problems_and_what_was_not_run_are_said() -> None:
    found = report(not_run=[{"check": "gpu.count", "reason": "no host"}], problems=["no check was run"])
    lines = filters.acceptance_lines(found, ["gpu-b1"])
    assert lines[1:] == [
        "gpu-b1: failed or was unreachable earlier in this run",
        "not run: gpu.count: no host",
        "PROBLEM no check was run",
        "rows: none",
    ]


def test_failures_of_a_host_name_check_subject_expected_measured_and_next_step() -> None:
    bad = row(
        "a",
        "gpu.power_cap",
        "GPU-2",
        "fail",
        measured=200.0,
        expected=300.0,
        unit="W",
        reason="requested 200 W",
        hint="x",
    )
    found = report(bad, row("b", "gpu.count", "b", "unknown", reason="no answer"), row("a", "gpu.count", "a", "pass"))
    assert filters.acceptance_failures(found, "a") == [
        "gpu.power_cap GPU-2: fail, requested 200 W (expected 300.0, measured 200.0); next: x"
    ]
    assert filters.acceptance_failures(found, "b") == ["gpu.count b: unknown, no answer"]
    assert filters.acceptance_failures({**found, "problems": ["no check was run"]}, "a")[1:] == [
        "the run: no check was run"
    ]


def test_a_host_that_no_check_looked_at_does_not_pass() -> None:
    assert filters.acceptance_failures(report(row("a", "gpu.count", "a", "pass")), "c") == [
        "no check looked at this host; see not_run in the report"
    ]
