"""The plan as playbooks/plan.yml shows it, and what GPUs draw beside it, read by gpu_info on emulated nodes."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_node import GpuNode
from rack_facts import rack_hosts
from rack_inventory import inventory_errors
from rack_plan import rack_plan_report
from rack_power import rack_power_plan

A100 = {"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150}


def facts_of(*nodes: str, **facts: Any) -> dict[str, dict[str, Any]]:
    """Rack a1 of these nodes and their relay, rack b1 of gpu-b1."""
    shared = {"rack_site": "north", "rack_feed_limit_w": 4000, "rack_gpus": [A100], "rack_networks": ["192.0.2.0/24"]}
    known = {name: {**shared, "rack_name": "a1", **facts} for name in (*nodes, "relay-a1")}
    known["gpu-b1"] = {**shared, "rack_name": "b1"}
    return {name: {**own, "ansible_host": f"192.0.2.{10 + place}"} for place, (name, own) in enumerate(known.items())}


def report(facts: dict[str, dict[str, Any]], *hosts: str, answers: Any = None) -> dict[str, Any]:
    nodes = [name for name in facts if name.startswith("gpu-")]
    groups = {"all": [*facts], "relays": ["relay-a1"], "gpu_nodes": nodes}
    plan = rack_power_plan(rack_hosts(facts, nodes))
    return rack_plan_report(plan, facts, hosts or [*facts], inventory_errors(groups, facts), answers)


# --- the table -----------------------------------------------------------------------------------------


def test_a_rack_as_a_table() -> None:
    facts = facts_of("gpu-a1", "gpu-a2", gpu_policy_spares=1, rack_other_w=60)
    assert report(facts, "gpu-a2")["lines"] == [
        "rack a1 at north: feed 4000 W less 5 % margin = 3800 W usable",
        "HOST          ACTIVE x CAP                     SPARE x W                        W AT THE PLUG",
        "gpu-a1        3 x 300 (NVIDIA A100 80GB PCIe)  1 x 150 (NVIDIA A100 80GB PCIe)  1650",
        "gpu-a2        3 x 300 (NVIDIA A100 80GB PCIe)  1 x 150 (NVIDIA A100 80GB PCIe)  1650",
        "rack_other_w                                                                    60",
        "sum                                                                             3360",
        "usable                                                                          3800",
        "left                                                                            440",
        "fail-over     on gpu-a1                                                         3510",
        "usable then                                                                     3800",
        "left                                                                            290",
        "verdict: fits",
    ]
    assert report(facts)["bad"] == []


def test_a_rack_that_does_not_fit_says_why_and_what_would() -> None:
    facts = facts_of("gpu-a1", "gpu-a2", "gpu-a3")
    found = report(facts)
    (bad,) = found["bad"]
    assert bad == "rack a1 at north: 3 hosts: 1800 + 1800 + 1800 = 5400 W of 3800 W: over by 1600 W"
    place = found["lines"].index("verdict: does not fit")
    assert found["lines"][place - 1].split() == ["over", "by", "1600"]
    assert [line.startswith("next: ") for line in found["lines"][place + 1 : place + 3]] == [True, True]
    assert found["lines"][-1] == "verdict: fits"  # rack b1


@pytest.mark.parametrize("asked", ["gpu-a2", "relay-a1"])
def test_whole_racks_of_the_hosts_asked_for_and_no_others(asked: str) -> None:
    lines = report(facts_of("gpu-a1", "gpu-a2"), asked)["lines"]
    assert [line.split()[1] for line in lines if line.startswith("rack ")] == ["a1"]
    assert any(line.startswith("gpu-a1 ") for line in lines)


def test_a_rack_without_a_gpu_node_is_said_to_be_one() -> None:
    facts = facts_of("gpu-a1")
    facts["relay-a1"]["rack_name"] = "c1"
    assert report(facts, "relay-a1") == {"lines": ["no GPU node in the racks of these hosts"], "bad": []}


def test_what_is_wrong_with_a_fact_is_told_once_and_ends_with_an_error() -> None:
    facts = facts_of("gpu-a1", "gpu-a2")
    facts["gpu-a2"]["rack_spare_w"] = "75"
    found = report(facts, "gpu-a1")
    told = [line for line in found["lines"] if "rack_spare_w" in line]
    assert len(told) == 1
    assert "its power cannot be planned" in found["lines"][0]
    assert found["bad"][0] == told[0]


def test_a_misspelt_fact_is_told_beside_the_table() -> None:
    found = report(facts_of("gpu-a1", rack_spare=75), "gpu-a1")
    assert "did you mean rack_spare_w?" in found["bad"][0]
    assert found["bad"][0] in found["lines"]


# --- what is measured ------------------------------------------------------------------------------------


def read(node: GpuNode, **changes: Any) -> dict[str, Any]:
    """What gpu_info answers on this node, the power of every card replaced where ``changes`` say so."""
    answer: dict[str, Any] = node.module("gpu_info")
    for gpu in answer["gpu_info"]["gpus"]:
        gpu["power"].update(changes)
    return answer


def measured(answers: dict[str, Any], *nodes: str, **facts: Any) -> dict[str, Any]:
    return report(facts_of(*(nodes or ("gpu-a1", "gpu-a2")), **facts), "gpu-a1", answers=answers)


def test_idle_nodes_are_within_the_plan(gpu_node: GpuNode) -> None:
    answer = read(gpu_node, draw_w=45.0)
    found = measured({"gpu-a1": answer, "gpu-a2": answer})
    assert found["bad"] == []
    assert found["lines"][-4:] == [
        "gpu-a1: GPUs 180 W, 4 of 4 measured; planned 1200 W",
        "gpu-a2: GPUs 180 W, 4 of 4 measured; planned 1200 W",
        "measured GPUs, all else as planned: 1560 W at the plug of 3800 W usable",
        "BMC: not read",
    ]


UNREACHABLE = {"unreachable": True, "msg": "Connection refused"}


@pytest.mark.parametrize(
    ("answer", "why", "bad"),
    [
        (UNREACHABLE, "unreachable (Connection refused)", True),
        ({"failed": False, "module_stderr": "no python"}, "could not be read (no python)", True),
        (None, "not asked", False),
    ],
)
def test_a_host_without_an_answer_is_no_data_at_its_maximum_never_0(
    answer: Any, why: str, bad: bool, gpu_node: GpuNode
) -> None:
    """Its cards may have lost their caps: 300 W each, whatever is planned."""
    low = {**A100, "power_cap_w": 200}
    reading = read(gpu_node, draw_w=45.0, enforced_w=200.0)
    found = measured({"gpu-a1": reading, "gpu-a2": answer}, rack_gpus=[low])
    line = f"gpu-a2: no data: {why}; counted at its maximum, 1800 W at the plug"
    assert line in found["lines"]
    assert found["bad"] == ([line] if bad else [])
    assert f"{780 + 1800} W at the plug of 3800 W usable" in found["lines"][-2]


def test_a_node_without_its_driver_is_no_data(gpu_node: GpuNode) -> None:
    gpu_node.set("driver_loaded=0")
    found = measured({"gpu-a1": gpu_node.module("gpu_info")}, "gpu-a1")
    (bad,) = found["bad"]
    assert bad.startswith("gpu-a1: no data: no_driver (")


def test_a_lost_card_counts_at_its_last_cap_c47(gpu_node: GpuNode) -> None:
    gpu_node.set("gpu.1.lost=1")
    answer = gpu_node.module("gpu_info")
    for gpu in answer["gpu_info"]["gpus"]:
        gpu["power"].update(enforced_w=gpu["power"]["enforced_w"] and 200.0, draw_w=gpu["power"]["draw_w"] and 50.0)
    found = measured({"gpu-a1": answer}, "gpu-a1", rack_gpus=[{**A100, "power_cap_w": 200}])
    assert found["bad"] == ["gpu-a1: 0000:4b:00.0: no data: lost; counted at 200 W"]
    assert "gpu-a1: GPUs 350 W, 3 of 4 measured; planned 800 W" in found["lines"]


def test_a_card_that_is_not_there_counts_at_its_cap(gpu_node: GpuNode) -> None:
    answer = read(gpu_node, draw_w=50.0)
    del answer["gpu_info"]["gpus"][2]
    found = measured({"gpu-a1": answer}, "gpu-a1")
    assert found["bad"] == ["gpu-a1: 1 of 4 GPUs not there; counted at 300 W each"]
    assert "gpu-a1: GPUs 450 W, 3 of 4 measured; planned 1200 W" in found["lines"]


def test_a_draw_that_the_driver_does_not_tell_is_no_data_c42(gpu_node: GpuNode) -> None:
    gpu_node.set("gpu.0.fault.nvmlDeviceGetPowerUsage=3")
    found = measured({"gpu-a1": gpu_node.module("gpu_info")}, "gpu-a1")
    assert found["bad"] == ["gpu-a1: 0000:31:00.0: no data: NOT_SUPPORTED; counted at 300 W"]


def test_a_cap_that_is_not_the_planned_one_and_a_draw_above_it(gpu_node: GpuNode) -> None:
    """After a driver reload: every card back at 300 W, and one drawing it."""
    answer = read(gpu_node, draw_w=50.0)
    answer["gpu_info"]["gpus"][3]["power"]["draw_w"] = 299.0
    found = measured({"gpu-a1": answer}, "gpu-a1", gpu_policy_power_cap_w=250)
    caps = [f"gpu-a1: {gpu['bus_id']}: its cap is 300 W, planned 250 W" for gpu in answer["gpu_info"]["gpus"]]
    assert found["bad"] == [*caps, "gpu-a1: 0000:ca:00.0: draws 299 W, above its cap of 250 W"]


def test_a_draw_a_little_above_its_cap_is_what_the_margin_is_for(gpu_node: GpuNode) -> None:
    answer = read(gpu_node, draw_w=304.0)
    assert measured({"gpu-a1": answer}, "gpu-a1")["bad"] == []
    strict = measured({"gpu-a1": answer}, "gpu-a1", rack_feed_margin_percent=1)["bad"]
    assert "gpu-a1: 0000:31:00.0: draws 304 W, above its cap of 300 W" in strict
    assert strict[-1] == "gpu-a1: GPUs at 1216 W, planned 1200 W"


@pytest.mark.parametrize("name", ["uuid", "serial", "bus_id"])
def test_an_override_of_one_card_is_its_planned_cap(name: str, gpu_node: GpuNode) -> None:
    answer = read(gpu_node, draw_w=50.0, enforced_w=200.0)
    card = answer["gpu_info"]["gpus"][1]
    card["power"].update(enforced_w=300.0, draw_w=299.0)
    rest = {"gpu_policy_power_cap_w": 200}
    own = [{name: card[name] if name != "bus_id" else f"0000{card[name]}".upper(), "power_cap_w": 300}]
    assert measured({"gpu-a1": answer}, "gpu-a1", gpu_policy_overrides=own, **rest)["bad"] == []
    assert len(measured({"gpu-a1": answer}, "gpu-a1", **rest)["bad"]) == 2


def test_a_spare_above_what_it_was_planned_at(gpu_node: GpuNode) -> None:
    """The plan rests on 40 W: here the spare idles at 45."""
    gpu_node.set("gpu.3.persistence_mode=1", "gpu.3.compute_mode=2")
    answer = read(gpu_node, draw_w=45.0)
    found = measured({"gpu-a1": answer}, "gpu-a1", gpu_policy_spares=1, rack_spare_w=40)
    assert found["bad"] == ["gpu-a1: 0000:ca:00.0: draws 45 W, above the spare's planned draw of 40 W"]
    assert measured({"gpu-a1": answer}, "gpu-a1", gpu_policy_spares=1)["bad"] == []


def test_a_model_that_is_not_in_rack_gpus(gpu_node: GpuNode) -> None:
    gpu_node.set("gpu.2.name=NVIDIA A30")
    (bad,) = measured({"gpu-a1": gpu_node.module("gpu_info")}, "gpu-a1")["bad"]
    assert bad == "gpu-a1: 0000:b1:00.0: NVIDIA A30 is not in rack_gpus: no watts are planned for it"


def test_a_rack_that_may_draw_more_than_is_usable(gpu_node: GpuNode) -> None:
    """Three hosts fit at 160 W; two of them are silent and may have lost their caps."""
    answer = read(gpu_node, draw_w=160.0, enforced_w=160.0)
    nodes = ("gpu-a1", "gpu-a2", "gpu-a3")
    found = measured(
        {nodes[0]: answer, nodes[1]: UNREACHABLE, nodes[2]: UNREACHABLE}, *nodes, gpu_policy_power_cap_w=160
    )
    assert found["bad"][-1] == (
        "measured GPUs, all else as planned: 4840 W at the plug of 3800 W usable: over by 1040 W"
    )
