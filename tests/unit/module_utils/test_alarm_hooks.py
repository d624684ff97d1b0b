"""Hooks: real programs in a directory, run without ever being waited for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import alarm_hooks
from ansible.module_utils.steadyrack.alarm_hooks import Hooks

EVENT = {
    "event": "raised", "id": "time.offset", "subject": "gpu-a1", "severity": "critical", "host": "gpu-a1",
    "reason": "the clock may be off by 60 ms\nreally", "at": "2026-01-01T00:00:00Z", "text": "ALARM: gpu-a1",
}  # fmt: skip


class Place:
    """A directory of hooks, what was said, and a clock that only moves when told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / alarm_hooks.DIRECTORY
        self.folder.mkdir(parents=True, mode=0o755)
        self.said: list[str] = []
        self.now = 1000.0
        self.hooks = self.fresh()

    def fresh(self, waiting: Any = ()) -> Hooks:
        return Hooks(str(self.root), lambda level, text: self.said.append(f"{level}: {text}"), os.geteuid(), waiting)

    def hook(self, name: str, body: str, mode: int = 0o755) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(mode)
        return path

    def settle(self, limit_s: float = 10.0) -> None:
        """Tick until nothing runs or is due."""
        give_up = time.monotonic() + limit_s
        while self.hooks.wait_s(self.now) is not None and (self.hooks.wait_s(self.now) or 0) <= alarm_hooks.LOOK_S:
            assert time.monotonic() < give_up, "a hook does not end"
            began = time.monotonic()
            self.hooks.tick(self.now)
            assert time.monotonic() - began < 1.0, "a tick waited for a hook"
            time.sleep(0.01)

    def log(self) -> list[str]:
        path = self.root / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.hooks.stop()


def test_every_hook_gets_the_event_on_stdin_and_in_the_environment(place: Place) -> None:
    for name in ("20-b", "10-a"):
        place.hook(
            name,
            f'cat > {place.root}/{name}.json; echo "{name} $STEADYRACK_EVENT $STEADYRACK_REASON" >> {place.root}/log',
        )
    place.hooks.put(EVENT)
    place.settle()
    assert sorted(place.log()) == [f"{name} raised the clock may be off by 60 ms really" for name in ("10-a", "20-b")]
    assert json.loads((place.root / "10-a.json").read_text()) == EVENT
    assert place.said == []
    assert place.hooks.undelivered() == []


def test_a_failing_hook_is_said_and_tried_again_until_it_takes_the_event(place: Place) -> None:
    place.hook("10-a", f'echo try >> {place.root}/log; test -e {place.root}/well || {{ echo "no route" >&2; exit 3; }}')
    place.hook("20-b", f"echo other >> {place.root}/log")
    place.hooks.put(EVENT)
    place.settle()
    assert sorted(place.log()) == ["other", "try"]  # the second is not kept waiting
    assert place.said == ["error: alarm hook 10-a: exit status 3: no route; tried again in 10 s"]
    place.now += 9
    place.settle()
    assert len(place.log()) == 2
    (place.root / "well").touch()
    place.now += 2
    place.settle()
    assert sorted(place.log()) == ["other", "try", "try"]
    assert "10-a has taken time.offset gpu-a1 raised now" in place.said[-1]
    assert place.hooks.undelivered() == []


def test_a_hook_that_fails_all_night_is_not_a_line_a_minute(place: Place) -> None:
    place.hook("10-a", "exit 1")
    place.hooks.put(EVENT)
    for _ in range(60):
        place.settle()
        place.now += 1000
    assert len(place.said) == len(alarm_hooks.BACKOFF_S)
    assert len(place.hooks.undelivered()) == 1


def test_a_newer_event_of_the_same_alarm_takes_the_place_of_one_that_waits(place: Place) -> None:
    place.hook("10-a", f'echo "$STEADYRACK_EVENT" >> {place.root}/log; exit 1')
    place.hooks.put(EVENT)
    place.settle()
    place.hooks.put({**EVENT, "event": "cleared"})
    place.now += 1000
    place.settle()
    assert place.log() == ["raised", "cleared"]
    assert [one["event"]["event"] for one in place.hooks.undelivered()] == ["cleared"]


def test_a_hook_that_hangs_does_not_keep_the_others_waiting(place: Place) -> None:
    place.hook("10-a", "sleep 60")
    place.hook("20-b", f"echo $STEADYRACK_SUBJECT >> {place.root}/log")
    for subject in ("one", "two", "three"):
        place.hooks.put({**EVENT, "subject": subject})
    give_up = time.monotonic() + 10
    while {one["hook"] for one in place.hooks.undelivered()} != {"10-a"}:
        assert time.monotonic() < give_up, place.log()
        place.hooks.tick(place.now)  # no time passes for the hook that hangs
        time.sleep(0.01)
    assert place.log() == ["one", "two", "three"]


def test_a_hook_that_hangs_is_ended_with_its_children_and_nobody_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hook("10-a", f"sleep 60 & echo $! > {place.root}/child; wait")
    place.hook("20-b", f"echo other >> {place.root}/log")
    place.hooks.put(EVENT)
    place.hooks.tick(place.now)
    give_up = time.monotonic() + 5
    while not (place.root / "child").exists() or not (place.root / "child").read_text().strip():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    place.now += alarm_hooks.TIMEOUT_S + 1
    place.settle()
    assert "no end within 15 s" in place.said[0]
    assert place.log() == ["other"]
    child = (place.root / "child").read_text().strip()
    give_up = time.monotonic() + 5
    while os.path.exists(f"/proc/{child}") and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < give_up, "the child was left running"
        time.sleep(0.05)


