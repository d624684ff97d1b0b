"""The table of playbooks/status.yml, from answers of the real module on emulated nodes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gpu_node import policy

sys.path.append(str(Path(__file__).resolve().parents[3] / "filter_plugins"))

from gpu_status import gpu_status


@pytest.fixture
def node(gpu_node):
    """A node with one spare after its first pass."""
    gpu_node.program("journalctl", "#!/bin/sh\n")
    gpu_node.policy(policy(250, spares={"count": 1, "environment": False}))
    gpu_node.steadyrack("gpu", "apply")
    return gpu_node


def table(*answers) -> list[str]:
    hosts = {f"gpu-{number}": {"answer": answer} for number, answer in enumerate(answers)}
    return gpu_status(hosts, hosts, "answer")


def test_a_rack_that_is_well(node):
    lines = table(node.module("gpu_info"))
    cells = [line.split() for line in lines[1:5]]
    assert [line[3] for line in cells] == ["active", "active", "active", "spare"]
    assert [line[4] for line in cells] == ["250", "250", "250", "150"]
    assert [line[-1] for line in cells] == ["ok"] * 4
    assert lines[-1] == "4 of 4 lines are well"


def test_c47_a_card_that_fell_is_named_with_its_successor_and_what_to_do(node):
    node.set("gpu.1.lost=1")
    node.steadyrack("gpu", "apply")
    lines = table(node.module("gpu_info"))
    (fallen,) = [line for line in lines[1:5] if "LOST" in line]
    assert fallen.split()[1:4] == ["0000:4b:00.0", node.uuid(1)[:12], "FAILED"]
    assert "active" in lines[4]
    assert any("steadyrack spare return" in line and node.uuid(1) in line for line in lines)
    assert lines[-1] == "3 of 4 lines are well"


def test_a_card_that_is_gone_from_bus_and_driver_has_its_line(node):
    uuid = node.uuid(0)
    node.set("gpu.0.removed=1")
    node.steadyrack("gpu", "apply")
    text = [line for line in table(node.module("gpu_info")) if line.endswith("GONE")]
    assert len(text) == 1
    assert uuid[:12] in text[0]
    assert "FAILED" in text[0]


def test_who_does_not_answer_is_said_and_not_left_out(node):
    lines = table({"unreachable": True, "msg": "no route"}, {"failed": True, "msg": "policy: half a file"}, None)
    assert "UNREACHABLE" in lines[1]
    assert "NO ANSWER: policy: half a file" in lines[2]
    assert "not asked" in lines[3]
    assert lines[-1] == "0 of 3 lines are well"


@pytest.mark.parametrize(
    ("fault", "word"), [("fault.nvmlInit=9", "no_driver"), ("fault.nvmlInit=18", "driver_mismatch")]
)
def test_a_node_without_a_driver_has_a_line(node, fault, word):
    node.set(fault)
    lines = table(node.module("gpu_info"))
    assert word in lines[1]
    assert lines[-1] == "0 of 1 lines are well"
