"""Nodes are taken apart, by hand and by apt: what each fault rings, and that a run of its phase repairs it.

Many at once, on different hosts or in different checks: faults of one do not touch another.
"""

from __future__ import annotations

import time

import pytest
from demo_rack import HOSTS, NODES
from scenario import CLOSE_S, RINGS_S, figure

CONF = "/etc/chrony/chrony.conf"
ROGUE = "10.213.0.12"
TABLE = "inet steadyrack_ntp"
FLUSHED = {"gpu-b1": "missing", "relay-b1": "missing", "gpu-a1": "edited"}
REPAIRED_BY_TIME = {
    "edited": ("gpu-a1", "time.config"),
    "foreign": ("gpu-a2", "time.sources"),
    "masked": ("gpu-b1", "time.daemon"),
    "down": ("gpu-b1", "time.synchronised"),
}


@pytest.fixture(scope="module")
def act(watched, inject, play, sh):
    """gpu-a1: edited; gpu-a2: a way out and a rogue server, known to the running daemon only; gpu-b1: masked.

    And every rule of nftables flushed on gpu-b1 and relay-b1; on gpu-a1 one chain of our table emptied.
    """
    told: dict = {"since": time.time()}
    sh("gpu-a2", f"ip route replace {ROGUE} via 10.213.1.21")  # without one nothing is sent that could be rejected
    inject("line", "gpu-a1", CONF, "server 10.213.0.13 iburst")
    inject("rogue", "gpu-a2", ROGUE)
    inject("service", "gpu-b1", "mask", "chrony")
    inject("flush", "gpu-b1")
    inject("flush", "relay-b1")
    sh("gpu-a1", f"nft flush chain {TABLE} output")
    told["done"] = time.time()
    told["moments"] = watched.until(
        100,
        leak=rang("gpu-a2", "time.egress", told),
        **{name: rang(*where, told) for name, where in REPAIRED_BY_TIME.items()},
        **{host: rang(host, "firewall.ntp", told) for host in FLUSHED},
    )
    told["gate"] = watched.each("steadyrack time gate; echo $?", NODES)
    told["looks"] = watched.look()
    told["time"] = [play("playbooks/time.yml") for _ in range(2)]
    told["firewall"] = [play("playbooks/firewall.yml") for _ in range(2)]
    sh("gpu-a2", f"ip route del {ROGUE}")
    return told


def rang(host: str, check: str, told: dict):
    return lambda looks: looks[host].event(check, since=told["since"])


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("edited", "chrony.conf edited: alarm time.config"),
        ("foreign", "a rogue server added to the running daemon: alarm time.sources"),
        ("leak", "a rogue server outside: alarm time.egress"),
        ("masked", "chrony masked: alarm time.daemon"),
        ("down", "chrony masked: alarm time.synchronised"),
    ],
)
def test_it_rings(name, what, act):
    figure(f"{what} after", f"{act['moments'][name] - act['since']:.0f} s")
    assert act["moments"][name] - act["done"] <= RINGS_S


def test_the_rogue_server_is_the_one_that_is_named(act):
    assert act["looks"]["gpu-a2"].event("time.sources", since=act["since"])["subject"] == ROGUE


def test_what_the_gate_says(act):
    answers = {host: text.rsplit("\n", 1) for host, text in act["gate"].items()}
    assert answers["gpu-a1"][1] == "0"  # nobody has read the edited file yet: the clock is right
    assert answers["gpu-a2"][1] == "1"
    assert ROGUE in answers["gpu-a2"][0]
    assert answers["gpu-b1"][1] == "1"
    assert "time.synchronised" in answers["gpu-b1"][0]


def test_the_leak_was_rejected_and_counted(act):
    assert act["looks"]["gpu-a2"].reach(ROGUE) == 0
    assert act["looks"]["gpu-a2"].event("time.egress")["measured"] > 0


@pytest.mark.parametrize(("host", "state"), FLUSHED.items())
def test_a_flushed_firewall_rings(host, state, act):
    figure(f"firewall {'flushed' if state == 'missing' else 'emptied by a chain'} on {host}: alarm firewall.ntp after",
           f"{act['moments'][host] - act['since']:.0f} s")  # fmt: skip
    assert act["moments"][host] - act["done"] <= RINGS_S
    assert act["looks"][host].event("firewall.ntp", since=act["since"])["state"] == state


def test_the_clocks_go_on(act):
    for host in set(HOSTS) - {"gpu-b1"}:
        assert act["looks"][host].follows
        assert abs(act["looks"][host].offset_s) < CLOSE_S


def test_the_time_phase_repairs_and_then_has_nothing_to_do(act, watched):
    once, again = act["time"]
    assert once.rc == again.rc == 0, once.failures() or again.failures()
    assert {node: once.recap[node][0] for node in NODES} == dict.fromkeys(NODES, 1)
    assert {changed for changed, _ in again.recap.values()} == {0}
    assert ROGUE not in watched.look()["gpu-a2"].sources


def test_the_firewall_phase_repairs_and_then_has_nothing_to_do(act):
    once, again = act["firewall"]
    assert once.rc == again.rc == 0, once.failures() or again.failures()
    assert {host: once.recap[host][0] for host in FLUSHED} == dict.fromkeys(FLUSHED, 1)
    assert {changed for changed, _ in again.recap.values()} == {0}


# --- all upstreams lie ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lie(act, watched, inject, play):
    """All upstreams are 50 ms behind: everybody follows them, in agreement."""
    told: dict = {"since": time.time()}
    inject("clock", "all", "-0.05")
    hosts = list(watched.names)

    def there(looks) -> bool:
        """All at once: on the way chronyd swings about the lie for some polls."""
        told["looks"] = looks
        return all(looks[h].follows and abs(looks[h].offset_s - 0.05) < 0.005 for h in hosts)

    told["moments"] = watched.until(
        300,
        there=there,
        **{f"past {h}": lambda looks, h=h: looks[h].follows and looks[h].bound_s > 0.03 for h in hosts},
        **{f"rings {h}": rang(h, "time.offset", told) for h in hosts},
    )
    told["gate"] = play("playbooks/time_gate.yml")
    inject("clock", "all", "0")
    told["healed"] = time.time()
    told["back"] = watched.until(
        300, **{h: lambda looks, h=h: looks[h].follows and abs(looks[h].offset_s) < CLOSE_S for h in hosts}
    )
    return told


def test_a_lie_of_all_rings_everywhere_in_sign_and_size(lie, watched):
    late = [lie["moments"][f"rings {h}"] - lie["moments"][f"past {h}"] for h in watched.names]
    figure("all upstreams lie by 50 ms: alarm time.offset on all six hosts after the first bound past 30 ms",
           f"{min(late):.0f}-{max(late):.0f} s")  # fmt: skip
    assert max(late) <= RINGS_S
    told = watched.look()
    for host in watched.names:
        event = told[host].event("time.offset", since=lie["since"], severity="critical")
        assert 30 < event["measured"] < 300  # on the way there the doubt is large
        assert lie["looks"][host].offset_s == pytest.approx(0.05, abs=0.005)  # this clock is ahead of the lie
        assert 0.045 < lie["looks"][host].bound_s < 0.15


def test_no_job_may_start_on_it(lie):
    assert lie["gate"].rc != 0
    assert "NO: gpu-a1, gpu-a2, gpu-b1" in " ".join(lie["gate"].text.split())


def test_it_ends(lie):
    figure("all upstreams tell the truth again: all hosts within 1 ms after",
           f"{max(lie['back'].values()) - lie['healed']:.0f} s")  # fmt: skip
    assert max(lie["back"].values()) - lie["healed"] < 120
