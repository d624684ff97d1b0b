"""The watch: one look after another over recorded answers, on a clock of the test's."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import (
    alarms,
    firewall_checks,
    nft_trial,
    time_checks,
    time_egress,
    time_metrics,
    time_watch,
)
from ansible.module_utils.steadyrack.run import Completed
from clocks import SOURCE, SYNCED

NOTE = {
    "version": 2, "mode": "client", "site": "site-a", "unit": "chrony", "sources": ["10.88.0.51"], "alarm_ms": 30,
    "warn_ms": 10, "rivals": ["ntpsec.service"],
}  # fmt: skip
UNIT = (
    "Id={name}\nNames={name}\nLoadState={load}\nActiveState={active}\nSubState=x\nUnitFileState=enabled\nType=forking\n"
    "ConditionResult=yes\nConditionTimestampMonotonic=1\nResult=success\nNeedDaemonReload=no\n"
)


class Node:
    """A host whose chronyd says what the test wants, and a watch on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.offset, self.stratum, self.reach, self.down = 0.0, 3, "377", False
        self.rival = False
        self.packets: int | None = None
        self.rules = self.would_load = "the rules"
        self.now, self.at = 100.0, 1_000_000.0
        self.said: list[str] = []
        self.asked: list[str] = []
        self.write(time_checks.POLICY_PATH, NOTE)
        (root / "var/lib/steadyrack").mkdir(parents=True)
        self.watch = self.fresh()

    def write(self, path: str, value: Any) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(json.dumps(value))

    def fresh(self) -> time_watch.Watch:
        return time_watch.Watch(
            str(self.root), runner=self.run, monotonic=lambda: self.now, wall=lambda: self.at, out=self.said.append,
            hook_owner=os.geteuid(),
        )  # fmt: skip

    def run(self, argv: list[str], _timeout_s: float = 0, _text: str = "") -> Completed:
        self.asked.append(argv[0])
        if argv[0] == "chronyc":
            if self.down:
                return Completed(argv, 1, "506 Cannot talk to daemon\n", "")
            if argv[-1] == "sources":
                out = SOURCE.format(
                    name="10.88.0.51", state="*" if self.reach != "0" else "?", poll=4, reach=self.reach
                )
            else:
                line = SYNCED.format(offset=f"{self.offset:.9f}", delay="0.0", dispersion="0.0").split(",")
                line[2], line[3] = str(self.stratum), f"{self.at:.9f}"
                out = ",".join(line)
            return Completed(argv, 0, out, "")
        if argv[0] == "systemctl":
            units = [UNIT.format(name="chrony.service", load="loaded", active="active")]
            state = ("loaded", "active") if self.rival else ("not-found", "inactive")
            units.append(UNIT.format(name="ntpsec.service", load=state[0], active=state[1]))
            return Completed(argv, 0, "\n\n".join(units[: len(argv) - argv.index("--") - 1]), "")
        if argv[0] == "unshare":
            return Completed(argv, 0, self.would_load, "")
        assert argv[0] == "nft"
        if self.packets is not None and "--stateless" in argv:
            return Completed(argv, 0, self.rules, "")
        if self.packets is None:
            return Completed(argv, 1, "", "No such file or directory")
        where = {"family": "inet", "table": "steadyrack_ntp", "bytes": 0}
        counter = {"counter": {**where, "name": "ntp_egress", "packets": self.packets}}
        return Completed(argv, 0, json.dumps({"nftables": [counter]}), "")

    def looks(self, number: int) -> list[str]:
        """What is said during so many looks, 10 s apart, without the host's own words before it."""
        before = len(self.said)
        for _ in range(number):
            self.now += 10
            self.at += 10
            self.watch.look()
        return self.said[before:]

    def metrics(self) -> str:
        return (self.root / time_metrics.OWN_DIRECTORY / time_metrics.FILE).read_text()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-a1")
    return Node(tmp_path)


