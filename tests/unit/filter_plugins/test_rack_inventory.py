"""What is wrong with an inventory: each fault is found, named with its host, and the right ones pass."""

from __future__ import annotations

import copy
from datetime import date
from typing import Any

import pytest
import rack_inventory
from hypothesis import given, settings
from hypothesis import strategies as st
from rack_inventory import address_fault, client_networks, host_address, inventory_errors, server_addresses, url_host

A100 = "NVIDIA A100 80GB PCIe"
UUID = "GPU-11111111-2222-3333-4444-555555555555"
GPU_POLICY_INPUTS = (
    "gpu_policy_power_cap_w", "gpu_policy_overrides", "gpu_policy_spares", "gpu_policy_spare_gpus",
    "gpu_policy_spare_power_cap_w", "gpu_policy_xid_actions", "gpu_policy_known_missing", "gpu_policy_mig",
)  # fmt: skip
SPECS: dict[str, Any] = {
    "time_sync": {"argument_specs": {"main": {"options": {"time_sync_mode": {}, "time_sync_upstreams": {}}}}},
    "gpu_policy": {"argument_specs": {"main": {"options": {name: {} for name in GPU_POLICY_INPUTS}}}},
}
RACK = {
    "rack_name": "a1",
    "rack_site": "north",
    "rack_feed_limit_w": 4000,
    "rack_networks": ["10.1.0.0/24"],
    "rack_gpus": [{"model": A100, "count": 4, "power_max_w": 300, "power_min_w": 150, "link_width": 16}],
}


class Shelf:
    """A right inventory of one relay and two nodes, to be made wrong."""

    def __init__(self) -> None:
        hosts = ["relay-a1", "gpu-a1", "gpu-a2"]
        self.groups: dict[str, Any] = {
            "all": hosts,
            "ungrouped": [],
            "relays": ["relay-a1"],
            "gpu_nodes": ["gpu-a1", "gpu-a2"],
            "site_north": list(hosts),
            "rack_a1": list(hosts),
        }
        self.vars: dict[str, Any] = {
            host: {**copy.deepcopy(RACK), "ansible_host": f"10.1.0.{number}"} for number, host in enumerate(hosts, 1)
        }

    def errors(self) -> dict[str, Any]:
        return inventory_errors(self.groups, self.vars, SPECS)

    def of(self, host: str) -> list[str]:
        return self.errors()["hosts"][host]

    def only(self, host: str) -> str:
        """The one error there is, which is this host's."""
        found = self.errors()
        assert found["inventory"] == []
        assert [name for name, errors in found["hosts"].items() if errors] == [host]
        (error,) = found["hosts"][host]
        assert error.startswith(f"{host}: ")
        assert "; wanted " in error
        assert ". Next: " in error
        return error


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_right_inventory_has_no_errors(shelf: Shelf) -> None:
    assert shelf.errors() == {"inventory": [], "hosts": {"relay-a1": [], "gpu-a1": [], "gpu-a2": []}}


# --- groups ------------------------------------------------------------------------------------------


def test_an_unknown_group_is_named_with_a_guess(shelf: Shelf) -> None:
    shelf.groups["gpu_node"] = ["gpu-a1"]
    (error,) = shelf.errors()["inventory"]
    assert error.startswith("group gpu_node: unknown (did you mean gpu_nodes?)")


def test_a_host_in_no_role_group(shelf: Shelf) -> None:
    shelf.groups["gpu_nodes"].remove("gpu-a2")
    assert "neither in relays nor in gpu_nodes" in shelf.only("gpu-a2")


def test_a_host_in_both_role_groups(shelf: Shelf) -> None:
    shelf.groups["relays"].append("gpu-a2")
    assert "both in relays and in gpu_nodes" in shelf.only("gpu-a2")


def test_a_host_in_two_racks(shelf: Shelf) -> None:
    shelf.groups["rack_b1"] = ["gpu-a2"]
    assert "rack_a1, rack_b1" in shelf.only("gpu-a2")


@pytest.mark.parametrize("how", ["empty", "absent"])
def test_an_inventory_without_a_relay(how: str, shelf: Shelf) -> None:
    shelf.groups["gpu_nodes"].append("relay-a1")
    shelf.groups["relays"] = []
    if how == "absent":
        del shelf.groups["relays"]
    (error,) = shelf.errors()["inventory"]
    assert error.startswith("group relays: no host in it")


