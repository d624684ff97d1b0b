"""The GPUs' text file for node_exporter, from passes on an emulated node."""

from __future__ import annotations

import pytest
from gpu_node import policy


@pytest.fixture
def metrics(gpu_node):
    """A pass, and the file it left: sample -> value."""

    def run() -> dict[str, str]:
        gpu_node.steadyrack("gpu", "apply")
        text = (gpu_node.root / "var/lib/steadyrack/metrics/steadyrack_gpu.prom").read_text()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    gpu_node.program("journalctl", "#!/bin/sh\n")
    gpu_node.policy(policy(250, spares={"count": 1, "environment": False}))
    return run


def test_roles_and_limits_have_their_lines(metrics, gpu_node):
    found = metrics()
    assert (found["steadyrack_gpu_allowed"], found["steadyrack_gpus_active"], found["steadyrack_gpus_spare"]) == (
        "3", "3", "1",
    )  # fmt: skip
    spare = f'uuid="{gpu_node.uuid(3)}",slot="0000:ca:00.0"'
    assert found[f"steadyrack_gpu_power_limit_enforced_watts{{{spare}}}"] == "150.0"
    assert found[f'steadyrack_gpu_role{{{spare},role="spare"}}'] == "1"
    assert not [name for name in found if name.startswith("steadyrack_gpu_failed_checks")]


def test_a_failed_card_is_counted_and_what_it_does_not_tell_has_no_line(metrics, gpu_node):
    metrics()
    gpu_node.set("gpu.1.lost=1")
    found = metrics()
    assert (found["steadyrack_gpus_failed"], found["steadyrack_gpus_active"]) == ("1", "3")
    assert int(found['steadyrack_gpu_failed_checks{check="gpu.spare"}']) == 1
    assert not [name for name in found if "power_limit" in name and gpu_node.uuid(1) in name]


def test_without_a_driver_nothing_but_that_is_told(metrics, gpu_node):
    gpu_node.set("fault.nvmlInit=9")
    found = metrics()
    assert found["steadyrack_gpu_nvml_usable"] == "0"
    assert not [name for name in found if "power_limit" in name]
