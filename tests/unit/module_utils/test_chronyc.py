"""Parsers of chronyc -c and the verdict on a clock."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import chronyc
from ansible.module_utils.steadyrack.chronyc import Clock, parse_sources, parse_tracking
from ansible.module_utils.steadyrack.errors import ToolError
from fake_node import FakeNode
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/chrony"
SYNCED = "0A580033,10.88.0.51,3,1000000.0,{offset},0.0,0.0,0.274,0.004,0.189,{delay},{dispersion},2.0,Normal"
SOURCE = "^,{state},{name},2,{poll},{reach},1,-0.000006252,-0.000006312,0.000172011"
NOW = 1000010.0


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.csv").read_text()


def tracking(offset: float = 0.0, delay: float = 0.0, dispersion: float = 0.0) -> chronyc.Tracking:
    return parse_tracking(SYNCED.format(offset=f"{offset:.9f}", delay=f"{delay:.9f}", dispersion=f"{dispersion:.9f}"))


def sources(*entries: tuple[str, str, str]) -> list[chronyc.Source]:
    """Sources of (name, state, reach)."""
    lines = [SOURCE.format(name=name, state=state, reach=reach, poll=4) for name, state, reach in entries]
    return parse_sources("\n".join(lines))


def rows(clock: Clock, mode: str = "client", expected: Any = ("10.88.0.51",), **limits: Any) -> dict[str, dict]:
    """The rows by id; of several the last one."""
    limits = {"alarm_ms": 30.0, "warn_ms": 5.0, "now": NOW, **limits}
    return {row["id"]: row for row in chronyc.assess(clock, "gpu-a1", mode, expected, **limits)}


def good(offset: float = 0.0, **more: float) -> Clock:
    return Clock(tracking(offset, **more), sources(("10.88.0.51", "*", "377")))


# --- parsers -----------------------------------------------------------------------------------------


def test_recorded_tracking_of_a_client() -> None:
    read = parse_tracking(fixture("client-4.6-tracking"))
    assert (read.refid, read.source, read.stratum, read.leap) == ("0A580033", "10.88.0.51", 3, "Normal")
    # Field 5 counts the other way round: + is behind.
    assert read.system_time_s == pytest.approx(17.343e-6)
    assert read.offset_s == pytest.approx(-17.343e-6)
    assert read.bound_s == pytest.approx(17.343e-6 + 65.324e-6 + 120.173e-6 / 2)


def test_recorded_sources_of_a_relay() -> None:
    answered, silent = parse_sources(fixture("relay-4.3-sources"))
    assert (answered.state, answered.reach, answered.last_rx_s) == ("selected", 0o377, 13)
    assert (silent.state, silent.reachable, silent.last_rx_s) == ("unusable", False, None)


def test_recorded_sourcestats_and_activity() -> None:
    first, never = chronyc.parse_sourcestats(fixture("relay-4.3-sourcestats"))
    assert (first.samples, never.samples, never.deviation_s) == (36, 0, 4.0)
    assert chronyc.parse_activity(fixture("relay-4.3-activity")) == (2, 0, 0, 0, 0)


def test_reach_is_octal() -> None:
    (source,) = parse_sources(SOURCE.format(name="a", state="*", reach="17", poll=4))
    assert source.reach == 0b1111


def test_a_source_that_never_answered_has_no_offset_c32() -> None:
    """C32."""
    gps, pps, selected, combined = parse_sources(fixture("refclocks-C32-sources"))
    assert [s.last_rx_s for s in (gps, pps)] == [None, None]
    assert [s.offset_s for s in (gps, pps)] == [None, None]
    assert (selected.state, combined.state, combined.offset_s) == ("selected", "combined", -0.000855)


def test_the_id_of_a_reference_clock_is_text_c31() -> None:
    """C31."""
    gps = parse_sources(fixture("refclocks-C32-sources"))[0]
    assert (gps.mode, gps.name) == ("refclock", "GPS")


def test_columns_that_a_later_release_adds_do_no_harm() -> None:
    assert parse_tracking(fixture("client-4.6-tracking").strip() + ",new,columns").stratum == 3
    assert parse_sources(fixture("relay-4.3-sources").splitlines()[0] + ",new")[0].name == "10.213.0.11"


def test_no_sources_is_an_empty_list() -> None:
    assert parse_sources("") == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "506 Cannot talk to daemon\n",
        "a,b,c\n",
        fixture("client-4.6-tracking") * 2,
        "Reference ID    : 00000000 ()\n",
        SYNCED.format(offset="0.000000001", delay="0.000000001", dispersion="nan"),
        SYNCED.format(offset="-nan", delay="0.000000001", dispersion="0.000000001"),
        SYNCED.format(offset="inf", delay="0.000000001", dispersion="0.000000001"),
    ],
)
def test_what_is_not_tracking_is_an_error_never_a_guess(text: str) -> None:
    with pytest.raises(ToolError):
        parse_tracking(text)


@given(st.text())
def test_no_text_breaks_the_parsers_otherwise(text: str) -> None:
    for parse in (parse_tracking, parse_sources, chronyc.parse_sourcestats, chronyc.parse_activity):
        with contextlib.suppress(ToolError):
            parse(text)


# --- states, in their order ----------------------------------------------------------------------------


def test_daemon_down_has_no_offset_c28(node: FakeNode) -> None:
    """C28."""
    node.answers("chronyc", "506 Cannot talk to daemon\n", 1)
    clock = chronyc.look()
    judged = rows(clock)
    assert clock.down
    assert judged["time.synchronised"]["state"] == "down"
    assert judged["time.synchronised"]["verdict"] == "fail"
    assert "506 Cannot talk to daemon" in judged["time.synchronised"]["reason"]
    assert judged["time.offset"]["measured"] is None
    assert judged["time.offset"]["verdict"] == "unknown"
    assert judged["time.sources"]["verdict"] == "unknown"


def test_no_chronyc_at_all_is_down(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chronyc, "ask", chronyc.ask)
    missing = chronyc.look(lambda argv, _limit: chronyc.Completed(argv, 127, "", "", missing=True))
    assert missing.down
    assert "not installed" in str(missing.error)


def test_a_daemon_that_hangs_is_down(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chronyc, "CHRONYC_TIMEOUT_S", 0.2)
    node.program("chronyc", "#!/bin/sh\nsleep 30\n")
    clock = chronyc.look()
    assert clock.down
    assert "no answer within" in str(clock.error)


def test_output_that_cannot_be_read_is_unknown(node: FakeNode) -> None:
    node.answers("chronyc", "something new\n")
    assert rows(chronyc.look())["time.synchronised"]["verdict"] == "unknown"


def test_never_set_since_1970_parses_as_unsynchronised_c29() -> None:
    """C29."""
    clock = Clock(parse_tracking(fixture("unsynced-4.6-tracking")), sources(("10.88.0.51", "?", "0")))
    judged = rows(clock)
    assert clock.tracking is not None
    assert clock.tracking.offset_s is None
    assert clock.tracking.bound_s is None
    assert judged["time.synchronised"]["state"] == "unsynchronised"
    assert judged["time.synchronised"]["verdict"] == "fail"
    assert judged["time.offset"]["measured"] is None
    assert judged["time.offset"]["verdict"] == "unknown"


def test_two_relays_that_disagree_are_named() -> None:
    clock = Clock(
        parse_tracking(fixture("unsynced-4.6-tracking")), sources(("10.0.0.1", "x", "377"), ("10.0.0.2", "x", "377"))
    )
    reason = rows(clock, expected=["10.0.0.1", "10.0.0.2"])["time.synchronised"]["reason"]
    assert "no majority" in reason
    assert "10.0.0.1, 10.0.0.2" in reason


@pytest.mark.parametrize(("mode", "word"), [("client", "runs free"), ("relay", "local fallback active")])
def test_the_own_clock_as_reference_is_no_synchronisation_c30(mode: str, word: str) -> None:
    """C30."""
    row = rows(Clock(parse_tracking(fixture("local-C30-tracking")), []), mode)["time.synchronised"]
    assert (row["verdict"], row["state"]) == ("fail", "islanded")
    assert word in row["reason"]


def test_whoever_follows_an_islanded_relay_is_islanded() -> None:
    followed = tracking()._replace(stratum=11)
    assert rows(Clock(followed, good().sources))["time.synchronised"]["state"] == "islanded"


@pytest.mark.parametrize(
    ("age_s", "poll", "state"),
    [
        (599, 4, "synchronised"),
        (601, 4, "stale"),
        (2000, 8, "synchronised"),
        (2050, 8, "stale"),
        (-5, 4, "synchronised"),
        (-60, 4, "stale"),
    ],
)
def test_an_old_reading_is_stale_after_600_s_and_8_polls(age_s: float, poll: int, state: str) -> None:
    listed = parse_sources(SOURCE.format(name="a", state="*", reach="377", poll=poll))
    assert chronyc.state_of(Clock(tracking(), listed), now=1000000.0 + age_s) == state


def test_an_offset_of_an_hour_that_is_being_slewed_is_no_old_update() -> None:
    listed = parse_sources(SOURCE.format(name="a", state="*", reach="377", poll=4))
    behind = tracking(offset=3600.0)
    assert chronyc.state_of(Clock(behind, listed), now=behind.ref_time + 1 - 3600) == "synchronised"


def test_all_sources_silent_is_stale() -> None:
    assert chronyc.state_of(Clock(tracking(), sources(("a", "?", "0"))), NOW) == "stale"


# --- offset ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "verdict", "severity"),
    [
        (0.0, "pass", "info"),
        (0.0049, "pass", "info"),
        (0.0051, "pass", "warning"),
        (0.029, "pass", "warning"),
        (0.031, "fail", "critical"),
        (-0.031, "fail", "critical"),
        (0.060, "fail", "critical"),
    ],
)
def test_the_alarm_is_at_30_ms_either_way(offset: float, verdict: str, severity: str) -> None:
    row = rows(good(offset))["time.offset"]
    assert (row["verdict"], row["severity"], row["unit"]) == (verdict, severity, "ms")
    assert row["measured"] == pytest.approx(abs(offset) * 1000)


def test_delay_and_dispersion_count_too() -> None:
    row = rows(good(0.010, delay=0.020, dispersion=0.0101))["time.offset"]
    assert row["verdict"] == "fail"
    assert row["measured"] == pytest.approx(30.1)


def test_the_thresholds_are_inputs() -> None:
    assert rows(good(0.010), alarm_ms=9.0)["time.offset"]["verdict"] == "fail"
    assert rows(good(0.010), warn_ms=None)["time.offset"]["severity"] == "info"


# --- sources -----------------------------------------------------------------------------------------


def source_rows(listed: list[chronyc.Source], expected: Any) -> dict[str, tuple[str, str]]:
    found = chronyc.source_rows(Clock(tracking(), listed), "host", expected)
    return {row["subject"]: (row["verdict"], row["state"]) for row in found}


def test_configured_sources_pass() -> None:
    listed = sources(("10.0.0.1", "*", "377"), ("10.0.0.2", "+", "377"))
    assert source_rows(listed, ["10.0.0.1", "10.0.0.2"]) == {
        "10.0.0.1": ("pass", "selected"),
        "10.0.0.2": ("pass", "combined"),
    }


def test_an_extra_source_fails_c27() -> None:
    """C27."""
    listed = sources(("10.0.0.1", "*", "377"), ("ntp-nts-2.ps5.canonical.com", "-", "377"))
    assert source_rows(listed, ["10.0.0.1"])["ntp-nts-2.ps5.canonical.com"][0] == "fail"


def test_a_configured_source_that_is_not_there_fails() -> None:
    assert source_rows(sources(("10.0.0.1", "*", "377")), ["10.0.0.1", "b"])["b"] == ("fail", "missing")


def test_names_and_addresses_are_compared_in_one_form() -> None:
    listed = sources(("2001:db8::1", "*", "377"), ("ntp.aliyun.com", "+", "377"))
    assert {state for state, _ in source_rows(listed, ["[2001:DB8:0::1]", "NTP.aliyun.com."]).values()} == {"pass"}


@pytest.mark.parametrize(("state", "reach", "word"), [("x", "377", "falseticker"), ("?", "0", "unreachable")])
def test_one_bad_upstream_of_several_is_a_warning_that_names_it(state: str, reach: str, word: str) -> None:
    listed = sources(("a", "*", "377"), ("b", state, reach))
    row = next(r for r in chronyc.source_rows(Clock(tracking(), listed), "h", ["a", "b"]) if r["subject"] == "b")
    assert (row["verdict"], row["severity"], row["state"]) == ("pass", "warning", word)


def test_with_no_usable_source_left_each_fails() -> None:
    listed = sources(("a", "?", "0"), ("b", "x", "377"))
    assert {verdict for verdict, _ in source_rows(listed, ["a", "b"]).values()} == {"fail"}


def test_reference_clocks_are_not_compared_with_servers_c31() -> None:
    """C31."""
    judged = source_rows(parse_sources(fixture("refclocks-C32-sources")), ["time-a-wwv.nist.gov", "time-a-b.nist.gov"])
    assert judged["GPS"] == judged["PPS"] == ("not_judged", "refclock")
    assert judged["time-a-wwv.nist.gov"] == ("pass", "selected")


def test_nothing_expected_and_nothing_there_is_a_failure() -> None:
    assert source_rows([], []) == {"host": ("fail", "missing")}


def test_without_a_wish_sources_are_not_judged() -> None:
    assert source_rows(sources(("a", "*", "377")), None)["host"][0] == "not_judged"


def test_the_daemon_is_asked_for_names_as_configured(node: FakeNode) -> None:
    node.answers("chronyc", fixture("relay-4.3-tracking"))
    chronyc.ask("tracking")
    assert node.calls() == ["chronyc -c -N tracking"]