def test_a_site_without_a_relay(shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["rack_site"] = "south"
    assert "no relay" in shelf.only("gpu-a2")


def test_an_empty_inventory_is_told_not_crashed_on() -> None:
    assert inventory_errors({"all": []}, {}, SPECS)["inventory"]


# --- names and addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "10.1.0.9",
        "2001:db8:f804:502::1000:135",
        "[2001:db8::1]",
        "::1",
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "[fe80::1%eth0]",
        "gpu-a1",
        "GPU-A1.example.com",
        "1.node.example.com",
        "example.com.",
        "xn--bcher-kva.example",
        "a" * 63 + ".example",
        "3com.example",
    ],
)
def test_well_formed_names_and_addresses_pass_c86_c87(address: str) -> None:
    """C86, C87."""
    assert address_fault(address) is None


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("10.1.0.256", "IPv4"),
        ("10.1.0", "IPv4"),
        ("10.1.0.1.2", "IPv4"),
        ("010.001.000.001", "IPv4"),
        ("10.1.0.1:22", "port"),
        ("[2001:db8::1]:22", "port"),
        ("gpu-a1:22", "port"),
        ("2001:db8::1::2", "IPv6"),
        ("2001:db8::g", "IPv6"),
        ("[2001:db8::1", "IPv6"),
        ("[gpu-a1]", "IPv6"),
        ("10.1.0.0/24", "slash"),
        ("https://gpu-a1", "slash"),
        ("gpu a1", "blanks"),
        (" gpu-a1", "blanks"),
        ("gpu_a1", "letters"),
        ("-gpu", "letters"),
        ("gpu-", "letters"),
        ("gpu..a1", "letters"),
        (".", "letters"),
        ("a" * 64, "63"),
        (".".join(["a" * 60] * 5), "253"),
        ("gpü-a1", "ASCII"),
        ("", "empty"),
        (None, "not a text"),
        (10, "not a text"),
        (["10.0.0.1"], "not a text"),
    ],
)
def test_malformed_ones_have_one_telling_fault(address: Any, word: str) -> None:
    assert word in str(address_fault(address))


def test_a_malformed_ansible_host_is_one_error(shelf: Shelf) -> None:
    shelf.vars["gpu-a1"]["ansible_host"] = "10.1.0.300"
    assert "ansible_host: '10.1.0.300': it is not an IPv4 address" in shelf.only("gpu-a1")


@pytest.mark.parametrize("host", ["gpü-a3", "gpu_a3", "gpu a3"])
@pytest.mark.parametrize("with_address", [True, False])
def test_a_malformed_host_name_is_one_error(host: str, with_address: bool, shelf: Shelf) -> None:
    for group in ("all", "gpu_nodes", "site_north", "rack_a1"):
        shelf.groups[group].append(host)
    shelf.groups["site_north"] = shelf.groups["rack_a1"] = list(shelf.groups["all"])
    shelf.vars[host] = {**RACK, **({"ansible_host": "10.1.0.7"} if with_address else {})}
    assert "name" in shelf.only(host)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.1.0.2", "10.1.0.2"),
        ("2001:db8::1", "[2001:DB8:0:0::1]"),
        ("::ffff:10.1.0.2", "10.1.0.2"),
        ("Node.example.com", "node.example.com."),
        ("fe80::1%eth0", "[FE80::1%eth0]"),
    ],
)
def test_two_nodes_with_one_address_in_any_spelling(one: str, other: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a1"]["ansible_host"] = one
    shelf.vars["gpu-a2"]["ansible_host"] = other
    assert any("is also that of gpu-a2" in line for line in shelf.of("gpu-a1"))
    assert any("is also that of gpu-a1" in line for line in shelf.of("gpu-a2"))


@pytest.mark.parametrize("address", ["relay-a1.example.com", None])
def test_a_relay_is_reached_by_an_address_not_by_a_name(address: Any, shelf: Shelf) -> None:
    shelf.vars["relay-a1"]["ansible_host"] = address
    (error,) = shelf.of("relay-a1")
    assert shelf.of("gpu-a1") == [f"gpu-a1: its relay {error}"]
    assert f"{address or 'relay-a1'}, a name that the firewall of its nodes cannot look up" in error
    assert error.endswith("Next: set ansible_host to its address")


def test_a_node_may_be_reached_by_name_and_a_relay_by_either_family(shelf: Shelf) -> None:
    shelf.vars["gpu-a1"]["ansible_host"] = "gpu-a1.example.com"
    del shelf.vars["gpu-a2"]["ansible_host"]
    shelf.vars["relay-a1"]["ansible_host"] = "2001:db8::1"
    for variables in shelf.vars.values():
        variables["rack_networks"] = ["10.1.0.0/24", "2001:db8::/64"]
    assert not any(shelf.errors()["hosts"].values())


def test_an_address_that_cannot_be_evaluated_is_said_once(shelf: Shelf) -> None:
    shelf.vars["relay-a1"]["ansible_host"] = "(cannot be evaluated: 'inside' is undefined)"
    assert "'inside' is undefined" in shelf.only("relay-a1")


def test_two_ports_of_one_address_are_two_hosts(shelf: Shelf) -> None:
    shelf.vars["gpu-a1"].update(ansible_host="127.0.0.1", ansible_port=2222)
    shelf.vars["gpu-a2"].update(ansible_host="127.0.0.1", ansible_port=2223)
    assert shelf.errors()["hosts"]["gpu-a2"] == []


def test_link_local_addresses_of_two_interfaces_are_two(shelf: Shelf) -> None:
    shelf.vars["gpu-a1"]["ansible_host"] = "fe80::1%eth0"
    shelf.vars["gpu-a2"]["ansible_host"] = "fe80::1%eth1"
    assert shelf.of("gpu-a2") == []


class Pair(Shelf):
    """Two sites: north with two relays, south with one."""

    def __init__(self) -> None:
        super().__init__()
        south = {"rack_site": "south", "rack_name": "s1", "rack_networks": ["10.2.0.0/24"]}
        more = {"relay-a2": {}, "relay-s1": south, "gpu-s1": south}
        for number, (host, facts) in enumerate(more.items(), 1):
            first = "10.2.0" if facts else "10.1.0"
            self.vars[host] = {**copy.deepcopy(RACK), **facts, "ansible_host": f"{first}.{number + 20}"}
            self.groups["all"].append(host)
            self.groups["relays" if host.startswith("relay") else "gpu_nodes"].append(host)

    def wrong(self) -> dict[str, list[str]]:
        return {host: lines for host, lines in self.errors()["hosts"].items() if lines}


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_two_sites_have_no_errors(pair: Pair) -> None:
    pair.vars["relay-a1"]["rack_outside_address"] = "198.51.100.7"
    pair.vars["relay-s1"]["rack_outside_address"] = pair.vars["relay-s1"]["ansible_host"]  # one network for both
    assert pair.wrong() == {}


def test_an_error_of_a_relays_address_is_its_nodes_too_and_no_other_sites(pair: Pair) -> None:
    pair.vars["relay-a2"]["ansible_host"] = pair.vars["relay-a1"]["ansible_host"]
    wrong = pair.wrong()
    assert sorted(wrong) == ["gpu-a1", "gpu-a2", "relay-a1", "relay-a2"]
    assert wrong["gpu-a1"][0].startswith("gpu-a1: its relay relay-a1: address: 10.1.0.1 is also that of relay-a2")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1", "fe80::1%eth0", "169.254.3.4", "224.0.0.1",
                                     "0.0.0.0", "255.255.255.255", "::ffff:127.0.0.1"])  # fmt: skip
