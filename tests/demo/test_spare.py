"""A GPU fails under a job: the spare takes its place, Ansible leaves it so, a new card comes in, all is as before.

On gpu-b1, with the cards as a job over plain SSH is given them, and a hook that is told as a scheduler would be.
"""

from __future__ import annotations

import json
import time

import pytest
from running import wait_until

from lab import hosts
from lab.paths import STATE
from lab.say import run

NODE = "gpu-b1"
HOOK, TOLD = "/etc/steadyrack/alarm.d/20-scheduler", "/var/log/scheduler.jsonl"
ROLES = "/var/lib/steadyrack/gpu_roles.json"
WITHIN_S = 5.0
"""Issue: from the event to the list that jobs are given."""


@pytest.fixture(scope="module")
def inside(built, rack):
    """Run a command on the node, past SSH."""
    return lambda *words, check=True: hosts.execute(rack, NODE, *words, check=check)


@pytest.fixture(scope="module")
def jobs(built, rack):
    """What a job started by `ssh gpu-b1 command` may use: no login shell, no prompt."""
    command = ["ssh", "-F", STATE / "demo" / "ssh_config", NODE, "printenv CUDA_VISIBLE_DEVICES"]
    return lambda: run(command, timeout_s=30).stdout.strip().split(",")


@pytest.fixture(scope="module")
def cards(inside):
    """UUIDs by place."""
    return [inside("nvml-emulator", "get", f"gpu.{gpu}.uuid").strip() for gpu in range(4)]


def roles(inside) -> dict[str, str]:
    return {uuid: gpu["role"] for uuid, gpu in json.loads(inside("cat", ROLES))["gpus"].items()}


def state(inside, gpu: int) -> tuple[str, str]:
    """(compute mode, limit in mW) as the emulated driver has them."""
    read = lambda key: inside("nvml-emulator", "get", f"gpu.{gpu}.{key}", check=False).strip()  # noqa: E731
    return read("compute_mode") or "0", read("power_limit_mw")


@pytest.fixture(scope="module")
def failed(inside, jobs, cards):
    """Xid 79 on the second card while a job is on it; the moment at which the list had changed."""
    inside("sh", "-c", f"printf '#!/bin/sh\\ncat >>{TOLD}\\n' >{HOOK}; chmod 0755 {HOOK}; rm -f {TOLD}")
    # As on a host that was never set up: an aborted run may have left other roles.
    inside("sh", "-c", f"rm -f {ROLES} /var/lib/steadyrack/gpus.env; steadyrack gpu apply", check=False)
    told = {"before": jobs(), "roles before": roles(inside), "spare before": state(inside, 3)}
    inside("nvml-emulator", "set", "gpu.1.processes_compute=4711:1000")
    began = time.monotonic()
    inside("nvml-emulator", "xid", "1", "79", "--journal")
    inside("nvml-emulator", "set", "gpu.1.lost=1")
    wait_until(lambda: cards[3] in inside("cat", "/var/lib/steadyrack/gpus.env"), 30, "the spare in the list")
    told["took_s"] = time.monotonic() - began
    wait_until(lambda: "takeover" in inside("cat", TOLD, check=False), 30, "the hook told")
    told["after"] = jobs()
    yield told
    inside("rm", "-f", HOOK, TOLD)


def test_before_three_of_four_are_for_jobs(failed, cards):
    assert failed["before"] == cards[:3]
    assert failed["roles before"] == {**dict.fromkeys(cards[:3], "active"), cards[3]: "spare"}
    assert failed["spare before"] == ("2", "150000")


def test_the_spare_takes_its_place_within_five_seconds(failed, cards, inside):
    print(f"from the Xid to the list that jobs are given: {failed['took_s']:.1f} s")
    assert failed["took_s"] < WITHIN_S
    assert failed["after"] == [cards[0], cards[2], cards[3]]
    assert roles(inside) == {cards[0]: "active", cards[1]: "failed", cards[2]: "active", cards[3]: "active"}
    assert state(inside, 3) == ("0", "300000")


def test_a_scheduler_is_told(failed, inside, cards):
    events = [json.loads(line) for line in inside("cat", TOLD).splitlines()]
    (taken,) = [event for event in events if event["event"] == "takeover"]
    assert (taken["id"], taken["subject"], taken["instead_of"]) == ("gpu.spare", cards[3], cards[1])
    assert taken["severity"] == "critical"


def test_status_says_it_in_one_screen(failed, inside, cards):
    text = inside("steadyrack", "spare", "status", check=False)
    assert f"{cards[1]}  FAILED" in text
    assert "Xid 79" in text or "fallen off the bus" in text
    assert f"steadyrack spare return {cards[1]}" in text
    assert "0 of 1 spares ready" in text


def test_a_run_does_not_undo_it(failed, play, cards, inside):
    again = play("playbooks/gpu.yml", "--limit", NODE)
    assert again.rc == 0, again.failures()
    assert again.recap[NODE] == (0, 0)
    assert roles(inside)[cards[3]] == "active"


@pytest.fixture(scope="module")
def replaced(failed, inside, cards):
    """Another card in the slot of the failed one, accepted by a person."""
    new, serial = "GPU-11111111-2222-4333-8444-555555555555", inside("nvml-emulator", "get", "gpu.1.serial").strip()
    other = (f"gpu.1.uuid={new}", "gpu.1.serial=1329999999999")
    inside("nvml-emulator", "set", "gpu.1.lost=", "gpu.1.processes_compute=", *other)
    inside("steadyrack", "gpu", "apply", check=False)
    told = {"new": new, "unaccepted": roles(inside), "closed": state(inside, 1)}
    told["return"] = inside("steadyrack", "spare", "return", new, check=False)
    told["roles"] = roles(inside)
    yield told
    # The card of before comes back, and every role with it.
    inside("nvml-emulator", "set", f"gpu.1.uuid={cards[1]}", f"gpu.1.serial={serial}")
    inside("steadyrack", "gpu", "apply", check=False)
    inside("steadyrack", "spare", "return", cards[1], check=False)
    inside("steadyrack", "spare", "promote", cards[1], "--instead-of", cards[3], check=False)
    inside("steadyrack", "spare", "return", cards[3], check=False)
    assert roles(inside) == failed["roles before"]


def test_a_new_card_waits_for_a_person(replaced, cards):
    assert replaced["unaccepted"][replaced["new"]] == "unaccepted"
    assert replaced["closed"] == ("2", "150000")


def test_and_is_the_spare_then(replaced, cards):
    assert replaced["roles"] == {**dict.fromkeys((cards[0], cards[2], cards[3]), "active"), replaced["new"]: "spare"}
