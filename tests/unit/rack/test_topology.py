"""What a rack of containers consists of: read, checked, and in step with the inventory."""

from __future__ import annotations

import copy
import tomllib

import pytest
import yaml

from lab.paths import LAB, ROOT
from lab.say import RackError
from lab.topology import load, parse

DEMO = tomllib.loads((LAB / "racks" / "demo.toml").read_text())


def changed(**hosts):
    data = copy.deepcopy(DEMO)
    for name, row in hosts.items():
        data["hosts"].setdefault(name.replace("_", "-"), {}).update(row)
    return data


@pytest.mark.parametrize(
    ("short", "inventory"), [("demo", "inventory/demo"), ("molecule", "molecule/shared/inventory")]
)
def test_inventory_and_containers_have_the_same_hosts_and_addresses(short, inventory):
    tree = yaml.safe_load((ROOT / inventory / "hosts.yml").read_text())["all"]["children"]
    wanted = {n: row["ansible_host"] for g in ("relays", "gpu_nodes") for n, row in tree[g]["hosts"].items()}
    rack = load(short)
    assert wanted == {h.name: h.ssh_address for h in rack.hosts.values() if not h.upstream_clocks}


@pytest.mark.parametrize("short", ["demo", "molecule"])
def test_inventory_names_the_upstreams_that_the_outside_runs(short):
    rack = load(short)
    folder = "inventory/demo" if short == "demo" else "molecule/shared/inventory"
    named = yaml.safe_load((ROOT / folder / "group_vars/relays/time_sync.yml").read_text())["time_sync_upstreams"]
    addresses = [one["address"] if isinstance(one, dict) else one for one in named]
    assert addresses == list(rack.hosts["outside"].upstream_clocks.values())


def test_racks_do_not_overlap():
    racks = [load(path.stem) for path in sorted((LAB / "racks").glob("*.toml"))]
    assert {rack.name for rack in racks} >= {f"steadyrack-{name}" for name in ("demo", "molecule", "vmtime")}
    nets = [n.subnet for rack in racks for n in rack.networks.values()]
    assert not [(a, b) for i, a in enumerate(nets) for b in nets[i + 1 :] if a.overlaps(b)]


def test_nodes_have_no_network_but_the_internal_one():
    rack = load("demo")
    for name in ("gpu-a1", "gpu-a2", "gpu-b1"):
        assert [rack.networks[n].internal for n in rack.hosts[name].networks] == [True]


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ({"gpu_a1": {"networks": {"rack-a": "10.213.1.32"}}}, ["share the address", "10.213.1.32"]),
        ({"gpu_a1": {"networks": {"rack-a": "10.99.1.31"}}}, ["10.99.1.31", "not in rack-a"]),
        ({"gpu_a1": {"networks": {"rack-x": "10.213.1.31"}}}, ["no network 'rack-x'"]),
        ({"gpu_a1": {"suite": "sid"}}, ["no image for 'sid'", "bookworm"]),
        ({"Gpu!": {"suite": "trixie", "networks": {}}}, ["is not a host name"]),
    ],
)
def test_a_bad_rack_is_refused_with_the_reason(hosts, words):
    with pytest.raises(RackError) as caught:
        parse("demo", changed(**hosts))
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_rack_names_the_known_ones():
    with pytest.raises(RackError, match="demo"):
        load("nope")