def test_a_relay_that_its_nodes_cannot_reach_is_named_by_its_ansible_host(address: str, pair: Pair) -> None:
    pair.vars["relay-s1"]["ansible_host"] = address
    wrong = pair.wrong()
    assert sorted(wrong) == ["gpu-s1", "relay-s1"]
    (line,) = wrong["relay-s1"]
    assert line.startswith(f"relay-s1: ansible_host: {address!r}: it is ")
    assert wrong["gpu-s1"] == [f"gpu-s1: its relay {line}"]


def test_the_other_relay_of_the_site_is_told_too(pair: Pair) -> None:
    pair.vars["relay-a2"]["ansible_host"] = "127.0.0.1"
    assert sorted(pair.wrong()) == ["gpu-a1", "gpu-a2", "relay-a1", "relay-a2"]
    assert pair.wrong()["relay-a1"][0].startswith("relay-a1: its relay relay-a2: ansible_host: '127.0.0.1'")


def test_localhost_as_a_relay_names_ansible_host_on_its_nodes_too(pair: Pair) -> None:
    pair.vars["relay-s1"]["ansible_host"] = "localhost"
    assert "set ansible_host to its address" in pair.wrong()["gpu-s1"][0]


@pytest.mark.parametrize("other", ["relay-a2", "relay-s1", "gpu-a1", "gpu-s1"])
def test_an_outside_address_is_no_other_machines(other: str, pair: Pair) -> None:
    pair.vars["relay-a1"]["rack_outside_address"] = pair.vars[other]["ansible_host"]
    wrong = pair.wrong()
    assert sorted(wrong) == sorted(["relay-a1", other])
    assert all("two machines with one address" in lines[0] and len(lines) == 1 for lines in wrong.values())
    pair.vars[other]["ansible_port"] = 2222  # both behind one forwarding
    assert pair.wrong() == {}


@pytest.mark.parametrize("address", ["127.0.0.1", "fe80::7", "[2001:db8::7]", "239.0.0.1"])
def test_an_outside_address_that_cannot_be_is_refused_also_where_it_would_be_used(address: str, pair: Pair) -> None:
    pair.vars["relay-a1"]["rack_outside_address"] = address
    wrong = pair.wrong()
    assert sorted(wrong) == ["relay-a1", "relay-s1"]
    assert wrong["relay-s1"][0].startswith("relay-s1: relay relay-a1 of another site: rack_outside_address: ")


@pytest.mark.parametrize(
    "networks",
    [["10.9.0.0/24"], ["2001:db8::/64", "192.0.2.0/24"], ["10.2.1.0/24"]],
)
def test_networks_without_a_host_of_their_site_are_refused(networks: list[str], pair: Pair) -> None:
    pair.vars["relay-s1"]["rack_networks"] = networks
    (line,) = pair.wrong()["relay-s1"]
    assert "without a single host of south" in line
    assert "with 10.2.0.22 of relay-s1 inside" in line
    for host in ("relay-s1", "gpu-s1"):
        pair.vars[host]["ansible_host"] = f"10.2.0.{host}.example"
    assert not any("single host" in line for lines in pair.wrong().values() for line in lines)


