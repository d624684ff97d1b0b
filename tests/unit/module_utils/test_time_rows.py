"""What is said of a clock: the verdicts in their order, the sources, the skew between sites."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.steadyrack import chronyc, time_rows
from ansible.module_utils.steadyrack.chronyc import Clock, parse_sources, parse_tracking
from clocks import NOW, SOURCE, fixture, good, sources, tracking
from fake_node import FakeNode


def rows(clock: Clock, mode: str = "client", expected: Any = ("10.88.0.51",), **limits: Any) -> dict[str, dict]:
    """The rows by id; of several the last one."""
    limits = {"alarm_ms": 30.0, "warn_ms": 5.0, "now": NOW, **limits}
    return {row["id"]: row for row in time_rows.assess(clock, "gpu-a1", mode, expected, **limits)}


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


@pytest.mark.parametrize(
    ("age_s", "reach", "words"),
    [
        (700, "377", "no source has answered for a long time: the last update is 700 s old"),
        (40, "0", "no source has answered for 8 polls: the last update is 40 s old"),
        (-3600, "377", "the last answer lies 3600 s ahead of this clock: somebody has set it back since"),
    ],
)
def test_the_reason_of_stale_is_the_true_one(age_s: float, reach: str, words: str) -> None:
    clock = Clock(
        tracking()._replace(ref_time=NOW - age_s), sources(("10.88.0.51", "*" if reach != "0" else "?", reach))
    )
    assert words in rows(clock)["time.synchronised"]["reason"]


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
    found = time_rows.source_rows(Clock(tracking(), listed), "host", expected)
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
    row = next(r for r in time_rows.source_rows(Clock(tracking(), listed), "h", ["a", "b"]) if r["subject"] == "b")
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


# --- a relay ------------------------------------------------------------------------------------------

UPSTREAMS = ["ntp1", "ntp2", "ntp3", "ntp4"]
ABOUT = time_rows.Neighbours(
    peers=["10.0.0.22"],
    other_sites={"10.9.0.41": "site-b"},
    operators={"ntp3": "ntp3", "ntp4": "Operator Four"},
    min_upstreams=3,
)


def relay(*states: tuple[str, str, str], peer: tuple[str, str] = ("-", "377")) -> dict[str, dict]:
    """Rows of a relay's sources by subject; its peer and the other site's relay are there, too."""
    listed = sources(*states, ("10.0.0.22", *peer), ("10.9.0.41", "?", "377"))
    found = time_rows.source_rows(Clock(tracking(), listed), "relay-a1", UPSTREAMS, "relay", ABOUT)
    return {row["subject"]: row for row in found}


ALL = tuple((name, state, "377") for name, state in zip(UPSTREAMS, "*+++", strict=True))


def test_a_relay_in_good_order_passes_throughout_and_counts_its_upstreams() -> None:
    found = relay(*ALL)
    assert {(row["verdict"], row["severity"]) for row in found.values()} == {("pass", "info")}
    assert (found["relay-a1"]["state"], found["relay-a1"]["measured"]) == ("majority", 4)
    assert found["10.9.0.41"]["state"] == "noselect"


@pytest.mark.parametrize(("state", "reach", "word"), [("x", "377", "falseticker"), ("?", "0", "unreachable")])
def test_the_liar_or_silent_upstream_is_named_with_its_operator(state: str, reach: str, word: str) -> None:
    row = relay(*ALL[:3], ("ntp4", state, reach))["ntp4"]
    assert (row["verdict"], row["severity"], row["state"]) == ("pass", "warning", word)
    assert "Operator Four" in row["reason"]


def test_a_source_that_has_not_been_heard_yet_is_not_said_to_have_missed_eight_polls() -> None:
    listed = parse_sources("^,?,ntp1,0,6,0,4294967295,0.0,0.0,0.0")
    row = time_rows.source_rows(Clock(tracking(), listed), "relay-a1", ["ntp1"])[0]
    assert (row["state"], "8 polls" in row["reason"]) == ("unheard", False)


def test_an_operator_that_is_the_source_itself_is_not_repeated() -> None:
    assert "operator" not in relay(*ALL[:2], ("ntp3", "x", "377"), ALL[3])["ntp3"]["reason"]


@pytest.mark.parametrize(
    ("answering", "verdict", "severity", "state"),
    [
        (4, "pass", "info", "majority"),
        (3, "pass", "info", "majority"),
        (2, "pass", "warning", "few"),
        (1, "fail", "critical", "few"),
        (0, "fail", "critical", "few"),
    ],
)
def test_too_few_upstreams_to_outvote_a_liar(answering: int, verdict: str, severity: str, state: str) -> None:
    listed = [(name, "*" if n == 0 else "+", "377") for n, name in enumerate(UPSTREAMS[:answering])]
    listed += [(name, "?", "0") for name in UPSTREAMS[answering:]]
    row = relay(*listed)["relay-a1"]
    assert (row["verdict"], row["severity"], row["state"]) == (verdict, severity, state)
    assert row["measured"] == answering
    if answering < 3:
        assert "ntp4 (Operator Four)" in row["reason"]


def test_the_peer_does_not_stand_in_for_upstreams() -> None:
    """All upstreams silent, the peer selected: the relay's own way out has failed."""
    found = relay(*((name, "?", "0") for name in UPSTREAMS), peer=("*", "377"))
    assert {found[name]["verdict"] for name in UPSTREAMS} == {"fail"}