FIREWALL = {
    "version": 1, "mode": "node", "family": "inet", "table": "steadyrack_ntp", "counters": ["ntp_egress"],
    "rules": "/etc/steadyrack/firewall/ntp.nft",
}  # fmt: skip


@pytest.fixture
def walled(node: Node) -> Node:
    node.write(time_egress.NOTE_PATH, FIREWALL)
    node.write("etc/steadyrack/firewall/ntp.nft", {})
    node.packets = 0
    return node


def test_rules_that_somebody_flushed_ring_within_a_minute_and_end(walled: Node) -> None:
    assert walled.looks(3) == []
    walled.packets = None
    (line,) = walled.looks(5)
    assert line.startswith("<1>ALARM: gpu-a1: firewall.ntp inet steadyrack_ntp: the table is not loaded")
    walled.packets = 0
    (line,) = walled.looks(12)
    assert line.startswith("<5>ended after")


def test_rules_that_somebody_edited_ring(walled: Node) -> None:
    walled.rules = "other rules"
    (line,) = walled.looks(5)
    assert "the live table is not what /etc/steadyrack/firewall/ntp.nft would load" in line


def test_a_long_trial_of_new_rules_rings_nothing_and_one_that_never_ends_does(
    walled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    walled.looks(2)
    now = [5000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    walled.rules = "new rules"
    marker = {"version": 1, "target": "new rules", "timeout_s": 300, "armed_at": now[0]}
    walled.write(f"{nft_trial.TRIAL_DIRECTORY[1:]}/trial.json", marker)
    now[0] += 299
    assert walled.looks(29) == []
    walled.rules = "other rules"
    assert len(walled.looks(4)) == 1
    walled.rules = "new rules"  # on trial again: that is no end of it
    assert walled.looks(20) == []
    assert "alarms: firewall.ntp" in walled.watch._status()
    walled.rules = walled.would_load
    assert any("ended after" in line for line in walled.looks(12))
    walled.rules = "new rules"
    now[0] += nft_trial.OVERDUE_S + 2
    (line,) = walled.looks(5)
    assert "firewall.ntp" in line


def test_what_the_file_would_load_is_asked_once_and_again_when_it_has_changed(walled: Node) -> None:
    walled.looks(20)
    assert walled.asked.count("unshare") == 1
    walled.write("etc/steadyrack/firewall/ntp.nft", {"other": "rules"})
    walled.looks(20)
    assert walled.asked.count("unshare") == 2


def test_rules_that_nft_lists_in_other_words_since_a_package_came_do_not_ring(walled: Node) -> None:
    """netbase brings /etc/protocols: "tcp" where nft said 6 before, live and of the file."""
    walled.looks(2)
    walled.rules = walled.would_load = "the same rules, in other words"
    assert walled.looks(10) == []


def test_a_leak_that_has_ended_does_not_stand_for_ever_as_the_firewalls(walled: Node) -> None:
    walled.looks(2)
    walled.packets = 3
    assert any("time.egress" in line for line in walled.looks(4))
    walled.looks(100)
    assert "alarms" not in walled.watch._status()


def test_while_all_is_well_nothing_is_said_and_nothing_but_metrics_written(node: Node) -> None:
    assert node.looks(50) == []
    assert not (node.root / alarms.STATE_PATH).exists()
    assert 'steadyrack_time_state{state="synchronised"} 1' in node.metrics()


def test_an_offset_rings_at_alert_priority_within_a_minute_and_ends_as_visibly(node: Node) -> None:
    node.looks(3)
    node.offset = 0.060
    (line,) = node.looks(5)
    assert line.startswith("<1>ALARM: gpu-a1: time.offset gpu-a1: the clock may be off by 60.000 ms")
    assert 'steadyrack_time_alarm_active{check="time.offset"} 1' in node.metrics()
    node.offset = 0.0
    (line,) = node.looks(10)
    assert line.startswith("<5>ended after ")
    assert 'steadyrack_time_alarm_active{check="time.offset"} 0' in node.metrics()


def test_an_unsynchronised_clock_rings_although_its_offset_reads_zero(node: Node) -> None:
    node.looks(3)
    node.down = True
    (line,) = node.looks(5)
    assert "<1>ALARM: gpu-a1: time.synchronised gpu-a1: the time daemon is unreachable" in line
    assert "steadyrack_time_offset_seconds" not in node.metrics()
    assert node.looks(100) == []  # offset and sources are unknown for the same reason


def test_a_silent_only_source_and_an_islanded_relay_ring(node: Node) -> None:
    node.reach = "0"
    assert any("time.sources 10.88.0.51: does not answer" in line for line in node.looks(1))
    node.reach, node.stratum = "377", 11
    assert any("time.synchronised gpu-a1: the clock runs free" in line for line in node.looks(6))


def test_a_rival_and_a_leak_ring_within_a_minute(node: Node) -> None:
    node.write(time_egress.NOTE_PATH, {"version": 1, "mode": "client", "counters": ["ntp_egress"]})
    node.packets = 7
    assert node.looks(6) == []  # counted before the watch began
    node.rival, node.packets = True, 9
    said = node.looks(5)
    assert any("time.daemon ntpsec.service" in line for line in said)
    assert any("time.egress gpu-a1: 2 packets more" in line for line in said)
    record = time_egress.load_record(str(node.root))
    assert record is not None
    assert record.packets == 9


def test_a_restart_of_the_agent_says_nothing_anew_and_the_end_is_still_told(node: Node) -> None:
    node.offset = 0.060
    assert len(node.looks(4)) == 1
    node.now = 5.0  # after a reboot the monotonic clock begins anew
    node.watch = node.fresh()
    assert node.looks(20) == []
    node.offset = 0.0
    (line,) = node.looks(10)
    assert "ended after" in line


def test_a_state_file_of_garbage_is_said_and_the_watch_goes_on(node: Node) -> None:
    (node.root / alarms.STATE_PATH).write_text('{"version": 1, "alar')
    node.watch = node.fresh()
    assert node.said[0].startswith("<3>the alarms of the run before are lost")
    node.offset = 0.060
    assert len(node.looks(4)) == 1
    assert json.loads((node.root / alarms.STATE_PATH).read_text())["alarms"]


@pytest.mark.parametrize("since", ["NaN", "1e400", "1e300"])
def test_a_state_file_with_no_moment_in_it_does_not_stop_the_watch_at_each_start(node: Node, since: str) -> None:
    node.offset = 0.060
    node.looks(4)
    path = node.root / alarms.STATE_PATH
    value = json.loads(path.read_text())
    value["alarms"][0]["since"] = "HERE"
    path.write_text(json.dumps(value).replace('"HERE"', since))
    node.watch = node.fresh()
    assert "the alarms of the run before are lost" in node.said[-1]
    assert len(node.looks(4)) == 1


def test_an_alarm_of_a_check_that_is_not_made_any_more_ends(node: Node) -> None:
    """The other site has left the inventory: nobody measures time.skew, which had been in alarm."""
    note = {**NOTE, "mode": "relay", "other_sites": {"10.88.0.51": "site-b"}, "sources": ["10.88.0.51"]}
    node.write(time_checks.POLICY_PATH, {**note, "site_skew_alarm_ms": 0.0000001})
    assert any("time.skew" in line and "too uncertain" in line for line in node.looks(40))
    node.write(time_checks.POLICY_PATH, {**note, "other_sites": {}})
    assert any("ended after" in line and "time.skew" in line for line in node.looks(12))
    assert not [one for one in node.watch._alarms.standing() if one.id == "time.skew"]


def test_a_flushed_firewall_rings_within_a_minute(node: Node) -> None:
    rules = "etc/steadyrack/firewall/ntp.nft"
    note = {"version": 1, "mode": "relay", "family": "inet", "table": "steadyrack_ntp", "rules": f"/{rules}"}
    node.write(firewall_checks.POLICY_PATH, {**note, "counters": []})
    said = node.looks(6)  # the fake nft has no table
    wanted = "<1>ALARM: gpu-a1: firewall.ntp inet steadyrack_ntp: the table is not loaded"
    assert any(line.startswith(wanted) for line in said)


def test_a_note_that_cannot_be_used_rings_after_a_while_and_one_taken_away_ends_all(node: Node) -> None:
    node.offset = 0.060
    node.looks(4)
    note = node.root / time_checks.POLICY_PATH
    note.write_text("{")
    (line,) = node.looks(40)
    assert "<4>warning: gpu-a1: time.synchronised" in line
    assert "not JSON" in line
    note.unlink()
    assert len(node.looks(10)) == 2
    assert node.looks(50) == []


def test_a_note_that_is_gone_while_the_roles_files_stand_ends_nothing_and_is_said(node: Node) -> None:
    node.write("etc/chrony/steadyrack.d/steadyrack.sources", "")
    node.offset = 0.060
    assert len(node.looks(4)) == 1
    (node.root / time_checks.POLICY_PATH).unlink()
    (line,) = node.looks(30)
    assert "<1>ALARM: gpu-a1: time.config gpu-a1: /etc/steadyrack/time_sync.json is gone" in line
    assert 'steadyrack_time_alarm_active{check="time.offset"} 1' in node.metrics()
    node.write(time_checks.POLICY_PATH, NOTE)
    node.offset = 0.0
    assert any("ended after" in line and "time.offset" in line for line in node.looks(10))


def test_a_wall_clock_set_back_by_a_year_neither_stops_nor_rings(node: Node) -> None:
    node.looks(3)
    node.at -= 365 * 86400
    assert node.looks(10) == []
    node.offset = 0.060
    assert len(node.looks(3)) == 1


def test_a_full_disk_is_said_once_and_alarms_ring_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.looks(1)

    def full(*_args: Any, **_more: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkstemp", full)
    node.offset = 0.060
    said = node.looks(20)
    assert sum("No space left" in line for line in said) == 2  # the metrics and the state file
    assert sum("ALARM" in line for line in said) == 1
    monkeypatch.undo()
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    assert sum("works again" in line for line in node.looks(2)) == 2


def test_hooks_get_the_event_with_host_and_site(node: Node) -> None:
    folder = node.root / "etc/steadyrack/alarm.d"
    folder.mkdir()
    (folder / "10-a").write_text(f"#!/bin/sh\ncat > {node.root}/event\n")
    (folder / "10-a").chmod(0o755)
    node.offset = 0.060
    node.looks(3)
    give_up = time.monotonic() + 10
    while node.watch.tick() is not None:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    event = json.loads((node.root / "event").read_text())
    assert (event["host"], event["site"], event["id"], event["event"]) == ("gpu-a1", "site-a", "time.offset", "raised")
    assert event["since"] == "1970-01-12T13:46:50Z"
    assert event["measured"] == 60.0
    assert json.loads((node.root / alarms.STATE_PATH).read_text())["undelivered"] == []


def test_systemd_is_told_ready_fed_and_told_stopping(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        stop = threading.Event()
        watch = time_watch.Watch(str(node.root), runner=node.run, wall=lambda: node.at, out=node.said.append)
        thread = threading.Thread(target=watch.serve, args=(0.05, stop))
        thread.start()
        told = [manager.recv(4096).decode() for _ in range(4)]
        stop.set()
        thread.join(10)
        told += [manager.recv(4096).decode()]
    assert not thread.is_alive()
    assert told[0] == "READY=1"
    assert told[1] == "WATCHDOG=1\nSTATUS=all well"
    assert set(told[2:-1]) <= {told[1], "STOPPING=1"}


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative", "/no/such/socket"):
        monkeypatch.setenv("NOTIFY_SOCKET", value)
        time_watch.notify("READY=1")


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (119, "119 s"), (180, "3 min"), (7200, "2.0 h")])
def test_spans_for_people(seconds: float, text: str) -> None:
    assert time_watch.span(seconds) == text
