"""docs/power.md shows what the planner says: its table and its example are made here and looked for there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rack_facts import DEFAULTS, rack_hosts
from rack_plan import rack_plan_report
from rack_power import rack_power_plan

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs/power.md").read_text()
CAPS = (300, 250, 225, 200, 175, 150)


def rack(nodes: int, cap: int, active: int, **facts: Any) -> dict[str, dict[str, Any]]:
    """Nodes of 600 W with four A100, power supplies of 94 %, a spare measured at 75 W."""
    gpus = [{"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150, "power_cap_w": cap}]
    own = {"rack_name": "n1", "rack_site": "north", "rack_feed_limit_w": 4000, "rack_psu_efficiency": 0.94}
    own.update(rack_gpus=gpus, gpu_policy_spares=4 - active, rack_spare_w=75, **facts)
    return {f"gpu-n1{number}": own for number in range(1, nodes + 1)}


def planned(facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (only,) = rack_power_plan(rack_hosts(facts, [*facts]))["racks"]
    return only


def table() -> list[str]:
    lines = []
    for cap in CAPS:
        sums = [planned(rack(nodes, cap, active))["sum_w"] for nodes in (1, 2) for active in (3, 4)]
        worst = planned(rack(2, cap, 3))["failover_w"]
        most = max(nodes for nodes in range(1, 5) if planned(rack(nodes, cap, 3))["fits"])
        lines.append(f"| {cap} | " + " | ".join(str(round(watts)) for watts in (*sums, worst)) + f" | {most} |")
    return lines


def test_the_table_is_the_planners() -> None:
    for line in table():
        assert line in DOCUMENT, "\n".join(table())


def test_the_example_is_what_plan_yml_shows() -> None:
    facts = rack(2, 300, 3, rack_feed_limit_w=3700)
    plan = rack_power_plan(rack_hosts(facts, [*facts]))
    shown = "\n".join(rack_plan_report(plan, facts, [*facts])["lines"])
    assert shown in DOCUMENT, shown


def test_every_fact_of_the_plan_is_explained() -> None:
    for fact in (*DEFAULTS, "rack_feed_limit_w", "rack_gpus"):
        assert f"`{fact}`" in DOCUMENT, fact
