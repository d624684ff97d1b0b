"""The power plan counts the caps that role gpu_policy will really set: one truth for the sum and for the cards."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ansible.module_utils.steadyrack import gpu_policy as node_side
from gpu_policy_filter import gpu_policy_document
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rack_facts import rack_hosts
from rack_power import rack_power_plan

A100 = {"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150}
A30 = {"model": "NVIDIA A30", "count": 2, "power_max_w": 165, "power_min_w": 100}
UUIDS = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(40)]


def host(name: str, *gpus: dict[str, Any], **facts: Any) -> dict[str, Any]:
    base = {"rack_name": "a1", "rack_site": "north", "rack_feed_limit_w": 4000, "rack_gpus": list(gpus or (A100,))}
    return {"host": name, **base, **facts}


def only_rack(*hosts: dict[str, Any]) -> dict[str, Any]:
    (rack,) = rack_power_plan(rack_hosts({facts["host"]: facts for facts in hosts}, [f["host"] for f in hosts]))[
        "racks"
    ]
    return rack


def test_a_cap_of_the_role_beats_that_of_the_rack_facts_both_ways() -> None:
    low = {**A100, "power_cap_w": 160}
    assert only_rack(*(host(f"g{n}", low) for n in range(3)))["fits"]
    refused = only_rack(*(host(f"g{n}", low, gpu_policy_power_cap_w=300) for n in range(3)))
    assert (refused["fits"], refused["sum_w"]) == (False, 5400)
    assert any("gpu_policy_power_cap_w; not the 160 of rack_gpus" in line for line in refused["lines"])
    fits = only_rack(*(host(f"g{n}", gpu_policy_power_cap_w=160) for n in range(3)))
    assert (fits["fits"], fits["sum_w"]) == (True, 3720)


def test_auto_leaves_it_to_the_rack_facts_and_text_from_the_command_line_is_a_number() -> None:
    assert only_rack(host("g1", gpu_policy_power_cap_w="auto"))["sum_w"] == 1800
    assert only_rack(host("g1", gpu_policy_power_cap_w="160"))["sum_w"] == 1240


def test_hosts_left_to_the_plan_share_what_the_fixed_one_leaves() -> None:
    gpus = {**A100, "power_cap_w": "auto"}
    rack = only_rack(host("g1", gpus, gpu_policy_power_cap_w=250), host("g2", gpus), host("g3", gpus, rack_other_w=0))
    assert rack["fits"] is False  # 250 for one leaves less than 150 for the others
    rack = only_rack(host("g1", gpus, gpu_policy_power_cap_w=170), host("g2", gpus), host("g3", gpus))
    assert rack["fits"]
    assert [rack["host_cap_w"][name][A100["model"]] for name in ("g1", "g2", "g3")] == [170, 165, 165]


def test_an_override_of_a_model_counts_for_every_card_of_it_in_any_spelling() -> None:
    rack = only_rack(host("g1", A100, A30, gpu_policy_overrides=[{"model": "a30", "power_cap_w": 120}]))
    assert rack["sum_w"] == 600 + 4 * 300 + 2 * 120
    percent = only_rack(host("g1", gpu_policy_overrides=[{"model": A100["model"], "power_cap_percent": 83}]))
    assert percent["sum_w"] == 600 + 4 * 249  # of the default, which is at most the maximum


@pytest.mark.parametrize("name", [{"uuid": UUIDS[0]}, {"serial": "1324"}, {"bus_id": "0000:31:00.0"}])
def test_an_override_of_one_card_raises_one_card(name: dict[str, str]) -> None:
    rack = only_rack(host("g1", gpu_policy_power_cap_w=160, gpu_policy_overrides=[{**name, "power_cap_w": 300}]))
    (key,) = name.values()
    said = "host 600 + 3 x 160 (NVIDIA A100 80GB PCIe; gpu_policy_power_cap_w)"
    assert f"g1: {said} + 1 x 300 (override {key}) = 1380 W" in rack["lines"]


def test_one_card_is_the_worst_of_those_it_may_be() -> None:
    """160 W suit both models; on an A30 that stands at 120 W they add more."""
    models = [{"model": "NVIDIA A30", "power_cap_w": 120}, {"model": A100["model"], "power_cap_w": 155}]
    rack = only_rack(host("g1", A100, A30, gpu_policy_overrides=[*models, {"serial": "1", "power_cap_w": 160}]))
    assert rack["sum_w"] == 600 + 4 * 155 + 120 + 160


def test_an_override_that_lowers_one_card_is_not_counted_on_and_it_is_said() -> None:
    rack = only_rack(host("g1", gpu_policy_overrides=[{"uuid": UUIDS[0], "power_cap_w": 150}]))
    assert rack["sum_w"] == 1800
    assert any(f"override {UUIDS[0]} (150 W) not counted" in line for line in rack["lines"])


def test_caps_that_only_the_role_could_lower_are_named_as_the_cause() -> None:
    rack = only_rack(*(host(f"g{n}", gpu_policy_power_cap_w=300) for n in range(3)))
    assert rack["lines"][-1].endswith("beside gpu_policy_power_cap_w and gpu_policy_overrides of g0, g1, g2")


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"gpu_policy_power_cap_w": "fast"}, "gpu_policy_power_cap_w"),
        ({"gpu_policy_power_cap_w": True}, "gpu_policy_power_cap_w"),
        ({"gpu_policy_power_cap_w": 301}, "between 150 and 300"),
        ({"gpu_policy_power_cap_w": "(cannot be evaluated: nowhere)"}, "gpu_policy_power_cap_w"),
        ({"gpu_policy_plan_cap_w": 300}, "gpu_policy_plan_cap_w"),  # -e would beat the plan without a word
        ({"gpu_policy_overrides": "none"}, "gpu_policy_overrides"),
        ({"gpu_policy_overrides": [3]}, "gpu_policy_overrides[0]"),
        ({"gpu_policy_overrides": [{"power_cap_w": 300}]}, "exactly one of"),
        ({"gpu_policy_overrides": [{"uuid": "x", "power_cap_w": 200, "power_cap_percent": 80}]}, "one of them"),
        ({"gpu_policy_overrides": [{"uuid": "x", "power_cap_w": "300"}]}, "power_cap_w"),
        ({"gpu_policy_overrides": [{"uuid": "x", "power_cap_w": 301}]}, "outside the range"),
        ({"gpu_policy_overrides": [{"model": A100["model"], "power_cap_w": 301}]}, "between 150 and 300"),
        ({"gpu_policy_overrides": [{"uuid": "x", "power_cap_percent": 101}]}, "power_cap_percent"),
    ],
)
def test_an_input_that_cannot_be_counted_is_refused_and_never_fits(facts: dict[str, Any], named: str) -> None:
    rack = only_rack(host("g1", **facts))
    assert not rack["fits"]
    assert any("g1" in error and named in error for error in rack["errors"])


# --- one truth -----------------------------------------------------------------------------------------

CAP_W = st.integers(150, 165)  # suits both models


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """Inputs of role gpu_policy that both models take."""
    wish = st.one_of(
        st.builds(lambda cap: {"power_cap_w": cap}, CAP_W),
        st.builds(lambda share: {"power_cap_percent": share}, st.integers(70, 100)),
    )
    overrides = [{"model": model, **draw(wish)} for model in draw(st.sets(st.sampled_from([A100["model"], "A30"])))]
    overrides += [{"uuid": uuid, **draw(wish)} for uuid in draw(st.sets(st.sampled_from(UUIDS[:6]), max_size=3))]
    return {"gpu_policy_power_cap_w": draw(st.one_of(st.just("auto"), CAP_W)), "gpu_policy_overrides": overrides}


@st.composite
def racks(draw: st.DrawFn) -> list[dict[str, Any]]:
    feed = {"rack_feed_limit_w": draw(st.integers(1500, 9000)), "rack_other_w": draw(st.integers(0, 200))}
    hosts = []
    for place in range(draw(st.integers(1, 3))):
        gpus = [
            {**model, "count": draw(st.integers(1, 3)), "idle_w": idle_w, "power_cap_w": draw(cap)}
            for model in (A100, A30)
            for cap in [st.sampled_from(["auto", None, 150, 160])]
            for idle_w in [draw(st.sampled_from([None, 50]))]
        ]
        total = sum(entry["count"] for entry in gpus)
        facts = {"rack_psu_efficiency": draw(st.floats(0.8, 1)), "gpu_policy_spares": draw(st.integers(0, total - 1))}
        hosts.append(host(f"g{place}", *gpus, **feed, **facts, **draw(policies())))
    return hosts


def declared_w(facts: dict[str, Any], plan: dict[str, Any], order: list[str], active: int) -> float:
    """What the node would set, by its own reading of the policy that the role writes: the sum over the host's cards.

    The ``active`` cards are those that gain most; the others are spares at the cap of theirs, or their idle draw.
    """
    document = gpu_policy_document(
        facts["gpu_policy_overrides"], power_cap_w=facts["gpu_policy_power_cap_w"],
        plan_cap_w=plan["host_cap_w"][facts["host"]], link_width=16, persistence_mode=True, gpu_count=None,
        spares=facts["gpu_policy_spares"],
    )  # fmt: skip
    policy, uuids, gains, idle = node_side.parse(document), iter(order), [], 0.0
    for entry in facts["rack_gpus"]:
        power = {"min_w": entry["power_min_w"], "max_w": entry["power_max_w"], "default_w": entry["power_max_w"]}
        for _ in range(entry["count"]):
            card = {"name": entry["model"], "uuid": next(uuids), "power": power}
            wish, spare = node_side.resolve(policy, card), node_side.resolve(policy, card, role="spare")
            assert (wish.problem, spare.problem) == (None, None)
            assert wish.cap_mw is not None
            assert spare.cap_mw is not None
            idles = entry["idle_w"] or spare.cap_mw / 1000
            gains.append(wish.cap_mw / 1000 - idles)
            idle += idles
    return idle + sum(sorted(gains, reverse=True)[:active])


@settings(max_examples=150, deadline=None)
@given(racks(), st.permutations(UUIDS[:8]))
def test_what_fits_is_what_the_nodes_will_set(hosts: list[dict[str, Any]], order: list[str]) -> None:
    """Whichever cards the overrides turn out to name: cards, hosts and the rest stay within the feed, at any host's
    fail-over as well.
    """
    rack = only_rack(*hosts)
    assert rack["errors"] == []
    assume(rack["fits"])
    for failing in (None, *hosts):
        drawn = float(hosts[0]["rack_other_w"])
        for facts in hosts:
            total = sum(entry["count"] for entry in facts["rack_gpus"])
            active = total if facts is failing else total - facts["gpu_policy_spares"]
            drawn += (600 + declared_w(facts, rack, order, active)) / facts["rack_psu_efficiency"]
        assert drawn <= rack["usable_w"] + 0.02


@settings(max_examples=60, deadline=None)
@given(racks())
def test_the_arithmetic_shown_adds_up(hosts: list[dict[str, Any]]) -> None:
    rack = only_rack(*hosts)
    total = sum(rack["host_w"].values()) + hosts[0]["rack_other_w"]
    assert math.isclose(total, rack["sum_w"], abs_tol=0.05)
    for facts in hosts:
        (line,) = [
            line for line in rack["lines"] if line.startswith((f"{facts['host']}: host", f"{facts['host']}: (h"))
        ]
        terms = line.split(": ", 1)[1].rsplit(" = ", 1)[0].split(" / ")[0].lstrip("(").split(" + ")
        inside = sum(
            math.prod(
                float(part.removesuffix(" spare")) for part in term.split(" (")[0].removeprefix("host ").split(" x ")
            )
            for term in terms
        )
        assert math.isclose(inside / facts["rack_psu_efficiency"], rack["host_w"][facts["host"]], abs_tol=0.5)
