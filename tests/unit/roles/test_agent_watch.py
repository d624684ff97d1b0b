"""`steadyrack gpu watch` on an emulated node, as it lies on a host: a pass at each Xid, whatever hooks do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_node import AGENT, REPOSITORY, SLOTS, GpuNode, policy

JOURNAL = """#!/bin/sh
# Followed: every row from now on. Read once: what is there.
case "$*" in
*--follow*) exec tail -n 0 -F {rows} 2>/dev/null ;;
*--lines=1*) tail -n 1 {rows} ;;
*) cat {rows} ;;
esac
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The command and its package side by side, as role node_agent lays them out."""
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(AGENT, folder / "agent.py")
    (folder / "steadyrack").symlink_to(REPOSITORY / "module_utils" / "steadyrack")
    return folder / "agent.py"


def wait_until(true: Callable[[], bool], limit_s: float) -> None:
    give_up = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < give_up, "it did not come true in time"
        time.sleep(0.05)


def test_a_second_card_is_taken_out_while_a_hook_still_hangs_at_the_first(
    gpu_node: GpuNode, installed: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    number = iter(range(1, 100))

    def kernel(text: str) -> None:
        with rows.open("a") as stream:
            stream.write(json.dumps({"__CURSOR": f"s={next(number)}", "_TRANSPORT": "kernel", "MESSAGE": text}) + "\n")

    def failed() -> set[str]:
        state = json.loads((gpu_node.root / "var/lib/steadyrack/gpu_roles.json").read_text())
        return {gpu["bus_id"] for gpu in state["gpus"].values() if gpu["role"] == "failed"}

    kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    gpu_node.program("journalctl", JOURNAL.format(rows=rows))
    gpu_node.policy(policy(250, spares={"count": 1}))
    hook = gpu_node.root / "etc/steadyrack/alarm.d/10-hangs"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hangs\nsleep 14\n")
    hook.chmod(0o755)
    assert gpu_node.steadyrack("gpu", "apply", "--no-tell").returncode == 0
    command = [sys.executable, "-I", str(installed), "--root", str(gpu_node.root), "gpu", "watch"]
    watch = subprocess.Popen(command, env=gpu_node.environment, start_new_session=True)
    try:
        wait_until((tmp_path / "hangs").exists, 30)
        began = time.monotonic()
        for place in (0, 1):
            kernel(f"NVRM: Xid (PCI:{SLOTS[place][:-2]}): 79, GPU has fallen off the bus.")
            wait_until(lambda place=place: SLOTS[place] in failed(), 13)
        assert time.monotonic() - began < 14, "a pass waited for the hook"
    finally:
        os.killpg(watch.pid, signal.SIGKILL)
        watch.wait()