@pytest.mark.parametrize("network", ["127.0.0.0/8", "::1/128", "224.0.0.0/4", "ff02::/16", "169.254.0.0/16",
                                     "fe80::/64", "::ffff:10.1.0.0/120"])  # fmt: skip
@pytest.mark.parametrize("name", ["rack_networks", "rack_bmc_networks"])
def test_networks_that_no_machine_is_in_are_refused(name: str, network: str, shelf: Shelf) -> None:
    shelf.vars["relay-a1"][name] = ["10.1.0.0/24", network]
    assert network in shelf.only("relay-a1")


@pytest.mark.parametrize("name", ["0x7f000001", "0X7F.1", "10.0x1", "0x"])
def test_a_number_in_a_names_place_is_refused(name: str) -> None:
    assert address_fault(name) == "it is not an IPv4 address"
    assert address_fault("0x.example") is None


def test_a_time_server_has_no_port() -> None:
    for value in ("ntp.ntsc.ac.cn:123", "[2001:db8::1]:123"):
        with pytest.raises(rack_inventory.FilterError, match="no port: NTP is UDP 123"):
            server_addresses([value], "time_sync_upstreams")


# --- rack facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("rack_feed_limit_w", None, "not set"),
        ("rack_feed_limit_w", "4000", "a text"),
        ("rack_feed_limit_w", "4 kW", "a text"),
        ("rack_feed_limit_w", -1, "-1"),
        ("rack_feed_limit_w", True, "yes or no"),
        ("rack_feed_limit_w", float("inf"), "inf"),
        ("rack_feed_margin_percent", 100, "from 0 to 99"),
        ("rack_feed_derating", 1.2, "to 1"),
        ("rack_psu_efficiency", 94, "to 1"),
        ("rack_host_base_w", [600], "a list"),
        ("rack_name", None, "not set"),
        ("rack_name", 12, "in quotes"),
        ("rack_name", "  ", "a name"),
        ("rack_gpus", None, "not set"),
        ("rack_gpus", {"model": A100}, "a list"),
        ("rack_gpus", ["A100"], "rack_gpus[0]"),
        ("rack_active_gpus", 3, "is gone; wanted gpu_policy_spares, the number of GPUs that stand by"),
        ("rack_spare_w", "idle", "min_cap, cap, or the watts"),
        ("rack_spare_w", "75", "a text"),
        ("rack_spare_w", True, "yes or no"),
        ("rack_spare_w", -1, "0 to 10000"),
        ("rack_spare_w", [75], "a list"),
        ("rack_spare_w", float("nan"), "nan"),
        ("rack_feeds", 0, "from 1 to 8"),
        ("rack_feeds", 1.5, "from 1 to 8"),
        ("rack_feeds", True, "from 1 to 8"),
        ("rack_feeds_redundant", "no", "true or false"),
        ("rack_feeds_redundant", 1, "true or false"),
        ("rack_failover_hosts", 1, "one or all"),
        ("rack_failover_hosts", "two", "one or all"),
        ("rack_failover_may_exceed", "yes", "true or false"),
        ("rack_spare", 75, "did you mean rack_spare_w?"),
        ("rack_feed_redundant", True, "did you mean rack_feeds_redundant?"),
        ("rack_failover_host", "one", "did you mean rack_failover_hosts?"),
        ("rack_networks", "10.1.0.0/24", "a list"),
        ("rack_networks", ["10.1.0.1/24"], "host bits"),
        ("rack_networks", ["10.1.0.0"], "prefix"),
        ("rack_networks", ["0.0.0.0/0"], "whole world"),
        ("rack_gpu", [], "did you mean rack_gpus?"),
        ("rack_feed_limit", 4000, "did you mean rack_feed_limit_w?"),
    ],
)
def test_rack_facts(name: str, value: Any, word: str, shelf: Shelf) -> None:
    if value is None:
        del shelf.vars["gpu-a2"][name]
    else:
        shelf.vars["gpu-a2"][name] = value
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"count": "4"}, "rack_gpus[0].count"),
        ({"count": 0}, "rack_gpus[0].count"),
        ({"model": ""}, "rack_gpus[0].model"),
        ({"power_max_w": None}, "rack_gpus[0].power_max_w"),
        ({"power_min_w": 400}, "above power_max_w"),
        ({"power_cap_w": 100}, "150 to 300 W"),
        ({"power_cap_w": 301}, "150 to 300 W"),
        ({"power_cap_w": "300"}, "a text"),
        ({"idle_w": 301}, "idle_w"),
        ({"link_width": 12}, "link_width"),
        ({"power_caps_w": 300}, "did you mean power_cap_w?"),
    ],
)
def test_entries_of_rack_gpus(change: dict[str, Any], word: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["rack_gpus"][0].update(change)
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    "facts",
    [
        {"rack_spare_w": "cap"},
        {"rack_spare_w": "min_cap"},
        {"rack_spare_w": 75.5, "rack_failover_hosts": "all", "rack_failover_may_exceed": True},
        {"rack_feeds": 2, "rack_feeds_redundant": False},
    ],
)
def test_facts_of_spares_and_feeds_that_are_right(facts: dict[str, Any], shelf: Shelf) -> None:
    shelf.vars["gpu-a2"].update(facts)
    assert not any(shelf.errors()["hosts"].values())


