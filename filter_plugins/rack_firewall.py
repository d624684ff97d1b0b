# SPDX-License-Identifier: Apache-2.0
"""Who may ask whom for the time, as addresses for the firewall: checked, sorted by family, merged.

Names are refused. nft would look them up once, when the rules are loaded; at boot, before the network, that
fails and takes the whole table with it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError as FilterError

RELAY, NODE = "relay", "node"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# The widest network that can be somebody's own: 10.0.0.0/8 (RFC 1918) and fc00::/7 (RFC 4193).
WIDEST = {4: 8, 6: 7}
CHAINS = ("input", "output", "forward")
# One rule on one line; what it says is nft's to judge. A brace too many would end our table and begin another's.
RULE_FORM = re.compile(r"[^\n\r;#\\]+")


def network_of(value: Any, name: str) -> Network:
    """A network in CIDR form that is not the world."""
    if not isinstance(value, str) or "/" not in value:
        raise FilterError(f"{name}: {value!r}: wanted a network such as 10.1.0.0/24 or 2001:db8::/64")
    try:
        network = ipaddress.ip_network(str(value).strip())
    except ValueError as error:
        raise FilterError(
            f"{name}: {value!r}: {error}; wanted a network such as 10.1.0.0/24 or 2001:db8::/64"
        ) from None
    if network.prefixlen < WIDEST[network.version]:
        raise FilterError(
            f"{name}: {value}: wider than any rack's network (/{WIDEST[network.version]}): it would let the world ask; "
            "wanted the rack's own networks"
        )
    return network


def address_of(value: Any, name: str) -> Network:
    """One address, as the network that holds it alone."""
    text = str(value).strip()
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise FilterError(
            f"{name}: {value!r} is no address; wanted an IPv4 or IPv6 address: a name would be looked up once, "
            "when the rules are loaded, and at boot not at all. "
            f"Next: give the address in ansible_host, rack_outside_address or {name}"
        ) from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id:
            raise FilterError(f"{name}: {value}: a link-local address with its zone; wanted one that is routed")
        if address.ipv4_mapped:
            address = address.ipv4_mapped
    if address.is_unspecified or address.is_loopback or address.is_multicast:
        raise FilterError(f"{name}: {value}: wanted the address of a host")
    return ipaddress.ip_network(address)


def firewall_plan(inputs: Any) -> dict[str, Any]:
    """The role's inputs, checked as a whole: {mode, peers: {ip, ip6}, clients: [...], rules: {chain: [...]}}.

    ``peers``: on a relay those who may ask it, on a node those whom it may ask; by family, overlaps merged.
    ``clients``: on a relay every network or address that may ask, for firewalld and ufw.
    """
    if not isinstance(inputs, Mapping) or inputs.get("mode") not in (RELAY, NODE):
        raise FilterError(f"rack_firewall_mode: {inputs.get('mode') if isinstance(inputs, Mapping) else inputs!r}: "
                          f"wanted {RELAY} or {NODE}")  # fmt: skip
    timeout = inputs.get("confirm_timeout_s")
    if isinstance(timeout, bool) or not isinstance(timeout, int) or not 5 <= timeout <= 3600:
        raise FilterError(f"rack_firewall_confirm_timeout_s: {timeout!r}: wanted 5 to 3600 seconds")
    own = {address_of(value, "rack_firewall_own_addresses") for value in _listed(inputs, "own_addresses")}
    peers = _of_relay(inputs, own) if inputs["mode"] == RELAY else _of_node(inputs, own)
    merged = {version: _merged(peers, version) for version in (4, 6)}
    for version, found in merged.items():
        for network in found:
            if network.prefixlen < WIDEST[version]:
                raise FilterError(f"the networks that may ask cover {network} together: wanted the rack's own networks")
    return {
        "mode": inputs["mode"],
        "peers": {"ip": [_nft(one) for one in merged[4]], "ip6": [_nft(one) for one in merged[6]]},
        "clients": [str(one) for version in (4, 6) for one in merged[version]] if inputs["mode"] == RELAY else [],
        "rules": _extra_rules(inputs.get("extra_rules") or []),
    }


def _listed(inputs: Mapping[str, Any], key: str) -> list[Any]:
    value = inputs.get(key) or []
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise FilterError(f"rack_firewall_{key}: {value!r}: wanted a list")
    return list(value)


def _of_relay(inputs: Mapping[str, Any], own: set[Network]) -> list[Network]:
    clients = [network_of(value, "rack_firewall_client_networks") for value in _listed(inputs, "client_networks")]
    if not clients:
        raise FilterError(
            "rack_firewall_client_networks: empty; wanted the rack's networks: nobody could ask this relay"
        )
    bmcs = [network_of(value, "rack_firewall_bmc_networks") for value in _listed(inputs, "bmc_networks")]
    others = [
        address_of(value, f"rack_firewall_{key}")
        for key in ("site_relays", "other_relays")
        for value in _listed(inputs, key)
    ]
    return [*clients, *bmcs, *(one for one in others if one not in own)]


def _of_node(inputs: Mapping[str, Any], own: set[Network]) -> list[Network]:
    relays = [address_of(value, "rack_firewall_relays") for value in _listed(inputs, "relays")]
    if not relays:
        raise FilterError(
            "rack_firewall_relays: empty; wanted the site's relays: this node could ask nobody for the time"
        )
    for one in relays:
        if one in own:
            raise FilterError(
                f"rack_firewall_relays: {one.network_address} is this node's own address; wanted another machine's"
            )
    return relays


def _merged(networks: list[Network], version: int) -> list[Any]:
    """nft takes no two intervals of one set that overlap."""
    return list(ipaddress.collapse_addresses(one for one in networks if one.version == version))  # type: ignore[type-var]


def _nft(network: Network) -> str:
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def _extra_rules(entries: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {chain: [] for chain in CHAINS}
    for place, entry in enumerate(entries):
        name = f"rack_firewall_extra_rules[{place}]"
        if not isinstance(entry, Mapping) or set(entry) != {"chain", "rule"} or entry["chain"] not in CHAINS:
            raise FilterError(f"{name}: {entry!r}: wanted {{chain: input|output|forward, rule: one nft rule}}")
        if not isinstance(entry["rule"], str):
            raise FilterError(f"{name}.rule: {entry['rule']!r}: wanted a text, one nft rule. Next: correct it")
        rule = str(entry["rule"]).strip()
        if not RULE_FORM.fullmatch(rule) or not _balanced(rule) or rule.count('"') % 2:
            raise FilterError(f"{name}: {rule!r}: wanted one nft rule on one line, without ; # and open braces, quotes")
        found[entry["chain"]].append(rule)
    return found


def _balanced(rule: str) -> bool:
    depth = 0
    for character in rule:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


def relay_outside_addresses(hostvars: Any, relays: Any, site: Any) -> list[str]:
    """The addresses by which relays of other sites than ``site`` come: their rack_outside_address, where given."""
    return [
        str(hostvars[host]["rack_outside_address"])
        for host in relays or []
        if hostvars[host].get("rack_site") != site and hostvars[host].get("rack_outside_address")
    ]


def firewall_errors(errors: Any, facts: Any, groups: Any) -> dict[str, Any]:
    """``errors`` of ``inventory_errors`` with what role rack_firewall would refuse, added to the host it concerns.

    The role runs last: by then a relay would serve a network that its firewall cannot be told of. ``facts``: host ->
    variables (``inventory_facts``). A host with errors has had its say.
    """
    relays = [host for host in groups.get("relays", []) if host in facts]
    hosts = {host: list(lines) for host, lines in errors["hosts"].items()}
    for host in [*relays, *(host for host in groups.get("gpu_nodes", []) if host in facts)]:
        if not hosts.get(host):
            try:
                firewall_plan(_inputs_of(host, facts, relays, host in relays))
            except FilterError as error:
                hosts[host] = [f"{host}: {error}"]
    return {**errors, "hosts": hosts}


def _inputs_of(host: str, facts: Any, relays: list[str], relay: bool) -> dict[str, Any]:
    """What playbooks/firewall.yml hands to the role."""
    own = facts[host]
    site = own.get("rack_site")
    of_site = [facts[one].get("ansible_host") or one for one in relays if facts[one].get("rack_site") == site]
    address = str(own.get("ansible_host") or "")
    found = {
        "mode": RELAY if relay else NODE,
        "confirm_timeout_s": 60,  # its range is role_input_errors' to judge
        "own_addresses": [address] if re.match(r"[0-9.]+$|.*:", address) else [],
        "extra_rules": own.get("rack_firewall_extra_rules"),
    }
    if not relay:
        return {**found, "relays": of_site}
    return {
        **found,
        "client_networks": own.get("rack_networks"),
        "bmc_networks": own.get("rack_bmc_networks"),
        "site_relays": of_site,
        "other_relays": relay_outside_addresses(facts, relays, site),
    }


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {
            "firewall_errors": firewall_errors,
            "firewall_plan": firewall_plan,
            "relay_outside_addresses": relay_outside_addresses,
        }
