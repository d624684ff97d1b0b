"""What speaks against a GPU, in whole passes on the emulated node: NVML, the PCI bus and the kernel log together."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu_node import EMULATOR, NODE_PYTHON, REPOSITORY, SLOTS, GpuNode, policy

# One pass with short deadlines. Between its two looks, where it takes two, the driver's state is changed.
PASS = """
import json, subprocess, sys, time
sys.path.insert(0, {package!r})
from steadyrack import gpu_apply, gpu_policy, gpu_sight

class Between:
    looks = 1
    time = staticmethod(time.time)
    @staticmethod
    def sleep(_seconds):
        Between.looks += 1
        if {between!r}:
            subprocess.run([sys.executable, {emulator!r}, "set", *{between!r}], check=True, stdout=subprocess.DEVNULL)

gpu_sight.time = Between
policy = gpu_policy.load({root!r} + gpu_policy.POLICY_PATH)
outcome = gpu_apply.apply(policy, {root!r}, "gpu-a1", strict=False, call_s=0.5, first_contact_s=0.5)
state = outcome.roles.state
print(json.dumps({{
    "node": outcome.before["state"], "state": state, "looks": Between.looks, "failures": outcome.failures,
    "events": [(event["event"], event["bus_id"]) for event in outcome.events],
    "modes": {{gpu["bus_id"]: gpu["compute_mode"] for gpu in outcome.after["gpus"]}},
}}))
"""
JOURNAL = """#!/bin/sh
cat {folder}/rows 2>/dev/null
rm -f {folder}/rows
"""
READY = ["active", "active", "active", "spare"]
TAKEN = ["failed", "active", "active", "active"]


class Node:
    """A node with one spare whose first pass is done."""

    def __init__(self, gpu_node: GpuNode, folder: Path, **keys: Any) -> None:
        self.gpu_node = gpu_node
        self.folder = folder
        self.cursor = 0
        gpu_node.program("journalctl", JOURNAL.format(folder=folder))
        gpu_node.policy(policy(250, spares={"count": 1}, **keys))
        self.uuids = [gpu_node.uuid(place) for place in range(4)]
        self.kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
        assert self.roles(self.look()) == READY

    def kernel(self, *lines: str) -> None:
        """What the kernel says until the next pass."""
        with (self.folder / "rows").open("a") as stream:
            for line in lines:
                self.cursor += 1
                row = {"__CURSOR": f"s={self.cursor}", "_TRANSPORT": "kernel", "MESSAGE": line}
                stream.write(json.dumps(row) + "\n")

    def xid(self, place: int, code: int, text: str = "") -> None:
        self.kernel(f"NVRM: Xid (PCI:{SLOTS[place][:-2]}): {code}, {text}")

    def look(self, *between: str) -> dict[str, Any]:
        """One pass."""
        code = PASS.format(
            package=str(REPOSITORY / "module_utils"),
            emulator=str(EMULATOR),
            root=str(self.gpu_node.root),
            between=list(between),
        )
        command = [NODE_PYTHON, "-c", code]
        done = subprocess.run(
            command, env=self.gpu_node.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        found["events"] = [tuple(event) for event in found["events"]]
        return found

    def roles(self, found: dict[str, Any]) -> list[str]:
        return [found["state"]["gpus"][uuid]["role"] for uuid in self.uuids]

    def reason(self, found: dict[str, Any], place: int = 0) -> str:
        return str(found["state"]["gpus"][self.uuids[place]]["reason"])

    def listed(self) -> list[str]:
        text = (self.gpu_node.root / "var/lib/steadyrack/gpus.env").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES=")]
        return line.partition("=")[2].split(",")


@pytest.fixture
def spare_node(gpu_node: GpuNode, tmp_path: Path) -> Node:
    return Node(gpu_node, tmp_path)


def test_a_node_that_is_well_is_looked_at_once_and_stays_as_it_is(spare_node: Node) -> None:
    found = spare_node.look()
    assert (spare_node.roles(found), found["events"], found["looks"]) == (READY, [], 1)
    assert spare_node.listed() == spare_node.uuids[:3]


# --- cards that do not answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("gpu.0.lost=1", "fallen off the bus"),
        ("gpu.0.removed=1", "nor in the driver's list"),
        ("gpu.0.fault.nvmlDeviceGetName=16", "reset_required"),
        ("gpu.0.delay_ms.nvmlDeviceGetName=-1", "timeout"),
        ("gpu.0.fault.*=999", "unreachable"),
    ],
)
def test_the_spare_takes_the_place_of_a_card_that_does_not_answer(spare_node: Node, fault: str, why: str) -> None:
    spare_node.gpu_node.set(fault)
    found = spare_node.look()
    assert (spare_node.roles(found), found["events"]) == (TAKEN, [("failed", SLOTS[0]), ("takeover", SLOTS[3])])
    assert why in spare_node.reason(found)
    assert spare_node.listed() == spare_node.uuids[1:]
    assert found["modes"][SLOTS[3]] == "default"
    again = spare_node.look()
    assert (spare_node.roles(again), again["events"], again["looks"]) == (TAKEN, [], 1)


@pytest.mark.parametrize(
    "fault", ["gpu.0.fault.*", "gpu.0.delay_ms.nvmlDeviceGetName", "gpu.0.removed"], ids=["unreachable", "hung", "gone"]
)
def test_what_is_well_at_the_second_look_costs_no_card(spare_node: Node, fault: str) -> None:
    spare_node.gpu_node.set(f"{fault}={'-1' if 'delay' in fault else '1' if 'removed' in fault else '999'}")
    found = spare_node.look(f"{fault}=")
    assert found["looks"] == 2
    assert (spare_node.roles(found), found["events"]) == (READY, [])
    assert spare_node.listed() == spare_node.uuids[:3]


def test_what_the_driver_itself_calls_lost_needs_no_second_look(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.lost=1")
    assert spare_node.look()["looks"] == 1


def test_two_cards_lost_at_once_leave_two_of_three(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.lost=1", "gpu.1.lost=1")
    found = spare_node.look()
    assert spare_node.roles(found) == ["failed", "failed", "active", "active"]
    assert ("no_spare", SLOTS[1]) in found["events"]
    assert spare_node.listed() == spare_node.uuids[2:]


def test_a_card_that_answers_again_stays_out_until_somebody_returns_it(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.lost=1")
    spare_node.look()
    spare_node.gpu_node.set("gpu.0.lost=")
    found = spare_node.look()
    assert spare_node.roles(found) == TAKEN
    assert found["modes"][SLOTS[0]] == "prohibited"
    done = spare_node.gpu_node.steadyrack("spare", "return", SLOTS[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert spare_node.roles(spare_node.look()) == ["spare", "active", "active", "active"]


# --- memory --------------------------------------------------------------------------------------


def test_a_remapping_that_failed_ends_a_cards_service_without_any_xid_c63(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.remapped_failure=1")
    found = spare_node.look()
    assert spare_node.roles(found) == TAKEN
    assert "could not be remapped" in spare_node.reason(found)
    assert found["modes"][SLOTS[0]] == "prohibited"
    assert found["state"]["gpus"][spare_node.uuids[0]]["xids"] == []


@pytest.mark.parametrize("key", ["remapped_pending", "remapped_corrected", "ecc_aggregate_corrected"])
def test_what_the_card_puts_right_by_itself_costs_no_card(spare_node: Node, key: str) -> None:
    spare_node.gpu_node.set(f"gpu.0.{key}=1")
    assert spare_node.roles(spare_node.look()) == READY


def test_an_uncorrectable_error_that_is_new_ends_a_cards_service(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.ecc_aggregate_uncorrected=2")
    found = spare_node.look()
    assert spare_node.roles(found) == TAKEN
    assert "from 0 to 2" in spare_node.reason(found)


def test_errors_of_a_life_before_are_no_reason(gpu_node: GpuNode, tmp_path: Path) -> None:
    gpu_node.set("gpu.0.ecc_aggregate_uncorrected=7")
    node = Node(gpu_node, tmp_path)
    assert node.roles(node.look()) == READY


def test_an_error_that_stayed_in_one_application_costs_no_card_and_a_later_one_does(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.ecc_aggregate_uncorrected=1")
    spare_node.xid(0, 94, "pid=1234, name=python, Contained: SM (0x1). RST: No, D-RST: No")
    found = spare_node.look()
    assert (spare_node.roles(found), found["events"]) == (READY, [])
    assert spare_node.roles(spare_node.look()) == READY
    spare_node.gpu_node.set("gpu.0.ecc_aggregate_uncorrected=2")
    found = spare_node.look()
    assert spare_node.roles(found) == TAKEN
    assert "from 1 to 2" in spare_node.reason(found)


def test_a_count_that_cannot_be_read_is_no_rise_and_no_new_beginning(spare_node: Node) -> None:
    spare_node.gpu_node.set("gpu.0.fault.nvmlDeviceGetTotalEccErrors=3")
    assert spare_node.roles(spare_node.look()) == READY
    spare_node.gpu_node.set("gpu.0.fault.nvmlDeviceGetTotalEccErrors=", "gpu.0.ecc_aggregate_uncorrected=1")
    assert spare_node.roles(spare_node.look()) == TAKEN


# --- the kernel log ------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "roles"), [(79, TAKEN), (48, TAKEN), (31, READY), (45, READY), (63, READY)])
def test_an_xid_counts_although_nvml_finds_nothing(spare_node: Node, code: int, roles: list[str]) -> None:
    spare_node.xid(0, code, "pid=1, name=x")
    found = spare_node.look()
    assert spare_node.roles(found) == roles
    assert [xid["code"] for xid in found["state"]["gpus"][spare_node.uuids[0]]["xids"]] == [code]
    assert spare_node.roles(spare_node.look()) == roles


def test_a_card_lost_without_an_xid_is_named_by_the_log_c64(spare_node: Node) -> None:
    spare_node.kernel(
        "NVRM: The NVIDIA GPU 0000:31:00.0",
        "NVRM: (PCI ID: 10de:20b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    found = spare_node.look()
    assert spare_node.roles(found) == TAKEN
    assert "fallen off the bus" in spare_node.reason(found)


def test_the_site_says_what_an_xid_means(gpu_node: GpuNode, tmp_path: Path) -> None:
    node = Node(gpu_node, tmp_path, xid_actions={"31": "reset", "79": "check"})
    node.xid(1, 79)
    assert node.roles(node.look()) == READY
    node.xid(0, 31)
    assert node.roles(node.look()) == TAKEN


def test_an_xid_of_the_spare_takes_the_spare_out(spare_node: Node) -> None:
    spare_node.xid(3, 79)
    found = spare_node.look()
    assert (spare_node.roles(found), found["events"]) == ([*READY[:3], "failed"], [("failed", SLOTS[3])])
    assert spare_node.listed() == spare_node.uuids[:3]


def test_a_log_that_cannot_be_read_is_written_down_and_nvml_still_counts(spare_node: Node) -> None:
    spare_node.gpu_node.program("journalctl", "#!/bin/sh\necho no permission >&2\nexit 1\n")
    spare_node.gpu_node.set("gpu.0.lost=1")
    found = spare_node.look()
    assert spare_node.roles(found) == TAKEN
    assert "no permission" in found["state"]["log_trouble"]
    assert found["state"]["cursor"] == "s=1"
    done = spare_node.gpu_node.steadyrack("spare", "status", "--json")
    (row,) = [row for row in json.loads(done.stdout)["checks"] if row["id"] == "gpu.xid"]
    assert (row["verdict"], row["state"]) == ("unknown", "unreadable")


# --- a driver that is not there ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ("fault.nvmlInitWithFlags=9", "no_driver"),
        ("driver_loaded=0", "no_driver"),
        ("fault.nvmlInitWithFlags=18", "driver_mismatch"),
    ],
)
def test_without_a_driver_roles_and_list_stay_as_they_are(spare_node: Node, fault: str, state: str) -> None:
    roles = spare_node.gpu_node.root / "var/lib/steadyrack/gpu_roles.json"
    before = roles.read_bytes(), spare_node.listed()
    spare_node.gpu_node.set(fault)
    found = spare_node.look()
    assert (found["node"], spare_node.roles(found), found["events"]) == (state, READY, [])
    assert json.loads(roles.read_bytes())["gpus"] == json.loads(before[0])["gpus"]
    assert spare_node.listed() == before[1]


def test_what_the_kernel_said_while_no_driver_was_there_counts_afterwards(spare_node: Node) -> None:
    spare_node.gpu_node.set("driver_loaded=0")
    spare_node.xid(0, 79)
    assert spare_node.roles(spare_node.look()) == READY
    assert (spare_node.folder / "rows").exists(), "the log was read, and what it said is lost"
    spare_node.gpu_node.set("driver_loaded=")
    assert spare_node.roles(spare_node.look()) == TAKEN
