"""What every end-to-end test of the demo rack stands on: the rack, runs of playbooks, faults, commands on hosts.

A conftest imports them by name; pytest finds fixtures in a conftest's own names.
"""

from __future__ import annotations

import re

import pytest
from demo_rack import Run
from running import ROOT, run_playbook

from lab import faults, hosts
from lab.topology import Rack, load


@pytest.fixture(scope="session")
def rack() -> Rack:
    """The demo rack, up. Emulated faults of an earlier, aborted run are taken back."""
    found = load("demo")
    hosts.up(found)
    faults.inject(found, "heal", [])
    return found


@pytest.fixture(scope="session")
def play(rack, tmp_path_factory):
    """Run a playbook on the demo rack: play("site.yml", "--check", "--diff")."""

    def run(playbook: str, *words: str, verbosity: int = 0) -> Run:
        folder = tmp_path_factory.mktemp("run")
        done = run_playbook(playbook, ROOT / "inventory" / "demo", folder, list(words), verbosity)
        events = list(done.events)
        text = "\n".join(e.get("stdout", "") for e in events)
        return Run(done.rc, done.stats or {}, events, re.sub(r"\x1b\[[0-9;]*m", "", text))

    return run


@pytest.fixture(scope="session")
def built(play) -> Run:
    """The rack after site.yml: what every test here starts from."""
    run = play("site.yml")
    assert run.rc == 0, run.failures() or run.text[-3000:]
    return run


@pytest.fixture
def fault(rack):
    """Inject faults; emulated ones are taken back afterwards."""
    yield lambda name, *words: faults.inject(rack, name, [str(w) for w in words])
    faults.inject(rack, "heal", [])


@pytest.fixture(scope="session")
def sh(rack):
    """sh("gpu-a1", "cat /etc/hostname"): a command on a host, past SSH."""
    return lambda host, text, check=True: hosts.execute(rack, host, "sh", "-c", text, check=check)
