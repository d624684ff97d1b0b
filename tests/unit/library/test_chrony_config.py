"""library/chrony_config.py through main(): real files, a systemctl and a chronyd that remember."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chrony_config
import pytest
from ansible.module_utils.steadyrack import chrony_apply, service_plan, time_settle, units
from fake_chronyd import FOLLOWING, FakeChronyd
from fake_node import FakeNode, run_module

Call = Callable[..., dict[str, Any]]

SETTLE = "systemctl restart --no-block steadyrack-time-settle.service"
KEY = {"id": 7, "type": "SHA256", "key": "HEX:1dc764e0791b11fa67efc7ecbc4b0d73f68a070c"}
CLIENT: dict[str, Any] = {
    "mode": "client",
    "site": "site-a",
    "sources": [{"address": "10.213.1.21"}, {"address": "10.213.1.22"}],
    "rivals": ["systemd-timesyncd.service", "ntp.service"],
}
RELAY: dict[str, Any] = {
    "mode": "relay",
    "site": "site-a",
    "sources": [{"address": name} for name in ("time.a.example", "time.b.example", "192.0.2.3", "2001:db8::4")],
    "peers": ["10.213.1.22"],
    "other_sites": {"10.213.0.41": "site-b"},
    "client_networks": ["10.213.1.0/24", "2001:db8:1::/64"],
}
# Debian's own, of the package chrony 4.3-2 (Debian 12), without its comments.
PACKAGED = """\
confdir {etc}/conf.d
pool 2.debian.pool.ntp.org iburst
sourcedir {run}
sourcedir {etc}/sources.d
keyfile /etc/chrony/chrony.keys
driftfile /var/lib/chrony/chrony.drift
ntsdumpdir /var/lib/chrony
logdir /var/log/chrony
maxupdateskew 100.0
rtcsync
makestep 1 3
leapsectz right/UTC
"""


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "SETTLE_S", 0.0)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> chrony_apply.Paths:
    """A host's directories, below the test's own."""
    root = tmp_path / "host"
    for folder in ("etc/chrony", "etc/default", "run", "usr/systemd/system", "etc/systemd/system", "proc/1/fd"):
        (root / folder).mkdir(parents=True)
    made = chrony_apply.Paths(
        conf=str(root / "etc/chrony/chrony.conf"),
        sourcedir=str(root / "etc/chrony/steadyrack.d"),
        keyfile=str(root / "etc/chrony/steadyrack.keys"),
        owner=pwd.getpwuid(os.geteuid()).pw_name,
        group=grp.getgrgid(os.getegid()).gr_name,
        options_file=str(root / "etc/default/chrony"),
        note=str(root / "etc/steadyrack/time_sync.json"),
        units=str(root / "usr/systemd/system"),
        drop_ins=str(root / "etc/systemd/system"),
        root=str(root),
    )
    monkeypatch.setattr(chrony_apply, "Paths", lambda: made)
    return made


@pytest.fixture
def root(paths: chrony_apply.Paths) -> Path:
    return Path(paths.root)


@pytest.fixture
def chronyd(node: FakeNode, paths: chrony_apply.Paths) -> FakeChronyd:
    """The package is there; chronyd runs as the package has it, and follows nobody."""
    node.installed(chrony="install ok installed")
    node.answers("chronyd", "chronyd (chrony) version 4.6.1 (+CMDMON +NTP)\n")
    node.answers("getent", "192.0.2.1 STREAM x\n")
    node.set_units(
        {
            "chrony.service": {"active": "active", "file_state": "enabled", "asked": True},
            "steadyrack-time-settle.service": {"active": "inactive", "file_state": "static", "type": "exec"},
        }
    )
    return FakeChronyd(node, Path(paths.conf), Path(paths.sourcedir))


@pytest.fixture
def call(node: FakeNode, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """One call of the module; markers go below the test's directory."""

    def run(base: dict[str, Any], check: bool = False, **changes: Any) -> dict[str, Any]:
        return run_module(
            chrony_config, {**base, "pending_directory": str(tmp_path / "pending"), **changes}, capsys, check
        )

    return run


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def deeds(node: FakeNode) -> list[str]:
    """What was done, without the looks of validators and resolvers."""
    return [deed for deed in node.deeds() if not deed.startswith(("chronyd ", "getent "))]


