"""Killed at a bad moment, with no time to clean up: the next run goes on from what is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_rack import not_passed, report_rows
from running import ROOT

from lab import faults, hosts
from lab.engine import podman


def killed_at(words: list[str], line: str) -> str:
    """Run a command, kill it and all its children with SIGKILL as soon as `line` is printed; return what it printed."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        words, cwd=ROOT, env=env, text=True, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    seen = ""
    assert process.stdout is not None
    for text in process.stdout:
        seen += text
        if line in text:
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    assert line in seen, f"it ended before {line!r} came:\n{seen[-2000:]}"
    return seen


@pytest.mark.parametrize("line", ["gpu-a2: creating", "network steadyrack-demo-outside"])
def test_rack_up_killed_half_way(built, rack, line):
    names = [rack.container(h) for h in rack.hosts] if "network" in line else [rack.container("gpu-a2")]
    podman("rm", "-f", "-t", "0", *names)
    if "network" in line:
        podman("network", "rm", "-f", *(f"{rack.name}-{n}" for n in rack.networks))
    killed_at([str(ROOT / "rack"), "up"], line)
    hosts.up(rack)
    assert {r["container"] for r in hosts.status(rack)} == {"running"}


@pytest.mark.parametrize("task", ["time_sync : Configure", "gpu_policy : Keep"])
def test_site_yml_killed_half_way(rack, play, task):
    """After the test above the hosts are new, so the first kill falls into a first run and the second into drift."""
    faults.inject(rack, "cap", ["gpu-a1", "0", "180"])
    if "gpu" in task:
        faults.inject(rack, "line", ["gpu-a1", "/etc/chrony/chrony.conf", "# edited"])
    killed_at([str(Path(sys.executable).parent / "ansible-playbook"), "site.yml"], task)
    run = play("site.yml")
    assert run.rc == 0, run.failures()
    assert not_passed(report_rows()) == set()
