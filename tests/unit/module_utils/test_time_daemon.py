"""chronyd's unit and its rivals."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.steadyrack import time_daemon, units
from fake_node import FakeNode

RUNS = {"active": "active", "sub": "running", "file_state": "enabled", "asked": True, "ran": False}


def states(node: FakeNode, **units: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    node.set_units({f"{name}.service": unit for name, unit in units.items()})
    rows = time_daemon.daemon_rows("gpu-a1", "chrony", time_daemon.RIVALS)
    return {row["subject"]: (row["verdict"], row["state"]) for row in rows}


def test_chronyd_alone_passes_with_one_row(node: FakeNode) -> None:
    assert states(node, chrony=RUNS) == {"chrony.service": ("pass", "running")}


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"active": "inactive"}, "stopped"),
        ({"active": "failed"}, "stopped"),
        ({"file_state": "disabled"}, "disabled"),
        ({"file_state": "masked"}, "masked"),
        ({"missing": True}, "missing"),
    ],
)
def test_chronyd_that_does_not_run_or_would_not_is_a_failure(node: FakeNode, change: Any, state: str) -> None:
    assert states(node, chrony={**RUNS, **change})["chrony.service"] == ("fail", state)


@pytest.mark.parametrize("how", ["link to nothing", "empty file"])
def test_chronyd_masked_by_hand_is_masked_before_systemd_has_read_it(
    node: FakeNode, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "MASK_FOLDERS", (str(node.root / "etc"), str(node.root / "run")))
    for folder in ("etc", "run"):
        (node.root / folder).mkdir()
    mask = node.root / "run/chrony.service"
    mask.touch() if how == "empty file" else mask.symlink_to("/dev/null")
    assert states(node, chrony=RUNS)["chrony.service"] == ("fail", "masked")
    (node.root / "etc/chrony.service").write_text("[Service]\n")  # comes first, and is a unit
    assert states(node, chrony=RUNS)["chrony.service"] == ("pass", "running")


@pytest.mark.parametrize(
    ("unit", "state"),
    [
        ({**RUNS}, "running"),
        ({**RUNS, "active": "activating"}, "running"),
        ({**RUNS, "active": "inactive"}, "stopped"),  # enabled: comes at the next boot
        ({**RUNS, "file_state": "disabled"}, "running"),
    ],
)
def test_a_rival_that_runs_or_will_is_named(node: FakeNode, unit: Any, state: str) -> None:
    assert states(node, chrony=RUNS, ntpsec=unit)["ntpsec.service"] == ("fail", state)


def test_a_rival_that_is_masked_disabled_or_only_another_name_of_ours_is_none(node: FakeNode) -> None:
    quiet = {"active": "inactive", "file_state": "masked"}
    found = states(
        node, chrony=RUNS, openntpd=quiet, ntpsec={"active": "inactive", "file_state": "disabled"},
        ntp={"alias": "chrony.service"},
    )  # fmt: skip
    assert list(found) == ["chrony.service"]


def test_where_systemd_may_not_start_it_nothing_is_judged_c33(node: FakeNode) -> None:
    """C33."""
    unit = {"asked": True, "condition": "ConditionCapability=CAP_SYS_TIME"}
    assert states(node, chrony=unit)["chrony.service"] == ("not_judged", "skipped")


def test_without_systemd_it_is_unknown(node: FakeNode) -> None:
    node.answers("systemctl", "", 1, "no systemd")
    (row,) = time_daemon.daemon_rows("gpu-a1", "chrony", time_daemon.RIVALS)
    assert row["verdict"] == "unknown"
