"""The links of cards and disks: generation under load, replays, what peers meet, NVLink, NVMe."""

import pytest
from ansible.module_utils.steadyrack import gpu_baseline, gpu_links, gpu_policy
from gpu_cards import UUID, card, failing
from gpu_node import SLOTS, policy

BEGUN = "2026-01-01T00:00:00Z"
GEN4 = {"link_gen": [{"match": {"all": True}, "link_gen": 4}]}
FAST = {"speed_gt": 16.0, "max_speed_gt": 16.0}


def parsed(**keys):
    return gpu_policy.parse({"version": 1, **keys})


def device(*hops, redirect=(), group=None, slot=SLOTS[0]):
    """A card on the bus with its link's ends, and its bridges each with what ACS does there."""
    bridges = [{"bus_id": name, "redirect": value} for name, value in redirect]
    return {
        "bus_id": slot, "on_bus": True, "link": {"hops": [{**FAST, **hop} for hop in hops or ({}, {})]},
        "peers": {"bridges": bridges, "iommu_group": group},
    }  # fmt: skip


def sample(gen=4, busy=99, pstate=0, **more):
    load = None if busy is None else {"gpu_percent": busy, "memory_percent": 0}
    return {"pstate": pstate, "utilization": load, "gen": gen, "tx_kib_s": 0, "rx_kib_s": 0, "errors": {}, **more}


def generation(samples, *hops, **keys):
    gpu = card()
    gpu["load_samples"] = samples
    return gpu_links.generation_row(parsed(**(keys or GEN4)), gpu, device(*hops))


def found(row):
    return row["verdict"], row["state"], row["severity"]


# --- generation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "verdict", "state", "severity"),
    [
        ([sample()] * 3, "pass", "ok", "info"),
        ([sample(5)] * 3, "pass", "ok", "info"),
        ([sample(2)] * 3, "fail", "degraded", "critical"),  # C62: generation 2 for hours at full load
        ([sample(4), sample(1), sample(4)], "pass", "flapping", "warning"),
        ([sample(None)] * 3, "unknown", "unknown", "warning"),  # C60
        ([sample(1, busy=0)], "not_judged", "idle", "info"),  # C59
        ([sample(1, pstate=8)], "not_judged", "idle", "info"),
        ([sample(1), sample(1, busy=0)], "not_judged", "idle", "info"),
        ([sample(1, busy=None)], "not_judged", "idle", "info"),  # MIG does not tell
        ([sample(1, busy=3, rx_kib_s=200_000)] * 3, "fail", "degraded", "critical"),
        ([], "not_judged", "idle", "info"),
    ],
)
def test_c59_c60_c62_the_generation_is_judged_only_at_work_and_by_every_sample(samples, verdict, state, severity):
    row = generation(samples)
    assert found(row) == (verdict, state, severity)
    assert row["expected"] == 4


def test_c62_the_row_has_the_samples_and_not_one_value():
    row = generation([sample(2), sample(1), sample(2)])
    assert row["measured"] == "2, 1, 2"
    assert "generations 2, 1, 2 at 99, 99, 99 % load" in row["reason"]


@pytest.mark.parametrize(
    ("gen", "hops", "state"),
    [
        (3, [{"max_speed_gt": 8.0}, {}], "slow_device"),
        (3, [{}, {"max_speed_gt": 8.0}], "slow_slot"),
        (3, [{}, {}], "degraded"),
        (3, [{"max_speed_gt": None}, {"max_speed_gt": None}], "degraded"),
        (4, [{}, {}, {"speed_gt": 8.0}, {"speed_gt": 8.0}], "upstream"),
    ],
)
def test_who_is_to_blame_for_a_slow_link(gen, hops, state):
    row = generation([sample(gen)] * 3, *hops)
    assert found(row)[:2] == ("fail", state)
    assert row["hint"]


def test_without_a_declared_generation_nothing_is_judged():
    assert found(generation([sample(1)] * 3, link_width=[]))[:2] == ("not_judged", "not_declared")


