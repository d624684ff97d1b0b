"""New rules that cut SSH, and a run that ends between loading and confirming: the old rules come back by themselves.

On the molecule rack, over real SSH: the last two tests of a way back that only counts when nothing else works. Not
among the unit tests, which need no rack:  pytest tests/firewall
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, wait_until

from lab import hosts
from lab.topology import Rack, load

INVENTORY = ROOT / "molecule" / "shared" / "inventory"
TABLE = ["nft", "--stateless", "list", "table", "inet", "steadyrack_ntp"]
CONFIRM_S = 10
KEEP_S = 30  # where the confirmation is to come in time, on a machine that is busy with other tests
# A drop is noticed when TCP sends again: its pauses double, and the answer of the trial waits for one of them.
SLACK_S = 30
NODES = ("gpu-m1", "gpu-m2")  # Debian 12 (nft 1.0.6, systemd 252) and 13


@pytest.fixture(scope="session")
def rack() -> Rack:
    found = load("molecule")
    hosts.up(found)
    return found


@pytest.fixture(scope="session", autouse=True)
def converged(rack: Rack) -> None:
    """Relay, time and firewall stand: what every test here starts from."""
    for playbook in ("relay.yml", "time.yml", "firewall.yml"):
        code, text = play(playbook)
        assert code == 0, text[-3000:]


def words(playbook: str, limit: str, variables: dict[str, Any]) -> list[str]:
    program = str(Path(sys.executable).parent / "ansible-playbook")
    return [
        program,
        "-i",
        str(INVENTORY),
        str(ROOT / "playbooks" / playbook),
        "--limit",
        limit,
        "-e",
        json.dumps(variables),
    ]


def trial_of(rules: list[dict[str, str]]) -> list[str]:
    more = {"rack_firewall_extra_rules": rules, "rack_firewall_confirm_timeout_s": CONFIRM_S}
    return words("firewall.yml", "gpu_nodes", more)


def environment() -> dict[str, str]:
    return {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}


def play(playbook: str, limit: str = "all", **variables: Any) -> tuple[int, str]:
    done = subprocess.run(
        words(playbook, limit, variables), cwd=ROOT, env=environment(), text=True, check=False, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout


def table(rack: Rack, host: str) -> str:
    """Past SSH, so that it can be seen while SSH is cut."""
    return hosts.execute(rack, host, *TABLE, check=False)


def loaded(rack: Rack, rule: str) -> None:
    wait_until(lambda: all(rule in table(rack, host) for host in NODES), 60, "the new rules are loaded")


def answers(rack: Rack, host: str) -> bool:
    """A new connection, no old one shared."""
    argv = [
        "ssh",
        "-F",
        str(rack.state / "ssh_config"),
        "-o",
        "ConnectTimeout=2",
        "-o",
        "ControlPath=none",
        host,
        "true",
    ]
    return subprocess.run(argv, check=False, capture_output=True, timeout=30).returncode == 0


@pytest.fixture
def old(rack: Rack) -> Iterator[dict[str, str]]:
    """The tables as they are, and the proof that they are the same at the end."""
    before = {host: table(rack, host) for host in NODES}
    assert all("ntp_egress" in text for text in before.values())
    yield before
    assert {host: table(rack, host) for host in NODES} == before
    code, text = play("firewall.yml", "gpu_nodes")
    assert code == 0, text[-2000:]
    assert "changed=1" not in text, "what came back is what the role wants"


@pytest.mark.parametrize("how", ["drop", "reject with tcp reset"])
def test_rules_that_cut_ssh_are_taken_back_and_the_run_says_so(rack: Rack, old: dict[str, str], how: str) -> None:
    rule = [{"chain": "input", "rule": f"tcp dport 22 {how}"}]
    started = time.monotonic()
    process = subprocess.Popen(
        trial_of(rule), cwd=ROOT, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    loaded(rack, "dport 22")
    assert not any(answers(rack, host) for host in NODES), "the rules did not cut SSH: this test would prove nothing"
    text, _ = process.communicate(timeout=CONFIRM_S + SLACK_S + 90)
    assert process.returncode != 0
    said = " ".join(text.split())
    assert "not confirmed within" in said, text[-3000:]
    assert "the old rules are back (read back" in said, text[-3000:]
    assert time.monotonic() - started < CONFIRM_S + SLACK_S + 60
    assert all(answers(rack, host) for host in NODES)


def test_killed_between_loading_and_confirming_ends_in_the_old_state(rack: Rack, old: dict[str, str]) -> None:
    """Rules that harm nobody: nothing but the missing confirmation takes them back."""
    rule = [{"chain": "input", "rule": "tcp dport 9999 drop"}]
    process = subprocess.Popen(
        trial_of(rule), cwd=ROOT, env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    loaded(rack, "dport 9999")
    os.killpg(process.pid, 9)
    process.wait()
    kept = [hosts.execute(rack, host, "cat", "/etc/steadyrack/firewall/ntp.nft") for host in NODES]
    assert not any("9999" in text for text in kept), "it was confirmed before the kill: this test would prove nothing"
    wait_until(lambda: not any("9999" in table(rack, h) for h in NODES), CONFIRM_S + 5, "the old rules are back")


def test_what_is_confirmed_stays_and_counters_with_it(rack: Rack) -> None:
    """The counterpart: rules that let SSH in are kept, beyond the time for the confirmation."""
    rule = [{"chain": "input", "rule": "tcp dport 9999 drop"}]
    leak = "import socket; s=socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x'*48, ('10.214.1.77', 123))"
    hosts.execute(rack, "gpu-m1", "python3", "-c", leak, check=False)
    before = counters(rack, "gpu-m1")
    assert before["ntp_egress"] >= 1
    code, text = play("firewall.yml", "gpu-m1", rack_firewall_extra_rules=rule, rack_firewall_confirm_timeout_s=KEEP_S)
    assert code == 0, text[-3000:]
    time.sleep(KEEP_S + 2)
    assert "9999" in table(rack, "gpu-m1")
    assert counters(rack, "gpu-m1")["ntp_egress"] == before["ntp_egress"]
    code, text = play("firewall.yml", "gpu-m1")
    assert code == 0, text[-3000:]
    assert "9999" not in table(rack, "gpu-m1")


def counters(rack: Rack, host: str) -> dict[str, int]:
    text = hosts.execute(rack, host, "nft", "-j", "list", "counters", "table", "inet", "steadyrack_ntp")
    return {
        one["counter"]["name"]: one["counter"]["packets"] for one in json.loads(text)["nftables"] if "counter" in one
    }


def test_bad_rules_never_reach_the_kernel(rack: Rack, old: dict[str, str]) -> None:
    code, text = play(
        "firewall.yml", "gpu_nodes", rack_firewall_extra_rules=[{"chain": "input", "rule": "tcp dport x"}]
    )
    assert code != 0
    assert "refused by nft" in text


def test_flush_ruleset_is_repaired_and_rules_of_others_stay(rack: Rack, old: dict[str, str]) -> None:
    hosts.execute(rack, "gpu-m1", "nft", "flush", "ruleset")
    hosts.execute(rack, "gpu-m1", "nft", "add", "table", "ip", "mine")
    assert "ntp_egress" not in table(rack, "gpu-m1")
    code, text = play("firewall.yml", "gpu_nodes")
    assert code == 0, text[-2000:]
    assert table(rack, "gpu-m1") == old["gpu-m1"]
    assert "table ip mine" in hosts.execute(rack, "gpu-m1", "nft", "list", "tables")
    hosts.execute(rack, "gpu-m1", "nft", "delete", "table", "ip", "mine")


@pytest.mark.parametrize("verb", ["start", "reload", "restart", "stop"])
def test_the_table_survives_what_is_done_to_nftables_service(rack: Rack, old: dict[str, str], verb: str) -> None:
    if verb != "start":
        hosts.execute(rack, "gpu-m1", "systemctl", "start", "nftables")
    hosts.execute(rack, "gpu-m1", "systemctl", verb, "nftables")
    time.sleep(1)
    assert table(rack, "gpu-m1") == old["gpu-m1"]
    hosts.execute(rack, "gpu-m1", "systemctl", "stop", "nftables")
    time.sleep(1)


def test_the_table_is_there_after_a_restart_of_the_host(rack: Rack, old: dict[str, str]) -> None:
    hosts.restart(rack, "gpu-m2")
    assert table(rack, "gpu-m2") == old["gpu-m2"]
