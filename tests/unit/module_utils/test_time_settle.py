"""When stepping ends: what counts as a job, what later starts are told, and the wait itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import time_settle
from ansible.module_utils.steadyrack.errors import StateFileError, SteadyrackError, ToolError
from ansible.module_utils.steadyrack.time_settle import (
    Closed,
    environment_text,
    given_options,
    gpu_processes,
    hold_steps,
    settle,
    steps_held,
)
from fake_chronyd import FOLLOWING, GUESSING, LOST, FakeChronyd
from fake_node import FakeNode
from hypothesis import given
from hypothesis import strategies as st

LOCAL = "stratum 10 orphan distance 0.1"
NOTE = {
    "version": 2, "mode": "client", "local_when_synchronised": None,
    "options_file": "/etc/default/chrony", "options_variable": "DAEMON_OPTS",
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A client whose role has run; no job."""
    path = tmp_path / "host"
    for folder in ("etc/steadyrack", "etc/default", "run", "proc/self"):
        (path / folder).mkdir(parents=True)
    (path / "etc/default/chrony").write_text('DAEMON_OPTS="-F 1"\n')
    process(path, 1, "/dev/null")
    note(path)
    return path


@pytest.fixture
def chronyd(node: FakeNode, tmp_path: Path) -> FakeChronyd:
    node.set_units({"chrony.service": {"active": "active"}})
    daemon = FakeChronyd(node, tmp_path / "none", tmp_path)
    daemon.add("10.213.1.21")
    return daemon


def note(root: Path, **changes: Any) -> None:
    (root / "etc/steadyrack/time_sync.json").write_text(json.dumps({**NOTE, **changes}))


def process(root: Path, number: int, *targets: str) -> None:
    folder = root / f"proc/{number}/fd"
    folder.mkdir(parents=True)
    for descriptor, target in enumerate(targets):
        (folder / str(descriptor)).symlink_to(target)


def wait(root: Path, looks: int = 3, each: Any = None) -> tuple[Closed | None, list[str]]:
    """What the wait came to within some looks, and what it said; ``each`` is called between two looks."""
    said: list[str] = []
    return settle(str(root), say=said.append, pause=each or (lambda _s: None), looks=looks), said


# --- jobs ----------------------------------------------------------------------------------------------


def test_who_uses_cuda_is_a_job_and_who_only_watches_is_none(root: Path) -> None:
    process(root, 20, "/dev/null", "socket:[1234]", "/dev/nvidiactl", "/dev/nvidia0")  # nvidia-persistenced, DCGM
    process(root, 21)
    assert gpu_processes(str(root)) == []
    process(root, 300, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
    process(root, 22, "/dev/nvidia-uvm")
    process(root, 23, "/dev/nvidia-uvm-tools")
    assert gpu_processes(str(root)) == [22, 300]


def test_a_device_that_was_removed_since_is_a_job_all_the_same(root: Path) -> None:
    process(root, 22, "/dev/nvidia-uvm (deleted)")
    process(root, 23, "/dev/nvidia-uvm-tools (deleted)")
    assert gpu_processes(str(root)) == [22]


def test_a_process_that_has_ended_is_none(root: Path) -> None:
    (root / "proc/77").mkdir()
    (root / "proc/78").write_text("no directory")
    assert gpu_processes(str(root)) == []


def test_where_nothing_can_be_seen_it_is_unknown_not_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_processes(str(root / "nowhere")) is None
    real = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/1/fd"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", refuse)  # root may look everywhere
    assert gpu_processes(str(root)) is None


# --- the options of later starts ---------------------------------------------------------------------------


def value_of(text: str) -> list[str]:
    """The words that systemd makes of the file: outer quotes off, backslashes undone, split as a shell does."""
    import shlex

    line = text.splitlines()[-1]
    assert line.startswith('DAEMON_OPTS="')
    assert line.endswith('"')
    (value,) = shlex.split(line.split("=", 1)[1])
    return shlex.split(value)


@pytest.mark.parametrize(
    ("given_text", "words"),
    [
        ("", ["-r", "-R"]),
        ("-F 1", ["-F", "1", "-r", "-R"]),
        ("-R -F 1 -r", ["-F", "1", "-r", "-R"]),
        ("-f '/etc/my chrony.conf' -4", ["-f", "/etc/my chrony.conf", "-4", "-r", "-R"]),
        ('"cmdport 0" -x', ["cmdport 0", "-x", "-r", "-R"]),
    ],
)
def test_what_was_given_is_kept_word_by_word_and_ours_stands_once(given_text: str, words: list[str]) -> None:
    assert value_of(environment_text("DAEMON_OPTS", given_text)) == words


