"""The power plan: mission P1, the table of notes/gpu.md section 4.1, and what must hold for any rack."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rack_facts import rack_hosts
from rack_power import rack_power_plan

A100 = {"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150}
A30 = {"model": "NVIDIA A30", "count": 2, "power_max_w": 165, "power_min_w": 100}


def host(name: str, *gpus: dict[str, Any], **facts: Any) -> dict[str, Any]:
    base = {"rack_name": "a1", "rack_site": "north", "rack_feed_limit_w": 4000, "rack_gpus": list(gpus or (A100,))}
    return {"host": name, **base, **facts}


def only_rack(*hosts: dict[str, Any], idle_enforced: bool = False) -> dict[str, Any]:
    (rack,) = rack_power_plan(list(hosts), idle_enforced)["racks"]
    return rack


# --- mission P1 ----------------------------------------------------------------------------------------


def test_two_hosts_of_1800_w_fit_a_4_kw_feed() -> None:
    rack = only_rack(host("g1"), host("g2"))
    assert rack["fits"]
    assert (rack["host_w"], rack["sum_w"], rack["usable_w"]) == ({"g1": 1800, "g2": 1800}, 3600, 3800)
    assert rack["cap_w"] == {A100["model"]: 300}
    assert "2 hosts: 1800 + 1800 = 3600 W of 3800 W: fits, 200 W left" in rack["lines"]


def test_a_third_one_is_refused_with_the_arithmetic() -> None:
    rack = only_rack(host("g1"), host("g2"), host("g3"))
    assert not rack["fits"]
    assert rack["sum_w"] == 5400
    assert rack["lines"][0] == "rack a1 at north: feed 4000 W less 5 % margin = 3800 W usable"
    assert "g3: host 600 + 4 x 300 (NVIDIA A100 80GB PCIe) = 1800 W" in rack["lines"]
    assert "3 hosts: 1800 + 1800 + 1800 = 5400 W of 3800 W: over by 1600 W" in rack["lines"]
    assert "166 W for NVIDIA A100 80GB PCIe would make 3792 W" in rack["lines"][-1]


def test_left_to_the_plan_the_third_one_fits_at_a_lower_cap() -> None:
    rack = only_rack(*(host(f"g{n}", {**A100, "power_cap_w": "auto"}) for n in range(3)))
    assert rack["fits"]
    assert rack["cap_w"] == {A100["model"]: 166}
    assert rack["sum_w"] == 3 * (600 + 4 * 166)


def test_a_rack_that_does_not_fit_leaves_the_other_one_alone() -> None:
    plan = rack_power_plan([host("g1"), host("g2"), host("g3"), host("h1", rack_name="b1")])
    assert [(rack["rack"], rack["fits"]) for rack in plan["racks"]] == [("a1", False), ("b1", True)]
    assert plan["racks"][plan["hosts"]["h1"]]["hosts"] == ["h1"]


# --- notes/gpu.md section 4.1 ----------------------------------------------------------------------------

TABLE = [  # cap each, AC W with 3 active + spare, with 4 active, two nodes 3+1, two nodes 4, nodes in 3800 W at 3+1
    (300, 1676, 1915, 3351, 3830, 2),
    (250, 1516, 1702, 3032, 3404, 2),
    (225, 1436, 1596, 2872, 3191, 2),
    (200, 1356, 1489, 2713, 2979, 2),
    (175, 1277, 1383, 2553, 2766, 2),
    (150, 1197, 1277, 2394, 2553, 3),
]


@pytest.mark.parametrize("row", TABLE, ids=[f"{row[0]}W" for row in TABLE])
def test_the_table_with_power_supplies_of_94_percent(row: tuple[int, ...]) -> None:
    cap, three, four, two_threes, two_fours, most = row
    gpus = {**A100, "power_cap_w": cap, "idle_w": 75}

    def rack(nodes: int, active: int) -> dict[str, Any]:
        facts = {"rack_psu_efficiency": 0.94, "rack_active_gpus": active}
        return only_rack(*(host(f"g{n}", gpus, **facts) for n in range(nodes)), idle_enforced=True)

    assert (round(rack(1, 3)["sum_w"]), round(rack(1, 4)["sum_w"])) == (three, four)
    assert (round(rack(2, 3)["sum_w"]), round(rack(2, 4)["sum_w"])) == (two_threes, two_fours)
    assert [nodes for nodes in range(1, 5) if rack(nodes, 3)["fits"]] == list(range(1, most + 1))
    assert rack(2, 4)["fits"] is (two_fours <= 3800)


def test_the_moment_of_fail_over_is_told() -> None:
    gpus = {**A100, "idle_w": 75}
    hosts = (host(f"g{n}", gpus, rack_psu_efficiency=0.94, rack_active_gpus=3) for n in range(2))
    rack = only_rack(*hosts, idle_enforced=True)
    assert round(rack["failover_w"]) == 1915 + 1676 - 1  # 3590.4
    assert any("one spare takes over: 3590.4 W of 3800 W" in line for line in rack["lines"])


def test_a_breaker_rating_is_derated() -> None:
    rack = only_rack(*(host(name, rack_feed_derating=0.8) for name in ("g1", "g2")))
    assert rack["usable_w"] == 3040
    assert "x 0.8 derating" in rack["lines"][0]
    assert not rack["fits"]


# --- mixed models, exceptions ----------------------------------------------------------------------------


def test_what_else_hangs_on_the_feed_is_added() -> None:
    rack = only_rack(*(host(name, rack_other_w=201) for name in ("g1", "g2")))
    assert not rack["fits"]
    assert "2 hosts: 1800 + 1800 + 201 (rack_other_w) = 3801 W of 3800 W: over by 1 W" in rack["lines"]
    gpus = {**A100, "power_cap_w": "auto"}
    assert only_rack(*(host(name, gpus, rack_other_w=201) for name in ("g1", "g2")))["cap_w"] == {A100["model"]: 299}


def test_mixed_models_are_lowered_in_proportion() -> None:
    gpus = ({**A100, "power_cap_w": "auto"}, {**A30, "power_cap_w": "auto"})
    rack = only_rack(host("g1", *gpus), host("g2", *gpus))
    caps = rack["cap_w"]
    assert rack["fits"]
    assert rack["sum_w"] <= rack["usable_w"]
    assert caps[A100["model"]] / 300 == pytest.approx(caps[A30["model"]] / 165, abs=0.01)


def test_a_model_without_consent_keeps_its_power() -> None:
    rack = only_rack(host("g1", {**A100, "power_cap_w": "auto"}, A30), host("g2", {**A100, "power_cap_w": "auto"}, A30))
    assert rack["fits"]
    assert rack["cap_w"][A30["model"]] == 165
    assert rack["cap_w"][A100["model"]] == (3800 - 1200 - 4 * 165) // 8


def test_the_cap_of_one_host_is_its_own() -> None:
    rack = only_rack(host("g1", {**A100, "power_cap_w": 200}), host("g2"))
    assert rack["host_w"] == {"g1": 1400, "g2": 1800}
    assert rack["host_cap_w"] == {"g1": {A100["model"]: 200}, "g2": {A100["model"]: 300}}
    assert rack["cap_w"] == {A100["model"]: 200}


def test_even_the_lowest_caps_do_not_fit() -> None:
    rack = only_rack(*(host(f"g{n}") for n in range(5)))
    assert rack["cap_w"] == {}
    assert "even the lowest caps do not fit" in rack["lines"][-1]


def test_an_idle_gpu_whose_draw_nobody_stated_counts_in_full() -> None:
    assert only_rack(host("g1", rack_active_gpus=3), idle_enforced=True)["sum_w"] == 1800


def test_a_spare_that_nothing_keeps_idle_counts_in_full_and_it_is_said() -> None:
    rack = only_rack(host("g1", {**A100, "idle_w": 75}, rack_active_gpus=3))
    assert rack["sum_w"] == 1800
    assert "g1: rack_active_gpus 3 of 4 is not enforced yet: all 4 are counted at their caps" in rack["lines"]


def test_a_host_without_gpus_draws_its_base() -> None:
    assert only_rack(host("g1", rack_gpus=[], rack_host_base_w=40))["sum_w"] == 40


def test_no_hosts_is_an_empty_plan() -> None:
    assert rack_power_plan([]) == {"racks": [], "hosts": {}}
    assert rack_power_plan(None) == {"racks": [], "hosts": {}}


def test_one_rack_name_at_two_sites_is_two_racks() -> None:
    plan = rack_power_plan([host("g1"), host("h1", rack_site="süd ☀")])
    assert sorted(rack["site"] for rack in plan["racks"]) == ["north", "süd ☀"]


# --- facts that cannot be calculated with -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"rack_feed_limit_w": None}, "rack_feed_limit_w"),
        ({"rack_feed_limit_w": "4000"}, "rack_feed_limit_w"),
        ({"rack_feed_limit_w": -4000}, "rack_feed_limit_w"),
        ({"rack_feed_limit_w": float("nan")}, "rack_feed_limit_w"),
        ({"rack_feed_limit_w": True}, "rack_feed_limit_w"),
        ({"rack_feed_margin_percent": 100}, "rack_feed_margin_percent"),
        ({"rack_feed_derating": 0}, "rack_feed_derating"),
        ({"rack_psu_efficiency": 94}, "rack_psu_efficiency"),
        ({"rack_other_w": -1}, "rack_other_w"),
        ({"rack_other_w": "60"}, "rack_other_w"),
        ({"rack_gpus": None}, "rack_gpus"),
        ({"rack_gpus": "4 x A100"}, "rack_gpus"),
        ({"rack_gpus": ["A100"]}, "rack_gpus[0]"),
        ({"rack_gpus": [{**A100, "model": None}]}, "model"),
        ({"rack_gpus": [{**A100, "count": 0}]}, "count"),
        ({"rack_gpus": [{**A100, "count": 1.5}]}, "count"),
        ({"rack_gpus": [{**A100, "power_cap_w": 301}]}, "power_cap_w"),
        ({"rack_gpus": [{**A100, "power_min_w": 301}]}, "power_min_w"),
        ({"rack_gpus": [{**A100, "idle_w": -1}]}, "idle_w"),
        ({"rack_active_gpus": 5}, "rack_active_gpus"),
        ({"rack_name": ""}, "rack_name"),
    ],
)
def test_a_bad_fact_names_host_and_fact_and_never_fits(facts: dict[str, Any], named: str) -> None:
    rack = only_rack({**host("g1"), **facts})
    assert not rack["fits"]
    assert rack["errors"]
    assert any("g1" in error and named in error for error in rack["errors"])


def test_all_bad_facts_of_a_rack_are_told_at_once() -> None:
    rack = only_rack(host("g1", rack_gpus=None), host("g2", rack_host_base_w="x"), host("g3"))
    assert [error.split(":")[0] for error in rack["errors"]] == ["g1", "g2"]


def test_hosts_of_one_rack_must_agree_on_its_feed() -> None:
    (error,) = only_rack(host("g1"), host("g2", rack_feed_limit_w=8000))["errors"]
    assert "g1" in error
    assert "g2" in error


# --- what must hold for any rack ---------------------------------------------------------------------------

MODELS = st.lists(
    st.tuples(st.sampled_from(["A100", "A30", "H100"]), st.integers(1, 8), st.integers(100, 700), st.floats(0.2, 1)),
    min_size=1,
    max_size=3,
    unique_by=lambda entry: entry[0],
)


@st.composite
def racks(draw: st.DrawFn, cap: Any = "auto") -> list[dict[str, Any]]:
    models = [
        {"model": model, "count": count, "power_max_w": peak, "power_min_w": round(peak * share), "power_cap_w": cap}
        for model, count, peak, share in draw(MODELS)
    ]
    feed = {
        "rack_feed_limit_w": draw(st.integers(500, 30000)),
        "rack_feed_margin_percent": draw(st.integers(0, 50)),
        "rack_feed_derating": draw(st.sampled_from([0.8, 1.0])),
    }
    total = sum(entry["count"] for entry in models)
    hosts = []
    for number in range(draw(st.integers(1, 5))):
        own = {"rack_host_base_w": draw(st.integers(0, 2000)), "rack_psu_efficiency": draw(st.floats(0.5, 1))}
        hosts.append(host(f"g{number}", *models, **feed, **own, rack_active_gpus=draw(st.integers(0, total))))
    return hosts


@settings(max_examples=40, deadline=None)
@given(racks())
def test_what_fits_is_never_above_the_budget_and_caps_stay_in_range(hosts: list[dict[str, Any]]) -> None:
    rack = only_rack(*hosts)
    assert rack["errors"] == []
    if rack["fits"]:
        assert rack["sum_w"] <= rack["usable_w"] + 0.02
        for entry in hosts[0]["rack_gpus"]:
            assert entry["power_min_w"] <= rack["cap_w"][entry["model"]] <= entry["power_max_w"]
            assert isinstance(rack["cap_w"][entry["model"]], int)


@settings(max_examples=40, deadline=None)
@given(racks(), st.integers(1, 5000))
def test_more_power_never_lowers_a_cap(hosts: list[dict[str, Any]], more: int) -> None:
    rack = only_rack(*hosts)
    assume(rack["fits"])
    richer = only_rack(*({**facts, "rack_feed_limit_w": facts["rack_feed_limit_w"] + more} for facts in hosts))
    assert richer["fits"]
    assert all(richer["cap_w"][model] >= cap for model, cap in rack["cap_w"].items())


@settings(max_examples=40, deadline=None)
@given(racks(), st.floats(0, 1))
def test_the_caps_are_the_highest_of_their_proportion(drawn: list[dict[str, Any]], share: float) -> None:
    """One watt more on every GPU that is not at its maximum would not fit."""

    def all_at(key: str) -> float:
        gpus = [[{**entry, "power_cap_w": entry[key]} for entry in facts["rack_gpus"]] for facts in drawn]
        return only_rack(*({**facts, "rack_gpus": own} for facts, own in zip(drawn, gpus, strict=True)))["sum_w"]

    low, high = all_at("power_min_w"), all_at("power_max_w")
    feed = {"rack_feed_limit_w": low + share * (high - low) + 1, "rack_feed_margin_percent": 0, "rack_feed_derating": 1}
    hosts = [{**facts, **feed} for facts in drawn]
    rack = only_rack(*hosts)
    assert rack["fits"]
    raised = []
    for facts in hosts:
        gpus = [{**e, "power_cap_w": min(rack["cap_w"][e["model"]] + 1, e["power_max_w"])} for e in facts["rack_gpus"]]
        raised.append({**facts, "rack_gpus": gpus})
    worse = only_rack(*raised)
    assert worse["sum_w"] > rack["usable_w"] or worse["sum_w"] == pytest.approx(rack["sum_w"])


@settings(max_examples=40, deadline=None)
@given(racks(cap=None), st.integers(1, 300))
def test_a_higher_cap_never_draws_less(hosts: list[dict[str, Any]], less: int) -> None:
    full = only_rack(*hosts)
    lowered = []
    for facts in hosts:
        gpus = [{**e, "power_cap_w": max(e["power_min_w"], e["power_max_w"] - less)} for e in facts["rack_gpus"]]
        lowered.append({**facts, "rack_gpus": gpus})
    assert only_rack(*lowered)["sum_w"] <= full["sum_w"] + 0.02


@settings(max_examples=40, deadline=None)
@given(racks(), st.randoms())
def test_the_order_of_hosts_does_not_matter(hosts: list[dict[str, Any]], random: Any) -> None:
    shuffled = list(hosts)
    random.shuffle(shuffled)
    one, other = only_rack(*hosts), only_rack(*shuffled)
    assert (one["fits"], one["cap_w"], one["sum_w"]) == (
        other["fits"],
        other["cap_w"],
        pytest.approx(other["sum_w"], abs=0.02),
    )


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["rack_name", "rack_site", "rack_feed_limit_w", "rack_feed_margin_percent", "rack_gpus", "rack_active_gpus"]


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["host", *KEYS]), ODD), max_size=3))
def test_no_facts_break_it_and_bad_ones_never_fit(hosts: list[dict[str, Any]]) -> None:
    for rack in rack_power_plan(hosts)["racks"]:
        assert rack["lines"] or rack["errors"]
        assert not (rack["errors"] and rack["fits"])


def test_the_plan_takes_its_hosts_from_facts_by_name() -> None:
    facts = {"g1": {"rack_name": "a"}, "r1": {"rack_name": "a"}}
    assert rack_hosts(facts, ["g1"]) == [{"rack_name": "a", "host": "g1"}]