GONE = {"bus_id": "0000:4b:00.0", "until": "2026-12-31", "reason": "RMA 4711"}


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        (["0000:4b:00.0"], "[0]"),
        ([{**GONE, "serial": "1"}], "bus_id, until, reason and no more"),
        ([{"bus_id": "0000:4b:00.0"}], "bus_id, until, reason and no more"),
        ([{**GONE, "bus_id": 4}], "[0].bus_id"),
        ([{**GONE, "bus_id": "slot 4"}], "[0].bus_id"),
        ([GONE, {**GONE, "bus_id": "0000:4B:00.0"}], "a second time"),
        ([{**GONE, "until": "never"}], "[0].until"),
        ([{**GONE, "until": None}], "[0].until"),
        ([{**GONE, "reason": ""}], "[0].reason"),
    ],
)
def test_c48_slots_known_to_be_empty_are_declared_with_a_day_and_a_reason(
    entries: list[Any], word: str, shelf: Shelf
) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_known_missing"] = entries
    error = shelf.only("gpu-a2")
    assert "gpu_policy_known_missing" in error
    assert word in error


def test_c48_a_right_entry_for_an_empty_slot(shelf: Shelf) -> None:
    other = {**GONE, "bus_id": "ca:00.0", "until": date(2026, 12, 31)}
    shelf.vars["gpu-a2"]["gpu_policy_known_missing"] = [GONE, other]
    assert not any(shelf.errors()["hosts"].values())


def test_a_relay_needs_no_gpus_and_a_node_no_networks(shelf: Shelf) -> None:
    del shelf.vars["relay-a1"]["rack_gpus"], shelf.vars["relay-a1"]["rack_feed_limit_w"]
    del shelf.vars["gpu-a1"]["rack_networks"]
    assert not any(shelf.errors()["hosts"].values())


def test_a_relay_needs_the_networks_it_serves(shelf: Shelf) -> None:
    del shelf.vars["relay-a1"]["rack_networks"]
    assert "rack_networks: not set" in shelf.only("relay-a1")


def test_a_site_without_bmcs_says_so_or_nothing(shelf: Shelf) -> None:
    shelf.vars["relay-a1"]["rack_bmc_networks"] = []
    assert not any(shelf.errors()["hosts"].values())
    shelf.vars["relay-a1"]["rack_bmc_networks"] = ["10.9.0.0/24", "2001:db8:9::/64"]
    assert not any(shelf.errors()["hosts"].values())


@pytest.mark.parametrize(
    ("value", "word"), [("10.9.0.0/24", "a list"), (["10.9.0.1/24"], "host bits"), (["0.0.0.0/0"], "whole world")]
)
def test_bmc_networks_are_networks(value: Any, word: str, shelf: Shelf) -> None:
    shelf.vars["relay-a1"]["rack_bmc_networks"] = value
    error = shelf.only("relay-a1")
    assert "rack_bmc_networks" in error
    assert word in error


@pytest.mark.parametrize("address", ["198.51.100.7", "2001:db8::7"])
def test_a_relay_may_have_an_outside_address(address: str, shelf: Shelf) -> None:
    shelf.vars["relay-a1"]["rack_outside_address"] = address
    assert not any(shelf.errors()["hosts"].values())


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("198.51.100.700", "not an IPv4"),
        ("198.51.100.7:123", "port"),
        (7, "not a text"),
        ("relay..x", "made of"),
        ("relay-a1.example.com", "no name"),
    ],
)
def test_an_outside_address_is_an_address(address: Any, word: str, shelf: Shelf) -> None:
    shelf.vars["relay-a1"]["rack_outside_address"] = address
    assert word in shelf.only("relay-a1")


