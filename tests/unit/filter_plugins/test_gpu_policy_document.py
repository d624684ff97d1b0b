"""Inputs of role gpu_policy become the policy document, which the node's parser takes."""

from datetime import date

import pytest
from ansible.errors import AnsibleFilterError
from ansible.module_utils.steadyrack import gpu_policy as node_side
from gpu_policy_filter import gpu_policy_document

UUID = "GPU-657227da-611f-5a74-89fc-c3e616de4e02"


def document(overrides=(), **inputs):
    defaults = {"power_cap_w": "auto", "plan_cap_w": 250, "link_width": 16, "persistence_mode": True, "gpu_count": 4}
    return gpu_policy_document(list(overrides), **{**defaults, **inputs})


def test_auto_takes_the_plans_cap_and_a_number_overrides_the_plan():
    assert document()["power_cap"] == [{"match": {"all": True}, "power_cap_w": 250}]
    assert document(power_cap_w=300)["power_cap"][0]["power_cap_w"] == 300
    assert document(power_cap_w="225.5")["power_cap"][0]["power_cap_w"] == 225.5  # -e gpu_policy_power_cap_w=225.5


def test_a_plan_by_model_becomes_a_rule_a_model_and_an_override_of_the_model_replaces_it():
    plan = {"NVIDIA A100 80GB PCIe": 250, "NVIDIA A30": 165}
    assert document(plan_cap_w=plan)["power_cap"] == [
        {"match": {"model": "NVIDIA A100 80GB PCIe"}, "power_cap_w": 250},
        {"match": {"model": "NVIDIA A30"}, "power_cap_w": 165},
    ]
    found = document([{"model": "A30", "power_cap_w": 150}, {"uuid": UUID, "power_cap_w": 200}], plan_cap_w=plan)
    assert [rule["power_cap_w"] for rule in found["power_cap"]] == [250, 150, 200]
    assert node_side.parse(found)


@pytest.mark.parametrize("plan", [None, "", {}])
def test_auto_without_a_plan_is_refused_and_no_watts_are_guessed(plan):
    with pytest.raises(AnsibleFilterError, match="no plan for this host"):
        document(plan_cap_w=plan)


@pytest.mark.parametrize("cap", ["fast", 0, -1, True, "inf", "nan", None])
def test_a_cap_that_is_no_number_of_watts_is_refused(cap):
    with pytest.raises(AnsibleFilterError, match="gpu_policy_power_cap_w"):
        document(power_cap_w=cap)


def test_an_override_may_want_a_cap_a_width_or_both():
    found = document(
        [
            {"uuid": UUID, "power_cap_percent": 83},
            {"model": "NVIDIA A30", "power_cap_w": 150, "link_width": 8},
            {"serial": "1", "link_width": 4},
        ]
    )
    assert found["power_cap"][1:] == [
        {"match": {"uuid": UUID}, "power_cap_percent": 83},
        {"match": {"model": "NVIDIA A30"}, "power_cap_w": 150},
    ]
    assert found["link_width"] == [
        {"match": {"all": True}, "link_width": 16},
        {"match": {"model": "NVIDIA A30"}, "link_width": 8},
        {"match": {"serial": "1"}, "link_width": 4},
    ]


def test_what_the_filter_makes_the_nodes_parser_takes():
    parsed = node_side.parse(document([{"uuid": UUID, "power_cap_w": 200}], gpu_count=""))
    assert parsed.gpu_count is None
    assert len(parsed.power_cap) == 2


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"index": 0, "power_cap_w": 200}, "order changes"),  # C45
        ({"power_cap_w": 200}, "names nothing"),
        ({"uuid": UUID, "model": "NVIDIA A30", "power_cap_w": 200}, "exactly one"),
        ({"uuid": UUID}, "wants nothing"),
        ({"uuid": UUID, "power_cap": 200}, "unknown power_cap"),
    ],
)
def test_a_bad_override_is_refused_with_its_place(override, says):
    with pytest.raises(AnsibleFilterError, match=r"gpu_policy_overrides\[1\].*" + says):
        document([{"uuid": UUID, "power_cap_w": 1}, override])


