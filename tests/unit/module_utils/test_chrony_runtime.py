"""A running daemon against its configuration: whom it asks, whom it serves, and what puts it right."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import chrony_runtime
from ansible.module_utils.steadyrack.chrony_runtime import Fix, Running, carry_out, fixes, look
from ansible.module_utils.steadyrack.chronyc import DaemonDownError
from ansible.module_utils.steadyrack.errors import BusyError, NotAppliedError, ToolError
from fake_chronyd import FakeChronyd
from fake_node import FakeNode
from hypothesis import given
from hypothesis import strategies as st

OPTIONS = "iburst minpoll 4 maxpoll 4 xleave"
WANTED = {"10.213.1.21": OPTIONS, "relay-a2": OPTIONS, "2001:db8:1::23": OPTIONS}
NETWORKS = ["10.213.1.0/24", "2001:db8:1::/64", "10.9.9.9/32"]
RELOAD = ["chronyc", "-m", "deny all", *(f"allow {network}" for network in NETWORKS), "reload sources"]


@pytest.fixture
def chronyd(node: FakeNode, tmp_path: Path) -> FakeChronyd:
    """A relay that does what it should."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "steadyrack.sources").write_text("".join(f"server {name} {OPTIONS}\n" for name in WANTED))
    node.set_units({"chrony.service": {"active": "active", "file_state": "enabled", "asked": True}})
    daemon = FakeChronyd(node, tmp_path / "chrony.conf", folder)
    (tmp_path / "chrony.conf").write_text("".join(f"allow {network}\n" for network in NETWORKS))
    daemon.change(addresses={"relay-a2": "10.213.1.22"}, starts=-1)
    return daemon


def left(networks: list[str] | None = None) -> list[Fix]:
    return fixes(look(NETWORKS if networks is None else networks), WANTED, RELOAD)


def put_right() -> list[Fix]:
    """Carry out what is to do; what is left after that is returned."""
    carry_out(left())
    return left()


def test_a_daemon_that_is_right_is_left_alone(chronyd: FakeChronyd, node: FakeNode) -> None:
    assert look(NETWORKS) == Running(
        [("10.213.1.21", "10.213.1.21"), ("relay-a2", "10.213.1.22"), ("2001:db8:1::23", "2001:db8:1::23")], [], []
    )
    assert left() == []
    assert node.deeds() == []


def test_a_source_added_by_hand_is_removed_by_its_address_c27(chronyd: FakeChronyd, node: FakeNode) -> None:
    """C27: any extra source is drift, also one that stands in no file."""
    look(None)
    chronyd.add("time.example.net", "192.0.2.66")
    assert left() == [Fix(("delete", "192.0.2.66"), "source time.example.net is not configured")]
    assert put_right() == []
    assert "time.example.net" not in chronyd.names
    assert node.deeds() == ["chronyc delete 192.0.2.66"]


def test_a_source_that_is_not_resolved_is_removed_by_its_number(chronyd: FakeChronyd) -> None:
    look(None)
    chronyd.add("no.such.example", "ID#0000000042")
    assert left() == [Fix(("delete", "ID#0000000042"), "source no.such.example is not configured")]
    assert put_right() == []


def test_a_source_that_a_reload_lost_comes_back_with_iburst_c37(chronyd: FakeChronyd) -> None:
    """C37."""
    look(None)
    chronyd.lose("relay-a2")
    assert left() == [
        Fix(("add", "server", "relay-a2", *OPTIONS.split()), "source relay-a2 is configured and not there")
    ]
    assert put_right() == []
    assert chronyd.state["added"] == [f"add server relay-a2 {OPTIONS}"]


def test_a_wanted_name_that_is_not_resolved_yet_is_there(chronyd: FakeChronyd) -> None:
    chronyd.change(addresses={})
    assert ("relay-a2", "ID#0000000002") in look(None).sources
    assert left() == []


@pytest.mark.parametrize("first", ["ID#0000000009", "10.213.1.99"])
def test_of_a_doubled_source_the_one_with_an_address_stays(chronyd: FakeChronyd, first: str) -> None:
    look(None)
    second = "10.213.1.99" if first.startswith("ID#") else "ID#0000000009"
    chronyd.lose("relay-a2")
    chronyd.add("relay-a2", first)
    chronyd.add("relay-a2", second)
    assert left() == [Fix(("delete", "ID#0000000009"), "source relay-a2 is there twice")]
    assert put_right() == []
    assert chronyd.names.count("relay-a2") == 1


def test_reference_clocks_are_text_and_not_compared_c31(chronyd: FakeChronyd) -> None:
    """C31."""
    look(None)
    chronyd.add("PHC0", refclock=True)
    assert left() == []


def test_spelling_is_no_difference(chronyd: FakeChronyd) -> None:
    look(None)
    spelled = {"10.213.1.21": OPTIONS, "RELAY-A2.": OPTIONS, "2001:DB8:1:0:0::23": OPTIONS}
    assert fixes(look(NETWORKS), spelled, RELOAD) == []


def test_whoever_lets_the_world_in_is_put_right(chronyd: FakeChronyd) -> None:
    look(None)
    chronyd.change(world=True)
    (fix,) = left()
    assert fix.words == tuple(RELOAD[1:])
    assert "192.0.2.1 is served" in fix.why
    assert "2001:db8:ffff:ffff::1 is served" in fix.why
    assert put_right() == []
    assert chronyd.state["world"] is False


