"""May a job start: yes, no or not known, in one line."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.steadyrack import time_gate, time_rows, verdict
from ansible.module_utils.steadyrack.chronyc import Clock
from clocks import NOW, good, sources, tracking


def decide(clock: Clock, *more: dict[str, Any]) -> time_gate.Decision:
    rows = time_rows.assess(clock, "gpu-a1", "client", ["10.88.0.51"], alarm_ms=30.0, warn_ms=10.0, now=NOW)
    return time_gate.decide("gpu-a1", [*rows, *more])


def test_a_good_clock_is_a_yes_that_says_how_good() -> None:
    decision = decide(good(0.001))
    assert (decision.code, decision.may_start) == (0, True)
    assert decision.line == "yes: gpu-a1: the clock is within 1.000 ms, it follows 10.88.0.51, stratum 3"


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (Clock(None, [], "506 Cannot talk to daemon", down=True), "506 Cannot talk to daemon"),
        (Clock(tracking()._replace(refid="00000000"), sources(("10.88.0.51", "?", "0"))), "no source answers"),
        (Clock(tracking()._replace(refid="7F7F0101"), good().sources), "runs free"),
        (good(0.060), "60.000 ms"),
        (Clock(tracking(), sources(("10.88.0.51", "*", "377"), ("pool", "-", "377"))), "time.sources pool"),
    ],
)
def test_whatever_fails_is_a_no_with_the_root_reason_first(clock: Clock, words: str) -> None:
    decision = decide(clock)
    assert decision.code == 1
    assert decision.line.startswith("no: gpu-a1: time.")
    assert words in decision.line
    assert "\n" not in decision.line


def test_what_is_not_known_is_no_yes() -> None:
    assert decide(Clock(None, [], "gibberish")).code == 2
    nothing = verdict.check_row("time.synchronised", "gpu-a1", verdict.NOT_JUDGED, reason="the role has not run")
    assert time_gate.decide("gpu-a1", [nothing]) == (2, "not known: gpu-a1: the role has not run")
    assert time_gate.decide("gpu-a1", []).code == 2


def test_a_rival_daemon_is_a_no_and_a_rejected_leak_is_not() -> None:
    rival = verdict.check_row("time.daemon", "ntpsec.service", verdict.FAIL, reason="a second service")
    leak = verdict.check_row("time.egress", "gpu-a1", verdict.FAIL, reason="3 packets")
    assert decide(good(), rival).code == 1
    assert decide(good(), leak).code == 0


def test_a_warning_is_a_yes_with_a_note() -> None:
    decision = decide(good(0.015))
    assert decision.code == 0
    assert "note time.offset gpu-a1" in decision.line
