"""The power plan: mission P1, the table of notes/gpu.md section 4.1, and what must hold for any rack."""

from __future__ import annotations

import itertools
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


def only_rack(*hosts: dict[str, Any]) -> dict[str, Any]:
    (rack,) = rack_power_plan(list(hosts))["racks"]
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
    lower, fewer = rack["lines"][-2:]
    assert "166 W for NVIDIA A100 80GB PCIe would make 3792 W" in lower
    assert fewer == "next: at these caps 2 of the 3 hosts (g1, g2) would make 3600 W"


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
    gpus = {**A100, "power_cap_w": cap}

    def rack(nodes: int, active: int) -> dict[str, Any]:
        facts = {"rack_psu_efficiency": 0.94, "gpu_policy_spares": 4 - active, "rack_spare_w": 75}
        return only_rack(*(host(f"g{n}", gpus, **facts) for n in range(nodes)))

    assert (round(rack(1, 3)["sum_w"]), round(rack(1, 4)["sum_w"])) == (three, four)
    assert (round(rack(2, 3)["sum_w"]), round(rack(2, 4)["sum_w"])) == (two_threes, two_fours)
    assert [nodes for nodes in range(1, 5) if rack(nodes, 3)["fits"]] == list(range(1, most + 1))
    assert rack(2, 4)["fits"] is (two_fours <= 3800)
    # The worst moment: one node at four loads beside its neighbour.
    worst = rack(2, 3)
    assert round(worst["rows"][0]["failover_w"]) + round(worst["rows"][1]["w"]) == four + three
    assert worst["failover_w"] == pytest.approx(four + three, abs=1)


def threes(*, nodes: int = 2, cap: Any = 300, **facts: Any) -> dict[str, Any]:
    """A rack of nodes with three active GPUs and a spare, as in the table."""
    shared = {"rack_psu_efficiency": 0.94, "gpu_policy_spares": 1, "rack_spare_w": 75, **facts}
    return only_rack(*(host(f"g{n}", {**A100, "power_cap_w": cap}, **shared) for n in range(nodes)))


def test_the_moment_of_fail_over_is_told() -> None:
    rack = threes()
    assert (rack["fits"], round(rack["rows"][0]["failover_w"]), round(rack["rows"][1]["w"])) == (True, 1915, 1676)
    assert round(rack["failover_w"]) == 1915 + 1676 - 1  # 3590.4; the note's 3591 adds rounded figures
    assert rack["lines"][-1] == (
        "fail-over on g0, what was lost still draws: 1914.9 + 1675.5 = 3590.4 W of 3800 W: fits, 209.6 W left"
    )


def test_a_rack_whose_fail_over_does_not_fit_is_refused_with_the_arithmetic() -> None:
    """3351 W fit 3550 W and 3590 W do not: it would be over from the first lost card on."""
    rack = threes(rack_feed_limit_w=3550, rack_feed_margin_percent=0)
    assert (rack["fits"], rack["left_w"]) == (False, 198.94)
    assert any("= 3351.1 W of 3550 W: fits, 198.9 W left" in line for line in rack["lines"])
    assert any("1914.9 + 1675.5 = 3590.4 W of 3550 W: over by 40.4 W" in line for line in rack["lines"])
    lower, fewer, spares = rack["next"]
    assert "294 W for NVIDIA A100 80GB PCIe would make 3312.8 W, 3545.7 W in a fail-over" in lower
    assert "1 of the 2 hosts (g0) would make 1675.5 W, 1914.9 W in a fail-over" in fewer
    assert "(gpu_policy_spares 2 on g0, g1) would make 2872.3 W, 3351.1 W in a fail-over" in spares


def test_all_hosts_may_fail_over_at_once() -> None:
    rack = threes(rack_failover_hosts="all")
    assert (rack["fits"], round(rack["failover_w"])) == (False, 3830)
    assert any(line.startswith("fail-over on g0, g1, what was lost still draws: ") for line in rack["lines"])
    assert [proposal["kind"] for proposal in rack["proposals"]] == ["caps", "hosts"]  # a spare more would not help


