"""A node restarts: caps are volatile, the agent brings them back without Ansible, and only the agent does."""

from __future__ import annotations

import time

import pytest

from lab import hosts

NODE, UNITS = "gpu-a1", ["steadyrack-gpu.service", "steadyrack-gpu.timer", "steadyrack-gpu-watch.service"]
PROBE = (
    "import sys; sys.path.insert(0, '/usr/lib/steadyrack'); import pynvml as n; n.nvmlInit();"
    "h = n.nvmlDeviceGetHandleByIndex(0);"
    "print(n.nvmlDeviceGetPowerManagementLimit(h) // 1000, n.nvmlDeviceGetPowerManagementDefaultLimit(h) // 1000)"
)


@pytest.fixture
def limits(rack):
    def read() -> tuple[int, int]:
        """(limit, default) of the first card in watts, read past our own code."""
        limit, default = hosts.execute(rack, NODE, "env", "-i", "/usr/bin/python3", "-c", PROBE).split()
        return int(limit), int(default)

    return read


@pytest.fixture
def capped(built, rack, play):
    """The node under a policy of 250 W, so that kept and lost caps differ."""
    run = play("playbooks/gpu.yml", "-e", "gpu_policy_power_cap_w=250", "--limit", NODE)
    assert run.rc == 0, run.failures()
    yield
    hosts.execute(rack, NODE, "systemctl", "unmask", *UNITS)
    run = play("site.yml", "--limit", NODE)
    assert run.rc == 0, run.failures()


def test_without_the_agent_the_limit_is_the_default_and_with_it_the_cap_is_back(capped, rack, limits):
    assert limits() == (250, 300)
    hosts.execute(rack, NODE, "systemctl", "mask", *UNITS)
    hosts.restart(rack, NODE)
    assert limits() == (300, 300)
    hosts.execute(rack, NODE, "systemctl", "unmask", *UNITS)
    hosts.restart(rack, NODE)
    deadline = time.monotonic() + 20
    while limits() != (250, 300) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert limits() == (250, 300)
    state = hosts.execute(rack, NODE, "systemctl", "is-active", UNITS[0], check=False)
    assert state == "active"


def test_reboot_module_works_unmodified(built, play, tmp_path):
    playbook = tmp_path / "reboot.yml"
    playbook.write_text(
        "- hosts: gpu-a2\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.reboot: {reboot_timeout: 60}\n      register: r\n"
        "    - ansible.builtin.assert: {that: r.rebooted}\n"
    )
    run = play(str(playbook))
    assert run.rc == 0, run.failures()
