"""The pure parts of service_wish, service_plan and units: what a state means and what follows from it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from ansible.module_utils.steadyrack import service_plan, service_wish, units
from ansible.module_utils.steadyrack.errors import InputError, ToolError
from ansible.module_utils.steadyrack.service_plan import plan_unit, stronger
from ansible.module_utils.steadyrack.units import UnitState
from fake_node import FakeNode
from hypothesis import given
from hypothesis import strategies as st

RUNNING = UnitState(
    name="chrony.service",
    id="chrony.service",
    load="loaded",
    active="active",
    sub="running",
    file_state="enabled",
    type="forking",
    remains=False,
    condition_failed=False,
    result="success",
    ran=False,
    stale=False,
)
ABSENT = RUNNING._replace(load="not-found", active="inactive", sub="dead", file_state="")


def wish(**entry: Any) -> service_wish.UnitWish:
    (found,) = service_wish.wishes({"units": [{"name": "chrony", **entry}]}).units
    return found


def verbs(seen: UnitState, action: str | None = None, lenient: bool = False, **entry: Any) -> tuple[str, ...]:
    return plan_unit(wish(**entry), seen, action, lenient).verbs


@pytest.mark.parametrize(
    ("seen", "action", "expected"),
    [
        (RUNNING, None, ()),
        (RUNNING, "restart", ("restart",)),
        (RUNNING._replace(active="activating"), None, ()),
        (RUNNING._replace(active="reloading"), "restart", ("restart",)),
        (RUNNING._replace(active="inactive"), None, ("start",)),
        (RUNNING._replace(active="failed"), "restart", ("start",)),
        (RUNNING._replace(file_state="disabled"), None, ("enable",)),
        (RUNNING._replace(file_state="enabled-runtime"), None, ("enable",)),
        (RUNNING._replace(file_state="static"), None, ()),
        (RUNNING._replace(active="inactive", file_state="masked", load="masked"), None, ("unmask", "enable", "start")),
    ],
)
def test_what_a_unit_that_is_to_run_needs(seen: UnitState, action: str | None, expected: tuple) -> None:
    assert verbs(seen, action, state="started", enabled=True) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (ABSENT, ()),
        (RUNNING, ("stop", "disable", "mask")),
        (RUNNING._replace(active="failed", file_state="static"), ("mask",)),
        (RUNNING._replace(active="inactive", file_state="masked", load="masked"), ()),
        (RUNNING._replace(active="active", file_state="masked", load="masked"), ("stop",)),
    ],
)
def test_what_a_rival_needs_c25(seen: UnitState, expected: tuple) -> None:
    """C25."""
    assert verbs(seen, state="absent_ok_masked") == expected


def test_a_missing_unit_is_an_error_unless_it_is_still_to_come() -> None:
    with pytest.raises(InputError, match=r"chrony\.service"):
        verbs(ABSENT, state="started")
    assert verbs(ABSENT, lenient=True, state="started", enabled=True) == ("enable", "start")


def test_disable_and_stop() -> None:
    assert verbs(RUNNING, state="stopped", enabled=False) == ("stop", "disable")
    assert verbs(RUNNING._replace(active="inactive", file_state="disabled"), state="stopped", enabled=False) == ()


def test_masked_and_started_contradict() -> None:
    with pytest.raises(InputError):
        wish(state="started", masked=True)


def test_restart_false_leaves_the_unit_running() -> None:
    assert service_plan.asked_of(wish(state="started", restart=False), ["restart"]) is None
    assert service_plan.asked_of(wish(state="started"), ["none", "restart"]) == "restart"
    assert service_plan.asked_of(wish(state="stopped"), ["restart"]) is None


def test_a_restart_covers_a_reload() -> None:
    assert stronger("reload", None, "restart") == "restart"
    assert stronger("reload", "none") == "reload"
    assert stronger(None, "none") is None


STATES = st.builds(
    RUNNING._replace,
    load=st.sampled_from(["loaded", "not-found", "masked"]),
    active=st.sampled_from(["active", "inactive", "failed", "activating", "deactivating", "reloading"]),
    file_state=st.sampled_from(["enabled", "disabled", "masked", "static", "", "linked"]),
    type=st.sampled_from(["simple", "forking", "oneshot", ""]),
    remains=st.booleans(),
    condition_failed=st.booleans(),
    ran=st.booleans(),
)


@given(STATES, st.sampled_from([None, "restart", "reload"]))
def test_a_rival_is_never_started_and_ours_never_stopped(seen: UnitState, action: str | None) -> None:
    assert not {"start", "restart", "enable", "unmask"} & set(verbs(seen, action, True, state="absent_ok_masked"))
    assert not {"stop", "disable", "mask"} & set(verbs(seen, action, True, state="started", enabled=True))


@given(STATES)
def test_missing_stopped_running_are_the_only_words_c79(seen: UnitState) -> None:
    """C79."""
    assert units.first_word(seen) in ("missing", "stopped", "running")
    assert (units.first_word(seen) == "missing") == (seen.load == "not-found")


def test_a_unit_is_up_when_it_runs_or_has_done_its_work() -> None:
    done = RUNNING._replace(active="inactive", type="oneshot", ran=True)
    assert done.up
    assert not done._replace(result="exit-code").up
    assert not done._replace(remains=True).up
    assert not done._replace(ran=False).up
    for active, expected in (("active", True), ("activating", False), ("failed", False)):
        assert RUNNING._replace(active=active).up is expected


def test_many_units_are_one_question_and_absence_is_an_answer_c79(node: FakeNode) -> None:
    """C79."""
    node.set_units({"a.service": {"active": "active", "file_state": "enabled"}})
    seen = units.show_units(["a", "b.timer"])
    assert [units.first_word(seen[name]) for name in ("a", "b.timer")] == ["running", "missing"]
    (question,) = node.calls()
    assert question.endswith("-- a.service b.timer")


def test_before_its_first_start_no_condition_has_failed(node: FakeNode) -> None:
    # systemd prints ConditionResult=no for a unit that it never tried to start.
    node.set_units({"a.service": {"active": "inactive"}})
    assert not units.show_units(["a"])["a"].skipped


def test_too_few_answers_are_an_error(node: FakeNode) -> None:
    node.answers("systemctl", "LoadState=loaded\nActiveState=active\n")
    with pytest.raises(ToolError):
        units.show_units(["a", "b"])


def test_an_unknown_reason_stays_general(node: FakeNode) -> None:
    node.answers("systemctl", "nothing of use\n", 3)
    assert "condition" in units.failed_condition("a")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_pair_of_names_is_compared(count: int) -> None:
    names = [f"/etc/{n}" for n in range(count)]
    assert service_wish.wishes({"files": [{"path": name, "content": "x"} for name in names]}).files
    for twice in itertools.islice(names, count):
        files = [{"path": name, "content": "x"} for name in [*names, twice + "/"]]
        with pytest.raises(InputError, match="named twice"):
            service_wish.wishes({"files": files})