def test_the_moment_may_use_derating_and_margin_and_no_more() -> None:
    edge = {"rack_feed_limit_w": 3550, "rack_feed_margin_percent": 5, "rack_failover_may_exceed": True}
    rack = threes(**edge)
    assert (rack["fits"], rack["usable_w"], rack["moment_w"]) == (False, 3372.5, 3550)
    rack = threes(**{**edge, "rack_feed_limit_w": 3600})
    assert rack["fits"]
    said = "3590.4 W of 3600 W without derating and margin (rack_failover_may_exceed): fits, 9.6 W left"
    assert said in rack["lines"][-1]
    # The sum of every day has to fit all the same.
    assert not threes(**{**edge, "rack_feed_limit_w": 3600, "rack_feed_margin_percent": 8})["fits"]


@pytest.mark.parametrize(("may_exceed", "most"), [(False, 247), (True, 276)])
def test_4_kw_of_a_breaker_are_3200_w(may_exceed: bool, most: int) -> None:
    """notes/gpu.md 4.1 says at most 275 W for two nodes at 3+1: that leaves the fail-over out, with which it is 247."""
    facts = {"rack_feed_derating": 0.8, "rack_feed_margin_percent": 0, "rack_failover_may_exceed": may_exceed}
    rack = threes(cap="auto", **facts)
    assert (rack["fits"], rack["usable_w"], rack["cap_w"]) == (True, 3200, {A100["model"]: most})
    assert threes(cap=275, **facts)["fits"] is may_exceed
    assert threes(cap=most + 1, **facts)["fits"] is False


def test_caps_left_to_the_plan_leave_room_for_the_fail_over() -> None:
    rack = threes(cap="auto", rack_feed_limit_w=3550, rack_feed_margin_percent=0)
    assert (rack["fits"], rack["cap_w"]) == (True, {A100["model"]: 294})


# --- spares, feeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "idle_w", "counted"),
    [
        ({}, None, 150),
        ({"rack_spare_w": "min_cap"}, None, 150),
        ({"rack_spare_w": "cap"}, None, 300),
        ({"rack_spare_w": 75}, None, 75),
        ({"rack_spare_w": 400}, None, 300),  # never above its cap
        ({"rack_spare_w": "cap"}, 60, 60),
        ({"rack_spare_w": 75}, 60, 60),  # what is said of the model wins
        ({"gpu_policy_spare_power_cap_w": 180}, None, 180),
        ({"gpu_policy_spare_power_cap_w": "180"}, None, 180),  # by -e
        ({"gpu_policy_spare_power_cap_w": None}, None, 150),
        ({"gpu_policy_spare_power_cap_w": 250, "gpu_policy_power_cap_w": 300}, None, 250),
        ({"gpu_policy_spare_power_cap_w": 180, "rack_spare_w": "cap"}, None, 300),
        ({"gpu_policy_spare_power_cap_w": 180, "rack_spare_w": 75}, None, 75),
        ({"gpu_policy_spare_power_cap_w": 180}, 60, 60),
    ],
)
def test_what_an_idle_spare_counts_at(facts: dict[str, Any], idle_w: int | None, counted: int) -> None:
    rack = only_rack(host("g1", {**A100, "idle_w": idle_w}, gpu_policy_spares=1, **facts))
    assert (rack["sum_w"], rack["failover_w"]) == (1500 + counted, 1800)
    assert f"+ 1 spare x {counted} (NVIDIA A100 80GB PCIe)" in rack["lines"][1]


def test_a_spare_never_counts_above_the_cap_of_an_active_gpu() -> None:
    rack = only_rack(host("g1", gpu_policy_power_cap_w=160, gpu_policy_spare_power_cap_w=250, gpu_policy_spares=1))
    assert (rack["sum_w"], rack["failover_w"]) == (600 + 4 * 160, 600 + 4 * 160)


@pytest.mark.parametrize(("given", "active"), [(0, 4), ("0", 4), (1, 3), ("2", 2), (3, 1)])
def test_the_role_says_how_many_stand_by(given: Any, active: int) -> None:
    """As text it comes from -e."""
    (row,) = only_rack(host("g1", gpu_policy_spares=given))["rows"]
    assert sum(card["number"] for card in row["gpus"] if card["state"] == "active") == active