@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1)))
def test_every_word_arrives(words: list[str]) -> None:
    import shlex

    kept = [word for word in words if word not in ("-r", "-R")]
    assert value_of(environment_text("DAEMON_OPTS", shlex.join(words))) == [*kept, "-r", "-R"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('DAEMON_OPTS="-F 1"\n', "-F 1"),
        ("DAEMON_OPTS=-F 1\n", "-F 1"),
        ("DAEMON_OPTS='-F 1'", "-F 1"),
        ("#DAEMON_OPTS=-F 1\nMY_DAEMON_OPTS=x\nDAEMON_OPTS_2=y\n", ""),
        ("DAEMON_OPTS=-4\nDAEMON_OPTS=\n", ""),
        (b"# \xff\nDAEMON_OPTS=-4\n", "-4"),
    ],
)
def test_the_administrators_file_is_read_as_systemd_reads_it(tmp_path: Path, text: str | bytes, value: str) -> None:
    path = tmp_path / "chrony"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert given_options(str(path), "DAEMON_OPTS") == value


def test_without_a_file_nothing_is_given_and_a_directory_is_an_error(tmp_path: Path) -> None:
    assert given_options(str(tmp_path / "none"), "DAEMON_OPTS") == ""
    with pytest.raises(SteadyrackError):
        given_options(str(tmp_path), "DAEMON_OPTS")


@pytest.mark.parametrize("text", ['DAEMON_OPTS="-F 1\n', "DAEMON_OPTS=-u o'brien\n"])
def test_quotes_that_stay_open_are_an_error_that_says_so(root: Path, text: str) -> None:
    (root / "etc/default/chrony").write_text(text)
    with pytest.raises(StateFileError, match="correct the quotes"):
        hold_steps(str(root), str(root / "etc/default/chrony"), "DAEMON_OPTS")
    assert not steps_held(str(root))


def test_holding_twice_changes_nothing(root: Path) -> None:
    arguments = (str(root), str(root / "etc/default/chrony"), "DAEMON_OPTS")
    assert not steps_held(str(root))
    assert hold_steps(*arguments)
    assert steps_held(str(root))
    assert not hold_steps(*arguments)
    (root / "etc/default/chrony").write_text("DAEMON_OPTS=-4\n")
    assert hold_steps(*arguments)


def test_a_file_where_the_directory_belongs_is_an_error_of_ours(root: Path) -> None:
    (root / "run/steadyrack").write_text("in the way")
    with pytest.raises(SteadyrackError, match="run/steadyrack"):
        hold_steps(str(root), str(root / "etc/default/chrony"), "DAEMON_OPTS")


# --- the wait ----------------------------------------------------------------------------------------------


def test_once_the_clock_follows_a_source_nobody_steps_it_any_more(root: Path, chronyd: FakeChronyd) -> None:
    chronyd.change(tracking=FOLLOWING)
    assert wait(root)[0] == Closed("the clock follows 10.213.1.21", None)
    assert value_of((root / time_settle.ENVIRONMENT_PATH).read_text()) == ["-F", "1", "-r", "-R"]
    assert chronyd.state["steps"] is False


def test_it_waits_while_the_clock_follows_nobody_and_no_job_runs_c34(root: Path, chronyd: FakeChronyd) -> None:
    """C34: a clock years off may still be stepped."""
    assert wait(root) == (None, ["waiting for the clock: unsynchronised"])
    assert not steps_held(str(root))
    assert chronyd.state["steps"] is True


@pytest.mark.parametrize("spoilt", ["guessing", "silent", "down"])
def test_a_clock_that_only_seems_to_follow_is_waited_for(
    root: Path, chronyd: FakeChronyd, node: FakeNode, spoilt: str
) -> None:
    chronyd.change(tracking=GUESSING if spoilt == "guessing" else FOLLOWING)
    if spoilt == "silent":
        chronyd.change(sources=[])
    if spoilt == "down":
        node.change_unit("chrony.service", active="inactive")
    ended, said = wait(root)
    why = {"guessing": "its own error is not measured yet", "silent": "stale", "down": "down"}[spoilt]
    assert (ended, said) == (None, [f"waiting for the clock: {why}"])
    assert not steps_held(str(root))


def test_a_job_ends_it_though_the_clock_follows_nobody(root: Path, chronyd: FakeChronyd) -> None:
    process(root, 4242, "/dev/nvidia-uvm")
    ended = wait(root)[0]
    assert ended == Closed("process 4242 uses a GPU, and the clock follows nobody yet: from now on it is only slewed")
    assert steps_held(str(root))
    assert chronyd.state["steps"] is False


