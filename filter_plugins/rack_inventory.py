# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an inventory, all of it at once, each in one sentence: what, found, wanted, next step.

Pure functions on data: groups, variables of hosts, argument specifications of roles. Nothing is looked
up, resolved or contacted. Beside the check there are the filters with which addresses are written:
``host_address``, ``url_host``, ``client_networks`` and ``server_addresses``.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, TypeGuard

from ansible.errors import AnsibleError
from ansible.errors import AnsibleFilterError as FilterError
from jinja2.exceptions import TemplateError

# Ansible loads every file here by itself; this is how one finds its neighbour.
sys.path.append(str(Path(__file__).resolve().parent))
from spare_inventory import from_command_line, spare_findings

ROLE_GROUPS = ("relays", "gpu_nodes")
GROUPING_PREFIXES = ("site_", "rack_")
BUILT_IN_GROUPS = ("all", "ungrouped")
RACK_FACTS = (
    "rack_name", "rack_site", "rack_feed_limit_w", "rack_feed_margin_percent", "rack_feed_derating",
    "rack_psu_efficiency", "rack_host_base_w", "rack_other_w", "rack_gpus",
    "rack_spare_w", "rack_failover_hosts", "rack_failover_may_exceed", "rack_feeds", "rack_feeds_redundant",
    "rack_networks", "rack_uplink_note", "rack_outside_address", "rack_bmc_networks",
)  # fmt: skip
# Facts of earlier inventories, and what says the same now.
GONE_FACTS = {"rack_active_gpus": "gpu_policy_spares, the number of GPUs that stand by"}
# A role whose inputs begin like facts do; they are judged as inputs (check_role_inputs).
ROLE_LIKE_FACTS = "rack_firewall_"
GPU_KEYS = ("model", "count", "power_max_w", "power_min_w", "power_cap_w", "idle_w", "link_width")
# PCI Express link widths that a graphics card may train to (PCIe base specification).
LINK_WIDTHS = (1, 2, 4, 8, 16)
# A label of a host name: RFC 1123 section 2.1 (letters, digits, inner hyphens; a digit may come first).
LABEL_FORM = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
UUID_FORM = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# The domain has four digits in sysfs and eight in nvidia-smi; both are taken.
BUS_ID_FORM = re.compile(r"[0-9a-f]{4}(?:[0-9a-f]{4})?:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
# Sizes beyond which a figure is a slip of the pen: GPUs in one host, watts of one GPU, feeds of one rack.
MOST_GPUS = 64
MOST_GPU_W = 10000
MOST_FEEDS = 8
# At what an idle spare counts, beside watts.
SPARE_WORDS = ("min_cap", "cap")
OVERRIDE_KEYS = (
    "uuid", "serial", "bus_id", "model", "power_cap_w", "power_cap_percent", "link_width", "link_gen", "nvlink_links",
)  # fmt: skip
MISSING_KEYS = ("bus_id", "until", "reason")
SLOT = re.compile(r"(?:[0-9a-f]{1,8}:)?[0-9a-f]{2}:[01][0-9a-f](?:\.[0-7])?", re.IGNORECASE)
# Words that people use for a GPU's place in nvidia-smi's list.
# Which GPU, and what a MIG layout says beside it; a profile as the node's own parser takes it.
GPU_NAMES = ("uuid", "serial", "bus_id", "model")
MIG_PROFILE_FORM = re.compile(r"[1-9]g\.[1-9][0-9]{0,2}gb([+-][a-z]+(\.[a-z]+)?)?")
MOST_MIG_INSTANCES = 16
INDEX_KEYS = ("index", "gpu", "gpu_index", "id", "gpu_id")
# How alike two names must be before one is called a misspelling of the other (difflib ratio).
LIKENESS = 0.75
# The same for names outside every known prefix, where a wrong guess would refuse a rightful variable.
CLOSE_LIKENESS = 0.9


# --- small helpers ---------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value as a person should see it in a message, with its type where that is the point."""
    text = repr(value)
    if isinstance(value, str):
        text = repr(str(value))  # Ansible's own string classes print as plain ones
    return text if len(text) <= 80 else text[:77] + "..."


def did_you_mean(name: str, known: Iterable[str], likeness: float = LIKENESS) -> str:
    """`` (did you mean X?)`` or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=likeness)
    return f" (did you mean {close[0]}?)" if close else ""


def is_number(value: Any) -> TypeGuard[float]:
    """A finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> TypeGuard[int]:
    """A whole number that is not True or False."""
    return isinstance(value, int) and not isinstance(value, bool)


def type_word(value: Any) -> str:
    """What a value is, in a word that the writer of an inventory knows."""
    if isinstance(value, bool):
        return "yes or no"
    words = ((str, "a text"), (Mapping, "a dictionary"), ((list, tuple), "a list"), ((int, float), "a number"))
    return next((word for kind, word in words if isinstance(value, kind)), type(value).__name__)


# --- addresses ---------------------------------------------------------------------------------------


def same_model(one: str, other: str) -> bool:
    """As the node compares models: any case and spacing, with or without the maker."""
    first, second = (re.sub(r"^nvidia ", "", " ".join(name.split()).lower()) for name in (one, other))
    return first == second


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IP address, bare or (IPv6) in brackets, with its zone; None when it is no address."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return None


SSH_PORT = "it has a port; give the port in ansible_port"
NTP_PORT = "it has a port; give no port: NTP is UDP 123"


def address_fault(value: Any, port: str = SSH_PORT) -> str | None:
    """What is wrong with a host name or address, None when nothing is. One fault, the most telling one.

    ``port``: what to say of a port.
    """
    if not isinstance(value, str) or not value.strip():
        return "it is not a text" if not isinstance(value, str) else "it is empty"
    text = str(value)
    if not text.isascii():
        return "it has characters outside ASCII; write the name in its xn-- form"
    if parse_address(text) is not None:
        return None
    if text != text.strip() or any(character.isspace() for character in text):
        return "it has blanks"
    if "://" in text or "/" in text:
        return "it has a slash; give a name or an address, not a URL or a network"
    if "[" in text or "]" in text or text.count(":") > 1 or "%" in text:
        if re.fullmatch(r"\[[^\]]+\]:\d+", text):
            return port
        return "it is not an IPv6 address"
    if ":" in text:
        return port
    return _name_fault(text)


def _name_fault(text: str) -> str | None:
    labels = text.rstrip(".").split(".")
    if labels[-1].isdigit() or re.fullmatch(r"0[xX][0-9A-Fa-f]*", labels[-1]):
        # No top-level domain is a number: this was meant as an IPv4 address. 0x7f000001 is one to the C library.
        return "it is not an IPv4 address"
    if len(text) > 253:
        return "it is longer than 253 characters"
    bad = next((label for label in labels if not LABEL_FORM.fullmatch(label)), None)
    if bad is None:
        return None
    if len(bad) > 63:
        return f"its part {bad[:20]}... is longer than 63 characters"
    return f"its part {bad!r} is not made of letters, digits and inner hyphens"


def normal_address(value: Any) -> str:
    """One form for every spelling of an address: shortest, unbracketed, IPv4-mapped as IPv4, names in lower case."""
    text = str(value).strip()
    address = parse_address(text)
    if address is None:
        return text.rstrip(".").lower()
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(address)


def elsewhere_fault(value: Any) -> str | None:
    """Why nobody on another wire can reach a well-formed address; None for those that can be, and for names."""
    address = parse_address(normal_address(value))
    if address is None:
        return None
    if address.is_loopback:
        return "it is every machine's own (loopback)"
    if address.is_unspecified:
        return "it is nobody's"
    if address.is_multicast or str(address) == "255.255.255.255":
        return "it is no single machine's"
    return "it is known on one wire alone (link-local)" if address.is_link_local else None


def host_address(value: Any) -> str:
    """The bare address, as ping, chrony and ssh want it; malformed ones are refused."""
    fault = address_fault(value)
    if fault:
        raise FilterError(f"host address {shown(value)}: {fault}")
    text = str(value)
    return text[1:-1] if text.startswith("[") else text


def url_host(value: Any) -> str:
    """The same for a URL: IPv6 in brackets, its zone with %25 (RFC 6874)."""
    bare = host_address(value)
    if isinstance(parse_address(bare), ipaddress.IPv6Address):
        return "[" + bare.replace("%", "%25") + "]"
    return bare


MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def network_fault(value: Any) -> str | None:
    """What is wrong with a network in CIDR form, None when nothing is."""
    if not isinstance(value, str):
        return "it is not a text"
    if "/" not in value:
        return "it has no prefix length"
    try:
        network = ipaddress.ip_network(str(value).strip(), strict=True)
    except ValueError as error:
        return str(error)
    if network.prefixlen == 0:
        return "it is the whole world"
    if network.is_loopback or network.is_multicast or network.is_link_local:
        return "it is no network of machines (loopback, multicast or link-local)"
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(MAPPED):
        return "it is IPv4 written as IPv6; write it as IPv4"
    return None


def client_networks(values: Any, name: str = "networks") -> list[str]:
    """Networks in CIDR form, normalised, each once; an empty list and the whole world are refused."""
    if not isinstance(values, (list, tuple)) or not values:
        raise FilterError(f"{name} is {shown(values)}; wanted a list of networks such as 10.1.0.0/24 or 2001:db8::/64")
    for value in values:
        fault = network_fault(value)
        if fault:
            raise FilterError(f"{name}: {shown(value)}: {fault}; wanted a network such as 10.1.0.0/24 or 2001:db8::/64")
    return list(dict.fromkeys(str(ipaddress.ip_network(value.strip())) for value in values))


def server_addresses(values: Any, name: str = "sources") -> list[str]:
    """Bare names or addresses of servers; an empty list, a malformed one and one named twice are refused."""
    if not isinstance(values, (list, tuple)) or not values:
        raise FilterError(f"{name} is {shown(values)}; wanted a list with at least one name or address")
    seen: dict[str, str] = {}
    for value in values:
        fault = address_fault(value, NTP_PORT if name.startswith("time_sync_") else SSH_PORT)
        if fault:
            raise FilterError(f"{name}: {shown(value)}: {fault}; wanted a name or an address")
        key = normal_address(value)
        if key in seen:
            raise FilterError(f"{name}: {value} and {seen[key]} are one server; wanted each once")
        seen[key] = str(value)
    return [host_address(value) for value in values]


def source_entries(values: Any, name: str = "sources") -> list[dict[str, Any]]:
    """Servers as ``chrony_config`` takes them, of names, addresses or dictionaries; checked by ``server_addresses``."""
    listed = list(values) if isinstance(values, (list, tuple)) else []
    plain = [entry.get("address") if isinstance(entry, Mapping) else entry for entry in listed]
    bare = server_addresses(plain if listed else values, name)
    return [
        {**entry, "address": address} if isinstance(entry, Mapping) else {"address": address}
        for entry, address in zip(listed, bare, strict=True)
    ]


# --- the inventory -----------------------------------------------------------------------------------

UNEVALUATED = "(cannot be evaluated: "
CORRECT = "correct it"
IN_RACK = "set it in group_vars of the rack"
ONE_FEED = "a rack has one feed: give its hosts one rack_site and rack_name"


def sentence(what: str, found: str, wanted: str, step: str) -> str:
    """One error for a person."""
    return f"{what}: {found}; wanted {wanted}. Next: {step}"


class Inventory:
    """The parts of an inventory that are checked, and the errors found so far."""

    def __init__(self, groups: Mapping[str, Any], hostvars: Mapping[str, Any]) -> None:
        self.groups = {str(name): _names(hosts) for name, hosts in groups.items()}
        self.hosts = list(
            dict.fromkeys([*self.members("all"), *(host for group in self.groups.values() for host in group)])
        )
        self.wide: list[str] = []
        self.by_host: dict[str, list[str]] = {host: [] for host in self.hosts}
        self.variables: dict[str, dict[str, Any]] = {}
        self.broken: dict[str, set[str]] = {}
        for host in self.hosts:
            self._take_variables(host, hostvars.get(host))

    def _take_variables(self, host: str, values: Any) -> None:
        """Variables by name. One that could not be evaluated is an error of its own and judged no further."""
        named = {str(key): value for key, value in values.items()} if isinstance(values, Mapping) else {}
        self.broken[host] = {name for name, value in named.items() if str(value).startswith(UNEVALUATED)}
        for name in sorted(self.broken[host]):
            self.add(host, name, str(named.pop(name)), "a value", "define what it refers to, or write the value out")
        self.variables[host] = named

    def groups_of(self, host: str) -> list[str]:
        return [name for name, hosts in self.groups.items() if host in hosts]

    def members(self, group: str) -> list[str]:
        return self.groups.get(group, [])

    def add(self, host: str, what: str, found: str, wanted: str, step: str = CORRECT) -> None:
        self.by_host[host].append(f"{host}: {sentence(what, found, wanted, step)}")

    def missing(self, host: str, name: str) -> bool:
        """Not set at all; one that could not be evaluated is set, and its error is told already."""
        return self.variables[host].get(name) is None and name not in self.broken[host]


def _names(hosts: Any) -> list[str]:
    return [str(host) for host in hosts] if isinstance(hosts, (list, tuple, set, Mapping)) else []


def check_groups(inventory: Inventory) -> None:
    """Groups that nothing here knows, hosts in no role group or both, no relay, a site without one."""
    for name in inventory.groups:
        if name in ROLE_GROUPS or name in BUILT_IN_GROUPS or name.startswith(GROUPING_PREFIXES):
            continue
        found = "unknown" + did_you_mean(name, ROLE_GROUPS)
        wanted = "relays, gpu_nodes, or a name that begins with site_ or rack_"
        inventory.wide.append(sentence(f"group {name}", found, wanted, "rename it; no playbook would reach its hosts"))
    if not inventory.members("relays"):
        step = "add the machine that may reach outside; nodes get time and packages from it alone"
        inventory.wide.append(sentence("group relays", "no host in it", "at least one", step))
    for host in inventory.hosts:
        _check_membership(inventory, host)
    _check_sites(inventory)


def _check_membership(inventory: Inventory, host: str) -> None:
    roles = [group for group in ROLE_GROUPS if host in inventory.members(group)]
    others = [name for name in inventory.groups_of(host) if name not in BUILT_IN_GROUPS]
    if not roles:
        found = f"neither in relays nor in gpu_nodes (its groups: {', '.join(others) or 'none'})"
        inventory.add(host, "groups", found, "one of the two", "add it to one of them")
    if len(roles) > 1:
        step = "take it out of one; a node's relay is another machine"
        inventory.add(host, "groups", "both in relays and in gpu_nodes", "one of the two", step)
    racks = [name for name in others if name.startswith("rack_")]
    if len(racks) > 1:
        inventory.add(
            host, "groups", f"in several racks ({', '.join(racks)})", "one", "leave it where its power cable is"
        )


def _check_sites(inventory: Inventory) -> None:
    if not inventory.members("relays"):
        return  # said once, for the whole inventory
    served = {_site(inventory, host) for host in inventory.members("relays")}
    for host in inventory.members("gpu_nodes"):
        site = _site(inventory, host)
        if site is not None and site not in served:
            step = "add a relay with that rack_site, or correct rack_site"
            inventory.add(host, "rack_site", f"{shown(site)}, where no relay is", "a site with a relay", step)


def _site(inventory: Inventory, host: str) -> str | None:
    site = inventory.variables[host].get("rack_site")
    return str(site) if isinstance(site, str) and site.strip() else None


def check_addresses(inventory: Inventory) -> None:
    """Malformed names and addresses, and two hosts behind one address."""
    for host in inventory.hosts:
        fault = address_fault(host)
        if fault:
            step = "rename it; files and units are named after it"
            inventory.add(host, "name", f"{shown(host)}: {fault}", ADDRESS_FORMS, step)
    before = {host: len(lines) for host, lines in inventory.by_host.items()}
    _check_each_address(inventory)
    faults = {host: inventory.by_host[host][before[host] :] for host in inventory.members("relays")}
    _tell_site_of_relays(inventory, faults)


ADDRESS_FORMS = "a host name, an IPv4 or an IPv6 address"


def _check_each_address(inventory: Inventory) -> None:
    owners: dict[tuple[str, str], str] = {}
    for host in inventory.hosts:
        given = inventory.variables[host].get("ansible_host")
        address = host if given is None else given
        fault = address_fault(address)
        if fault is None and str(address).startswith("["):
            found = f"{shown(address)}: ssh takes the brackets for a part of it"
            step = "take them away; a port goes into ansible_port"
            inventory.add(host, "ansible_host", found, "an IPv6 address without brackets", step)
        if fault:
            if given is not None:
                inventory.add(host, "ansible_host", f"{shown(given)}: {fault}", ADDRESS_FORMS)
            continue
        _check_relay_address(inventory, host, str(address))
        # Two ports of one address are two hosts (behind a forwarding, or in a laboratory).
        key = (normal_address(address), _port(inventory, host))
        first = owners.setdefault(key, host)
        if first != host:
            for one, other in ((host, first), (first, host)):
                inventory.add(
                    one, "address", f"{address} is also that of {other}", "one for each", "correct ansible_host"
                )


def _port(inventory: Inventory, host: str) -> str:
    return str(inventory.variables[host].get("ansible_port") or 22)


def _tell_site_of_relays(inventory: Inventory, faults: Mapping[str, list[str]]) -> None:
    """A wrong address of a relay is its site's, whose nodes and relays ask there: also with --limit to one of them."""
    for relay, lines in faults.items():
        site = _site(inventory, relay)
        for host in inventory.hosts:
            if site is None or _site(inventory, host) != site or host == relay:
                continue
            if not any(f"also that of {relay};" in line for line in inventory.by_host[host]):
                inventory.by_host[host] += [f"{host}: its relay {line}" for line in lines]


def _check_relay_address(inventory: Inventory, host: str, address: str) -> None:
    """A relay is known to its nodes' firewall, whose rules are loaded at boot, before a name can be looked up."""
    if host not in inventory.members("relays") or "ansible_host" in inventory.broken[host]:
        return
    fault = elsewhere_fault(address)
    if fault:
        wanted = "the address at which its nodes ask for the time"
        inventory.add(host, "ansible_host", f"{shown(address)}: {fault}", wanted, "set ansible_host to it")
    if parse_address(address) is None:
        found = f"{address}, a name that the firewall of its nodes cannot look up at boot"
        inventory.add(host, "address", found, "an IPv4 or IPv6 address", "set ansible_host to its address")


# --- rack facts --------------------------------------------------------------------------------------


def _fact_number(inventory: Inventory, host: str, name: str, low: float, high: float) -> None:
    value = inventory.variables[host].get(name)
    if value is None:
        return
    if not is_number(value):
        inventory.add(host, name, f"{shown(value)} ({type_word(value)})", "a number, without quotes or unit")
    elif not low <= value <= high:
        inventory.add(host, name, shown(value), f"a number from {low:g} to {high:g}")


def _fact_word(inventory: Inventory, host: str, name: str, words: tuple[Any, ...]) -> None:
    value = inventory.variables[host].get(name)
    # 1 is equal to True.
    if value is not None and (not isinstance(value, type(words[0])) or value not in words):
        wanted = " or ".join(str(word).lower() for word in words)
        inventory.add(host, name, f"{shown(value)} ({type_word(value)})", wanted)


def _check_feeds(inventory: Inventory, host: str) -> None:
    """How many feeds there are, and what may happen on them."""
    feeds = inventory.variables[host].get("rack_feeds")
    if feeds is not None and not (is_whole(feeds) and 1 <= feeds <= MOST_FEEDS):
        inventory.add(host, "rack_feeds", shown(feeds), f"a whole number from 1 to {MOST_FEEDS}")
    _fact_word(inventory, host, "rack_feeds_redundant", (True, False))
    _fact_word(inventory, host, "rack_failover_may_exceed", (True, False))
    _fact_word(inventory, host, "rack_failover_hosts", ("one", "all"))


def _check_spare(inventory: Inventory, host: str) -> None:
    """At what an idle spare counts."""
    value = inventory.variables[host].get("rack_spare_w")
    if value is not None and value not in SPARE_WORDS and not (is_number(value) and 0 <= value <= MOST_GPU_W):
        wanted = f"{', '.join(SPARE_WORDS)}, or the watts measured on an idle card, 0 to {MOST_GPU_W}"
        inventory.add(host, "rack_spare_w", f"{shown(value)} ({type_word(value)})", wanted)


def _fact_text(inventory: Inventory, host: str, name: str) -> None:
    value = inventory.variables[host].get(name)
    if inventory.missing(host, name):
        inventory.add(host, name, "not set", "a name", IN_RACK)
    elif value is not None and (not isinstance(value, str) or not value.strip()):
        inventory.add(host, name, f"{shown(value)} ({type_word(value)})", "a name, in quotes if it looks like a number")
    elif isinstance(value, str) and value != value.strip():
        inventory.add(host, name, f"{shown(value)}, with blanks around it", "the name alone")


def _check_one_rack(inventory: Inventory) -> None:
    """Hosts of one rack_* group draw on one feed, so site and name must be the same letters on all of them.

    One host under another spelling would be added up as a rack of its own, and the sum of the real one would be short.
    """
    for group in inventory.groups:
        if group.startswith("rack_"):
            _check_same_names(inventory, inventory.members(group), f"as in group {group}")
    alike: dict[tuple[str, ...], list[str]] = {}
    for host in inventory.hosts:
        site, name = (inventory.variables[host].get(fact) for fact in ("rack_site", "rack_name"))
        if isinstance(site, str) and isinstance(name, str):
            alike.setdefault(tuple(_folded(text) for text in (site, name)), []).append(host)
    for hosts in alike.values():
        _check_same_names(inventory, hosts, "written the same everywhere")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().casefold()


def _check_same_names(inventory: Inventory, hosts: list[str], wanted: str) -> None:
    for fact in ("rack_site", "rack_name"):
        given = [(host, inventory.variables[host].get(fact)) for host in hosts]
        named = [(host, str(value)) for host, value in given if isinstance(value, str) and value.strip()]
        for host, value in named:
            first_host, first = named[0]
            if value != first and not any(f"{fact}: {shown(value)}, " in line for line in inventory.by_host[host]):
                found = f"{shown(value)}, but {shown(first)} on {first_host}"
                inventory.add(host, fact, found, wanted, ONE_FEED)


def check_rack_facts(inventory: Inventory) -> None:
    """Facts that are missing, of the wrong type, impossible or misspelt. Any Unicode is welcome in names."""
    for host in inventory.hosts:
        for name in inventory.variables[host]:
            if name in GONE_FACTS:
                inventory.add(host, name, "is gone", GONE_FACTS[name], "remove it, and set that instead")
            elif name.startswith("rack_") and name not in RACK_FACTS and not name.startswith(ROLE_LIKE_FACTS):
                found = "unknown" + did_you_mean(name, RACK_FACTS)
                inventory.add(host, name, found, "one of " + ", ".join(RACK_FACTS), "rename or remove it")
        _fact_text(inventory, host, "rack_name")
        _fact_text(inventory, host, "rack_site")
        if host in inventory.members("gpu_nodes") and inventory.missing(host, "rack_feed_limit_w"):
            inventory.add(host, "rack_feed_limit_w", "not set", "watts, such as 4000", IN_RACK)
        _fact_number(inventory, host, "rack_feed_limit_w", 1, 1000000)
        _fact_number(inventory, host, "rack_feed_margin_percent", 0, 99)
        _fact_number(inventory, host, "rack_feed_derating", 0.01, 1)
        _fact_number(inventory, host, "rack_psu_efficiency", 0.5, 1)
        _fact_number(inventory, host, "rack_host_base_w", 0, 100000)
        _fact_number(inventory, host, "rack_other_w", 0, 1000000)
        _check_feeds(inventory, host)
        _check_spare(inventory, host)
        _check_gpus(inventory, host)
        _check_networks(inventory, host, "rack_networks")
        _check_networks(inventory, host, "rack_bmc_networks")
        _check_outside_address(inventory, host)
    _check_one_rack(inventory)
    _check_outside_twins(inventory)
    _check_networks_hold_hosts(inventory)


def _check_networks(inventory: Inventory, host: str, name: str) -> None:
    """Networks in CIDR form. A relay must have rack_networks; a site without BMCs has an empty rack_bmc_networks."""
    value = inventory.variables[host].get(name)
    wanted = "a list of networks such as 10.1.0.0/24 or 2001:db8::/64"
    needed = name == "rack_networks"
    if value is None:
        if needed and host in inventory.members("relays") and inventory.missing(host, name):
            inventory.add(host, name, "not set", wanted, "set it in group_vars of the site")
        return
    if not isinstance(value, (list, tuple)) or (needed and not value):
        inventory.add(host, name, shown(value), wanted)
        return
    for network in value:
        fault = network_fault(network)
        if fault:
            inventory.add(host, name, f"{shown(network)}: {fault}", wanted)


def _check_networks_hold_hosts(inventory: Inventory) -> None:
    """A site's networks hold at least one of its hosts; else the relays would serve somebody, and not the rack."""
    known = {host: _inside_address(inventory, host) for host in inventory.hosts}
    # An address that several have is a forwarding, which says nothing of the network behind it.
    alone = {host: one for host, one in known.items() if one is not None and list(known.values()).count(one) == 1}
    for host in inventory.hosts:
        value, site = inventory.variables[host].get("rack_networks"), _site(inventory, host)
        if site is None or not isinstance(value, (list, tuple)) or not value or any(map(network_fault, value)):
            continue
        networks = [ipaddress.ip_network(str(network).strip()) for network in value]
        of_site = [(other, address) for other, address in alone.items() if _site(inventory, other) == site]
        if of_site and not any(address in network for _other, address in of_site for network in networks):
            other, address = of_site[0]
            found = f"{', '.join(map(str, networks))} without a single host of {site}"
            wanted = f"the networks of its hosts, with {address} of {other} inside"
            inventory.add(host, "rack_networks", found, wanted, "correct rack_networks in group_vars of the site")


def _inside_address(inventory: Inventory, host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address of a host inside its site, where it is an address that can be in a network."""
    given = inventory.variables[host].get("ansible_host") or host
    if address_fault(given) or elsewhere_fault(given):
        return None
    return parse_address(normal_address(given))


def _check_outside_address(inventory: Inventory, host: str) -> None:
    """The address under which the relays of other sites reach a relay. Nothing else has one: nodes are not reached.

    No name: it would be looked up when firewall rules are loaded, before the network, at boot.
    """
    value = inventory.variables[host].get("rack_outside_address")
    if value is None:
        return
    wanted = "an IPv4 or IPv6 address, no name"
    fault = address_fault(value, NTP_PORT)
    if fault is None and str(value).startswith("["):
        fault = "it has brackets; chronyd and nft take them for a part of it"
    fault = fault or elsewhere_fault(value)
    if fault or parse_address(value) is None:
        found = f"{shown(value)}: {fault}" if fault else shown(value)
        inventory.add(host, "rack_outside_address", found, wanted)
        _tell_other_relays(inventory, host, found, wanted)
    elif host not in inventory.members("relays"):
        step = "remove it, or set it in host_vars of the relay"
        inventory.add(host, "rack_outside_address", f"{shown(value)}, on a host that is no relay", "none", step)


def _tell_other_relays(inventory: Inventory, host: str, found: str, wanted: str) -> None:
    """The relays of other sites get the address as one that may ask them."""
    if host not in inventory.members("relays"):
        return
    for other in inventory.members("relays"):
        if _site(inventory, other) != _site(inventory, host):
            inventory.add(other, f"relay {host} of another site: rack_outside_address", found, wanted)


def _check_outside_twins(inventory: Inventory) -> None:
    """One outside address is one relay: set for a whole site, it would have each relay compare itself with itself."""
    owners: dict[str, str] = {}
    for host in inventory.members("relays"):
        value = inventory.variables[host].get("rack_outside_address")
        if value is None or address_fault(value):
            continue
        first = owners.setdefault(normal_address(value), host)
        if first != host:
            for one, other in ((host, first), (first, host)):
                found, step = f"{value} is also that of {other}", "set it in each relay's host_vars"
                inventory.add(one, "rack_outside_address", found, "one for each relay", step)
        _check_outside_against_inside(inventory, host, value)


def _check_outside_against_inside(inventory: Inventory, host: str, value: Any) -> None:
    """No other machine has it. Its own ansible_host may be the same, where the sites share a network."""
    for other in inventory.hosts:
        address = inventory.variables[other].get("ansible_host") or other
        # At another port it is a forwarding that both are behind.
        same = not address_fault(address) and normal_address(address) == normal_address(value)
        if other != host and same and _port(inventory, other) == _port(inventory, host):
            found = f"{value} is the address of {other}: two machines with one address"
            for one in (host, other):
                what = "rack_outside_address" if one == host else f"address: rack_outside_address of {host}"
                inventory.add(one, what, found, "an address of its own", "correct one of the two")


def _check_gpus(inventory: Inventory, host: str) -> None:
    value = inventory.variables[host].get("rack_gpus")
    wanted = "a list with model, count, power_max_w and power_min_w of each model"
    if value is None:
        if host in inventory.members("gpu_nodes") and inventory.missing(host, "rack_gpus"):
            inventory.add(host, "rack_gpus", "not set", wanted, IN_RACK)
        return
    if not isinstance(value, (list, tuple)):
        inventory.add(host, "rack_gpus", shown(value), wanted)
        return
    if not value and host in inventory.members("gpu_nodes"):
        inventory.add(host, "rack_gpus", "empty", wanted, "name its cards, or take the host out of gpu_nodes")
    for position, entry in enumerate(value):
        _check_gpu_entry(inventory, host, f"rack_gpus[{position}]", entry)
    models = [str(entry.get("model")) for entry in value if isinstance(entry, Mapping)]
    for position, model in enumerate(models):
        twin = next((other for other in models[:position] if same_model(model, other)), None)
        if twin is not None:
            inventory.add(host, f"rack_gpus[{position}].model", f"{shown(model)}, also listed as {shown(twin)}",
                          "each model once", "add up the counts in one entry")  # fmt: skip


def _check_gpu_entry(inventory: Inventory, host: str, where: str, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        inventory.add(host, where, shown(entry), "model, count, power_max_w and power_min_w")
        return
    for key in map(str, entry):
        if key not in GPU_KEYS:
            found = "unknown" + did_you_mean(key, GPU_KEYS)
            inventory.add(host, f"{where}.{key}", found, "one of " + ", ".join(GPU_KEYS), "rename or remove it")
    model, count, width = entry.get("model"), entry.get("count"), entry.get("link_width")
    if not isinstance(model, str) or not model.strip():
        inventory.add(host, f"{where}.model", shown(model), "the model's name as nvidia-smi -L prints it")
    if not is_whole(count) or not 1 <= count <= MOST_GPUS:
        inventory.add(host, f"{where}.count", shown(count), f"a whole number from 1 to {MOST_GPUS}")
    if width is not None and not (is_whole(width) and width in LINK_WIDTHS):
        inventory.add(host, f"{where}.link_width", shown(width), "one of " + ", ".join(map(str, LINK_WIDTHS)))
    _check_gpu_watts(inventory, host, where, entry)


def _check_gpu_watts(inventory: Inventory, host: str, where: str, entry: Mapping[str, Any]) -> None:
    good = {}
    for key in ("power_max_w", "power_min_w"):
        if is_number(entry.get(key)) and 1 <= entry[key] <= MOST_GPU_W:
            good[key] = entry[key]
        else:
            wanted = f"watts from 1 to {MOST_GPU_W}, as nvidia-smi -q -d POWER prints them"
            inventory.add(host, f"{where}.{key}", shown(entry.get(key)), wanted)
    if len(good) < len(("power_max_w", "power_min_w")):
        return
    low, high = good["power_min_w"], good["power_max_w"]
    if low > high:
        inventory.add(host, f"{where}.power_min_w", f"{low!r}, above power_max_w", f"at most {high!r}")
        return
    cap, idle = entry.get("power_cap_w"), entry.get("idle_w")
    if cap is not None and cap != "auto":
        _check_cap(inventory, host, f"{where}.power_cap_w", cap, [(str(entry.get("model")), low, high)])
    if idle is not None and not (is_number(idle) and 0 <= idle <= high):
        inventory.add(host, f"{where}.idle_w", shown(idle), f"watts from 0 to {high!r}")


def _check_cap(inventory: Inventory, host: str, where: str, cap: Any, limits: list[tuple[str, float, float]]) -> None:
    """A cap against the range of every model it would reach."""
    if not is_number(cap):
        inventory.add(host, where, f"{shown(cap)} ({type_word(cap)})", "watts, or auto")
        return
    for model, low, high in limits:
        if not low <= cap <= high:
            inventory.add(host, where, f"{cap!r} W", f"{low:g} to {high:g} W, the range of {model}")


# --- inputs of roles ---------------------------------------------------------------------------------


def spec_options(specs: Mapping[str, Any]) -> dict[str, list[str]]:
    """Role -> its inputs, from the argument specifications of the roles (whole files, or their entry points)."""
    inputs: dict[str, list[str]] = {}
    for role, spec in specs.items():
        points = spec.get("argument_specs", spec) if isinstance(spec, Mapping) else {}
        names: list[str] = []
        for point in points.values() if isinstance(points, Mapping) else []:
            options = point.get("options") if isinstance(point, Mapping) else None
            names += map(str, options if isinstance(options, Mapping) else [])
        inputs[str(role)] = names
    return inputs


def check_role_inputs(inventory: Inventory, inputs: Mapping[str, list[str]]) -> None:
    """Variables that look like a role's input and are none: Ansible would ignore them without a word."""
    known = [*(name for names in inputs.values() for name in names), *RACK_FACTS]
    for host in inventory.hosts:
        for name in inventory.variables[host]:
            role = next((role for role in sorted(inputs, key=len, reverse=True) if name.startswith(role + "_")), None)
            if role is not None:
                if name not in inputs[role] and name != f"{role}_result":
                    found = f"no input of the role {role}" + did_you_mean(name, inputs[role])
                    inventory.add(host, name, found, f"one of those in roles/{role}/README.md", "rename or remove it")
            elif name not in known and not name.startswith(("ansible_", "rack_")):
                guess = did_you_mean(name, known, CLOSE_LIKENESS)
                if guess:
                    inventory.add(host, name, "nothing reads it" + guess, "the right name", "rename or remove it")


def _models_of(variables: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Model -> (lowest, highest cap), of those entries of rack_gpus that are well-formed."""
    models = {}
    entries = variables.get("rack_gpus")
    for entry in entries if isinstance(entries, (list, tuple)) else []:
        if isinstance(entry, Mapping) and isinstance(entry.get("model"), str):
            low, high = entry.get("power_min_w"), entry.get("power_max_w")
            if is_number(low) and is_number(high):
                models[str(entry["model"])] = (float(low), float(high))
    return models


def check_gpu_policy(inventory: Inventory) -> None:
    """Caps outside the cards' range, an index in a UUID's place, models that the host does not have, MIG layouts."""
    for host in inventory.hosts:
        variables = inventory.variables[host]
        models = _models_of(variables)
        cap, overrides = variables.get("gpu_policy_power_cap_w"), variables.get("gpu_policy_overrides")
        if cap is not None and cap != "auto":
            _check_cap(inventory, host, "gpu_policy_power_cap_w", from_command_line(cap), _ranges(models))
        _check_count(inventory, host)
        layouts = variables.get("gpu_policy_mig")
        for position, entry in enumerate(layouts if isinstance(layouts, (list, tuple)) else []):
            _check_layout(inventory, host, f"gpu_policy_mig[{position}]", entry, models)
        for finding in spare_findings(variables, _total(variables), list(models.values())):
            inventory.add(host, *finding)
        _check_known_missing(inventory, host)
        if overrides is None:
            continue
        if not isinstance(overrides, (list, tuple)):
            inventory.add(host, "gpu_policy_overrides", shown(overrides), "a list")
            continue
        for position, entry in enumerate(overrides):
            _check_override(inventory, host, f"gpu_policy_overrides[{position}]", entry, models)


def _total(variables: Mapping[str, Any]) -> int:
    """How many GPUs rack_gpus lists."""
    listed = variables.get("rack_gpus")
    entries = listed if isinstance(listed, (list, tuple)) else []
    return sum(number for entry in entries if isinstance(entry, Mapping) and is_whole(number := entry.get("count")))


def _check_count(inventory: Inventory, host: str) -> None:
    """The count that the playbook hands over is that of rack_gpus; another one in the inventory would go unread."""
    count, listed = inventory.variables[host].get("gpu_policy_gpu_count"), inventory.variables[host].get("rack_gpus")
    if count is None or not isinstance(listed, (list, tuple)):
        return
    total = _total(inventory.variables[host])
    if from_command_line(count) != total:
        inventory.add(host, "gpu_policy_gpu_count", shown(count), f"{total}, the sum of rack_gpus",
                      "correct rack_gpus and remove gpu_policy_gpu_count")  # fmt: skip


def _check_known_missing(inventory: Inventory, host: str) -> None:
    """Slots without their card: each once, until a day, for a reason. One whose day has passed excuses nothing."""
    name = "gpu_policy_known_missing"
    entries = inventory.variables[host].get(name)
    slots: list[str] = []
    for position, entry in enumerate(entries if isinstance(entries, (list, tuple)) else []):
        where = f"{name}[{position}]"
        if not isinstance(entry, Mapping) or sorted(map(str, entry)) != sorted(MISSING_KEYS):
            inventory.add(host, where, shown(entry), "a mapping of " + ", ".join(MISSING_KEYS) + " and no more")
            continue
        slot, until, reason = (entry[key] for key in MISSING_KEYS)
        if not isinstance(slot, str) or not SLOT.fullmatch(slot.strip()):
            inventory.add(host, f"{where}.bus_id", shown(slot), "a slot such as 0000:31:00.0, in quotes")
        elif slot.strip().lower() in slots:
            inventory.add(host, f"{where}.bus_id", f"{shown(slot)}, a second time", "each slot once", "remove one")
        else:
            slots.append(slot.strip().lower())
        if not isinstance(until, date) and not _is_day(until):
            inventory.add(host, f"{where}.until", shown(until), "a day such as 2026-12-31")
        if not isinstance(reason, str) or not reason.strip():
            inventory.add(host, f"{where}.reason", shown(reason), "a few words, such as a ticket's number")


def _is_day(value: Any) -> bool:
    try:
        return bool(date.fromisoformat(value))
    except (TypeError, ValueError):
        return False


def check_servers(inventory: Inventory) -> None:
    """Addresses of upstreams, by the rules that the role's own template applies later."""
    name = "time_sync_upstreams"
    for host in inventory.hosts:
        value = inventory.variables[host].get(name)
        if isinstance(value, (list, tuple)):
            # An upstream may be a dictionary that says more of it; one without an address is named by time_errors.
            entries = [entry for entry in value if not isinstance(entry, Mapping) or "address" in entry]
            value = [entry["address"] if isinstance(entry, Mapping) else entry for entry in entries]
        if value:
            try:
                server_addresses(value, name)
            except FilterError as error:
                inventory.by_host[host].append(f"{host}: {error}. Next: {CORRECT}")


def _ranges(models: Mapping[str, tuple[float, float]]) -> list[tuple[str, float, float]]:
    return [(model, low, high) for model, (low, high) in models.items()]


def _check_override(
    inventory: Inventory, host: str, where: str, entry: Any, models: dict[str, tuple[float, float]]
) -> None:
    if not isinstance(entry, Mapping):
        inventory.add(host, where, shown(entry), "which GPU (uuid, serial, bus_id or model) and its cap")
        return
    for key in map(str, entry):
        if key not in OVERRIDE_KEYS and key not in INDEX_KEYS:
            found = "unknown" + did_you_mean(key, OVERRIDE_KEYS)
            inventory.add(host, f"{where}.{key}", found, "one of " + ", ".join(OVERRIDE_KEYS), "rename or remove it")
    _check_which_gpu(inventory, host, where, entry)
    model, cap = entry.get("model"), entry.get("power_cap_w")
    ranges = _ranges(models)
    if model is not None:
        if models and not any(same_model(str(model), name) for name in models):
            found = f"{shown(model)}, not in this host's rack_gpus" + did_you_mean(str(model), models)
            inventory.add(host, f"{where}.model", found, "one of " + ", ".join(models), "correct one of the two")
        ranges = [(name, low, high) for name, low, high in ranges if same_model(name, str(model))]
    elif ranges and any(key in entry for key in ("uuid", "serial", "bus_id")):
        # Which model it is only the node knows: refuse what none of them could take.
        ranges = [("any GPU of this host", min(low for _m, low, _h in ranges), max(high for _m, _l, high in ranges))]
    if cap is not None:
        _check_cap(inventory, host, f"{where}.power_cap_w", cap, ranges)


def _check_layout(inventory: Inventory, host: str, where: str, entry: Any, models: Mapping[str, Any]) -> None:
    """One MIG layout; that it is a mapping with a mapping ``devices`` is for the argument specification to say."""
    if not isinstance(entry, Mapping):
        return
    _check_which_gpu(inventory, host, where, entry)
    names = [name for name in GPU_NAMES if entry.get(name) is not None]
    if len(names) != 1 and not any(key in entry for key in INDEX_KEYS):
        inventory.add(host, where, f"names {' and '.join(names) or 'no GPU'}", "one of " + ", ".join(GPU_NAMES))
    model, devices = entry.get("model"), entry.get("devices")
    if model is not None and models and not any(same_model(str(model), name) for name in models):
        found = f"{shown(model)}, not in this host's rack_gpus" + did_you_mean(str(model), models)
        inventory.add(host, f"{where}.model", found, "one of " + ", ".join(models), "correct one of the two")
    for profile, count in devices.items() if isinstance(devices, Mapping) else []:
        if not MIG_PROFILE_FORM.fullmatch(str(profile)):
            inventory.add(host, f"{where}.devices", shown(profile), "a profile such as 1g.10gb",
                          "look at `nvidia-smi mig -lgip` on the host")  # fmt: skip
        elif not is_whole(count) or not 1 <= count <= MOST_MIG_INSTANCES:
            wanted = f"1 to {MOST_MIG_INSTANCES} instances"
            inventory.add(host, f"{where}.devices.{profile}", shown(count), wanted)


def _check_which_gpu(inventory: Inventory, host: str, where: str, match: Mapping[Any, Any]) -> None:
    """A GPU is named by what it keeps: its UUID, serial number or slot."""
    step = "name the GPU by its UUID (nvidia-smi -L); an index changes when a card drops out"
    for key in INDEX_KEYS:
        if key in match:
            inventory.add(
                host, f"{where}.{key}", f"{shown(match[key])}, an index", "uuid, serial, bus_id or model", step
            )
    uuid, bus_id = match.get("uuid"), match.get("bus_id")
    if uuid is not None and not (isinstance(uuid, str) and UUID_FORM.fullmatch(uuid)):
        rest = re.sub(r"(?i)^gpu[\s:#-]*", "", str(uuid)).strip()
        kind = ", an index" if rest.isdigit() and not isinstance(uuid, bool) else ""
        kind = ", a MIG device's" if str(uuid).upper().startswith("MIG-") else kind
        wanted = "the form GPU-12345678-1234-1234-1234-123456789abc"
        inventory.add(host, f"{where}.uuid", shown(uuid) + kind, wanted, step)
    if bus_id is not None and not (isinstance(bus_id, str) and BUS_ID_FORM.fullmatch(bus_id)):
        wanted = "the form 0000:31:00.0, as in /sys/bus/pci/devices"
        inventory.add(host, f"{where}.bus_id", shown(bus_id), wanted)


# --- the filter --------------------------------------------------------------------------------------


def inventory_errors(groups: Any, hostvars: Any, specs: Any = None) -> dict[str, Any]:
    """Everything that is wrong: ``inventory`` (concerns every host) and ``hosts`` (host -> its own errors).

    ``groups`` is Ansible's; ``hostvars`` each host's variables (at least ansible_host, ansible_port, rack_*
    and the roles' inputs); ``specs`` the roles' argument specifications by role. Hosts without errors have
    an empty list.
    """
    if not isinstance(groups, Mapping):
        raise FilterError(f"inventory_errors: groups is {shown(groups)}; wanted Ansible's groups")
    inventory = Inventory(groups, hostvars if isinstance(hostvars, Mapping) else {})
    check_groups(inventory)
    check_addresses(inventory)
    check_rack_facts(inventory)
    check_role_inputs(inventory, spec_options(specs if isinstance(specs, Mapping) else {}))
    check_gpu_policy(inventory)
    check_servers(inventory)
    return {"inventory": inventory.wide, "hosts": inventory.by_host}


def site_addresses(hostvars: Any, hosts: Any, site: Any) -> list[str]:
    """The addresses of those ``hosts`` whose rack_site is ``site``: ansible_host, or the name of a host without."""
    return [
        host_address(hostvars[host].get("ansible_host") or str(host))
        for host in hosts or []
        if hostvars[host].get("rack_site") == site
    ]


def inventory_facts(hostvars: Any, hosts: Any, prefixes: Any) -> dict[str, dict[str, Any]]:
    """The variables of ``hosts`` whose names begin with one of ``prefixes``, evaluated; of all others the name.

    A value that cannot be evaluated (it refers to an undefined variable) becomes a text that says so:
    ``inventory_errors`` then names host and variable, instead of Ansible ending the whole run.
    """
    wanted = tuple(str(prefix) for prefix in prefixes or [])
    facts: dict[str, dict[str, Any]] = {}
    for host in hosts or []:
        variables = hostvars[host]
        # Of other names the name alone is looked at (is it a misspelling?): evaluating all would be slow.
        facts[str(host)] = {
            str(name): _evaluated(variables, name) if str(name).startswith(wanted) else None for name in variables
        }
    return facts


def _evaluated(variables: Any, name: Any) -> Any:
    try:
        value = variables[name]
        repr(value)  # Ansible evaluates the inner parts of lists and dictionaries only when they are looked at
    except (TemplateError, AnsibleError) as error:
        return f"{UNEVALUATED}{' '.join(str(error).split())[:200]})"
    return value


def preflight_findings(errors: Any, plan: Any, facts: Any) -> dict[str, dict[str, Any]]:
    """Host -> whether it may be touched, and the lines that say why (or, when it may, its rack's sum).

    ``errors`` is from ``inventory_errors``, ``plan`` from ``rack_power_plan``, ``facts`` from ``inventory_facts``.
    What concerns the whole inventory fails every host; a rack that does not fit fails every host in it,
    its relay included.
    """
    racks = {(str(rack["site"]), str(rack["rack"])): rack for rack in plan["racks"]}
    findings = {}
    for host, own in errors["hosts"].items():
        lines = [*errors["inventory"], *own]
        values = facts.get(host, {})
        rack = racks.get((str(values.get("rack_site") or ""), str(values.get("rack_name") or "")))
        refused = rack is not None and not rack["fits"]
        if rack is not None and (refused or not lines):
            # What is wrong with this host's own facts is told once, by the check of the inventory.
            twice = [line for line in rack["errors"] if own and line.startswith(f"{host}: ")]
            lines += [line for line in rack["lines"] if line not in twice] if refused else rack["lines"][-1:]
        findings[host] = {"ok": not errors["inventory"] and not own and not refused, "lines": lines}
    return findings


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {
            "client_networks": client_networks,
            "host_address": host_address,
            "inventory_errors": inventory_errors,
            "inventory_facts": inventory_facts,
            "server_addresses": server_addresses,
            "source_entries": source_entries,
            "site_addresses": site_addresses,
            "preflight_findings": preflight_findings,
            "url_host": url_host,
        }