@pytest.mark.parametrize(
    ("peer", "severity"), [(("?", "0"), "warning"), (("x", "377"), "warning"), (("?", "377"), "info")]
)
def test_a_peer_that_is_gone_or_disagrees_is_a_warning_one_that_follows_us_is_well(
    peer: tuple[str, str], severity: str
) -> None:
    row = relay(*ALL, peer=peer)["10.0.0.22"]
    assert (row["verdict"], row["severity"]) == ("pass", severity)


def test_a_peer_or_other_site_that_the_daemon_lacks_is_missing_and_a_stranger_is_foreign() -> None:
    listed = sources(*ALL, ("pool.example", "-", "377"))
    found = time_rows.source_rows(Clock(tracking(), listed), "relay-a1", UPSTREAMS, "relay", ABOUT)
    states = {row["subject"]: (row["verdict"], row["state"]) for row in found}
    assert states["10.0.0.22"] == states["10.9.0.41"] == ("fail", "missing")
    assert states["pool.example"][0] == "fail"


def test_the_stratum_is_told_as_it_is() -> None:
    assert rows(good())["time.synchronised"]["measured"] == "10.88.0.51, stratum 3"


@pytest.mark.parametrize(("leap", "word"), [("Insert second", "inserted"), ("Delete second", "deleted")])
def test_an_announced_leap_second_is_a_warning_with_who_and_when(leap: str, word: str) -> None:
    clock = Clock(tracking()._replace(leap=leap, ref_time=1798700000.0), good().sources)
    row = rows(clock, now=1798700010.0)["time.synchronised"]  # 2026-12-31
    assert (row["verdict"], row["severity"], row["state"]) == ("pass", "warning", "synchronised")
    assert "10.88.0.51" in row["reason"]
    assert word in row["reason"]
    assert "2026-12-31" in row["reason"]


# --- skew between sites ---------------------------------------------------------------------------------


def skew(offset: float, margin: float, reach: str = "377", last: str = "1") -> dict[str, Any]:
    listed = parse_sources(f"^,?,10.9.0.41,2,6,{reach},{last},{offset:.9f},{offset:.9f},{margin:.9f}")
    (row,) = time_rows.skew_rows(Clock(tracking(), listed), {"10.9.0.41": "site-b"}, 100.0)
    return row


@pytest.mark.parametrize(
    ("offset", "margin", "verdict", "state"),
    [
        (0.0, 0.020, "pass", "ok"),
        (-0.080, 0.019, "pass", "ok"),
        (0.080, 0.021, "unknown", "uncertain"),
        (-0.120, 0.021, "unknown", "uncertain"),
        (0.130, 0.020, "fail", "alarm"),
        (-0.130, 0.020, "fail", "alarm"),
        (0.0, 0.101, "unknown", "uncertain"),
    ],
)
def test_skew_counts_only_beyond_its_uncertainty_either_way(
    offset: float, margin: float, verdict: str, state: str
) -> None:
    row = skew(offset, margin)
    assert (row["verdict"], row["state"]) == (verdict, state)
    assert row["measured"] == pytest.approx(offset * 1000)


@pytest.mark.parametrize(("reach", "last"), [("0", "900"), ("0", "4294967295"), ("1", "-")])
def test_a_relay_abroad_that_was_not_measured_is_unknown_never_zero(reach: str, last: str) -> None:
    row = skew(0.0, 0.0, reach, last)
    assert (row["verdict"], row["state"], row["measured"]) == ("unknown", "unreachable", None)


def test_a_relay_abroad_that_is_not_polled_and_a_daemon_that_is_down_are_unknown() -> None:
    (row,) = time_rows.skew_rows(good(), {"10.9.0.41": "site-b"}, 100.0)
    assert (row["verdict"], row["state"]) == ("unknown", "missing")
    (row,) = time_rows.skew_rows(Clock(None, [], "506", down=True), {"10.9.0.41": "site-b"}, 100.0)
    assert (row["verdict"], row["state"], row["measured"]) == ("unknown", "down", None)
