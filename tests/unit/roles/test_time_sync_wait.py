"""What the role time_sync says after a change, by Ansible itself, without a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TASKS = ROOT / "roles" / "time_sync" / "tasks" / "wait.yml"


def said(folder: Path, result: dict[str, Any], wait_s: Any = 0) -> str:
    """What a person sees of these tasks; those that are skipped are not shown."""
    given = {"time_sync_result": result, "time_sync_wait_s": wait_s}
    tasks = [{"ansible.builtin.include_tasks": str(TASKS)}]
    (folder / "play.yml").write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": given, "tasks": tasks}])
    )
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", "localhost,", "-c", "local", str(folder / "play.yml")]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("wait_s", [0, "0"])  # a text is what -e makes of it
def test_what_was_put_out_of_action_is_said_line_by_line(wait_s: Any, tmp_path: Path) -> None:
    listed = ["stop ntp.service", "mask ntp.service", "/etc/chrony/chrony.conf: pool 2.debian.pool.ntp.org iburst"]
    text = said(tmp_path, {"put_out_of_action": listed}, wait_s)
    assert "Say what was put out of action" in text
    assert [line for line in listed if line not in text] == []
    assert "Follow a source" not in text


def test_nothing_is_said_of_nothing(tmp_path: Path) -> None:
    text = said(tmp_path, {"put_out_of_action": []})
    assert "wait.yml" in text
    assert "out of action" not in text
