"""Drift on a running rack: named exactly by --check --diff, which changes nothing; repaired by a run, and only that."""

from __future__ import annotations

import json

import pytest
from demo_rack import HOSTS
from running import wait_until

CONF = "/etc/chrony/chrony.conf"


@pytest.fixture(scope="module")
def drifted(built, rack):
    from lab import faults, hosts

    # The agent repairs a cap by itself, two minutes after the boot and then every few minutes. So that Ansible comes
    # first: the look after the boot is over (in a container, the boot is when it was started), and the next is far.
    timer = ("systemctl", "show", "--value", "-p", "LastTriggerUSec", "steadyrack-gpu.timer")
    wait_until(lambda: hosts.execute(rack, "gpu-a1", *timer).strip() not in ("", "n/a"), 200, "the agent's first look")
    hosts.execute(rack, "gpu-a1", "systemctl", "start", "steadyrack-gpu-verify.service")
    faults.inject(rack, "cap", ["gpu-a1", "2", "200"])
    faults.inject(rack, "line", ["gpu-a2", CONF, "server 10.213.0.14 iburst"])
    return rack


@pytest.fixture(scope="module")
def look(rack):
    from lab import hosts

    def read():
        return {
            "cap": hosts.execute(rack, "gpu-a1", "nvml-emulator", "get", "gpu.2.power_limit_mw").strip(),
            "conf": hosts.execute(rack, "gpu-a2", "cat", CONF),
        }

    return read


@pytest.fixture(scope="module")
def checked(drifted, look, play):
    before = look()
    run = play("site.yml", "--check", "--diff")
    return run, before, look()


def test_check_mode_names_exactly_the_drift(checked):
    run, _, _ = checked
    assert run.rc == 0, run.failures()
    assert {h: run.recap[h][0] for h in HOSTS} == {**dict.fromkeys(HOSTS, 0), "gpu-a1": 1, "gpu-a2": 1}


def test_the_cap_is_named_with_card_and_watts(checked):
    ((_, result),) = checked[0].changed("gpu-a1")
    diff = json.dumps(result["diff"])
    assert "200" in diff
    assert "300" in diff
    assert "GPU-" in diff


def test_the_edited_line_is_in_the_diff(checked):
    ((_, result),) = checked[0].changed("gpu-a2")
    assert "server 10.213.0.14 iburst" in json.dumps(result["diff"])


def test_check_mode_changed_nothing(checked):
    _, before, after = checked
    assert before == after
    assert before["cap"] == "200000"
    assert "10.213.0.14" in before["conf"]


def test_acceptance_says_that_it_did_not_run(checked):
    assert "not run under --check" in checked[0].text


def test_a_run_repairs_exactly_that(checked, play, look):
    run = play("site.yml")
    assert run.rc == 0, run.failures()
    assert {h: run.recap[h] for h in HOSTS} == {**dict.fromkeys(HOSTS, (0, 0)), "gpu-a1": (1, 0), "gpu-a2": (1, 0)}
    assert look()["cap"] == "300000"
    assert "10.213.0.14" not in look()["conf"]


def test_and_then_there_is_nothing_left_to_do(checked, play):
    run = play("site.yml")
    assert {h: run.recap[h] for h in HOSTS} == dict.fromkeys(HOSTS, (0, 0))