def test_of_mixed_models_the_thriftiest_is_the_idle_one_until_the_fail_over() -> None:
    rack = only_rack(host("g1", A100, A30, gpu_policy_spares=1))
    assert rack["sum_w"] == 600 + 4 * 300 + 165 + 100
    assert rack["failover_w"] == 600 + 4 * 300 + 2 * 165


def test_every_spare_of_a_host_may_be_taken() -> None:
    """A card that was lost before still draws when the next one goes."""
    rack = only_rack(host("g1", gpu_policy_spares=2))
    assert (rack["sum_w"], rack["failover_w"]) == (600 + 2 * 300 + 2 * 150, 1800)


def test_the_host_that_would_add_most_is_the_one_that_fails_over() -> None:
    hosts = [host("g1", gpu_policy_spares=1), host("g2", gpu_policy_spares=2), host("g3")]
    rack = only_rack(*({**facts, "rack_feed_limit_w": 6000} for facts in hosts))
    assert rack["failing"] == ["g2"]
    assert "fail-over on g2, what was lost still draws: 1650 + 1800 + 1800 = 5250 W of 5700 W" in rack["lines"][-1]


def test_another_spare_is_proposed_where_a_gpu_stays_active() -> None:
    """Four spares would leave g1 none at work; with three active on g2 the worst moment is g1's: 1800 + 1650 W."""

    def proposed(feed_w: int) -> list[dict[str, int]]:
        pair = (host("g1", gpu_policy_spares=3), host("g2"))
        rack = only_rack(*({**facts, "rack_feed_limit_w": feed_w, "rack_feed_margin_percent": 0} for facts in pair))
        assert not rack["fits"]
        return [one["spares"] for one in rack["proposals"] if one["kind"] == "spares"]

    assert proposed(3449) == []
    assert proposed(3450) == [{"g1": 3, "g2": 1}]


def test_redundant_feeds_hold_the_rack_alone_and_others_add_up() -> None:
    pair = {"rack_feed_limit_w": 2000, "rack_feeds": 2}
    redundant = only_rack(*(host(name, **pair) for name in ("g1", "g2")))
    assert (redundant["fits"], redundant["usable_w"]) == (False, 1900)
    assert redundant["lines"][0] == (
        "rack a1 at north: each of 2 redundant feeds alone 2000 W less 5 % margin = 1900 W usable"
    )
    added = only_rack(*(host(name, **pair, rack_feeds_redundant=False) for name in ("g1", "g2")))
    assert (added["fits"], added["usable_w"]) == (True, 3800)
    assert added["lines"][0] == "rack a1 at north: 2 feeds x 2000 W, not redundant less 5 % margin = 3800 W usable"


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
        ({"gpu_policy_spares": 4}, "gpu_policy_spares is 4; it must lie between 0 and 3"),
        ({"gpu_policy_spares": -1}, "gpu_policy_spares"),
        ({"gpu_policy_spares": 1.5}, "gpu_policy_spares is 1.5; it needs a whole number"),
        ({"gpu_policy_spares": True}, "gpu_policy_spares"),
        ({"gpu_policy_spares": None}, "gpu_policy_spares"),
        ({"gpu_policy_spares": "one"}, "gpu_policy_spares"),
        ({"gpu_policy_spares": "1.0"}, "gpu_policy_spares"),
        ({"gpu_policy_spares": "²"}, "gpu_policy_spares"),
        ({"gpu_policy_spares": 1, "rack_gpus": []}, "gpu_policy_spares"),
        ({"gpu_policy_spare_power_cap_w": 149}, "gpu_policy_spare_power_cap_w is 149; it must lie between 150 and 300"),
        ({"gpu_policy_spare_power_cap_w": "low"}, "gpu_policy_spare_power_cap_w"),
        ({"gpu_policy_spare_power_cap_w": True}, "gpu_policy_spare_power_cap_w"),
        ({"rack_spare_w": "idle"}, "min_cap, cap or watts"),
        ({"rack_spare_w": "75"}, "rack_spare_w"),
        ({"rack_spare_w": -1}, "rack_spare_w"),
        ({"rack_spare_w": True}, "rack_spare_w"),
        ({"rack_feeds": 0}, "rack_feeds"),
        ({"rack_feeds": 1.5}, "rack_feeds"),
        ({"rack_feeds_redundant": "yes"}, "true or false"),
        ({"rack_feeds_redundant": 1}, "true or false"),
        ({"rack_failover_hosts": 1}, "one or all"),
        ({"rack_failover_hosts": "two"}, "one or all"),
        ({"rack_failover_may_exceed": None}, "rack_failover_may_exceed"),
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
    (error,) = only_rack(host("g1"), host("g2", rack_feed_limit_w=8000, rack_failover_hosts="all"))["errors"]
    assert error.startswith("g2 and g1 are in one rack but differ")
    assert error.endswith(": rack_feed_limit_w, rack_failover_hosts")


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
        "rack_feeds": draw(st.integers(1, 2)),
        "rack_feeds_redundant": draw(st.booleans()),
        "rack_failover_hosts": draw(st.sampled_from(["one", "all"])),
        "rack_failover_may_exceed": draw(st.booleans()),
    }
    total = sum(entry["count"] for entry in models)
    hosts = []
    for number in range(draw(st.integers(1, 5))):
        own = {"rack_host_base_w": draw(st.integers(0, 2000)), "rack_psu_efficiency": draw(st.floats(0.5, 1))}
        own["rack_spare_w"] = draw(st.sampled_from(["cap", "min_cap"]) | st.integers(0, 150))
        hosts.append(host(f"g{number}", *models, **feed, **own, gpu_policy_spares=draw(st.integers(0, total - 1))))
    return hosts


