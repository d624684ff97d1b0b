"""playbooks/plan.yml as it runs: whole racks whatever --limit says, no host contacted unless it is to measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpu_node import GpuNode

REPOSITORY = Path(__file__).resolve().parents[3]
GPUS = [{"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150}]
# Addresses for documentation: whoever tried to contact them would wait for long and fail.
NODES = {"gpu-a1": "192.0.2.11", "gpu-a2": "192.0.2.12", "gpu-b1": "192.0.2.13"}


def inventory(connection: dict[str, Any] | None = None, **facts: Any) -> dict[str, Any]:
    """Rack a1 of a relay and two nodes, rack b1 of one node, with these rack facts."""
    shared = {"rack_site": "Süd", "rack_feed_limit_w": 4000, "rack_gpus": GPUS, "rack_networks": ["192.0.2.0/24"]}
    return {
        "all": {
            "vars": {**shared, **facts, **(connection or {})},
            "children": {
                "relays": {"hosts": {"relay-a1": {"ansible_host": "192.0.2.10"}}},
                "gpu_nodes": {"hosts": {name: {"ansible_host": address} for name, address in NODES.items()}},
                "rack_a1": {"vars": {"rack_name": "机架 1"}, "hosts": dict.fromkeys(["relay-a1", "gpu-a1", "gpu-a2"])},
                "rack_b1": {"vars": {"rack_name": "b1"}, "hosts": {"gpu-b1": None}},
            },
        }
    }


def plan(source: Path | str, *words: str, node: GpuNode | None = None) -> tuple[int, str]:
    """Exit status and what was shown. Hosts with a local connection find the GPUs of ``node``."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    environment = {**(node.environment if node else os.environ), "ANSIBLE_NOCOLOR": "1"}
    environment["ANSIBLE_CONFIG"] = str(REPOSITORY / "ansible.cfg")
    done = subprocess.run(
        [program, "-i", str(source), "playbooks/plan.yml", *words],
        cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def run(tmp_path: Path, hosts: dict[str, Any], *words: str, node: GpuNode | None = None) -> tuple[int, str]:
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(hosts, allow_unicode=True), encoding="utf-8")
    return plan(tmp_path / "hosts.yml", *words, node=node)


@pytest.mark.parametrize(("name", "racks"), [("demo", 2), ("example", 3)])
def test_the_inventories_that_are_shipped_fit(name: str, racks: int) -> None:
    status, shown = plan(f"inventory/{name}")
    assert status == 0, shown
    assert shown.count("verdict: fits") == racks


def test_the_demos_other_site_has_a_spare() -> None:
    status, shown = plan("inventory/demo", "--limit", "gpu-b1")
    assert status == 0, shown
    assert "3 x 300 (NVIDIA A100 80GB PCIe)  1 x 150 (NVIDIA A100 80GB PCIe)  1650" in shown


def test_spares_on_the_command_line_are_text_and_count(tmp_path: Path) -> None:
    spare = ("gpu_policy_spares=2", "gpu_policy_spare_power_cap_w=180")
    status, shown = run(tmp_path, inventory(), *(word for text in spare for word in ("-e", text)))
    assert status == 0, shown
    assert "2 x 300 (NVIDIA A100 80GB PCIe)  2 x 180 (NVIDIA A100 80GB PCIe)  1560" in shown
    status, shown = run(tmp_path, inventory(), "-e", "gpu_policy_spares=4")
    assert status != 0
    assert "gpu-a1: gpu_policy_spares: 4 of 4 GPUs; wanted at most 3, so that one works" in shown


@pytest.mark.parametrize("words", [[], ["--check"]], ids=["run", "check"])
def test_a_limit_shows_the_whole_rack_and_the_fail_over_decides(tmp_path: Path, words: list[str]) -> None:
    """3300 W fit 3325 W; 3450 W, with one host at four loads, do not."""
    hosts = inventory(gpu_policy_spares=1, rack_feed_limit_w=3500)
    status, shown = run(tmp_path, hosts, "--limit", "relay-a1", *words)
    assert status != 0
    assert "rack 机架 1 at Süd" in shown
    assert "rack b1" not in shown
    assert "1800 + 1650 = 3450 W of 3325 W: over by 125 W" in " ".join(shown.split())
    assert "verdict: does not fit" in shown
    hosts["all"]["vars"]["rack_failover_may_exceed"] = True
    status, shown = run(tmp_path, hosts, "--limit", "relay-a1", *words)
    assert (status, "verdict: fits" in shown) == (0, True)


def test_a_bad_fact_is_one_error_of_the_rack_and_the_other_rack_is_planned(tmp_path: Path) -> None:
    hosts = inventory()
    hosts["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["rack_failover_hosts"] = "both"
    status, shown = run(tmp_path, hosts)
    assert status != 0
    assert "gpu-a2: rack_failover_hosts: 'both' (a text); wanted one or all." in shown
    assert shown.count("verdict: ") == 1


def test_what_the_gpus_draw_stands_beside_the_plan(tmp_path: Path, gpu_node: GpuNode) -> None:
    """An emulated node behind both names: first idle, then with one card at its cap of 300 W where 250 are planned."""
    local = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    words = ("-e", "plan_measure=true", "--limit", "rack_a1")
    gpu_node.set("gpu.*.power_usage_mw=45000")
    status, shown = run(tmp_path, inventory(local), *words, node=gpu_node)
    assert status == 0, shown
    assert "gpu-a2: GPUs 180 W, 4 of 4 measured; planned 1200 W" in shown
    assert "measured GPUs, all else as planned: 1560 W at the plug of 3800 W usable" in shown
    gpu_node.set("gpu.1.power_usage_mw=299000")
    status, shown = run(tmp_path, inventory(local, gpu_policy_power_cap_w=250), *words, node=gpu_node)
    assert status != 0
    assert "gpu-a1: 0000:4b:00.0: its cap is 300 W, planned 250 W" in shown
    assert "gpu-a1: 0000:4b:00.0: draws 299 W, above its cap of 250 W" in shown


def test_what_cannot_be_measured_is_no_data_and_no_pass(tmp_path: Path) -> None:
    """One host without an answer, one that answers and has no GPU library, as here."""
    hosts = inventory({"ansible_become": False, "ansible_python_interpreter": sys.executable})
    nodes = hosts["all"]["children"]["gpu_nodes"]["hosts"]
    nodes["gpu-a1"].update(ansible_connection="local")
    nodes["gpu-a2"].update(
        ansible_port=1, ansible_ssh_common_args="-F none -o ConnectTimeout=2", ansible_host="127.0.0.1"
    )
    status, shown = run(tmp_path, hosts, "-e", "plan_measure=true", "--limit", "rack_a1")
    assert status != 0
    assert "gpu-a1: no data: no_" in shown
    assert "gpu-a2: no data: unreachable (" in shown
    assert "measured GPUs, all else as planned: 3600 W at the plug of 3800 W usable" in shown
    assert "BMC: not read" in shown
    nodes["gpu-b1"].update(nodes["gpu-a1"])
    status, shown = run(tmp_path, hosts, "-e", "plan_measure=true", "--limit", "gpu-a1")
    assert "gpu-a2: no data: not asked" in shown