def test_a_network_that_is_not_served_is_served_again_c35(chronyd: FakeChronyd) -> None:
    """C35."""
    look(None)
    chronyd.change(allow=[["2001:db8:1::/64", True]])
    (fix,) = left()
    assert fix.why == "10.213.1.0/24 is not served; 10.9.9.9/32 is not served"
    assert put_right() == []
    assert [network for network, _ in chronyd.state["allow"]] == NETWORKS


def test_a_network_of_ours_among_the_addresses_for_documentation_is_no_world(chronyd: FakeChronyd) -> None:
    look(None)
    chronyd.change(allow=[["192.0.2.0/24", True]])
    assert look(["192.0.2.0/24"]).served_strangers == []
    assert look(["198.51.100.0/24"]).served_strangers == ["192.0.2.1"]


def test_of_a_client_nobody_asks_whom_it_serves(chronyd: FakeChronyd) -> None:
    chronyd.change(refused={"accheck": "501 Not authorised"})
    running = look(None)
    assert (running.denied, running.served_strangers) == ([], [])


@pytest.mark.parametrize(
    ("network", "probe"),
    [("10.0.0.0/24", "10.0.0.1"), ("10.0.0.7/32", "10.0.0.7"), ("2001:db8::/64", "2001:db8::1"),
     ("2001:db8::7/128", "2001:db8::7"), ("10.0.0.6/31", "10.0.0.7")],
)  # fmt: skip
def test_a_network_is_asked_for_by_an_address_in_it(network: str, probe: str) -> None:
    assert chrony_runtime.probe_of(network) == probe


# --- answers that are none -----------------------------------------------------------------------------


def test_a_daemon_that_is_down_is_an_error_c28(chronyd: FakeChronyd, node: FakeNode) -> None:
    """C28."""
    node.change_unit("chrony.service", active="inactive")
    with pytest.raises(DaemonDownError, match="506 Cannot talk to daemon"):
        look(None)


def test_a_host_without_chronyc_is_told(
    chronyd: FakeChronyd, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible.module_utils.steadyrack import run

    (node.bin / "chronyc").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(run, "SYSTEM_PATHS", ())
    with pytest.raises(DaemonDownError, match="not installed"):
        look(None)


@pytest.mark.parametrize("verb", ["sources", "accheck"])
def test_who_may_not_ask_gets_an_error_and_nothing_is_guessed(chronyd: FakeChronyd, verb: str) -> None:
    chronyd.change(refused={verb: "501 Not authorised"})
    with pytest.raises(DaemonDownError, match="501 Not authorised"):
        look(NETWORKS)


def test_an_answer_on_access_that_is_neither_is_an_error(node: FakeNode) -> None:
    node.answers("chronyc", "200 OK\n")
    with pytest.raises(ToolError, match="allowed or denied"):
        chrony_runtime.allowed("10.0.0.1")


@pytest.mark.parametrize("rc", [0, 1])
@pytest.mark.parametrize(("said", "answer"), [("208 Access allowed", True), ("209 Access denied", False)])
def test_access_is_read_whatever_the_exit_status(node: FakeNode, said: str, rc: int, answer: bool) -> None:
    node.answers("chronyc", said + "\n", rc)
    assert chrony_runtime.allowed("10.0.0.1") is answer


@pytest.mark.parametrize(("verb", "words"), [("delete", ("delete", "192.0.2.66")), ("add", ("add", "server", "a")),
                                             ("deny", ("-m", "deny all", "allow 10.0.0.0/8"))])  # fmt: skip
def test_a_command_that_is_refused_is_named(chronyd: FakeChronyd, verb: str, words: tuple[str, ...]) -> None:
    chronyd.change(refused={verb: "501 Not authorised"})
    with pytest.raises(NotAppliedError, match="501 Not authorised") as caught:
        carry_out([Fix(words, "for a test")])
    assert caught.value.thing == "chronyc " + " ".join(words)


def test_a_source_that_comes_back_is_still_to_do(chronyd: FakeChronyd) -> None:
    look(None)
    chronyd.add("192.0.2.66")
    chronyd.change(returning=["192.0.2.66"])
    assert [fix.words for fix in put_right()] == [("delete", "192.0.2.66")]


def test_two_looks_at_different_sources_are_not_mixed(chronyd: FakeChronyd) -> None:
    """A source that is gone again at the second look must not give all others another one's address."""
    look(None)
    looks = chronyd.state["looks"]
    chronyd.change(restless=[looks])
    assert left() == []
    chronyd.change(restless=list(range(looks, looks + 40, 2)), looks=looks)
    with pytest.raises(BusyError, match="another number at each look"):
        look(None)


# --- the comparison alone --------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "10.0.0.1", "2001:db8::1"])


@given(st.lists(st.tuples(NAMES, st.uuids().map(str))), st.sets(NAMES))
def test_carrying_out_the_fixes_leaves_nothing_to_do(sources: list[tuple[str, str]], wanted: set[str]) -> None:
    options = dict.fromkeys(sorted(wanted), OPTIONS)
    now = list(sources)
    for fix in fixes(Running(sources, [], []), options, RELOAD):
        if fix.words[0] == "delete":
            now = [source for source in now if source[1] != fix.words[1]]
        else:
            now.append((fix.words[2], "new"))
    assert fixes(Running(now, [], []), options, RELOAD) == []
    assert sorted(name for name, _ in now) == sorted(wanted)