def test_lanes_that_rack_gpus_states_go_before_the_hosts_and_an_override_before_both():
    found = gpu_policy_document(
        [{"model": "NVIDIA A30", "link_width": 4}],
        power_cap_w=250, plan_cap_w=None, link_width=16, persistence_mode=True, gpu_count=4,
        plan_link_width={"A30": 8, "NVIDIA A100 80GB PCIe": 8},
    )  # fmt: skip
    assert found["link_width"] == [
        {"match": {"all": True}, "link_width": 16},
        {"match": {"model": "NVIDIA A100 80GB PCIe"}, "link_width": 8},
        {"match": {"model": "NVIDIA A30"}, "link_width": 4},
    ]


def test_what_is_declared_of_links_and_slots_becomes_rules_that_the_nodes_parser_takes():
    found = document(
        [{"model": "NVIDIA A30", "link_gen": 3, "nvlink_links": 4}, {"uuid": UUID, "nvlink_links": 12}],
        link_gen="4", nvlink_links=0, nvme_link_width="4", peer_to_peer=True,
        known_missing=[{"bus_id": "0000:31:00.0", "until": date(2026, 12, 31), "reason": "RMA"}],
    )  # fmt: skip
    assert found["link_gen"] == [
        {"match": {"all": True}, "link_gen": 4},
        {"match": {"model": "NVIDIA A30"}, "link_gen": 3},
    ]
    assert [rule["nvlink_links"] for rule in found["nvlink_links"]] == [0, 4, 12]
    assert found["known_missing"] == [{"bus_id": "0000:31:00.0", "until": "2026-12-31", "reason": "RMA"}]
    parsed = node_side.parse(found)
    assert (parsed.nvme_link_width, parsed.peer_to_peer, len(parsed.known_missing)) == (4, True, 1)


def test_what_is_left_empty_declares_nothing():
    found = document(link_gen="", nvme_link_width=None)
    assert (found["link_gen"], found["nvlink_links"], found["known_missing"]) == ([], [], [])
    assert node_side.parse(found).nvme_link_width is None


# --- MIG ---------------------------------------------------------------------------------------


def test_mig_layouts_become_rules_that_the_node_takes_and_none_is_no_key():
    found = document(mig=[{"model": "NVIDIA A30", "devices": {"1g.6gb": 4}}, {"uuid": UUID, "devices": {}}])
    assert found["mig"] == [
        {"match": {"model": "NVIDIA A30"}, "devices": {"1g.6gb": 4}}, {"match": {"uuid": UUID}, "devices": {}},
    ]  # fmt: skip
    assert [rule.mig for rule in node_side.parse(found).mig] == [{"1g.6gb": 4}, {}]
    for nothing in (None, []):
        assert "mig" not in document(mig=nothing)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("1g.10gb", "no mapping"),
        ({"devices": {"1g.10gb": 7}}, "names nothing"),
        ({"uuid": UUID, "serial": "1", "devices": {}}, "names"),
        ({"index": 0, "devices": {}}, "unknown index"),
        ({"uuid": UUID}, "devices is None"),
        ({"uuid": UUID, "devices": 7}, "devices is 7"),
        ({"uuid": UUID, "devices": {"1c.3g.40gb": 1}}, "no MIG profile"),
        ({"uuid": UUID, "devices": {"1g.10gb": "7"}}, "no number of instances"),
        ({"uuid": UUID, "devices": {"1g.10gb": 0}}, "no number of instances"),
    ],
)
def test_a_malformed_mig_layout_is_refused_with_its_place(entry, says):
    with pytest.raises(AnsibleFilterError, match=r"gpu_policy_mig\[0\].*" + says):
        document(mig=[entry])
