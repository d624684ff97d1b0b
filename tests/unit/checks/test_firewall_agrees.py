"""Role and acceptance read the same inventory in the same way: what the role would load, the checks take for right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from acceptance.nodes import Node

ROOT = Path(__file__).resolve().parents[3]


def _module(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


role = _module("firewall_filters", "filter_plugins/rack_firewall.py")
checks = _module("firewall_checks_of_acceptance", "tests/checks/rack_firewall/test_rack_firewall.py")

# Site c has no address by which other sites know its relay; those of b lie side by side, and so do a's networks.
FACTS: dict[str, dict[str, Any]] = {
    "relay-a1": {
        "rack_site": "a", "ansible_host": "10.1.0.21", "rack_outside_address": "203.0.113.2",
        "rack_networks": ["10.1.0.0/24", "10.1.1.0/24"], "rack_bmc_networks": ["10.1.0.128/25"],
    },
    "relay-a2": {"rack_site": "a", "ansible_host": "10.1.0.22", "rack_networks": ["10.1.0.0/24", "10.1.1.0/24"]},
    "relay-b1": {
        "rack_site": "b", "ansible_host": "10.2.0.21", "rack_outside_address": "203.0.113.4",
        "rack_networks": ["10.2.0.0/24"],
    },
    "relay-b2": {
        "rack_site": "b", "ansible_host": "10.2.0.22", "rack_outside_address": "203.0.113.5",
        "rack_networks": ["10.2.0.0/24"],
    },
    "relay-c1": {"rack_site": "c", "ansible_host": "10.3.0.21", "rack_networks": ["10.3.0.0/24"]},
    "gpu-a1": {"rack_site": "a", "ansible_host": "10.1.0.31", "rack_networks": ["10.1.0.0/24"]},
    "gpu-c1": {"rack_site": "c", "ansible_host": "10.3.0.31", "rack_networks": ["10.3.0.0/24"]},
}  # fmt: skip
RELAYS = [host for host in FACTS if host.startswith("relay")]


def node_of(host: str, facts: dict[str, dict[str, Any]]) -> Node:
    peers = {name: {**own, "group_names": ["relays" if name in RELAYS else "gpu_nodes"]} for name, own in facts.items()}
    return Node(SimpleNamespace(backend=SimpleNamespace(get_hostname=lambda: host)), peers)  # type: ignore[arg-type]


def loaded(host: str, facts: dict[str, dict[str, Any]]) -> Any:
    """The chain that the role's template makes of its plan, as `nft -j` lists it."""
    relay = host in RELAYS
    plan = role.firewall_plan(role._inputs_of(host, facts, RELAYS, relay))
    hook, side = ("input", "saddr") if relay else ("output", "daddr")
    ports = {"match": {"op": "==", "left": {"payload": {"protocol": "th", "field": "dport"}}, "right": {"set": [123]}}}
    where = {"family": "inet", "table": "steadyrack_ntp"}
    rules = []
    for family, peers in plan["peers"].items():
        if peers:
            asked = {
                "op": "==",
                "left": {"payload": {"protocol": family, "field": side}},
                "right": {"set": _json(peers)},
            }
            rules.append([ports, {"match": asked}, {"accept": None}])
    rules.append([ports, {"drop": None}])
    return checks.Chain(
        [{"chain": {**where, "name": hook, "hook": hook}},
         *({"rule": {**where, "chain": hook, "expr": expressions}} for expressions in rules)], hook,
    ), side  # fmt: skip


def _json(peers: list[str]) -> list[Any]:
    """nft lists a network as a prefix."""
    parts = [peer.partition("/") for peer in peers]
    return [
        {"prefix": {"addr": addr, "len": int(length)}} if length else addr for addr, _slash, length in parts
    ]  # fmt: skip


def judged(host: str, facts: dict[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """What acceptance finds wrong with the role's rules: ways past them, and whom they shut out."""
    good = checks.allowed(node_of(host, facts))
    chain, side = loaded(host, facts)
    shut = [str(one) for one in good if not chain.lets_in(one, checks.NTP, side)]
    return chain.troubles(checks.NTP, side, good), shut


@pytest.mark.parametrize("host", list(FACTS))
def test_the_roles_rules_are_what_acceptance_expects(host: str) -> None:
    assert judged(host, FACTS) == ([], [])


@pytest.mark.parametrize("value", [None, ""])
def test_a_relay_of_another_site_without_an_outside_address_is_nobody_to_either(value: str | None) -> None:
    facts = {**FACTS, "relay-b1": {**FACTS["relay-b1"], "rack_outside_address": value}}
    assert {host: judged(host, facts) for host in facts} == dict.fromkeys(facts, ([], []))
    names = {str(one) for one in checks.allowed(node_of("relay-a1", facts))}
    assert "203.0.113.5/32" in names
    assert not names & {"203.0.113.4/32", "10.2.0.21/32", "10.3.0.21/32"}


def test_an_address_that_only_one_of_them_knows_is_found() -> None:
    """The comparison above can fail."""
    fewer = {**FACTS, "relay-b1": {**FACTS["relay-b1"], "rack_outside_address": None}}
    good = checks.allowed(node_of("relay-a1", fewer))
    chain, side = loaded("relay-a1", FACTS)
    assert chain.troubles(checks.NTP, side, good)
    chain, side = loaded("relay-a1", fewer)
    assert not chain.lets_in(checks.ipaddress.ip_network("203.0.113.4"), checks.NTP, side)
