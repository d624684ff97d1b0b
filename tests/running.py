"""Run a playbook of this tree through ansible-runner: events are looked at, not text."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ansible_runner

ROOT = Path(__file__).resolve().parents[1]


def run_playbook(playbook: str | Path, inventory: Path, folder: Path, words: list[str], verbosity: int = 0):
    """The finished ansible_runner.Runner. `folder` is scratch space; programs come from this Python's environment."""
    folder.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return ansible_runner.run(
        private_data_dir=str(folder),
        project_dir=str(ROOT),
        playbook=str(ROOT / playbook),
        inventory=str(inventory),
        cmdline=" ".join(words) or None,
        verbosity=verbosity or None,
        envvars={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": path},
        quiet=True,
    )


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Look at a condition again and again; an AssertionError that says `what` was waited for when it never comes."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)