@settings(max_examples=40, deadline=None)
@given(racks())
def test_what_fits_is_never_above_the_budget_and_caps_stay_in_range(hosts: list[dict[str, Any]]) -> None:
    rack = only_rack(*hosts)
    assert rack["errors"] == []
    if rack["fits"]:
        assert rack["sum_w"] <= rack["usable_w"] + 0.02
        assert rack["failover_w"] <= rack["moment_w"] + 0.02
        for entry in hosts[0]["rack_gpus"]:
            assert entry["power_min_w"] <= rack["cap_w"][entry["model"]] <= entry["power_max_w"]
            assert isinstance(rack["cap_w"][entry["model"]], int)


def idle_w(facts: dict[str, Any], card: dict[str, Any], cap: float) -> float:
    known = {"cap": cap, "min_cap": card["power_min_w"]}
    return min(known.get(facts["rack_spare_w"], facts["rack_spare_w"]), cap)


def at_most(facts: dict[str, Any], caps: dict[str, float], lost: int) -> float:
    """Watts of a host with ``lost`` cards at their last cap and as many spares opened, whichever cards are active.

    Card by card over all choices, by none of the plan's arithmetic.
    """
    cards = [entry for entry in facts["rack_gpus"] for _ in range(entry["count"])]
    sums = {0: float(facts["rack_host_base_w"])}
    for card in cards:
        grown: dict[int, float] = {}
        for busy, drawn in sums.items():
            cap = caps[card["model"]]
            grown[busy + 1] = max(grown.get(busy + 1, 0), drawn + cap)
            grown[busy] = max(grown.get(busy, 0), drawn + idle_w(facts, card, cap))
        sums = grown
    return sums[len(cards) - facts["gpu_policy_spares"] + lost] / facts["rack_psu_efficiency"]


@settings(max_examples=80, deadline=None)
@given(st.one_of(racks(), racks(cap=None)))
def test_no_state_of_a_fail_over_passes_what_a_rack_that_fits_may_draw(hosts: list[dict[str, Any]]) -> None:
    rack = only_rack(*hosts)
    assume(rack["fits"])
    caps = rack["host_cap_w"]
    still = {facts["host"]: at_most(facts, caps[facts["host"]], 0) for facts in hosts}
    assert sum(still.values()) <= rack["usable_w"] + 0.02
    everywhere = 0.0
    for facts in hosts:
        name = facts["host"]
        moments = [at_most(facts, caps[name], lost) for lost in range(facts["gpu_policy_spares"] + 1)]
        assert sum(still.values()) - still[name] + max(moments) <= rack["moment_w"] + 0.02
        everywhere += max(moments)
    if hosts[0]["rack_failover_hosts"] == "all":
        assert everywhere <= rack["moment_w"] + 0.02


