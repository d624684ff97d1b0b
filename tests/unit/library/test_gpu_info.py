"""The module gpu_info: reads, judges, changes nothing."""

import json

import pytest
import yaml
from gpu_node import REPOSITORY, SLOTS, policy
from gpu_policy_filter import gpu_policy_document

SETTINGS = ("gpu.count", "gpu.power_cap", "gpu.persistence", "pcie.width")


def by_id(rows, name):
    return {row["subject"]: row for row in rows if row["id"] == name}


def test_everything_is_under_one_key_and_nothing_is_changed(gpu_node):
    result = gpu_node.module("gpu_info")
    assert result["changed"] is False
    found = result["gpu_info"]
    assert set(found) == {"node", "gpus", "pci", "checks", "roles", "listed"}
    assert found["node"]["state"] == "ok"
    assert [gpu["bus_id"] for gpu in found["gpus"]] == [device["bus_id"] for device in found["pci"]] == list(SLOTS)


def test_without_a_policy_nothing_that_needs_one_is_judged(gpu_node):
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    assert by_id(rows, "gpu.count")
    needy = ("gpu.power_cap", "gpu.persistence", "pcie.width", "pcie.generation", "pcie.acs", "nvlink.links")
    assert {row["verdict"] for row in rows if row["id"] in needy} == {"not_judged"}
    assert {row["verdict"] for row in rows} == {"pass", "not_judged"}


def test_with_a_policy_every_gpu_has_its_rows(gpu_node):
    gpu_node.policy(policy(300, persistence_mode=False))
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    settings = [row for row in rows if row["id"] in SETTINGS]
    assert {row["id"] for row in settings} == set(SETTINGS)
    assert {row["verdict"] for row in settings} == {"pass"}
    assert len(settings) == 1 + 3 * 4
    assert len(rows) == len(settings) + 15 * 4


def test_each_fault_fails_its_own_check_and_no_other(gpu_node):
    gpu_node.policy(policy(300, persistence_mode=False))
    gpu_node.set("gpu.0.power_limit_mw=200000", "gpu.0.persistence_mode=1", "gpu.1.pcie_width=4", "gpu.2.removed=1")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    failed = {(row["id"], row["subject"], row["state"]) for row in rows if row["verdict"] == "fail"}
    uuid = gpu_node.uuid(0)
    assert failed == {
        ("gpu.power_cap", uuid, "drift"),
        ("gpu.persistence", uuid, "on"),
        ("pcie.width", SLOTS[1], "degraded"),
        ("gpu.count", next(iter(by_id(rows, "gpu.count"))), "short"),
    }


def test_a_card_in_a_narrow_slot_is_seen_though_nvml_calls_it_perfect(gpu_node):
    gpu_node.policy(policy(300))
    gpu_node.set("gpu.3.pcie_system_width=8")
    found = gpu_node.module("gpu_info")["gpu_info"]
    assert found["gpus"][3]["pcie"]["width"] == found["gpus"][3]["pcie"]["width_max"] == 8
    row = by_id(found["checks"], "pcie.width")[SLOTS[3]]
    assert (row["verdict"], row["state"], row["measured"]) == ("fail", "narrow_slot", 8)


def test_c47_a_gpu_that_fell_off_is_named_by_slot_and_the_others_are_read(gpu_node):
    gpu_node.policy(policy(300))
    gpu_node.set("gpu.1.lost=1")
    found = gpu_node.module("gpu_info")["gpu_info"]
    (count,) = by_id(found["checks"], "gpu.count").values()
    assert (count["verdict"], count["measured"], count["expected"]) == ("fail", 3, 4)
    assert f"{SLOTS[1]} fallen off the bus" in count["reason"]
    assert [gpu["state"] for gpu in found["gpus"]] == ["ok", "lost", "ok", "ok"]


def test_a_host_without_a_driver_is_a_finding_not_a_failure_of_the_module(gpu_node):
    gpu_node.set("driver_loaded=0")
    result = gpu_node.module("gpu_info")
    assert "failed" not in result
    assert result["gpu_info"]["node"]["state"] == "no_driver"
    (count,) = by_id(result["gpu_info"]["checks"], "gpu.count").values()
    assert count["verdict"] == "fail"


def test_a_policy_that_is_cut_off_fails_with_the_file_and_the_next_step(gpu_node):
    gpu_node.policy('{"version": 1, "power_cap": [')
    result = gpu_node.module("gpu_info")
    assert result["failed"] is True
    assert "gpu_policy.json" in result["msg"]
    assert result["error"]["kind"] == "StateFileError"


DEFAULTS = yaml.safe_load((REPOSITORY / "roles/gpu_policy/defaults/main.yml").read_text())


@pytest.mark.parametrize("profile", ["a100x4", "a100-a30", "h100x8"])
def test_cards_at_rest_are_well_with_what_the_role_declares_by_itself(make_gpu_node, profile):
    """As in the demo rack: `steadyrack check` ends with 2 where anything is unknown."""
    node = make_gpu_node(profile)
    wishes = {name.replace("gpu_policy_", ""): value for name, value in DEFAULTS.items()}
    for name in ("apply", "plan_cap_w"):
        del wishes[name]
    overrides = wishes.pop("overrides")
    node.policy(gpu_policy_document(overrides, **{**wishes, "plan_cap_w": None, "power_cap_w": 165,
                                                  "persistence_mode": False}))  # fmt: skip
    for _pass in range(2):
        rows = json.loads(node.steadyrack("check", "--json").stdout)["checks"]
        mine = [row for row in rows if row["id"].startswith(("gpu.", "pcie.", "nvlink."))]
        mine = [row for row in mine if row["id"] not in (*SETTINGS, "gpu.spare")]  # no pass has given roles yet
        assert {row["verdict"] for row in mine} == {"pass", "not_judged"}
        assert {row["severity"] for row in mine} == {"info"}
        judged = {row["id"] for row in mine if row["verdict"] == "not_judged"}
        assert judged == {"gpu.mig", "gpu.retired_pages", "gpu.recovery", "pcie.generation", "pcie.acs"}
