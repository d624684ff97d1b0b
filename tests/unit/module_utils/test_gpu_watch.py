"""The follower of the kernel log: a pass at its start and at each word on a GPU, and no end of it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import gpu_watch, gpu_xid
from ansible.module_utils.steadyrack.errors import ToolError
from fake_node import FakeNode

XID = "NVRM: Xid (PCI:0000:31:00): 79, GPU has fallen off the bus."
KERNEL = {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}
USER = {"_TRANSPORT": "syslog", "_UID": "1000", "SYSLOG_IDENTIFIER": "kernel"}

# Prints the rows of one call after the other, each when the pass before it was made, and ends.
JOURNAL = """\
import os, sys, time
folder = {folder!r}
with open(os.path.join(folder, "asked"), "a") as stream:
    stream.write(" ".join(sys.argv[1:]) + "\\n")
time.sleep(0.1)
sys.stdout.write(open(os.path.join(folder, "rows")).read())
sys.stdout.flush()
sys.exit(7)
"""


class Follower:
    """What was looked at and said while a fake journalctl ran ``rounds`` times."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.folder = folder
        self.looks = 0
        self.said: list[str] = []
        node.python_program("journalctl", JOURNAL.format(folder=str(folder)), "-IS")

    def rows(self, *rows: dict[str, object] | str) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (self.folder / "rows").write_text("".join(f"{line}\n" for line in lines))

    def follow(self, rounds: int = 1) -> None:
        gpu_watch.follow(self._look, self._say, lambda: len(self.said) >= rounds)

    def _look(self) -> None:
        self.looks += 1

    def _say(self, level: str, text: str) -> None:
        self.said.append(f"{level}: {text}")

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


@pytest.fixture
def follower(node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    monkeypatch.setattr(gpu_watch, "AGAIN_S", 0.01)
    monkeypatch.setattr(gpu_watch, "SETTLE_S", 0.01)
    return Follower(node, tmp_path)


def test_a_pass_is_made_at_the_start_for_what_was_said_before(follower: Follower) -> None:
    follower.rows()
    follower.follow()
    assert follower.looks == 1


@pytest.mark.parametrize(
    "message",
    [
        XID,
        "NVRM: GPU 0000:31:00.0: GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        [*XID.encode(), 255],
    ],
)
def test_a_pass_is_made_when_the_kernel_speaks_of_a_gpu(follower: Follower, message: object) -> None:
    follower.rows({**KERNEL, "MESSAGE": "usb 1-1: new device"}, {**KERNEL, "MESSAGE": message})
    follower.follow()
    assert follower.looks == 2


def test_rows_of_one_fault_are_one_pass(follower: Follower) -> None:
    follower.rows(*({**KERNEL, "MESSAGE": XID} for _ in range(50)))
    follower.follow()
    assert follower.looks == 2


@pytest.mark.parametrize(
    "row",
    [
        {**USER, "MESSAGE": XID},
        {**USER, "_TRANSPORT": "journal", "MESSAGE": XID},
        {**KERNEL, "MESSAGE": "usb 1-1: Xid is no word of ours"},
        {**KERNEL, "MESSAGE": "pcieport 0000:30:01.0: fallen off the bus"},
        '{"MESSAGE": "NVRM: Xid (PCI:0000',
        "-- Journal begins --",
    ],
)
def test_no_pass_is_made_for_what_others_write(follower: Follower, row: dict[str, object] | str) -> None:
    follower.rows(row)
    follower.follow()
    assert follower.looks == 1


def test_a_journalctl_that_ends_is_started_again_and_a_pass_fills_the_gap(follower: Follower) -> None:
    follower.rows()
    follower.follow(rounds=3)
    # Ended by the test at the moment of the third word, before another start.
    assert (len(follower.asked()), follower.looks) == (3, 3)
    assert all(text.startswith("error: journalctl ended with 7") for text in follower.said)


def test_the_follower_begins_at_the_end_of_this_boots_log_and_takes_trusted_rows_only(follower: Follower) -> None:
    follower.rows()
    follower.follow()
    (asked,) = follower.asked()
    assert asked.split()[:3] == ["--boot", "--follow", "--lines=0"]
    assert asked.endswith(" ".join(gpu_xid.MATCHES))


def test_a_journalctl_that_runs_on_is_ended_with_the_follower(node: FakeNode, tmp_path: Path) -> None:
    row = json.dumps({**KERNEL, "MESSAGE": XID})
    stays = f"import time; print({row!r}, flush=True); time.sleep(60)"
    node.program("journalctl", f"#!/bin/sh\nexec {shlex.join([sys.executable, '-c', stays])}\n")
    looks: list[float] = []
    began = time.monotonic()
    gpu_watch.follow(lambda: looks.append(time.monotonic()), lambda _level, _text: None, ended=lambda: len(looks) >= 2)
    assert len(looks) == 2
    assert time.monotonic() - began < 30


def test_a_missing_journalctl_is_an_error_that_says_what_is_lost(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="timer only"):
        gpu_watch.start([str(tmp_path / "journalctl")])