def test_a_node_has_no_outside_address(shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["rack_outside_address"] = "198.51.100.7"
    assert "on a host that is no relay" in shelf.only("gpu-a2")


def test_two_relays_with_one_outside_address_are_both_named(shelf: Shelf) -> None:
    shelf.groups["relays"].append("relay-a2")
    for group in ("all", "site_north", "rack_a1"):
        if "relay-a2" not in shelf.groups[group]:
            shelf.groups[group].append("relay-a2")
    shelf.vars["relay-a2"] = {**copy.deepcopy(RACK), "ansible_host": "10.1.0.9"}
    shelf.vars["relay-a1"]["rack_outside_address"] = "2001:db8::7"
    shelf.vars["relay-a2"]["rack_outside_address"] = "2001:DB8:0::7"
    (first,), (second,) = shelf.of("relay-a1"), shelf.of("relay-a2")
    assert "also that of relay-a2" in first
    assert "also that of relay-a1" in second
    assert "host_vars" in first
    shelf.vars["relay-a2"]["rack_outside_address"] = "2001:db8::8"
    assert not any(shelf.errors()["hosts"].values())


@pytest.mark.parametrize("name", ["机架 7", "Zürich/Keller", "ä", "rack 🗄", 'o\'brien "x" {{ y }}'])
def test_any_unicode_in_rack_and_site_names_c88(name: str, shelf: Shelf) -> None:
    """C88."""
    for host in shelf.vars:
        shelf.vars[host].update(rack_name=name, rack_site=name)
    assert not any(shelf.errors()["hosts"].values())


def test_all_errors_are_told_at_once(shelf: Shelf) -> None:
    shelf.vars["gpu-a2"].update(rack_feed_limit_w="x", rack_host_base_w=-1, ansible_host="1.2.3")
    assert len(shelf.of("gpu-a2")) == 3


def test_a_value_that_cannot_be_evaluated_is_told_once(shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["rack_feed_limit_w"] = "(cannot be evaluated: 'x' is undefined)"
    assert "'x' is undefined" in shelf.only("gpu-a2")


# --- inputs of roles ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("time_sync_mod", "did you mean time_sync_mode?"),
        ("time_sync_nonsense_of_ours", "no input of the role time_sync"),
        ("gpu_policy_power_cap", "did you mean gpu_policy_power_cap_w?"),
        ("gpu_polcy_power_cap_w", "nothing reads it (did you mean gpu_policy_power_cap_w?)"),
        ("rck_feed_limit_w", "did you mean rack_feed_limit_w?"),
    ],
)
def test_unknown_inputs_of_roles(name: str, word: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"][name] = 1
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    "name", ["time_sync_mode", "time_sync_result", "ansible_user", "my_own_variable", "racks", "time"]
)
def test_known_and_foreign_variables_pass(name: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"][name] = "x"
    assert shelf.of("gpu-a2") == []


# --- GPU policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [150, 300, 299.5, "auto"])
def test_caps_within_the_cards_range_pass(cap: Any, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_power_cap_w"] = cap
    assert shelf.of("gpu-a2") == []


@pytest.mark.parametrize(("cap", "word"), [(149, "150 to 300 W"), (350, "150 to 300 W"), ("300 W", "a text")])
def test_caps_outside_it_are_refused(cap: Any, word: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_power_cap_w"] = cap
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ({"index": 0, "power_cap_w": 200}, "an index"),
        ({"gpu": 3, "power_cap_w": 200}, "an index"),
        ({"uuid": 0, "power_cap_w": 200}, "an index"),
        ({"uuid": "2", "power_cap_w": 200}, "an index"),
        ({"uuid": "GPU 1", "power_cap_w": 200}, "an index"),
        ({"uuid": "GPU-123", "power_cap_w": 200}, "an index"),
        ({"uuid": "11111111-2222", "power_cap_w": 200}, "the form GPU-"),
        ({"match": {"uuid": UUID}, "power_cap_w": 200}, "unknown"),
        ({"bus_id": "31:00.0", "power_cap_w": 200}, "0000:31:00.0"),
        ({"model": "NVIDIA A100 80GB PCI", "power_cap_w": 200}, f"did you mean {A100}?"),
        ({"model": A100, "power_cap_w": 100}, "150 to 300 W"),
        ({"uuid": UUID, "power_cap_w": 100}, "150 to 300 W"),
        ("all", "which GPU"),
    ],
)
def test_overrides(override: Any, word: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_overrides"] = [override]
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    "override",
    [
        {"uuid": UUID, "power_cap_w": 200},
        {"uuid": UUID.upper().replace("GPU", "GPU"), "power_cap_w": 200},
        {"bus_id": "0000:31:00.0", "power_cap_percent": 80},
        {"serial": "1324021012345", "power_cap_w": 200},
        {"model": A100, "power_cap_w": 200},
        {"model": A100.removeprefix("NVIDIA ").lower(), "power_cap_w": 200},
    ],
)
def test_right_overrides_pass(override: dict[str, Any], shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_overrides"] = [override]
    assert shelf.of("gpu-a2") == []


@pytest.mark.parametrize(
    ("layout", "word"),
    [
        ({"index": 0, "devices": {}}, "an index"),
        ({"devices": {"1g.10gb": 7}}, "names no GPU"),
        ({"uuid": UUID, "serial": "1", "devices": {}}, "names uuid and serial"),
        ({"uuid": f"MIG-{UUID}/1/0", "devices": {}}, "a MIG device's"),
        ({"uuid": UUID.replace("GPU", "MIG"), "devices": {}}, "a MIG device's"),
        ({"model": "NVIDIA A100 80GB PCI", "devices": {}}, f"did you mean {A100}?"),
        ({"model": A100, "devices": {"small": 7}}, "a profile such as 1g.10gb"),
        ({"model": A100, "devices": {"1g.10gb": 0}}, "1 to 16 instances"),
        ({"model": A100, "devices": {"1g.10gb": True}}, "1 to 16 instances"),
    ],
)
def test_c49_mig_layouts(layout: Any, word: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_mig"] = [layout]
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    "layout",
    [
        {"model": A100, "devices": {"1g.10gb": 7}},
        {"bus_id": "0000:31:00.0", "devices": {"3g.40gb": 1, "1g.10gb+me": 1}},
        {"uuid": UUID, "devices": {}},
    ],
)
def test_right_mig_layouts_pass(layout: dict[str, Any], shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_mig"] = [layout]
    assert shelf.of("gpu-a2") == []


@pytest.mark.parametrize("uuid", [f"MIG-{UUID}/1/0", UUID.replace("GPU", "MIG")])
def test_c49_a_cap_is_of_the_whole_gpu_whichever_style_of_mig_id_is_given(uuid: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["gpu_policy_overrides"] = [{"uuid": uuid, "power_cap_w": 200}]
    assert "a MIG device's" in shelf.only("gpu-a2")


def test_a_cap_of_one_card_of_a_mixed_host_may_be_that_of_either_model(shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["rack_gpus"].append(
        {"model": "NVIDIA A30", "count": 1, "power_max_w": 165, "power_min_w": 100}
    )
    shelf.vars["gpu-a2"]["gpu_policy_overrides"] = [{"uuid": UUID, "power_cap_w": 110}]
    assert shelf.of("gpu-a2") == []
    shelf.vars["gpu-a2"]["gpu_policy_overrides"] = [{"model": "NVIDIA A30", "power_cap_w": 200}]
    assert "100 to 165 W, the range of NVIDIA A30" in shelf.only("gpu-a2")


CARD = {"bus_id": "0000:31:00.0"}


@pytest.mark.parametrize(
    ("inputs", "word"),
    [
        ({"gpu_policy_spares": 4}, "gpu_policy_spares: 4 of 4 GPUs; wanted at most 3"),
        ({"gpu_policy_spares": "4"}, "gpu_policy_spares: 4 of 4 GPUs; wanted at most 3"),
        ({"gpu_policy_spares": -1}, "a whole number from 0"),
        ({"gpu_policy_spares": 1.5}, "a whole number from 0"),
        ({"gpu_policy_spares": True}, "a whole number from 0"),
        ({"gpu_policy_spares": None}, "a whole number from 0"),
        ({"gpu_policy_spares": "one"}, "a whole number from 0"),
        ({"gpu_policy_spares": "²"}, "a whole number from 0"),
        ({"gpu_policy_spare_gpus": [CARD]}, "1 GPUs; wanted at most 0, as gpu_policy_spares says"),
        ({"gpu_policy_spares": 1, "gpu_policy_spare_gpus": [{"bus_id": "3"}]}, "as in /sys/bus/pci/devices"),
        ({"gpu_policy_spares": 1, "gpu_policy_spare_gpus": [{"index": 3}]}, "exactly one of uuid, serial, bus_id"),
        ({"gpu_policy_spares": 2, "gpu_policy_spare_gpus": [CARD, CARD]}, "once more"),
        ({"gpu_policy_spare_power_cap_w": 100}, "150 to 300 W, or empty"),
        ({"gpu_policy_spare_power_cap_w": "100"}, "150 to 300 W, or empty"),
        ({"gpu_policy_spare": 1}, "did you mean gpu_policy_spares?"),
        ({"gpu_policy_xid_actions": {74: "fix"}}, "one of ignore, app, check, reset, reboot"),
    ],
)
def test_spares_that_the_node_would_refuse(inputs: dict[str, Any], word: str, shelf: Shelf) -> None:
    shelf.vars["gpu-a2"].update(inputs)
    assert word in shelf.only("gpu-a2")


@pytest.mark.parametrize(
    "inputs",
    [
        {"gpu_policy_spares": 0},
        {"gpu_policy_spares": "1"},  # by -e
        {"gpu_policy_spares": 3, "gpu_policy_spare_gpus": [CARD], "gpu_policy_spare_power_cap_w": 150},
        {"gpu_policy_spare_power_cap_w": None, "gpu_policy_xid_actions": {74: "reset"}},
    ],
)
def test_spares_that_are_right(inputs: dict[str, Any], shelf: Shelf) -> None:
    shelf.vars["gpu-a2"].update(inputs)
    assert not any(shelf.errors()["hosts"].values())


# --- nothing crashes it --------------------------------------------------------------------------------

ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([*rack_inventory.RACK_FACTS, "ansible_host", "ansible_port", *GPU_POLICY_INPUTS,
                         *rack_inventory.GONE_FACTS, "time_sync_mode", "other"])  # fmt: skip
GPU_ENTRY = st.dictionaries(st.sampled_from([*rack_inventory.GPU_KEYS, "uuid", "match", "index"]), ODD, max_size=4)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["all", "relays", "gpu_nodes", "rack_x", "odd"]), st.lists(st.text(max_size=4)) | ODD
    ),
    st.dictionaries(st.text(max_size=4), st.dictionaries(NAMES, ODD | st.lists(GPU_ENTRY, max_size=2)) | ODD),
)
def test_odd_values_never_crash_it(groups: dict[str, Any], hostvars: dict[str, Any]) -> None:
    found = inventory_errors(groups, hostvars, SPECS)
    assert all(isinstance(error, str) for errors in found["hosts"].values() for error in errors)


@settings(deadline=None)
@given(st.dictionaries(NAMES, ODD | st.lists(GPU_ENTRY, max_size=2)))
def test_odd_variables_of_a_node_never_crash_it(values: dict[str, Any]) -> None:
    shelf = Shelf()
    shelf.vars["gpu-a2"].update(values)
    shelf.errors()


@settings(deadline=None)
@given(ODD)
def test_odd_addresses_never_crash_the_check(value: Any) -> None:
    assert address_fault(value) is None or isinstance(address_fault(value), str)


# --- filters for writing addresses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "bare", "url"),
    [
        ("10.1.0.9", "10.1.0.9", "10.1.0.9"),
        ("relay.example.com", "relay.example.com", "relay.example.com"),
        ("2001:db8::1", "2001:db8::1", "[2001:db8::1]"),
        ("[2001:db8::1]", "2001:db8::1", "[2001:db8::1]"),
        ("fe80::1%eth0", "fe80::1%eth0", "[fe80::1%25eth0]"),
    ],
)
def test_brackets_are_put_in_one_place_c86(address: str, bare: str, url: str) -> None:
    """C86."""
    assert (host_address(address), url_host(address)) == (bare, url)


@pytest.mark.parametrize("address", ["", None, "a b", "1.2.3"])
def test_a_malformed_address_is_refused_by_both(address: Any) -> None:
    for write in (host_address, url_host):
        with pytest.raises(rack_inventory.FilterError):
            write(address)


def test_networks_are_normalised_and_each_once() -> None:
    assert client_networks(["10.1.0.0/24", "2001:DB8::/64", "10.1.0.0/24"]) == ["10.1.0.0/24", "2001:db8::/64"]


@pytest.mark.parametrize("networks", [[], None, "10.0.0.0/8", ["0.0.0.0/0"], ["::/0"], ["10.0.0.1/8"], [10]])
def test_networks_that_would_serve_nobody_or_the_world_are_refused(networks: Any) -> None:
    with pytest.raises(rack_inventory.FilterError, match="time_sync_client_networks"):
        client_networks(networks, "time_sync_client_networks")


@pytest.mark.parametrize(
    "sources", [[], None, "ntp", ["a b"], ["10.0.0.1", "10.0.0.1"], ["2001:db8::1", "[2001:db8:0::1]"], ["n.x", "N.x."]]
)
def test_sources_that_are_none_or_one_vote_twice_are_refused(sources: Any) -> None:
    with pytest.raises(rack_inventory.FilterError, match="time_sync_upstreams"):
        server_addresses(sources, "time_sync_upstreams")


def test_sources_lose_their_brackets() -> None:
    assert server_addresses(["[2001:db8::1]", "ntp.aliyun.com"]) == ["2001:db8::1", "ntp.aliyun.com"]


# --- what preflight makes of it ------------------------------------------------------------------------


def findings(shelf: Shelf) -> dict[str, Any]:
    from rack_facts import rack_hosts
    from rack_power import rack_power_plan

    plan = rack_power_plan(rack_hosts(shelf.vars, shelf.groups.get("gpu_nodes", [])))
    return rack_inventory.preflight_findings(shelf.errors(), plan, shelf.vars)


def test_a_right_rack_shows_its_sum(shelf: Shelf) -> None:
    found = findings(shelf)
    assert all(entry["ok"] for entry in found.values())
    assert found["gpu-a1"]["lines"] == ["2 hosts: 1800 + 1800 = 3600 W of 3800 W: fits, 200 W left"]


def test_a_host_of_its_own_mistakes_fails_alone(shelf: Shelf) -> None:
    shelf.vars["gpu-a2"]["time_sync_mod"] = 1
    assert {host: entry["ok"] for host, entry in findings(shelf).items()} == {
        "relay-a1": True,
        "gpu-a1": True,
        "gpu-a2": False,
    }


def test_what_concerns_the_inventory_fails_all(shelf: Shelf) -> None:
    shelf.groups["gpu_node"] = []
    assert not any(entry["ok"] for entry in findings(shelf).values())


def test_an_over_budget_rack_fails_its_hosts_and_no_others(shelf: Shelf) -> None:
    for number in range(3, 5):
        name = f"gpu-a{number}"
        shelf.vars[name] = {**copy.deepcopy(RACK), "ansible_host": f"10.1.0.3{number}"}
        for group in ("all", "gpu_nodes"):
            shelf.groups[group].append(name)
    shelf.vars["gpu-a4"].update(rack_name="b1")
    found = findings(shelf)
    assert {host: entry["ok"] for host, entry in found.items()} == {
        "relay-a1": False,
        "gpu-a1": False,
        "gpu-a2": False,
        "gpu-a3": False,
        "gpu-a4": True,
    }
    assert any("5400 W of 3800 W: over by 1600 W" in line for line in found["gpu-a3"]["lines"])
