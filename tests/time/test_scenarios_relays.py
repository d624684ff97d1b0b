"""Relays of site a die, one and then the other; come back while nothing outside answers; and disagree."""

from __future__ import annotations

import time

import pytest
from chronyd_on import Chronyd
from scenario import CLOSE_S, RINGS_S, figure

from lab import faults

A1, A2 = "10.213.1.21", "10.213.1.22"
NODES = ("gpu-a1", "gpu-a2")


@pytest.fixture(scope="module")
def deaths(watched, inject, play, rack):
    """relay-a2 loses its power, then relay-a1; both come back with silent upstreams, which then speak again."""
    told: dict = {}
    asked = Chronyd(rack, "gpu-a1")
    watched.worst.clear()
    told["first"] = time.time()
    inject("relay", "relay-a2", "stop")
    conditions: dict = {}
    for node in NODES:
        conditions[f"dead {node}"] = lambda h, n=node: h[n].reach(A2) == 0
        conditions[f"other {node}"] = lambda h, n=node: h[n].follows == A1 and h[n].reach(A2) in (0, 128)
        conditions[f"warns {node}"] = lambda h, n=node: h[n].event("time.sources", A2, since=told["first"])
    told["one"] = watched.until(230, **conditions)
    told["polls"] = [int(look.sources[A2][4]) for name, look in watched.look().items() if name in NODES]
    told["gate one"] = play("playbooks/time_gate.yml", "--limit", "gpu_nodes:&site_a")
    told["worst one"] = dict(watched.worst)
    told["second"] = time.time()
    inject("relay", "relay-a1", "stop")
    conditions = {}
    for node in NODES:
        conditions[f"dead {node}"] = lambda h, n=node: h[n].reach(A1) == 0
        conditions[f"rings {node}"] = lambda h, n=node: h[n].event("time.synchronised", since=told["second"])
    told["two"] = watched.until(230, **conditions)
    told["gate two"] = play("playbooks/time_gate.yml", "--limit", "gpu_nodes:&site_a")
    told["worst two"] = dict(watched.worst)
    for relay in ("relay-a1", "relay-a2"):
        faults.inject(rack, "bend", [relay, "silent"])
    told["boot"] = time.time()
    for relay in ("relay-a1", "relay-a2"):
        inject("relay", relay, "start")
    told["up"] = time.time()
    watched.until(60, **{r: lambda h, r=r: bool(h[r].tracking) for r in ("relay-a1", "relay-a2")},
                  rings1=lambda h: h["relay-a1"].event("time.synchronised", since=told["boot"]),
                  rings2=lambda h: h["relay-a2"].event("time.synchronised", since=told["boot"]))  # fmt: skip
    told["served"] = {r: asked.measure(a)[1] for r, a in (("relay-a1", A1), ("relay-a2", A2))}
    told["unset"] = watched.look()
    for relay in ("relay-a1", "relay-a2"):
        faults.inject(rack, "bend", [relay, "none"])
    told["speaks"] = time.time()
    told["again"] = watched.until(
        150,
        relays=lambda h: all(h[r].stratum == 2 for r in ("relay-a1", "relay-a2")),
        nodes=lambda h: all(h[n].stratum == 3 for n in NODES),
    )
    told["served again"] = {r: asked.measure(a)[1] for r, a in (("relay-a1", A1), ("relay-a2", A2))}
    return told


def test_the_nodes_follow_the_other_relay_and_say_which_one_died(deaths):
    allowed = 8 * 2 ** max(deaths["polls"])
    for node in NODES:
        dead = deaths["one"][f"dead {node}"] - deaths["first"]
        followed = deaths["one"][f"other {node}"] - deaths["first"]
        late = deaths["one"][f"warns {node}"] - deaths["first"]
        figure(f"one relay of two dies: {node} follows the other after", f"{followed:.0f} s")
        figure(f"one relay of two dies: {node} warns after ({dead:.0f} s until 8 polls were missed)", f"{late:.0f} s")
        assert followed <= allowed + 20
        assert deaths["one"][f"warns {node}"] - deaths["one"][f"dead {node}"] <= RINGS_S
    assert max(deaths["worst one"][n] for n in NODES) < CLOSE_S


