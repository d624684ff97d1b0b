"""playbooks/report.yml, run for real: one host answers, one cannot be reached, one has no Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
HOSTS = """
all:
  children:
    relays: {hosts: {relay-x1: {ansible_connection: local}}}
    gpu_nodes:
      hosts:
        gpu-x1: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_ssh_common_args: -F none -o ConnectTimeout=2}
        gpu-x2: {ansible_connection: local, ansible_python_interpreter: /no/python}
  vars: {rack_site: "<b>x</b>", ansible_become: false, ansible_python_interpreter: PYTHON}
"""


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_every_host_is_in_the_report_whatever_became_of_it(arguments: list[str], tmp_path: Path) -> None:
    name = f"unit-{os.getpid()}"
    folder = REPOSITORY / "reports" / name
    inventory = tmp_path / f"{name}.yml"
    inventory.write_text(HOSTS.replace("PYTHON", sys.executable))
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), "playbooks/report.yml", *arguments]
    command[1:4] = [str(Path(sys.executable).with_name("ansible-playbook"))]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    try:
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 of 3 hosts: no data from gpu-x1, gpu-x2, relay-x1" in done.stdout
        if arguments:
            assert not folder.exists()
            return
        text = (folder / "time.html").read_text()
        assert (folder / "time.png").exists()
        assert "no data: unreachable (" in text
        assert "no data: could not be read (" in text
        assert "&lt;b&gt;x&lt;/b&gt;" in text
    finally:
        for path in folder.glob("*"):
            path.unlink()
        if folder.exists():
            folder.rmdir()


@pytest.mark.parametrize("hours", ["0", "-1", "abc", "nan", "1e9"])
def test_a_span_that_is_none_is_refused_and_yesterdays_page_stays(hours: str, tmp_path: Path) -> None:
    name = f"unit-span-{os.getpid()}"
    inventory = tmp_path / f"{name}.yml"
    inventory.write_text(HOSTS.replace("PYTHON", sys.executable))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [program, "-i", str(inventory), "playbooks/report.yml", "-e", f"report_hours={hours}"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode != 0
    assert f"report_hours: {hours}; wanted hours" in done.stdout + done.stderr
    assert not (REPOSITORY / "reports" / name).exists()