def test_a_hook_that_prints_megabytes_comes_to_its_end(place: Place) -> None:
    noise = "head -c 3000000 /dev/zero | tr '\\0' x"
    place.hook("10-loud", f"{noise} >&2; {noise}; echo done >> {place.root}/log; echo last words >&2; exit 3")
    place.hooks.put(EVENT)
    place.settle()
    assert place.log() == ["done"]
    assert "exit status 3" in place.said[0]
    assert place.said[0].count("last words") == 1
    assert len(place.said[0]) < 2 * alarm_hooks.SHOWN_CHARACTERS


def test_a_hook_that_reads_nothing_and_one_that_cannot_start_are_survived(place: Place) -> None:
    place.hook("10-deaf", "exec <&-; exit 0")
    path = place.hook("20-odd", "")
    path.write_text("#!/no/such/interpreter\n")
    place.hooks.put(EVENT)
    place.settle()
    assert [line for line in place.said if "10-deaf" in line] == []
    assert any("20-odd: cannot be started" in line for line in place.said)


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("10-a", 0o775, "can be written by others"),
        ("10-a", 0o757, "can be written by others"),
        ("10-a", 0o644, None),  # not executable: a note, an example
        ("10-a~", 0o755, None),
        ("10-a.dpkg-old", 0o755, None),
        (".hidden", 0o755, None),
    ],
)
def test_what_is_not_run(place: Place, name: str, mode: int, said: str | None) -> None:
    place.hook(name, "exit 0", mode)
    assert place.hooks.names() == place.hooks.names() == []
    assert len(place.said) == (1 if said else 0)  # said once, not at every look
    assert said is None or said in place.said[0]


def test_a_hook_of_another_owner_or_behind_a_link_or_in_an_open_directory_is_not_run(place: Place) -> None:
    real = place.root / "real"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    (place.folder / "10-link").symlink_to(real)
    assert place.hooks.names() == []
    assert "not a plain file" in place.said[-1]
    (place.folder / "10-link").unlink()
    place.hook("10-a", "")
    strict = Hooks(str(place.root), lambda _level, text: place.said.append(text), os.geteuid() + 1)
    assert strict.names() == []
    assert "belongs to uid" in place.said[-1]
    place.folder.chmod(0o777)
    assert place.hooks.names() == []
    assert "can be written by others" in place.said[-1]


def test_no_directory_is_no_hooks(tmp_path: Path) -> None:
    hooks = Hooks(str(tmp_path), lambda *_: pytest.fail("nothing to say"))
    hooks.put(EVENT)
    assert hooks.names() == []
    assert hooks.wait_s(0.0) is None


def test_what_was_not_delivered_is_delivered_by_the_next_process(place: Place) -> None:
    place.hook("10-a", f'echo "$STEADYRACK_SUBJECT" >> {place.root}/log')
    before = place.fresh()
    before.put(EVENT)
    place.hooks = place.fresh([*before.undelivered(), "garbage", {"hook": 1}])
    place.settle()
    assert place.log() == ["gpu-a1"]


def test_a_hook_that_was_taken_away_is_said_and_forgotten(place: Place) -> None:
    place.hook("10-a", "exit 1")
    place.hooks.put(EVENT)
    place.settle()
    (place.folder / "10-a").unlink()
    place.now += 100
    place.settle()
    assert "10-a is gone" in place.said[-1]
    assert place.hooks.undelivered() == []


@pytest.mark.parametrize("fault", ["open directory", "no directory", "not executable", "open hook"])
def test_a_fault_that_passes_loses_no_event(place: Place, fault: str) -> None:
    """Waiting before it, and coming during it."""
    path = place.hook("10-a", f'test -e {place.root}/well || exit 1; echo "$STEADYRACK_SUBJECT" >> {place.root}/log')
    place.hooks.put(EVENT)
    place.settle()
    (place.root / "well").touch()
    changed = path if "direct" not in fault else place.folder
    if fault == "no directory":
        place.folder.rename(place.root / "away")
    else:
        changed.chmod(0o644 if fault == "not executable" else 0o775)
    place.now += 100
    place.settle()
    place.hooks.put({**EVENT, "subject": "gpu-a2"})
    for _ in range(3):
        place.now += 100
        place.settle()
    assert place.log() == []
    assert [one["event"]["subject"] for one in place.hooks.undelivered()] == ["gpu-a1", "gpu-a2"]
    assert not [line for line in place.said if "is gone" in line]
    assert len([line for line in place.said if "its events wait" in line]) == 1  # said once, not at every look
    if fault == "no directory":
        (place.root / "away").rename(place.folder)
    else:
        changed.chmod(0o755)
    place.now += 100
    place.settle()
    assert sorted(place.log()) == ["gpu-a1", "gpu-a2"]


def test_the_managers_socket_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    env = alarm_hooks.environment({"reason": "a\0b\nc"})
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(env)
    assert env["STEADYRACK_REASON"] == "a b c"