def accepted(hosts: list[dict[str, Any]], proposal: dict[str, Any]) -> list[dict[str, Any]]:
    """The inventory once somebody has done what a proposal says."""
    if proposal["kind"] == "hosts":
        return [facts for facts in hosts if facts["host"] in proposal["hosts"]]
    if proposal["kind"] == "spares":
        return [{**facts, "gpu_policy_spares": proposal["spares"][facts["host"]]} for facts in hosts]
    capped = []
    for facts in hosts:
        caps = proposal["host_cap_w"][facts["host"]]
        capped.append({**facts, "rack_gpus": [{**e, "power_cap_w": caps[e["model"]]} for e in facts["rack_gpus"]]})
    return capped


@settings(max_examples=80, deadline=None)
@given(st.one_of(racks(), racks(cap=None)))
def test_what_is_proposed_fits_and_makes_what_was_said(hosts: list[dict[str, Any]]) -> None:
    rack = only_rack(*hosts)
    assume(not rack["fits"])
    assert len(rack["next"]) >= 1
    for proposal in rack["proposals"]:
        done = only_rack(*accepted(hosts, proposal))
        assert done["fits"], proposal
        if hosts[0]["rack_gpus"][0]["power_cap_w"] is None:
            assert (done["sum_w"], done["failover_w"]) == (
                pytest.approx(proposal["sum_w"], abs=0.02),
                pytest.approx(proposal["failover_w"], abs=0.02),
            )


@settings(max_examples=40, deadline=None)
@given(racks(cap=None))
def test_no_more_hosts_would_fit_than_are_proposed(hosts: list[dict[str, Any]]) -> None:
    rack = only_rack(*hosts)
    assume(not rack["fits"])
    assume(hosts[0]["rack_failover_hosts"] == "one" or not hosts[0]["rack_failover_may_exceed"])
    proposed = next((len(one["hosts"]) for one in rack["proposals"] if one["kind"] == "hosts"), 0)
    for some in itertools.combinations(hosts, proposed + 1):
        assert not only_rack(*some)["fits"]


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
        return only_rack(*({**facts, "rack_gpus": own} for facts, own in zip(drawn, gpus, strict=True)))["failover_w"]

    low, high = all_at("power_min_w"), all_at("power_max_w")
    feed = {"rack_feed_limit_w": low + share * (high - low) + 1, "rack_feed_margin_percent": 0, "rack_feed_derating": 1}
    feed["rack_feeds"] = 1
    hosts = [{**facts, **feed} for facts in drawn]
    rack = only_rack(*hosts)
    assert rack["fits"]
    raised = []
    for facts in hosts:
        gpus = [{**e, "power_cap_w": min(rack["cap_w"][e["model"]] + 1, e["power_max_w"])} for e in facts["rack_gpus"]]
        raised.append({**facts, "rack_gpus": gpus})
    worse = only_rack(*raised)
    assert worse["failover_w"] > rack["usable_w"] or worse["failover_w"] == pytest.approx(rack["failover_w"])


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
KEYS = [
    "rack_name", "rack_site", "rack_feed_limit_w", "rack_feed_margin_percent", "rack_gpus", "gpu_policy_spares",
    "rack_feeds", "rack_feeds_redundant", "rack_failover_hosts", "rack_failover_may_exceed", "rack_spare_w",
    "gpu_policy_spare_power_cap_w",
]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["host", *KEYS]), ODD), max_size=3))
def test_no_facts_break_it_and_bad_ones_never_fit(hosts: list[dict[str, Any]]) -> None:
    for rack in rack_power_plan(hosts)["racks"]:
        assert rack["lines"] or rack["errors"]
        assert not (rack["errors"] and rack["fits"])


def test_the_plan_takes_its_hosts_from_facts_by_name() -> None:
    facts = {"g1": {"rack_name": "a"}, "r1": {"rack_name": "a"}}
    assert rack_hosts(facts, ["g1"]) == [{"rack_name": "a", "host": "g1"}]
