"""When an alarm begins and ends, by simulated time; what a restart keeps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import alarms, verdict
from ansible.module_utils.steadyrack.errors import StateFileError
from hypothesis import given
from hypothesis import strategies as st

LOOK_S = 10.0
START = 1_000_000.0


def row(word: str, check: str = "time.offset", subject: str = "gpu-a1", state: str | None = None) -> dict[str, Any]:
    """A row by one word: good, warn, bad, unknown, not_judged."""
    judged, severity = {
        "good": (verdict.PASS, verdict.INFO), "warn": (verdict.PASS, verdict.WARNING),
        "bad": (verdict.FAIL, None), "unknown": (verdict.UNKNOWN, None), "not_judged": (verdict.NOT_JUDGED, None),
    }[word]  # fmt: skip
    return verdict.check_row(check, subject, judged, state or word, severity=severity, reason=f"it is {word}")


class Bench:
    """Alarms with a clock of its own: one look every 10 s."""

    def __init__(self) -> None:
        self.alarms = alarms.Alarms()
        self.now = 50.0
        self.at = START

    def look(self, *rows: dict[str, Any]) -> list[str]:
        self.now += LOOK_S
        self.at += LOOK_S
        return [f"{event['event']} {event['severity']}" for event in self.alarms.update(rows, self.now, self.at)]

    def looks(self, words: Iterable[str], **more: Any) -> list[tuple[int, str]]:
        """Events with the number of the look, from 1."""
        return [(n, event) for n, word in enumerate(words, 1) for event in self.look(row(word, **more))]


def test_all_well_says_nothing_and_keeps_nothing() -> None:
    bench = Bench()
    assert bench.looks(["good"] * 500) == []
    assert bench.alarms.dump(bench.now)["alarms"] == []


@pytest.mark.parametrize("check", ["time.offset", "time.synchronised", "time.sources", "time.daemon", "time.egress"])
def test_every_alarm_rings_within_a_minute_of_the_first_bad_look(check: str) -> None:
    bench = Bench()
    bench.looks(["good"] * 5, check=check)
    ((number, event),) = bench.looks(["bad"] * 6, check=check)
    assert event == "raised critical"
    assert (number - 1) * LOOK_S + LOOK_S < 60  # the worst case adds the look that had just been missed


def test_one_bad_look_is_a_burst_of_load() -> None:
    assert Bench().looks(["good", "bad", "good", "good", "good", "bad", "good"]) == []


def test_a_clock_that_is_bad_at_every_other_look_rings_all_the_same() -> None:
    assert Bench().looks(["bad", "good"] * 3)[0] == (3, "raised critical")


def test_a_source_that_missed_eight_polls_is_named_at_the_first_look() -> None:
    """Eight polls are in the state itself; one look more keeps it within ten."""
    assert Bench().looks(["warn"], check="time.sources", state="unreachable") == [(1, "raised warning")]


def test_a_source_that_answers_soon_after_a_restart_of_chronyd_does_not_ring() -> None:
    bench = Bench()
    assert bench.looks(["bad"] * 2 + ["good"] * 5, check="time.sources", state="unheard") == []
    assert bench.looks(["bad"] * 3, check="time.sources", state="unheard") == [(3, "raised critical")]


def test_it_ends_after_a_quiet_minute_and_not_before() -> None:
    bench = Bench()
    bench.looks(["bad"] * 3)
    assert bench.looks(["good"] * 20) == [(7, "cleared info")]
    assert bench.alarms.standing() == []


def test_a_bad_look_in_between_begins_the_quiet_time_anew() -> None:
    bench = Bench()
    bench.looks(["bad"] * 3)
    assert bench.looks(["good"] * 5 + ["bad"] + ["good"] * 6) == []
    assert bench.look(row("good")) == ["cleared info"]


def test_unknown_does_not_end_an_alarm() -> None:
    bench = Bench()
    bench.looks(["bad"] * 3)
    assert bench.looks(["unknown"] * 25) == []
    assert bench.looks(["good"] * 5 + ["unknown"] + ["good"] * 6) == []
    assert bench.look(row("good")) == ["cleared info"]


def test_a_reading_that_stays_away_rings_by_itself_after_a_while() -> None:
    bench = Bench()
    events = bench.looks(["unknown"] * 40)
    assert events[0] == (32, "raised warning")


def test_what_another_alarm_explains_does_not_ring_twice() -> None:
    """An unsynchronised clock has no offset: one alarm, not two."""
    bench = Bench()
    events = []
    for _ in range(100):
        events += bench.look(
            row("bad", "time.synchronised", state="unsynchronised"), row("unknown", state="unsynchronised")
        )
    assert events == ["raised critical"]


def test_a_failure_of_another_subject_explains_nothing_though_its_word_is_the_same() -> None:
    bench = Bench()
    events = []
    for _ in range(40):
        events += bench.look(
            row("bad", "time.sources", "foreign", state="unreachable"),
            row("unknown", "time.skew", "relay-b1", state="unreachable"),
        )
    assert events == ["raised critical", "raised warning"]
    assert {(one.id, one.subject) for one in bench.alarms.standing()} == {
        ("time.sources", "foreign"),
        ("time.skew", "relay-b1"),
    }


def test_what_ails_the_whole_clock_explains_the_rows_of_its_sources_too() -> None:
    bench = Bench()
    events = []
    for _ in range(100):
        events += bench.look(
            row("bad", "time.synchronised", state="down"), row("unknown", "time.skew", "relay-b1", state="down")
        )
    assert events == ["raised critical"]


def test_a_warning_grows_into_an_alarm_and_shrinks_back_after_the_quiet_time() -> None:
    bench = Bench()
    assert bench.looks(["warn"] * 3) == [(2, "raised warning")]
    assert bench.looks(["bad"] * 3) == [(2, "raised critical")]
    assert bench.looks(["warn"] * 10) == [(7, "lowered warning")]
    assert bench.looks(["good"] * 10) == [(7, "cleared info")]


def test_flapping_is_said_once_and_the_alarm_stays() -> None:
    bench = Bench()
    events = bench.looks((["bad"] * 3 + ["good"] * 3) * 12)
    assert [event for _, event in events] == ["raised critical", "flapping critical"]
    # Five quiet minutes are not enough for one that flaps, fifteen are.
    assert bench.looks(["good"] * 80) == []
    assert [event for _, event in bench.looks(["good"] * 20)] == ["cleared info"]


def test_returns_after_each_clearing_are_flapping_too() -> None:
    bench = Bench()
    events = [event for _, event in bench.looks((["bad"] * 3 + ["good"] * 8) * 6)]
    assert "flapping critical" in events
    assert events.count("raised critical") <= 4


def test_it_reminds_at_long_intervals() -> None:
    bench = Bench()
    events = bench.looks(["bad"] * (2 * 360 * 6 + 10))
    assert [event for _, event in events] == ["raised critical", "reminder critical", "reminder critical"]


def test_a_subject_that_is_gone_ends_when_its_check_tells_anything() -> None:
    bench = Bench()
    for _ in range(4):
        bench.look(row("bad", "time.sources", "ntp4"), row("good", "time.sources", "ntp1"))
    # The daemon is down: one row of the host, which tells nothing of ntp4.
    assert [bench.look(row("unknown", "time.sources", "gpu-a1")) for _ in range(20)] == [[]] * 20
    ended = [event for _ in range(10) for event in bench.look(row("good", "time.sources", "ntp1"))]
    assert ended == ["cleared info"]


def test_ids_that_were_not_looked_at_are_left_alone() -> None:
    """systemd is asked at every second look only."""
    bench = Bench()
    for _ in range(2):
        bench.look(row("bad", "time.daemon", "ntp.service"))
        assert bench.looks(["good"] * 20) == []
    assert len(bench.alarms.standing()) == 1


def test_what_is_not_judged_neither_ends_nor_raises() -> None:
    """A note that was deleted, a unit that systemd skipped: nobody has seen that all is well."""
    bench = Bench()
    assert bench.looks(["not_judged"] * 100) == []
    bench.looks(["bad"] * 3)
    assert bench.looks(["not_judged"] * 100) == []
    assert bench.looks(["good"] * 5 + ["not_judged"] + ["good"] * 6) == []
    assert bench.look(row("good")) == ["cleared info"]


def test_a_row_that_is_not_judged_ends_no_other_subject() -> None:
    """Rules whose note is gone have the row of the host, not of the table."""
    bench = Bench()
    bench.looks(["bad"] * 3, check="firewall.ntp", subject="inet t")
    assert bench.looks(["not_judged"] * 20, check="firewall.ntp", subject="gpu-a1") == []
    assert len(bench.alarms.standing()) == 1


def test_a_check_that_is_given_up_ends() -> None:
    bench = Bench()
    bench.looks(["bad"] * 3)
    assert bench.looks(["not_judged"] * 8, state=alarms.GIVEN_UP) == [(7, "cleared info")]


def test_a_wall_clock_that_jumps_back_changes_nothing() -> None:
    bench = Bench()
    bench.looks(["bad"] * 3)
    bench.at -= 86400 * 365
    assert bench.looks(["good"] * 6) == []
    bench.at += 86400 * 700
    (event,) = bench.alarms.update([row("good")], bench.now + LOOK_S, START - 1)
    assert (event["event"], event["lasted_s"]) == ("cleared", 0.0)


# --- restart -------------------------------------------------------------------------------------------


def restarted(bench: Bench, root: Path) -> Bench:
    (root / "var/lib/steadyrack").mkdir(parents=True, exist_ok=True)
    alarms.save(str(root), bench.alarms, bench.now, [])
    after = Bench()
    after.now, after.at = 3.0, bench.at + 30
    after.alarms, _ = alarms.load(str(root), after.now)
    return after


def test_a_restart_neither_raises_again_nor_forgets(tmp_path: Path) -> None:
    bench = Bench()
    bench.looks(["bad"] * 3)
    after = restarted(bench, tmp_path)
    assert after.looks(["bad"] * 30) == []
    assert [one.since for one in after.alarms.standing()] == [START + LOOK_S]
    assert after.looks(["good"] * 8) == [(7, "cleared info")]


def test_a_restart_does_not_clear_at_once(tmp_path: Path) -> None:
    bench = Bench()
    bench.looks(["bad"] * 3 + ["good"] * 5)
    assert restarted(bench, tmp_path).looks(["good"] * 6) == []


def test_flapping_and_the_next_reminder_survive_a_restart(tmp_path: Path) -> None:
    bench = Bench()
    bench.looks((["bad"] * 3 + ["good"] * 3) * 12)
    after = restarted(bench, tmp_path)
    assert after.looks(["good"] * 80) == []
    assert [one.flapping for one in after.alarms.standing()] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"version": 9, "alarms": []}', '{"version": 1}', '{"version": 1, "alarms": [1]}',
        '{"version": 1, "alarms": [{"id": "time.offset"}]}', '{"version": 1, "alarms": {"a": 1}}',
        '{"version": 1, "alarms": [{"id": "a", "subject": "b", "severity": "loud", "since": 1, "flapping": false,'
        ' "returns_ago_s": [], "told_ago_s": 0, "row": {}}]}',
    ],
)  # fmt: skip
def test_a_state_file_of_garbage_is_an_error_that_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / alarms.STATE_PATH
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(StateFileError):
        alarms.load(str(tmp_path), 0.0)


def test_no_state_file_is_a_first_start(tmp_path: Path) -> None:
    found, left = alarms.load(str(tmp_path), 0.0)
    assert (found.standing(), left) == ([], {})


@given(st.lists(st.sampled_from(["good", "warn", "bad", "unknown", "not_judged"]), max_size=120))
def test_whatever_comes_raises_and_clears_take_turns_and_the_state_is_json(words: list[str]) -> None:
    bench = Bench()
    events = [event.split()[0] for _, event in bench.looks(words)]
    json.dumps(bench.alarms.dump(bench.now), allow_nan=False)
    raised = False
    for event in events:
        assert raised or event == "raised"
        raised = event != "cleared"
    assert raised == bool(bench.alarms.standing())