def test_an_open_quote_in_the_administrators_file_leaves_no_running_daemon_that_steps(
    root: Path, chronyd: FakeChronyd
) -> None:
    (root / "etc/default/chrony").write_text('DAEMON_OPTS="-F 1\n')
    chronyd.change(tracking=FOLLOWING)
    with pytest.raises(StateFileError, match="correct the quotes"):
        wait(root)
    assert chronyd.state["steps"] is False


def test_where_jobs_cannot_be_seen_it_ends_too(root: Path, chronyd: FakeChronyd) -> None:
    (root / "proc").rename(root / "no-proc")
    ended = wait(root)[0]
    assert ended is not None
    assert "it cannot be seen whether a job runs" in ended.why
    assert chronyd.state["steps"] is False


def test_a_relay_switches_orphan_mode_on_after_its_first_sync_and_not_before_c36(
    root: Path, chronyd: FakeChronyd
) -> None:
    """C36: chrony 4.3, whose file cannot wait for it."""
    note(root, mode="relay", local_when_synchronised=LOCAL)
    assert wait(root)[0] is None
    assert chronyd.state["local"] is None
    chronyd.change(tracking=FOLLOWING)
    assert wait(root)[0] == Closed("the clock follows 10.213.1.21", LOCAL)
    assert chronyd.state["local"] == LOCAL
    assert chronyd.state["steps"] is False


def test_on_a_relay_a_job_ends_the_stepping_and_the_wait_goes_on(
    root: Path, chronyd: FakeChronyd, node: FakeNode
) -> None:
    note(root, mode="relay", local_when_synchronised=LOCAL)
    process(root, 4242, "/dev/nvidia-uvm")
    ended, said = wait(root)
    assert ended is None
    assert said[0] == "process 4242 uses a GPU: from now on the clock is only slewed"
    assert chronyd.state["steps"] is False
    assert chronyd.state["local"] is None
    assert [call for call in node.calls() if "makestep" in call] == ["chronyc makestep 1 0"]


def test_the_change_is_seen_at_the_next_look(root: Path, chronyd: FakeChronyd) -> None:
    chronyd.change(tracking=LOST)
    ended, said = wait(root, looks=5, each=lambda _s: chronyd.change(tracking=FOLLOWING))
    assert ended == Closed("the clock follows 10.213.1.21")
    assert said == ["waiting for the clock: unsynchronised"]


def test_a_second_start_in_the_same_boot_does_it_all_again(root: Path, chronyd: FakeChronyd) -> None:
    """chronyd started anew has forgotten orphan mode, and may step if it was started by hand without -R."""
    note(root, mode="relay", local_when_synchronised=LOCAL)
    chronyd.change(tracking=FOLLOWING)
    wait(root)
    chronyd.change(local=None, steps=True, tracking=LOST)
    assert wait(root)[0] is None
    assert chronyd.state["local"] is None
    chronyd.change(tracking=FOLLOWING)
    assert wait(root)[0] == Closed("the clock follows 10.213.1.21", LOCAL)
    assert (chronyd.state["local"], chronyd.state["steps"]) == (LOCAL, False)


def test_a_start_after_one_that_failed_halfway_still_tells_the_daemon(root: Path, chronyd: FakeChronyd) -> None:
    """The file for later starts was written, the running daemon was not told, and a job runs."""
    process(root, 4242, "/dev/nvidia-uvm")
    chronyd.change(refused={"makestep": "501 Not authorised"})
    with pytest.raises(ToolError, match="501 Not authorised"):
        wait(root)
    assert steps_held(str(root))
    chronyd.change(refused={})
    assert wait(root)[0] is not None
    assert chronyd.state["steps"] is False


@pytest.mark.parametrize("verb", ["makestep", "local"])
def test_what_chronyd_refuses_is_an_error(root: Path, chronyd: FakeChronyd, verb: str) -> None:
    note(root, local_when_synchronised=LOCAL)
    chronyd.change(tracking=FOLLOWING, refused={verb: "501 Not authorised"})
    with pytest.raises(ToolError, match=f"chronyc {verb} .*501 Not authorised"):
        wait(root)


def test_without_the_note_of_the_role_it_says_what_to_run(root: Path, chronyd: FakeChronyd) -> None:
    (root / "etc/steadyrack/time_sync.json").unlink()
    with pytest.raises(StateFileError, match=r"/etc/steadyrack/time_sync\.json: seen absent.*run the role"):
        wait(root)
    (root / "etc/steadyrack/time_sync.json").write_text("{")
    with pytest.raises(StateFileError):
        wait(root)
