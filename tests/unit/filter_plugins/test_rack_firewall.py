"""firewall_plan: what may be told to nft, and the one clear error for everything else."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
import rack_firewall
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

NODE = {"mode": "node", "confirm_timeout_s": 60, "relays": ["10.1.0.21", "2001:db8::21"]}
RELAY = {"mode": "relay", "confirm_timeout_s": 60, "client_networks": ["10.1.0.0/24"]}


def plan(base: dict[str, Any], **values: Any) -> dict[str, Any]:
    return rack_firewall.firewall_plan({**base, **values})


def test_a_node_may_ask_its_relays_by_family() -> None:
    assert plan(NODE)["peers"] == {"ip": ["10.1.0.21"], "ip6": ["2001:db8::21"]}
    assert plan(NODE)["clients"] == []


def test_a_relay_is_asked_by_networks_bmcs_and_relays_but_not_by_itself() -> None:
    found = plan(
        RELAY,
        bmc_networks=["10.9.0.0/24"],
        site_relays=["10.2.0.21", "10.2.0.22"],
        other_relays=["[2001:db8::41]"],
        own_addresses=["10.2.0.21"],
    )
    assert found["peers"] == {"ip": ["10.1.0.0/24", "10.2.0.22", "10.9.0.0/24"], "ip6": ["2001:db8::41"]}
    assert found["clients"] == ["10.1.0.0/24", "10.2.0.22/32", "10.9.0.0/24", "2001:db8::41/128"]


def test_overlaps_are_merged_for_nft_takes_none() -> None:
    found = plan(RELAY, client_networks=["10.1.0.0/24", "10.1.0.128/25"], site_relays=["10.1.0.22", "::ffff:10.1.0.23"])
    assert found["peers"] == {"ip": ["10.1.0.0/24"], "ip6": []}


@pytest.mark.parametrize(
    ("base", "values", "text"),
    [
        (NODE, {"relays": []}, "rack_firewall_relays: empty"),
        (NODE, {"relays": ["relay-a1"]}, "'relay-a1' is no address"),
        (NODE, {"relays": ["10.1.0.256"]}, "'10.1.0.256' is no address"),
        (NODE, {"relays": ["10.1.0.0/24"]}, "is no address"),
        (NODE, {"relays": "10.1.0.21"}, "wanted a list"),
        (NODE, {"relays": ["fe80::1%eth0"]}, "link-local"),
        (NODE, {"relays": ["0.0.0.0"]}, "the address of a host"),
        (NODE, {"relays": ["127.0.0.1"]}, "the address of a host"),
        (NODE, {"own_addresses": ["10.1.0.21"]}, "this node's own address"),
        (NODE, {"own_addresses": ["::ffff:10.1.0.21"]}, "this node's own address"),
        (NODE, {"confirm_timeout_s": 0}, "rack_firewall_confirm_timeout_s: 0"),
        (NODE, {"confirm_timeout_s": -5}, "rack_firewall_confirm_timeout_s: -5"),
        (NODE, {"confirm_timeout_s": True}, "rack_firewall_confirm_timeout_s: True"),
        (NODE, {"mode": "client"}, "rack_firewall_mode: 'client'"),
        (RELAY, {"client_networks": []}, "rack_firewall_client_networks: empty"),
        (RELAY, {"client_networks": ["10.1.0.1/24"]}, "has host bits set"),
        (RELAY, {"client_networks": ["10.1.0.0"]}, "wanted a network"),
        (RELAY, {"client_networks": ["rack-a1"]}, "wanted a network"),
        (RELAY, {"client_networks": ["0.0.0.0/0"]}, "let the world ask"),
        (RELAY, {"client_networks": ["::/0"]}, "let the world ask"),
        (RELAY, {"client_networks": ["2000::/3"]}, "let the world ask"),
        (RELAY, {"client_networks": [f"{n}.0.0.0/8" for n in range(256)]}, "cover 0.0.0.0/0 together"),
        (RELAY, {"bmc_networks": ["10.9.0.0/33"]}, "rack_firewall_bmc_networks"),
        (RELAY, {"other_relays": ["relay-b1.example"]}, "rack_outside_address"),
    ],
)
def test_bad_input_is_one_sentence(base: dict[str, Any], values: dict[str, Any], text: str) -> None:
    with pytest.raises(AnsibleFilterError, match=r"\A[^\n]*\Z") as error:
        plan(base, **values)
    assert text in str(error.value)


@pytest.mark.parametrize(
    "rule",
    ["tcp dport 22 accept\nflush ruleset", "accept; flush ruleset", "accept } table ip x {", "accept # x", "x {", ""],
)
def test_an_extra_rule_stays_one_rule_of_our_table(rule: str) -> None:
    with pytest.raises(AnsibleFilterError, match="wanted one nft rule"):
        plan(NODE, extra_rules=[{"chain": "input", "rule": rule}])


@pytest.mark.parametrize("rule", [None, ["tcp dport 22 accept"], 5, True, {"tcp": 22}])
def test_a_rule_that_is_no_text_is_refused(rule: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"extra_rules\[0\]\.rule: .* wanted a text, one nft rule"):
        plan(NODE, extra_rules=[{"chain": "input", "rule": rule}])


def test_extra_rules_by_chain() -> None:
    rule = 'iifname "eth0" tcp dport { 22, 2222 } accept'
    assert plan(NODE, extra_rules=[{"chain": "output", "rule": f" {rule} "}])["rules"] == {
        "input": [],
        "output": [rule],
        "forward": [],
    }
    with pytest.raises(AnsibleFilterError, match=r"wanted .chain"):
        plan(NODE, extra_rules=[{"chain": "prerouting", "rule": rule}])


@given(st.lists(st.ip_addresses(v=4).map(str), min_size=1, max_size=5))
def test_every_address_asked_for_is_covered_and_none_twice(addresses: list[str]) -> None:
    try:
        found = plan(NODE, relays=addresses)
    except AnsibleFilterError:
        return
    networks = [ipaddress.ip_network(text) for text in found["peers"]["ip"]]
    assert all(sum(ipaddress.ip_address(one) in network for network in networks) == 1 for one in addresses)
    assert sum(network.num_addresses for network in networks) == len(set(addresses))


def test_relays_of_other_sites_by_their_outside_address() -> None:
    hostvars = {
        "relay-a1": {"rack_site": "a", "rack_outside_address": "192.0.2.1"},
        "relay-b1": {"rack_site": "b", "rack_outside_address": "192.0.2.2"},
        "relay-c1": {"rack_site": "c"},
    }
    assert rack_firewall.relay_outside_addresses(hostvars, list(hostvars), "a") == ["192.0.2.2"]
    assert rack_firewall.relay_outside_addresses(hostvars, None, "a") == []
