"""Parsers of chronyc -c."""

from __future__ import annotations

import contextlib

import pytest
from ansible.module_utils.steadyrack import chronyc
from ansible.module_utils.steadyrack.chronyc import parse_sources, parse_tracking
from ansible.module_utils.steadyrack.errors import ToolError
from clocks import SOURCE, SYNCED, fixture
from fake_node import FakeNode
from hypothesis import given
from hypothesis import strategies as st

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


def test_the_daemon_is_asked_for_names_as_configured(node: FakeNode) -> None:
    node.answers("chronyc", fixture("relay-4.3-tracking"))
    chronyc.ask("tracking")
    assert node.calls() == ["chronyc -c -N tracking"]


# --- odd lines ---------------------------------------------------------------------------------------


def test_ipv6_sources_keep_their_colons_and_zones() -> None:
    one, two = parse_sources(
        SOURCE.format(name="2001:db8::1", state="*", reach="377", poll=6)
        + "\n"
        + SOURCE.format(name="fe80::1%eth0", state="+", reach="377", poll=6)
    )
    assert (one.name, two.name) == ("2001:db8::1", "fe80::1%eth0")
    assert chronyc.canonical("[2001:DB8:0:0::1]") == "2001:db8::1"
    assert chronyc.canonical("FE80:0::1%eth0") == "fe80::1%eth0"


def test_a_name_that_does_not_resolve_is_a_source_that_never_answered() -> None:
    (source,) = parse_sources("^,?,ID#0000000001,0,0,0,4294967295,0.000000000,0.000000000,0.000000000")
    assert (source.name, source.reachable, source.last_rx_s, source.offset_s) == ("ID#0000000001", False, None, None)


@pytest.mark.parametrize("never", ["-", "4294967295"])
def test_never_heard_of_is_none_and_its_zeros_are_no_measurement(never: str) -> None:
    (source,) = parse_sources(f"^,?,a,0,4,0,{never},0.000000000,0.000000000,0.000000000")
    assert (source.last_rx_s, source.offset_s, source.measured_s, source.margin_s) == (None, None, None, None)


def test_a_poll_of_127_is_no_interval_and_makes_nothing_stale_later() -> None:
    (source,) = parse_sources("^,*,a,2,127,377,1,0.0,0.0,0.1")
    assert chronyc.stale_after_s([source]) == chronyc.STALE_S


@pytest.mark.parametrize(
    "text",
    [
        "^,*,a,2,6,377,1,-0.000006252,-0.000006312",  # cut off
        "^,*,a,2,6,999,1,0.0,0.0,0.0",  # not octal
        "^,*,a,2,6,377,1,nan,0.0,0.0",
        "^,*,a,2,6,377,1,0.0,0.0,inf",
        "^,!,a,2,6,377,1,0.0,0.0,0.0",
        "%,*,a,2,6,377,1,0.0,0.0,0.0",
        "501 Not authorised",
    ],
)
def test_what_is_not_sources_is_an_error_never_a_guess(text: str) -> None:
    with pytest.raises(ToolError):
        parse_sources(text)


@pytest.mark.parametrize("said", ["506 Cannot talk to daemon", "501 Not authorised", "503 No such source"])
def test_replies_with_a_number_come_on_stdout_and_are_the_reason(node: FakeNode, said: str) -> None:
    node.answers("chronyc", said + "\n", 1)
    assert chronyc.look().error == said


# --- lines that look right and are not -----------------------------------------------------------------

GOOD = "0A580033,10.88.0.51,3,1000000.0,0.0,0.0,0.0,0.274,0.004,0.189,0.0001,0.0001,2.0,Normal"


def with_columns(**changed: str) -> str:
    """``GOOD`` with some columns changed, by their place: c0 to c13."""
    columns = GOOD.split(",")
    for place, value in changed.items():
        columns[int(place[1:])] = value
    return ",".join(columns)


@pytest.mark.parametrize("leap", ["Normal", "Insert second", "Delete second", "Not synchronised"])
def test_every_leap_status_that_chronyd_has_is_read(leap: str) -> None:
    assert parse_tracking(with_columns(c13=leap)).leap == leap


@pytest.mark.parametrize(
    "text",
    [
        with_columns(c13="Invalid"),  # chronyc's word for a value it does not know
        with_columns(c13="normal"),
        with_columns(c13=""),
        with_columns(c13="2.0"),
        GOOD.replace(".", ",").replace("10,88,0,51", "10.88.0.51"),  # decimal commas: the columns shift
        with_columns(c11="-0.000001"),
        with_columns(c2="0"),
        with_columns(c2="16"),
        with_columns(c2="-1"),
        with_columns(c2="17", c13="Not synchronised"),
        with_columns(c0="7F7F0101", c2="0"),
        with_columns(c0=""),
        with_columns(c0="A580033"),
        with_columns(c0="0A58003G"),
        with_columns(c0="0x0A5800"),
        with_columns(c4="1e-3"),
        with_columns(c4="1_0.0"),
        with_columns(c4="0"),
        with_columns(c2="\u0663"),  # a digit, and not one of chronyc's
        with_columns(c4="9" * 400 + ".0"),
        with_columns(c1="x" * 200_000),
    ],
)
def test_tracking_that_cannot_be_is_unreadable_and_never_synchronised(text: str) -> None:
    with pytest.raises(ToolError):
        parse_tracking(text)
    clock = chronyc.look(lambda argv, _s: chronyc.Completed(argv, 0, text if argv[-1] == "tracking" else "", ""))
    assert chronyc.state_of(clock, 1000001.0) == chronyc.UNREADABLE


def test_nobody_followed_has_stratum_0_or_16() -> None:
    for stratum in ("0", "16"):
        assert parse_tracking(with_columns(c0="00000000", c2=stratum, c13="Not synchronised")).followed is False


@pytest.mark.parametrize("reach", ["-1", "0o377", "+17", " 17", "1_7", "", "8", "0377", "777"])
def test_a_reach_that_is_not_8_bits_in_octal_is_unreadable(reach: str) -> None:
    with pytest.raises(ToolError, match="reach"):
        parse_sources(SOURCE.format(name="a", state="*", reach=reach, poll=4))


@pytest.mark.parametrize(
    "text",
    [
        "^,*,a,2,6,377,1,0,000001,0,000002,0,000003",
        "^,*,a,17,6,377,1,0.0,0.0,0.0",
        "^,*,a,-1,6,377,1,0.0,0.0,0.0",
        "^,*," + "a" * 200_000 + ",2,6,377,1,0.0,0.0,0.0",
    ],
)
def test_sources_that_cannot_be_are_unreadable(text: str) -> None:
    with pytest.raises(ToolError):
        parse_sources(text)


def test_a_root_delay_below_0_makes_no_clock_look_better() -> None:
    """chronyd's own estimate may come out a shade below 0."""
    assert parse_tracking(with_columns(c10="-0.000040")).bound_s == pytest.approx(0.0001)