def job(root: Path, number: int = 4242) -> None:
    """A process that uses a GPU."""
    folder = root / f"proc/{number}/fd"
    folder.mkdir(parents=True)
    (folder / "12").symlink_to("/dev/nvidia-uvm")


def follow(chronyd: FakeChronyd) -> None:
    """The clock follows a source."""
    chronyd.add("192.0.2.9")
    chronyd.change(tracking=FOLLOWING)


def held(root: Path) -> str | None:
    """The file that has later starts keep their samples and not step."""
    path = root / time_settle.ENVIRONMENT_PATH
    return path.read_text() if path.exists() else None


# --- from nothing to as given ----------------------------------------------------------------------------


def test_without_the_package_it_is_named_and_nothing_is_changed(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.installed()
    node.set_units({})
    (node.bin / "chronyd").unlink()
    monkeypatch.setattr("ansible.module_utils.steadyrack.run.SYSTEM_PATHS", ())
    before = tree(root)
    result = call(CLIENT)
    assert (result["packages_missing"], result["version"], result["changed"]) == (["chrony"], None, False)
    assert tree(root) == before
    told = call(CLIENT, check=True)
    assert told["changed"]
    assert "start chrony.service" in told["actions"]
    assert tree(root) == before
    assert deeds(node) == []


def test_a_client_is_set_up_and_a_second_run_changes_nothing(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    first = call(CLIENT)
    assert not first.get("failed"), first
    assert (first["changed"], first["version"]) == (True, "4.6")
    done = deeds(node)
    assert "systemctl restart -- chrony.service" in done
    assert done.index("systemctl daemon-reload") < done.index("systemctl restart -- chrony.service")
    assert chronyd.names == ["10.213.1.21", "10.213.1.22"]
    before = tree(root)
    second = call(CLIENT)
    assert (second["changed"], second["actions"], second["diff"]) == (False, [], [])
    assert (second["put_out_of_action"], second.get("warnings")) == ([], None)
    assert tree(root) == before
    assert deeds(node) == [SETTLE]  # nobody is followed yet: the wait goes on


def test_a_relay_is_set_up_and_a_second_run_changes_nothing(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    chronyd.change(addresses={"time.a.example": "192.0.2.1", "time.b.example": "192.0.2.2"})
    assert call(RELAY)["changed"]
    assert [network for network, _ in chronyd.state["allow"]] == RELAY["client_networks"]
    assert chronyd.state["local"] == "stratum 10 orphan distance 0.1 activate 0.1"
    node.calls()
    assert not call(RELAY)["changed"]
    assert deeds(node) == [SETTLE]


def test_check_mode_tells_the_truth_and_changes_nothing(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path, tmp_path: Path
) -> None:
    chronyd.change(tracking=FOLLOWING)
    before = tree(root)
    told = call(CLIENT, check=True)
    assert told["changed"]
    assert tree(root) == before
    assert deeds(node) == []
    assert not (tmp_path / "pending").exists()
    done = call(CLIENT)
    assert done["actions"] == told["actions"]
    conf = next(entry for entry in told["diff"] if entry["after_header"].startswith(f"{root}/etc/chrony/chrony.conf"))
    assert "makestep 0.1 3\n" in conf["after"]
    assert conf["before"] == ""


def test_a_file_that_chronyd_refuses_replaces_nothing_c36(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    """C36."""
    version = "chronyd (chrony) version 4.6.1 (+CMDMON)"
    node.program(
        "chronyd", f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit\necho bad line 4 >&2; exit 1\n'
    )
    Path(root / "etc/chrony/chrony.conf").write_text("theirs\n")
    result = call(CLIENT)
    assert "refused by chronyd: bad line 4" in result["msg"]
    assert (root / "etc/chrony/chrony.conf").read_text() == "theirs\n"


@pytest.mark.parametrize("said", ["chronyd (chrony) version 3.5 (+CMDMON)", "something else"])
def test_a_release_too_old_or_unreadable_stops_before_any_change_c36(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path, said: str
) -> None:
    """C36."""
    node.answers("chronyd", said + "\n")
    before = tree(root)
    result = call(CLIENT)
    assert result["failed"]
    assert ("version 3.5" if "3.5" in said else said) in result["error"]["seen"]
    assert tree(root) == before


def test_before_4_6_the_settle_unit_gets_orphan_mode_c36(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    """C36: with `local` in its file 4.3 would serve a clock that was never set."""
    node.answers("chronyd", "chronyd (chrony) version 4.3 (+CMDMON)\n")
    call(RELAY)
    assert chronyd.state["local"] is None
    note = json.loads((root / "etc/steadyrack/time_sync.json").read_text())
    assert note["local_when_synchronised"] == "stratum 10 orphan distance 0.1"
    # Another distance: the file of 4.3 does not say it, the settle unit does.
    chronyd.change(tracking=FOLLOWING)
    call(RELAY)
    node.calls()
    result = call(RELAY, orphan_distance_s=0.2)
    assert "reload chrony.service" in result["actions"]
    assert deeds(node)[-1] == SETTLE
    chronyd.change(local="stratum 10 orphan distance 0.2")
    call(RELAY, orphan_distance_s=0)
    assert chronyd.state["local"] is None


# --- restart or reload -----------------------------------------------------------------------------------


def set_up(call: Call, node: FakeNode, base: dict[str, Any], **changes: Any) -> None:
    call(base, **changes)
    node.calls()


def restarts(node: FakeNode) -> list[str]:
    return [deed for deed in deeds(node) if deed == "systemctl restart -- chrony.service"]


def test_a_change_of_sources_is_taken_over_without_a_restart(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    set_up(call, node, CLIENT)
    result = call(CLIENT, sources=[{"address": "10.213.1.21"}, {"address": "10.213.1.23"}])
    assert "reload chrony.service" in result["actions"]
    assert restarts(node) == []
    assert chronyd.names == ["10.213.1.21", "10.213.1.23"]


@pytest.mark.parametrize(
    "changes",
    [{"client_networks": ["10.213.1.0/24", "10.213.9.0/24"]}, {"orphan_distance_s": 0.2}, {"orphan_distance_s": 0}],
)
def test_clients_and_orphan_mode_are_taken_over_without_a_restart(
    call: Call, chronyd: FakeChronyd, node: FakeNode, changes: dict[str, Any]
) -> None:
    set_up(call, node, RELAY)
    assert call(RELAY, **changes)["changed"]
    assert restarts(node) == []
    networks = changes.get("client_networks", RELAY["client_networks"])
    assert [network for network, _ in chronyd.state["allow"]] == networks
    distance = changes.get("orphan_distance_s", 0.1)
    wanted = f"stratum 10 orphan distance {distance:g} activate {distance:g}" if distance else None
    assert chronyd.state["local"] == wanted
    assert not call(RELAY, **changes)["changed"]


@pytest.mark.parametrize("changes", [{"max_slew_ppm": 100.0}, {"ratelimit": False}, {"keys": [KEY]}])
def test_what_chronyc_cannot_say_restarts(
    call: Call, chronyd: FakeChronyd, node: FakeNode, changes: dict[str, Any]
) -> None:
    set_up(call, node, RELAY)
    call(RELAY, **changes)
    assert len(restarts(node)) == 1
    assert not call(RELAY, **changes)["changed"]


def test_a_comment_in_chrony_conf_is_put_right_and_disturbs_nobody(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    set_up(call, node, CLIENT)
    conf = root / "etc/chrony/chrony.conf"
    conf.write_text(conf.read_text() + "# a note of mine\n")
    assert call(CLIENT)["actions"] == [f"file {conf}: content"]
    assert restarts(node) == []


def test_an_interrupted_run_is_finished(call: Call, chronyd: FakeChronyd, node: FakeNode, tmp_path: Path) -> None:
    set_up(call, node, CLIENT)
    service_plan.mark_pending("chrony.service", "restart", ["chrony.conf"], str(tmp_path / "pending"))
    result = call(CLIENT)
    assert result["actions"] == ["restart chrony.service"]
    assert len(restarts(node)) == 1
    assert not call(CLIENT)["changed"]


# --- the running daemon ----------------------------------------------------------------------------------


def test_a_rogue_source_and_a_lost_one_are_put_right_without_a_restart_c27(
    call: Call, chronyd: FakeChronyd, node: FakeNode
) -> None:
    """C27."""
    set_up(call, node, CLIENT)
    chronyd.add("192.0.2.66")
    chronyd.lose("10.213.1.22")
    told = call(CLIENT, check=True)
    assert told["changed"]
    assert "192.0.2.66" in chronyd.names
    done = call(CLIENT)
    assert done["actions"] == told["actions"]
    assert "chronyc delete 192.0.2.66 (source 192.0.2.66 is not configured)" in done["actions"]
    assert "source 10.213.1.22 is configured and not there\n" in done["diff"][-1]["before"]
    assert sorted(chronyd.names) == ["10.213.1.21", "10.213.1.22"]
    assert chronyd.state["added"] == ["add server 10.213.1.22 iburst minpoll 4 maxpoll 4 xleave maxsamples 8"]
    assert restarts(node) == []
    assert not call(CLIENT)["changed"]


def test_a_relay_that_serves_the_world_is_put_right(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    set_up(call, node, RELAY)
    chronyd.change(world=True)
    assert call(RELAY)["changed"]
    assert chronyd.state["world"] is False
    assert not call(RELAY)["changed"]


def test_somebody_who_brings_a_source_back_is_named(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    set_up(call, node, CLIENT)
    chronyd.add("192.0.2.66")
    chronyd.change(returning=["192.0.2.66"])
    result = call(CLIENT)
    assert result["error"]["kind"] == "NotAppliedError"
    assert "source 192.0.2.66 is not configured" in result["msg"]


def test_a_network_that_chronyd_does_not_take_is_an_error(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    set_up(call, node, RELAY)
    chronyd.change(deaf=["10.213.1.0/24"], allow=[])
    assert "10.213.1.0/24 is not served" in call(RELAY)["msg"]


def test_a_directory_of_chrony_that_somebody_removed_comes_back(call: Call, chronyd: FakeChronyd, root: Path) -> None:
    call(CLIENT)
    shutil.rmtree(root / "etc/chrony")
    assert call(CLIENT)["changed"] is True
    assert (root / "etc/chrony/steadyrack.d/steadyrack.sources").is_file()
    assert call(CLIENT)["changed"] is False


def test_a_link_in_place_of_our_directory_is_refused(
    call: Call, chronyd: FakeChronyd, root: Path, tmp_path: Path
) -> None:
    """Written through it, all looked well, and the next start of chronyd (PrivateTmp) found no source."""
    folder = root / "etc/chrony/steadyrack.d"
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    assert "a link to" in call(CLIENT)["msg"]
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.fixture
def moved(
    root: Path, paths: chrony_apply.Paths, chronyd: FakeChronyd, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Where one of chronyd's directories would be, with nothing there yet."""

    def move(place: str) -> Path:
        path = root / "there"
        made = paths._replace(**{place: str(path / "drift" if place == "driftfile" else path)})
        monkeypatch.setattr(chrony_apply, "Paths", lambda: made)
        return path

    return move


@pytest.mark.parametrize("place", ["logdir", "driftfile", "dumpdir"])
@pytest.mark.parametrize(
    ("stands", "told"),
    [
        ("file", "a file"),
        ("dangling", "a link to nowhere, which is not there"),
        ("link", "a link to it, which is a file"),
        ("pipe", "no directory"),
    ],
)
def test_a_file_where_chronyd_wants_a_directory_is_said_before_anything_changes(
    moved: Callable[..., Path], call: Call, place: str, stands: str, told: str
) -> None:
    path = moved(place)
    (path.parent / "it").write_text("")
    if stands == "file":
        path.write_text("a log\n")
    elif stands == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere" if stands == "dangling" else "it")
    for check in (True, False):
        answer = call(CLIENT, check)
        assert answer["failed"]
        assert f"{path}: seen {told}, wanted a directory owned by " in answer["msg"]
        assert f"mv {path} {path}.away && install -d" in answer["msg"]
    assert not (path.parent / "etc/chrony/chrony.conf").exists()


@pytest.mark.parametrize("linked", [False, True])
def test_a_directory_or_a_link_to_one_serves_chronyd(moved: Callable[..., Path], call: Call, linked: bool) -> None:
    path = moved("logdir")
    (path.parent / "elsewhere").mkdir()
    path.symlink_to("elsewhere") if linked else path.mkdir()
    assert "msg" not in call(CLIENT, True)


def test_a_daemon_that_its_condition_keeps_down_is_left_alone_c33(
    call: Call, chronyd: FakeChronyd, node: FakeNode
) -> None:
    """C33: in a container without the right to set the clock."""
    node.change_unit("chrony.service", active="inactive", condition="ConditionCapability=CAP_SYS_TIME")
    result = call(CLIENT)
    assert not result.get("failed"), result
    (row,) = result["checks"]
    assert (row["verdict"], "CAP_SYS_TIME" in row["reason"]) == ("not_judged", True)
    assert not call(CLIENT)["changed"]


def test_a_masked_daemon_is_brought_back(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    set_up(call, node, CLIENT)
    node.change_unit("chrony.service", active="inactive", file_state="masked")
    result = call(CLIENT)
    assert {"unmask chrony.service", "start chrony.service"} <= set(result["actions"])
    assert chronyd.names == ["10.213.1.21", "10.213.1.22"]


# --- nobody's clock is stepped -----------------------------------------------------------------------------


def test_who_follows_a_source_is_not_stepped_by_a_restart(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    follow(chronyd)
    # What a start finds in /run decides: it is looked at when systemctl is called.
    real, seen = node.bin / "systemctl-real", root / "seen"
    (node.bin / "systemctl").rename(real)
    copy = f"cp {root / time_settle.ENVIRONMENT_PATH} {seen}"
    node.program("systemctl", f'#!/bin/sh\n[ "$1" != restart ] || {copy} || exit 1\nexec {real} "$@"\n')
    assert call(CLIENT)["changed"]
    assert 'DAEMON_OPTS="-r -R"' in seen.read_text()


def test_while_a_job_runs_a_restart_does_not_step(call: Call, chronyd: FakeChronyd, root: Path) -> None:
    job(root)
    call(CLIENT)
    assert 'DAEMON_OPTS="-r -R"' in (held(root) or "")


def test_where_jobs_cannot_be_seen_nothing_is_stepped(call: Call, chronyd: FakeChronyd, root: Path) -> None:
    shutil.rmtree(root / "proc")
    call(CLIENT)
    assert 'DAEMON_OPTS="-r -R"' in (held(root) or "")


def test_a_clock_that_was_never_set_may_be_stepped_when_no_job_runs_c34(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    """C34."""
    call(CLIENT)
    assert held(root) is None
    assert deeds(node)[-1] == SETTLE


def test_once_held_the_wait_is_not_begun_again(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    follow(chronyd)
    call(CLIENT)
    assert SETTLE not in deeds(node)
    call(CLIENT)
    assert deeds(node) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", "-r -R"),
        ("# DAEMON_OPTS=-4\nOTHER=x\n", "-r -R"),
        ('DAEMON_OPTS="-F 1"\n', "-F 1 -r -R"),
        ("DAEMON_OPTS='-F 1 -x'\n", "-F 1 -x -r -R"),
        ("  DAEMON_OPTS = -x  \n", "-x -r -R"),
        ('DAEMON_OPTS="-r -F 1 -R"\n', "-F 1 -r -R"),
        ('DAEMON_OPTS=-4\nDAEMON_OPTS="-6"\n', "-6 -r -R"),
    ],
)
def test_the_administrators_options_are_kept(
    call: Call, chronyd: FakeChronyd, root: Path, given: str, kept: str
) -> None:
    (root / "etc/default/chrony").write_text(given)
    job(root)
    call(CLIENT)
    assert (held(root) or "").splitlines()[1:] == [f'DAEMON_OPTS="{kept}"']


def test_options_that_the_administrator_changed_later_are_taken_over(
    call: Call, chronyd: FakeChronyd, root: Path
) -> None:
    job(root)
    call(CLIENT)
    (root / "etc/default/chrony").write_text('DAEMON_OPTS="-F 1"\n')
    call(CLIENT)
    assert 'DAEMON_OPTS="-F 1 -r -R"' in (held(root) or "")


def test_quotes_that_stay_open_are_named(call: Call, chronyd: FakeChronyd, root: Path) -> None:
    (root / "etc/default/chrony").write_text('DAEMON_OPTS="-F 1\n')
    job(root)
    result = call(CLIENT)
    assert result["error"]["thing"] == str(root / "etc/default/chrony")
    assert not (root / "etc/chrony/chrony.conf").exists()


def test_a_settle_unit_that_does_not_start_is_an_error(call: Call, chronyd: FakeChronyd, node: FakeNode) -> None:
    call(CLIENT)
    node.change_unit("steadyrack-time-settle.service", file_state="masked")
    assert "steadyrack-time-settle.service" in call(CLIENT)["msg"]


# --- secrets -------------------------------------------------------------------------------------------


def test_a_secret_is_in_its_file_and_in_no_result(call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path) -> None:
    secret, other = KEY["key"], "HEX:" + "ab" * 20
    told = call(CLIENT, check=True, keys=[KEY], key_id=7)
    done = call(CLIENT, keys=[KEY], key_id=7)
    path = root / "etc/chrony/steadyrack.keys"
    assert f"7 SHA256 {secret}\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    changed = call(CLIENT, keys=[{**KEY, "key": other}], key_id=7)
    assert changed["changed"]
    assert "chronyc rekey" in node.calls()
    gone = call(CLIENT)
    assert not path.exists()
    for result in (told, done, changed, gone):
        assert not result.get("failed"), result
        assert not any(word in json.dumps(result) for word in (secret, other, secret[4:], other[4:]))


@pytest.mark.parametrize("key", ["hunter2 hunter2", "HEX:hunter2", "HEX:123"])
def test_a_malformed_secret_is_refused_without_being_told(
    call: Call, chronyd: FakeChronyd, root: Path, key: str
) -> None:
    before = tree(root)
    result = call(CLIENT, keys=[{**KEY, "key": key}], key_id=7)
    assert result["error"]["thing"] == "key 7"
    assert key not in json.dumps(result)
    assert tree(root) == before


# --- names that do not resolve -----------------------------------------------------------------------------


def resolves(node: FakeNode, *names: str) -> None:
    cases = "".join(f"{name}) echo 192.0.2.1 STREAM;;" for name in names)
    node.program("getent", f'#!/bin/sh\ncase "$2" in {cases} *) exit 2;; esac\n')


def test_names_of_which_none_resolves_stop_before_any_change(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    resolves(node)
    before = tree(root)
    names = [{"address": "time.a.example"}, {"address": "time.b.example"}]
    for check in (True, False):
        result = call(RELAY, check=check, sources=names)
        assert "none of time.a.example, time.b.example resolves on this host" in result["msg"]
        assert "behind a firewall give addresses" in result["msg"]
        assert tree(root) == before


def test_a_name_that_does_not_resolve_is_a_warning_and_addresses_are_not_asked_for(
    call: Call, chronyd: FakeChronyd, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a node warnings are part of the result; where a test before this one has loaded the controller's code, they
    # would be shown instead.
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)
    resolves(node, "time.a.example")
    result = call(RELAY)
    assert not result.get("failed"), result
    assert "time.b.example does not resolve on this host" in json.dumps(result["warnings"])
    assert len(result["warnings"]) == 1
    node.answers("getent", "", 2)
    assert not call(CLIENT).get("failed")
    assert [line for line in node.calls() if line.startswith("getent")] == []


# --- what was here before ------------------------------------------------------------------------------------


def packaged(root: Path) -> None:
    """A host as Debian's package and a DHCP client leave it."""
    etc, lease = root / "etc/chrony", root / "run/chrony-dhcp"
    for folder in (etc / "conf.d", etc / "sources.d", lease):
        folder.mkdir()
    (etc / "chrony.conf").write_text(PACKAGED.format(etc=etc, run=lease))
    (etc / "sources.d/ubuntu-ntp-pools.sources").write_text(
        "# NTS\npool ntp-nts-1.ps5.canonical.com iburst nts prefer\n"
    )
    (etc / "sources.d/README").write_text("server not.read.example\n")
    (etc / "conf.d/cloud.conf").write_text("refclock PHC /dev/ptp0 poll 3\nmaxdistance 3\n")
    (lease / "eth0.sources").write_text("server 192.0.2.10 iburst\n")


def test_sources_that_are_asked_no_more_are_listed_once_c27(call: Call, chronyd: FakeChronyd, root: Path) -> None:
    """C27."""
    packaged(root)
    listed = [
        f"{root}/etc/chrony/chrony.conf: pool 2.debian.pool.ntp.org iburst",
        f"{root}/etc/chrony/conf.d/cloud.conf: refclock PHC /dev/ptp0 poll 3",
        f"{root}/run/chrony-dhcp/eth0.sources: server 192.0.2.10 iburst",
        f"{root}/etc/chrony/sources.d/ubuntu-ntp-pools.sources: pool ntp-nts-1.ps5.canonical.com iburst nts prefer",
    ]
    assert sorted(call(CLIENT, check=True)["put_out_of_action"]) == sorted(listed)
    assert sorted(call(CLIENT)["put_out_of_action"]) == sorted(listed)
    again = call(CLIENT, sources=[{"address": "10.213.1.21"}])
    assert again["changed"]
    assert again["put_out_of_action"] == []
    # A lease that is renewed brings the file back: chronyd no longer looks there.
    assert not call(CLIENT, sources=[{"address": "10.213.1.21"}])["changed"]


def test_a_line_added_to_our_file_is_removed_and_named_c27(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    """C27."""
    set_up(call, node, CLIENT)
    conf, extra = root / "etc/chrony/chrony.conf", root / "etc/chrony/steadyrack.d/hook.sources"
    conf.write_text(conf.read_text() + "server 192.0.2.66\n")
    extra.write_text("server 192.0.2.67\n")
    result = call(CLIENT)
    assert result["put_out_of_action"] == [f"{conf}: server 192.0.2.66", f"{extra}: server 192.0.2.67"]
    assert "192.0.2.66" not in conf.read_text()
    assert not extra.exists()
    assert call(CLIENT)["put_out_of_action"] == []


def test_other_keepers_of_the_clock_are_masked_where_they_exist_c25(
    call: Call, chronyd: FakeChronyd, node: FakeNode
) -> None:
    """C25: the package of chrony removes timesyncd; absent counts as done."""
    node.change_unit("ntp.service", active="active", file_state="enabled", asked=True)
    for result in (call(CLIENT, check=True), call(CLIENT)):
        assert not result.get("failed"), result
        assert {"stop ntp.service", "mask ntp.service"} <= set(result["actions"])
        assert not any("timesyncd" in action for action in result["actions"])
    assert node.unit("ntp.service") == {"active": "inactive", "file_state": "masked", "asked": True}
    assert not call(CLIENT)["changed"]
    # A second NTP daemon, installed after us.
    node.change_unit("systemd-timesyncd.service", active="active", file_state="enabled", asked=True)
    assert "mask systemd-timesyncd.service" in call(CLIENT)["actions"]


# --- hardware ------------------------------------------------------------------------------------------------


def test_hardware_that_stamps_is_used_unless_a_ptp_daemon_has_its_clock(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path
) -> None:
    for name in ("eth0", "lo", "eth1"):
        (root / "sys/class/net" / name).mkdir(parents=True)
    for name in ("eth0", "eth1"):
        (root / "sys/class/net" / name / "device/ptp/ptp0").mkdir(parents=True)
    conf = root / "etc/chrony/chrony.conf"
    call(CLIENT)
    assert [line for line in conf.read_text().splitlines() if line.startswith("hwt")] == [
        "hwtimestamp eth0", "hwtimestamp eth1",
    ]  # fmt: skip
    call(CLIENT, hwtimestamp=False)
    assert "hwtimestamp" not in conf.read_text()
    (root / "proc/77").mkdir()
    (root / "proc/77/comm").write_text("ptp4l\n")
    call(CLIENT)
    assert "hwtimestamp" not in conf.read_text()


@pytest.mark.parametrize(
    "changes",
    [{"sources": []}, {"mode": "server"}, {"relay_poll": [4]}, {"warn_ms": 40.0}, {"key_id": 3},
     {"sources": [{"address": "a\nallow all"}]}, {"sources": ["10.0.0.1"]}, {"sources": [{"adress": "a"}]}],
)  # fmt: skip
def test_malformed_parameters_are_refused_before_any_change(
    call: Call, chronyd: FakeChronyd, node: FakeNode, root: Path, changes: dict[str, Any]
) -> None:
    before = tree(root)
    result = call(CLIENT, **changes)
    assert result["failed"]
    assert tree(root) == before
    assert node.calls() == []