def test_c62_a_slow_link_under_load_is_seen_on_a_node_and_an_idle_one_is_not(gpu_node):
    gpu_node.policy(policy(300, persistence_mode=False, **GEN4))
    gpu_node.set("gpu.0.pcie_gen=2", "gpu.0.utilization_gpu=100", "gpu.1.pcie_gen=1")
    gpu_node.set("gpu.2.pcie_system_gen=3", "gpu.2.utilization_gpu=100", "gpu.3.utilization_gpu=100")
    rows = gpu_node.module("gpu_info")["gpu_info"]["checks"]
    states = [(row["verdict"], row["state"], row["measured"]) for row in rows if row["id"] == "pcie.generation"]
    assert states == [
        ("fail", "degraded", "2, 2, 2"), ("not_judged", "idle", "1"), ("fail", "slow_slot", "3, 3, 3"),
        ("pass", "ok", "4, 4, 4"),
    ]  # fmt: skip


# --- replays -----------------------------------------------------------------------------------


def kept(at=BEGUN, **bases):
    counters = {name: {"base": 0, "at": at, "last": 0} for name in gpu_baseline.SINCE_LOAD}
    for name, value in bases.items():
        counters["pcie_errors." + name]["base"] = value
    return gpu_baseline.Baseline({UUID: {"counters": counters}})


@pytest.mark.parametrize(
    ("count", "past", "verdict", "state", "severity"),
    [
        (0, kept(), "pass", "ok", "info"),
        (7, kept(replay=7), "pass", "ok", "info"),
        (9, kept(replay=7), "pass", "rising", "warning"),
        (10**10, kept(), "pass", "high", "warning"),
        (10**10, kept("9999-01-01T00:00:00Z"), "pass", "rising", "warning"),  # too short a time for a rate
        (9, gpu_baseline.Baseline(), "not_judged", "no_baseline", "info"),
        (9, gpu_baseline.Baseline(trouble="damaged"), "unknown", "baseline_damaged", "warning"),
        (9, gpu_baseline.Baseline(unkept="disk full"), "not_judged", "no_baseline", "info"),
    ],
)
def test_replays_warn_by_their_rise(count, past, verdict, state, severity):
    assert found(gpu_links.replay_row(card(pcie_errors__replay=count), past)) == (verdict, state, severity)


def test_other_error_counters_of_the_link_are_told_beside_replays():
    row = gpu_links.replay_row(card(pcie_errors__replay=1, pcie_errors__bad_tlp=4), kept())
    assert "bad_tlp 4" in row["reason"]


def test_replays_that_cannot_be_read_are_unknown_and_unsupported_ones_not_judged():
    odd = failing(card(), "pcie_errors.replay")
    assert found(gpu_links.replay_row(odd, kept()))[0] == "unknown"
    old = failing(card(), "pcie_errors.replay", code=3, word="NOT_SUPPORTED")
    assert found(gpu_links.replay_row(old, kept()))[:2] == ("not_judged", "not_supported")


# --- peers -------------------------------------------------------------------------------------

SWITCH = (("0000:32:00.0", False), ("0000:31:00.0", False))


@pytest.mark.parametrize(
    ("redirect", "groups", "verdict", "state", "severity"),
    [
        (SWITCH, (None, None), "pass", "direct", "info"),
        (SWITCH, ("7", "7"), "pass", "direct", "info"),
        (SWITCH, ("7", "8"), "pass", "redirected", "warning"),
        ((("0000:32:00.0", True), ("0000:31:00.0", None)), (None, None), "pass", "redirected", "warning"),
        ((("0000:32:00.0", None),), (None, None), "unknown", "unknown", "warning"),
    ],
)
def test_what_sends_peers_through_the_root_complex(redirect, groups, verdict, state, severity):
    mine = device(redirect=redirect, group=groups[0])
    other = device(redirect=SWITCH, group=groups[1], slot=SLOTS[1])
    apart = device(redirect=(("0000:99:00.0", False),), group="9", slot=SLOTS[2])
    row = gpu_links.acs_row(parsed(peer_to_peer=True), mine, [mine, other, apart])
    assert found(row) == (verdict, state, severity)
    assert SLOTS[2] not in (row["reason"] or "")
    for wish in ({}, {"peer_to_peer": False}):
        row = gpu_links.acs_row(parsed(**wish), mine, [mine, other])
        assert (*found(row)[:2], row["measured"]) == ("not_judged", "not_declared", state)


