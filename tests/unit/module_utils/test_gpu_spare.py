"""Roles of GPUs: who takes whose place, as a function of what is written down and what is seen."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import files, gpu_spare
from ansible.module_utils.steadyrack.errors import InputError, StateFileError
from ansible.module_utils.steadyrack.gpu_policy import Match, Spares
from ansible.module_utils.steadyrack.gpu_spare import (
    ACTIVE,
    DRAINING,
    FAILED,
    SPARE,
    UNACCEPTED,
    Decision,
    Seen,
    Sight,
    State,
    decide,
)

SLOTS = ("0000:31:00.0", "0000:4b:00.0", "0000:b1:00.0", "0000:ca:00.0")
UUIDS = tuple(f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "abcd")
A, B, C, D = UUIDS
NEW = "GPU-eeeeeeee-1111-2222-3333-444444444444"
BROKEN = "NVML: lost (GPU_IS_LOST at handle)"


def card(uuid: str, **changes: Any) -> Seen:
    """A healthy, idle card in its slot."""
    place = UUIDS.index(uuid) if uuid in UUIDS else 0
    base = Seen(uuid, SLOTS[place], serial=f"13200{place}", name="NVIDIA A100 80GB PCIe", architecture=7, processes=0,
                compute_mode="default", uncorrected=0)  # fmt: skip
    return base._replace(**changes)


def sight(*cards: Seen, gone: dict[str, str] | None = None, listed: Sequence[str] | None = None) -> Sight:
    """All four, with these cards instead of their healthy selves, less those that are gone."""
    found = {uuid: card(uuid) for uuid in UUIDS}
    found.update({one.uuid: one for one in cards})
    return Sight([one for one in found.values() if one.uuid not in (gone or {})], gone or {}, listed)


def step(
    state: State | None, seen: Sight | None = None, spares: Spares | None = None, count: int | None = 4
) -> Decision:
    """One pass; what holds of every pass is looked at here."""
    before = copy.deepcopy(state)
    spares = spares or Spares(1)
    decision = decide(spares, count, state, seen or sight())
    assert state == before, "roles that were handed in are not changed"
    assert all(event["text"] and event["at"] and event["uuid"] and event["event"] for event in decision.events)
    assert decision.state["history"][len(decision.state["history"]) - len(decision.events) :] == decision.events
    json.dumps(decision.state)
    may = gpu_spare.allowed(spares, count, gpu_spare.known(decision.state))
    assert len(gpu_spare.of_role(decision.state, ACTIVE)) <= may
    return decision


def steps(*sights: Sight, **how: Any) -> Decision:
    """A healthy first pass, then these; the last decision."""
    decision = step(None, **how)
    for seen in sights:
        decision = step(decision.state, seen, **how)
    return decision


def roles(decision: Decision) -> list[str]:
    """Roles of A to D."""
    return [decision.state["gpus"][uuid]["role"] if uuid in decision.state["gpus"] else "none" for uuid in UUIDS]


def events(decision: Decision) -> list[tuple[str, str]]:
    return [(event["event"], event["uuid"]) for event in decision.events]


READY = [ACTIVE, ACTIVE, ACTIVE, SPARE]
TAKEN = [FAILED, ACTIVE, ACTIVE, ACTIVE]


# --- the first pass ------------------------------------------------------------------------------


def test_the_idle_card_in_the_highest_slot_becomes_the_spare() -> None:
    decision = step(None)
    assert (roles(decision), events(decision)) == (READY, [("spare", D)])


def test_who_computes_is_spared_the_change_where_another_is_idle() -> None:
    assert roles(step(None, sight(card(D, processes=1)))) == [ACTIVE, ACTIVE, SPARE, ACTIVE]


def test_the_order_in_which_cards_are_told_does_not_matter() -> None:
    whole = sight()
    assert roles(step(None, Sight(whole.seen[::-1], {}))) == READY


@pytest.mark.parametrize(
    "match", [Match("uuid", B.lower()), Match("serial", "132001"), Match("bus_id", SLOTS[1])], ids=lambda one: one.kind
)
def test_the_policy_may_name_the_spare(match: Match) -> None:
    assert roles(step(None, spares=Spares(1, (match,)))) == [ACTIVE, SPARE, ACTIVE, ACTIVE]


@pytest.mark.parametrize("processes", [1, 7, None])
def test_a_named_card_with_a_job_drains_and_its_job_goes_on(processes: int | None) -> None:
    named = Spares(1, (Match("bus_id", SLOTS[1]),))
    decision = step(None, sight(card(B, processes=processes)), named)
    assert roles(decision) == [ACTIVE, DRAINING, ACTIVE, ACTIVE]
    assert events(decision) == [("draining", B)]
    assert roles(step(decision.state, sight(card(B, processes=processes)), named)) == [ACTIVE, DRAINING, ACTIVE, ACTIVE]
    ended = step(decision.state, sight(), named)
    assert (roles(ended), events(ended)) == ([ACTIVE, SPARE, ACTIVE, ACTIVE], [("spare", B)])


def test_where_all_compute_the_highest_slot_drains_and_none_is_closed() -> None:
    busy = sight(*(card(uuid, processes=2) for uuid in UUIDS))
    assert roles(step(None, busy)) == [ACTIVE, ACTIVE, ACTIVE, DRAINING]


def test_with_fewer_healthy_cards_than_may_work_none_stands_by() -> None:
    decision = step(None, sight(card(B, failure=BROKEN)))
    assert (roles(decision), events(decision)) == ([ACTIVE, FAILED, ACTIVE, ACTIVE], [("failed", B)])
    short = step(None, sight(gone={A: "", B: ""}))
    assert roles(short) == ["none", "none", ACTIVE, ACTIVE]


def test_without_spares_all_are_active() -> None:
    assert roles(step(None, spares=Spares(0))) == [ACTIVE] * 4


def test_where_no_number_is_declared_the_cards_that_are_there_count() -> None:
    assert roles(step(None, count=None)) == READY
    assert roles(step(None, spares=Spares(2), count=None)) == [ACTIVE, ACTIVE, SPARE, SPARE]


def test_no_cards_at_all_are_no_roles() -> None:
    assert step(None, Sight([], {})).state["gpus"] == {}


# --- taking over ---------------------------------------------------------------------------------


def test_nothing_happens_while_all_is_well() -> None:
    first = step(None)
    again = step(first.state)
    assert (again.events, again.state) == ([], first.state)


def test_the_spare_takes_the_place_of_a_card_that_fails() -> None:
    decision = steps(sight(card(A, failure=BROKEN)))
    assert (roles(decision), events(decision)) == (TAKEN, [("failed", A), ("takeover", D)])
    assert decision.events[1]["instead_of"] == A
    assert decision.state["gpus"][A]["reason"] == BROKEN
    assert decision.state["vacant"] == []


def test_the_spare_takes_the_place_of_a_card_that_is_gone() -> None:
    decision = steps(sight(gone={A: "it has fallen off the bus"}))
    assert (roles(decision), events(decision)) == (TAKEN, [("failed", A), ("takeover", D)])


def test_a_card_that_fails_with_a_job_on_it_fails_all_the_same() -> None:
    assert roles(steps(sight(card(A, failure=BROKEN, processes=3)))) == TAKEN


def test_the_same_pass_made_again_tells_nothing_new() -> None:
    broken = sight(card(A, failure=BROKEN))
    assert steps(broken, broken).events == []


def test_a_pass_that_was_ended_half_way_comes_to_the_same_end() -> None:
    first = step(None)
    broken = sight(card(A, failure=BROKEN))
    one, other = step(first.state, broken), step(first.state, broken)
    assert (roles(one), events(one)) == (roles(other), events(other))


def test_two_failures_with_one_spare_leave_two_of_three_and_that_is_said() -> None:
    both = sight(card(A, failure=BROKEN), card(B, failure=BROKEN))
    decision = steps(both)
    assert roles(decision) == [FAILED, FAILED, ACTIVE, ACTIVE]
    assert events(decision) == [("failed", A), ("failed", B), ("takeover", D), ("no_spare", B)]
    assert "2 of 3" in decision.events[-1]["text"]
    assert step(decision.state, both).events == []


def test_a_second_failure_later_is_said_to_have_no_spare() -> None:
    first, second = card(A, failure=BROKEN), card(B, failure=BROKEN)
    decision = steps(sight(first), sight(first, second))
    assert events(decision) == [("failed", B), ("no_spare", B)]
    assert decision.state["vacant"] == [B]


def test_a_spare_that_fails_is_out_and_no_place_is_free() -> None:
    decision = steps(sight(card(D, failure=BROKEN)))
    assert (roles(decision), events(decision)) == ([*READY[:3], FAILED], [("failed", D)])
    assert decision.events[0]["was"] == SPARE
    assert events(steps(sight(card(D, failure=BROKEN)), sight(card(A, failure=BROKEN)))) == [
        ("failed", A),
        ("no_spare", A),
    ]


def test_a_spare_that_fails_together_with_an_active_card_does_not_take_over() -> None:
    decision = steps(sight(card(A, failure=BROKEN), card(D, failure=BROKEN)))
    assert roles(decision) == [FAILED, ACTIVE, ACTIVE, FAILED]
    assert events(decision) == [("failed", A), ("failed", D), ("no_spare", A)]


def test_with_two_spares_two_failures_are_both_made_up_for() -> None:
    decision = steps(sight(card(A, failure=BROKEN), card(B, failure=BROKEN)), spares=Spares(2))
    assert roles(decision) == [FAILED, FAILED, ACTIVE, ACTIVE]
    assert [event["instead_of"] for event in decision.events if event["event"] == "takeover"] == [A, B]


def test_what_has_failed_stays_failed_however_well_it_looks_again() -> None:
    decision = steps(sight(card(A, failure=BROKEN)), sight())
    assert (roles(decision), decision.events) == (TAKEN, [])


def test_a_draining_card_takes_its_place_again_when_one_is_needed() -> None:
    busy = card(D, processes=1)
    named = Spares(1, (Match("bus_id", SLOTS[3]),))
    decision = steps(sight(card(A, failure=BROKEN), busy), spares=named)
    draining = step(None, sight(busy), named)
    assert roles(draining) == [*READY[:3], DRAINING]
    decision = step(draining.state, sight(card(A, failure=BROKEN), busy), named)
    assert roles(decision) == TAKEN
    assert ("active", D) in events(decision)


def test_a_draining_card_that_fails_is_out_and_no_place_is_missing() -> None:
    busy = card(D, processes=1)
    named = Spares(1, (Match("bus_id", SLOTS[3]),))
    decision = step(step(None, sight(busy), named).state, sight(card(D, failure=BROKEN)), named)
    assert roles(decision) == [*READY[:3], FAILED]
    assert "no_spare" not in dict(events(decision))


# --- cards that are moved and put in -------------------------------------------------------------


def test_a_new_card_is_not_used_until_somebody_accepts_it() -> None:
    swapped = Sight([card(NEW, bus_id=SLOTS[0]), *sight(gone={A: ""}).seen], {A: "it is gone"})
    decision = steps(swapped)
    assert roles(decision) == TAKEN
    assert decision.state["gpus"][NEW]["role"] == UNACCEPTED
    told = next(event for event in decision.events if event["event"] == "unaccepted")
    assert (told["uuid"], told["bus_id"]) == (NEW, SLOTS[0])
    assert A in told["text"]


def test_a_card_more_than_is_declared_is_not_used_either() -> None:
    decision = steps(sight(card(NEW, bus_id="0000:e1:00.0")))
    assert (roles(decision), decision.state["gpus"][NEW]["role"]) == (READY, UNACCEPTED)


def test_a_card_keeps_its_role_when_it_is_moved_to_another_slot() -> None:
    moved = sight(card(A, bus_id=SLOTS[3]), card(D, bus_id=SLOTS[0]))
    decision = steps(moved)
    assert roles(decision) == READY
    assert events(decision) == [("moved", A), ("moved", D)]
    assert decision.state["gpus"][D]["bus_id"] == SLOTS[0]
    assert step(decision.state, moved).events == []


def test_what_a_card_did_not_tell_at_first_is_filled_in_and_then_kept() -> None:
    first = step(None, sight(card(A, serial=None, uncorrected=None)))
    second = step(first.state, sight(card(A, serial="9", uncorrected=2)))
    third = step(second.state, sight(card(A, serial=None, uncorrected=3)))
    assert [third.state["gpus"][A][key] for key in ("serial", "uncorrected")] == ["9", 2]


# --- a policy that changes -----------------------------------------------------------------------


def test_a_policy_with_more_spares_closes_idle_ones_and_drains_busy_ones() -> None:
    decision = step(step(None).state, sight(card(B, processes=1), card(C, processes=1)), Spares(2))
    assert (roles(decision), events(decision)) == ([SPARE, ACTIVE, ACTIVE, SPARE], [("spare", A)])
    busy = sight(*(card(uuid, processes=1) for uuid in (A, B, C)))
    decision = step(step(None).state, busy, Spares(2))
    assert (roles(decision), events(decision)) == ([ACTIVE, ACTIVE, DRAINING, SPARE], [("draining", C)])


def test_a_policy_with_fewer_spares_opens_them() -> None:
    decision = step(step(None, spares=Spares(2)).state, spares=Spares(1))
    assert len(gpu_spare.of_role(decision.state, ACTIVE)) == 3
    assert [event for event, _uuid in events(decision)] == ["active"]
    assert roles(step(decision.state, spares=Spares(0))) == [ACTIVE] * 4


def test_a_draining_card_is_active_again_when_the_policy_no_longer_wants_it_as_a_spare() -> None:
    busy = sight(*(card(uuid, processes=1) for uuid in UUIDS))
    decision = step(step(None, busy).state, busy, Spares(0))
    assert (roles(decision), events(decision)) == ([ACTIVE] * 4, [("active", D)])


def test_other_names_change_places_where_nothing_runs() -> None:
    named = Spares(1, (Match("bus_id", SLOTS[0]),))
    decision = step(step(None).state, spares=named)
    assert roles(decision) == [SPARE, ACTIVE, ACTIVE, ACTIVE]
    assert step(decision.state, spares=named).events == []


def test_other_names_do_not_cost_a_job() -> None:
    named = Spares(1, (Match("bus_id", SLOTS[0]),))
    decision = step(step(None).state, sight(card(A, processes=1)), named)
    assert (roles(decision), events(decision)) == (READY, [("kept", A)])


def test_names_that_stayed_the_same_do_not_undo_a_take_over() -> None:
    named = Spares(1, (Match("bus_id", SLOTS[3]),))
    broken = sight(card(A, failure=BROKEN))
    decision = steps(broken, broken, spares=named)
    returned = gpu_spare.take_back(decision.state, A, card(A))
    decision = step(returned, sight(), named)
    assert roles(decision) == [SPARE, ACTIVE, ACTIVE, ACTIVE]
    assert step(decision.state, sight(), named).events == []


# --- roles that were lost ------------------------------------------------------------------------


def test_roles_lost_beside_a_list_leave_out_who_is_not_in_it() -> None:
    decision = step(None, sight(listed=[B, C, D]))
    assert roles(decision) == [UNACCEPTED, ACTIVE, ACTIVE, ACTIVE]
    assert events(decision) == [("unaccepted", A)]
    assert "return" in decision.events[0]["text"]


def test_roles_lost_beside_an_empty_list_leave_out_all() -> None:
    assert roles(step(None, sight(listed=[]))) == [UNACCEPTED] * 4


def test_roles_lost_beside_a_list_of_all_are_given_as_at_first() -> None:
    assert roles(step(None, sight(listed=list(UUIDS)))) == READY


# --- people --------------------------------------------------------------------------------------


def test_a_failed_card_comes_back_as_the_spare() -> None:
    decision = steps(sight(card(A, failure=BROKEN)))
    returned = gpu_spare.take_back(decision.state, A, card(A, uncorrected=5))
    assert returned["gpus"][A]["role"] == SPARE
    assert (returned["gpus"][A]["uncorrected"], returned["gpus"][A]["xids"]) == (5, [])
    assert (returned["gpus"][A]["reason"], returned["history"][-1]["event"]) == (None, "returned")
    again = step(returned, sight(card(A, uncorrected=5)))
    assert (roles(again), again.events) == ([SPARE, ACTIVE, ACTIVE, ACTIVE], [])


def test_a_failed_card_comes_back_active_where_a_place_is_free() -> None:
    both = sight(card(A, failure=BROKEN), card(B, failure=BROKEN))
    returned = gpu_spare.take_back(steps(both).state, A, card(A))
    decision = step(returned, sight(card(B, failure=BROKEN)))
    assert roles(decision) == [ACTIVE, FAILED, ACTIVE, ACTIVE]
    assert [(one["event"], one["uuid"], one["instead_of"]) for one in decision.events] == [("takeover", A, B)]


def test_a_new_card_takes_the_failed_ones_slot_and_that_one_is_forgotten() -> None:
    swapped = Sight([card(NEW, bus_id=SLOTS[0]), *sight(gone={A: ""}).seen], {A: "it is gone"})
    decision = steps(swapped)
    accepted = gpu_spare.take_back(decision.state, NEW, card(NEW, bus_id=SLOTS[0]))
    assert A not in accepted["gpus"]
    assert accepted["history"][-1]["text"] == "accepted"
    again = step(accepted, Sight(swapped.seen, {}))
    assert (again.state["gpus"][NEW]["role"], again.events) == (SPARE, [])


@pytest.mark.parametrize(
    ("uuid", "one", "seen"),
    [
        (B, card(B), ACTIVE),
        (D, card(D), ACTIVE),  # it has taken over
        (A, None, "not there"),
        (A, card(A, failure=BROKEN), BROKEN),
    ],
)
def test_what_cannot_be_taken_back(uuid: str, one: Seen | None, seen: str) -> None:
    state = steps(sight(card(A, failure=BROKEN))).state
    before = copy.deepcopy(state)
    with pytest.raises(InputError, match=seen.partition("(")[0]):
        gpu_spare.take_back(state, uuid, one)
    assert state == before


def test_a_card_given_up_by_hand_is_followed_by_the_spare() -> None:
    given = gpu_spare.give_up(step(None).state, A, card(A), "given up by hand")
    decision = step(given)
    assert (roles(decision), events(decision)) == (TAKEN, [("takeover", D)])
    assert decision.events[0]["instead_of"] == A


def test_the_spare_that_a_person_chose_goes_first() -> None:
    state = step(None, spares=Spares(2)).state
    for chosen in (C, D):
        given = gpu_spare.give_up({**state, "preferred": chosen}, A, card(A), "by hand")
        decision = step(given, spares=Spares(2))
        assert (decision.state["gpus"][chosen]["role"], decision.state["preferred"]) == (ACTIVE, None)


@pytest.mark.parametrize("processes", [1, None])
def test_a_well_card_with_a_job_is_given_up_only_when_that_is_meant(processes: int | None) -> None:
    state = step(None).state
    busy = card(A, processes=processes)
    with pytest.raises(InputError, match="--even-if-busy"):
        gpu_spare.give_up(state, A, busy, "by hand")
    assert gpu_spare.give_up(state, A, busy, "by hand", even_if_busy=True)["gpus"][A]["role"] == FAILED


@pytest.mark.parametrize("one", [None, card(A, failure=BROKEN, processes=3)])
def test_a_card_that_is_not_well_is_given_up_whatever_runs_on_it(one: Seen | None) -> None:
    assert gpu_spare.give_up(step(None).state, A, one, "by hand")["vacant"] == [A]


def test_a_card_out_of_service_cannot_be_given_up() -> None:
    state = steps(sight(card(A, failure=BROKEN))).state
    with pytest.raises(InputError, match="failed"):
        gpu_spare.give_up(state, A, card(A), "by hand")


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        B,
        B.lower(),
        B.upper(),
        B[:8],
        f" {B[:12]} ",
        "132001",
        SLOTS[1],
        "00000000:4B:00.0",
        "4b:00.0",
        "PCI:0000:4b:00",
    ],
)
def test_a_card_is_found_by_uuid_serial_or_slot(name: str) -> None:
    assert gpu_spare.find(step(None).state, name) == B


@pytest.mark.parametrize(
    "name", ["", " ", "GPU-", "GPU-bbb", "GPU-zzzzzzzz", "1", "13200", "0000:ff:00.0", "None", "-"]
)
def test_a_name_that_nobody_has_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(InputError, match=A):
        gpu_spare.find(step(None).state, name)


def test_a_name_that_several_have_is_refused() -> None:
    twin = "GPU-aaaaaaaa-9999-2222-3333-444444444444"
    state = step(step(None).state, sight(card(twin, bus_id="0000:e1:00.0", serial="132000"))).state
    for name in (A[:12], "132000"):
        with pytest.raises(InputError, match="2 GPUs"):
            gpu_spare.find(state, name)
    assert gpu_spare.find(state, A) == A


def test_two_cards_in_one_slot_of_the_books_are_no_guess() -> None:
    """The failed one and the one that was put in its place."""
    swapped = Sight([card(NEW, bus_id=SLOTS[0]), *sight(gone={A: ""}).seen], {A: "it is gone"})
    with pytest.raises(InputError):
        gpu_spare.find(steps(swapped).state, SLOTS[0])


# --- the file ------------------------------------------------------------------------------------


def test_no_file_is_no_roles_and_no_trouble(tmp_path: Path) -> None:
    assert gpu_spare.load(str(tmp_path / "roles.json")) == (None, None)


def test_roles_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    state = steps(sight(card(A, failure=BROKEN))).state
    path.write_bytes(files.dump_json(state))
    assert gpu_spare.load(str(path)) == (state, None)


def test_roles_of_a_newer_agent_are_refused_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "roles.json"
    path.write_bytes(files.dump_json({**step(None).state, "version": gpu_spare.VERSION + 1}))
    with pytest.raises(StateFileError, match="node_agent"):
        gpu_spare.load(str(path))


def damaged(**changes: Any) -> str:
    return json.dumps({**step(None).state, **changes})


def without(key: str, gpu: bool = False) -> str:
    state = step(None).state
    (state["gpus"][A] if gpu else state).pop(key)
    return json.dumps(state)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "{}", "\0\0\0", damaged(version=0), damaged(version="1"), damaged(version=None),
        damaged(gpus=[]), damaged(gpus={A: {}}), damaged(gpus={A: "active"}),
        damaged(gpus={A: {"role": "king", "bus_id": SLOTS[0]}}), damaged(gpus={A: {"role": "active", "bus_id": None}}),
        damaged(history=None), damaged(untold={}), damaged(waiting="x"), damaged(vacant=0), damaged(named=None),
        *(without(key) for key in ("version", "gpus", "named", "history", "untold", "waiting", "vacant")),
        *(without(key, gpu=True) for key in step(None).state["gpus"][A]),
    ],
)  # fmt: skip
def test_a_damaged_file_is_no_roles_and_that_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "roles.json"
    path.write_text(text)
    state, trouble = gpu_spare.load(str(path))
    assert state is None
    assert trouble


@pytest.mark.parametrize("key", ["preferred", "cursor", "looked", "log_trouble"])
def test_what_is_not_said_beside_the_roles_costs_no_role(tmp_path: Path, key: str) -> None:
    path = tmp_path / "roles.json"
    path.write_text(without(key))
    assert gpu_spare.load(str(path)) == ({**json.loads(path.read_text()), key: None}, None)


def test_history_and_what_is_untold_do_not_grow_for_ever() -> None:
    state = step(None).state
    for _ in range(gpu_spare.HISTORY):
        state = gpu_spare.take_back(gpu_spare.give_up(state, A, card(A), "by hand"), A, card(A))
        state["gpus"][A]["role"] = ACTIVE
    assert (len(state["history"]), len(state["untold"])) == (gpu_spare.HISTORY, gpu_spare.HISTORY)


# --- found by people who tried to break it -------------------------------------------------------


def test_a_card_that_has_left_is_struck_off_and_one_that_is_there_is_not() -> None:
    state = steps(sight(gone={A: "gone"})).state
    with pytest.raises(InputError, match="it is there"):
        gpu_spare.forget(state, A, card(A))
    with pytest.raises(InputError, match="out of service"):
        gpu_spare.forget(state, B, None)
    assert A not in gpu_spare.forget(state, A, None)["gpus"]


def test_only_an_active_card_can_be_given_up_for_a_spare() -> None:
    with pytest.raises(InputError, match="an active GPU"):
        gpu_spare.give_up(step(None).state, D, card(D), "by hand")


def test_a_card_that_is_cut_by_mig_is_the_last_to_stand_by_and_takes_no_place() -> None:
    first = step(None, sight(card(D, cut=True)))
    assert roles(first) == [ACTIVE, ACTIVE, SPARE, ACTIVE]
    cut = step(step(None).state, sight(card(A, failure=BROKEN), card(D, cut=True)))
    assert roles(cut) == [FAILED, ACTIVE, ACTIVE, SPARE]
    assert "no_spare" in [event for event, _ in events(cut)]
    every = decide(Spares(1), 4, None, sight(*(card(uuid, cut=True) for uuid in UUIDS)))
    assert roles(every) == [ACTIVE, ACTIVE, ACTIVE, DRAINING]


def test_a_named_card_that_is_busy_becomes_the_spare_when_its_job_has_ended() -> None:
    wish = Spares(1, (Match("uuid", A.lower()),))
    first = step(None)
    busy = step(first.state, sight(card(A, processes=1)), spares=wish)
    assert events(busy) == [("kept", A)]
    still = step(busy.state, sight(card(A, processes=1)), spares=wish)
    assert events(still) == []
    assert roles(step(still.state, sight(), spares=wish)) == [SPARE, ACTIVE, ACTIVE, ACTIVE]


def test_a_draining_card_that_fails_leaves_no_place_that_is_empty() -> None:
    every = sight(*(card(uuid, processes=1) for uuid in UUIDS))
    first = step(None, every)
    assert roles(first) == [ACTIVE, ACTIVE, ACTIVE, DRAINING]
    failed = step(first.state, sight(*(card(u, processes=1) for u in (A, B, C)), card(D, failure=BROKEN)))
    assert failed.state["vacant"] == []