def test_with_one_relay_a_job_may_start(deaths):
    assert deaths["gate one"].rc == 0, deaths["gate one"].text[-2000:]


def test_without_a_relay_it_rings_and_no_job_may_start(deaths, watched):
    for node in NODES:
        late = deaths["two"][f"rings {node}"] - deaths["second"]
        dead = deaths["two"][f"dead {node}"] - deaths["second"]
        figure(
            f"the last relay dies: {node} alarm time.synchronised after ({dead:.0f} s until 8 missed)", f"{late:.0f} s"
        )
        assert deaths["two"][f"rings {node}"] - deaths["two"][f"dead {node}"] <= RINGS_S
        event = watched.look()[node].event("time.synchronised", since=deaths["second"])
        assert event["severity"] == "critical"
        assert event["state"] == "stale"
    run = deaths["gate two"]
    assert run.rc != 0
    assert "NO: gpu-a1, gpu-a2" in " ".join(run.text.split())


@pytest.mark.parametrize("relay", ["relay-a1", "relay-a2"], ids=["chrony-4.3", "chrony-4.6"])
def test_a_relay_whose_clock_was_never_set_serves_nobody(relay, deaths):
    assert deaths["unset"][relay].stratum == 0
    assert "System clock wrong by" not in deaths["served"][relay], deaths["served"][relay]
    assert "System clock wrong by" in deaths["served again"][relay], deaths["served again"][relay]


def test_the_nodes_come_back(deaths):
    figure("upstreams answer again after a boot: relays at stratum 2 and nodes at 3 after",
           f"{(late := max(deaths['again'].values()) - deaths['speaks']):.0f} s")  # fmt: skip
    assert late < 60


# --- the two disagree ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quarrel(deaths, watched, inject, play, sh):
    told: dict = {}
    watched.calm()
    since = told["since"] = time.time()
    inject("bend", "relay-a2", "0.06")
    conditions: dict = {}
    for node in NODES:
        conditions[f"apart {node}"] = lambda h, n=node: h[n].refid == "00000000"
        conditions[f"rings {node}"] = lambda h, n=node: h[n].event("time.synchronised", since=since)
    told["moments"] = watched.until(150, **conditions)
    told["gate"] = play("playbooks/time_gate.yml", "--limit", "site_a")
    told["looks"] = watched.look()
    inject("bend", "relay-a2", "none")
    told["healed"] = time.time()
    told["ends"] = watched.until(60, nodes=lambda h: all(h[n].stratum == 3 for n in NODES))
    return told


def test_two_relays_that_disagree_are_both_named_and_neither_is_followed(quarrel, watched):
    for node in NODES:
        late = quarrel["moments"][f"rings {node}"] - quarrel["moments"][f"apart {node}"]
        figure(f"the two relays 60 ms apart: {node} alarm unsynchronised after it followed neither", f"{late:.0f} s")
        assert late <= RINGS_S
        event = watched.look()[node].event("time.synchronised", since=quarrel["since"])
        assert event["state"] == "unsynchronised"
        assert A1 in event["text"]
        assert A2 in event["text"]
        assert quarrel["looks"][node].follows == ""


def test_no_job_may_start_then(quarrel):
    assert quarrel["gate"].rc != 0
    assert "NO: gpu-a1, gpu-a2" in " ".join(quarrel["gate"].text.split())


def test_the_quarrel_ends(quarrel):
    late = quarrel["ends"]["nodes"] - quarrel["healed"]
    figure("the relays agree again: nodes synchronised after", f"{late:.0f} s")
    assert late < 60