# --- NVLink ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "links", "verdict", "state", "severity"),
    [
        (0, ["down"] * 12, "pass", "ok", "info"),  # NVSentinel#1481
        (0, ["up"] * 12, "pass", "undeclared", "warning"),
        (12, ["up"] * 12, "pass", "ok", "info"),
        (12, ["up"] * 11 + ["down"], "fail", "down", "critical"),
        (12, ["up"] * 4, "fail", "down", "critical"),
        (None, ["up"] * 12, "not_judged", "not_declared", "info"),
    ],
)
def test_nvlinks_are_held_against_what_is_declared(declared, links, verdict, state, severity):
    keys = {} if declared is None else {"nvlink_links": [{"match": {"all": True}, "nvlink_links": declared}]}
    assert found(gpu_links.nvlink_row(parsed(**keys), card(nvlink__links=links))) == (verdict, state, severity)


@pytest.mark.parametrize(
    ("declared", "code", "verdict", "state"),
    [(0, 3, "not_judged", "not_supported"), (4, 3, "fail", "down"), (0, 999, "unknown", "unknown")],
)
def test_a_card_without_nvlink(declared, code, verdict, state):
    wish = parsed(nvlink_links=[{"match": {"all": True}, "nvlink_links": declared}])
    gpu = failing(card(), "nvlink.links", code=code)
    assert found(gpu_links.nvlink_row(wish, gpu))[:2] == (verdict, state)


def test_nvlinks_are_read_link_by_link(gpu_node):
    gpu_node.set("gpu.0.nvlink_active=5", "gpu.1.nvlink_links=0", "gpu.2.fault.nvmlDeviceGetNvLinkState=999")
    gpus = gpu_node.read()["gpus"]
    assert gpus[0]["nvlink"]["links"] == ["up", "down", "up"] + ["down"] * 9
    assert [(gpu["nvlink"]["links"], gpu["errors"]["nvlink.links"]["code"]) for gpu in gpus[1:3]] == [
        (None, 3), (None, 999),
    ]  # fmt: skip


# --- NVMe --------------------------------------------------------------------------------------


def disk(width=4, own=4, port=4, on_bus=True):
    hops = [{"width": width}, {"width": width}]
    link = {"width": width, "device_max": own, "port_max": port, "hops": hops, "complete": width is not None,
            "narrow_at": "port -> disk"}  # fmt: skip
    return {"bus_id": "0000:05:00.0", "on_bus": on_bus, "link": link}


@pytest.mark.parametrize(
    ("declared", "device", "verdict", "state"),
    [
        (4, disk(), "pass", "ok"),
        (4, disk(2), "fail", "degraded"),
        (4, disk(2, port=2), "fail", "narrow_slot"),
        (4, disk(2, own=2), "fail", "narrow_device"),
        (None, disk(2, own=2), "pass", "ok"),
        (None, disk(1, own=2), "fail", "degraded"),
        (None, disk(None, own=None, port=None), "not_judged", "not_declared"),
        (4, disk(None), "unknown", "unknown"),
        (4, disk(on_bus=False), "unknown", "lost"),
    ],
)
def test_a_disks_link_against_the_declared_width_or_what_is_possible(declared, device, verdict, state):
    row = gpu_links.nvme_row(parsed(nvme_link_width=declared), device)
    assert found(row)[:2] == (verdict, state)
    assert row["subject"] == "0000:05:00.0"
