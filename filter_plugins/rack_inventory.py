# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an inventory, all of it at once, each in one sentence: what, found, wanted, next step.

Pure functions on data: groups, variables of hosts, argument specifications of roles. Nothing is looked
up, resolved or contacted. Beside the check there are the filters with which addresses are written:
``host_address``, ``url_host``, ``client_networks`` and ``ntp_sources``.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

try:
    from ansible.errors import AnsibleFilterError as FilterError
except ImportError:  # the functions are of use without Ansible

    class FilterError(ValueError):  # type: ignore[no-redef]
        """A value that a filter refuses."""


ROLE_GROUPS = ("relays", "gpu_nodes")
GROUPING_PREFIXES = ("site_", "rack_")
BUILT_IN_GROUPS = ("all", "ungrouped")
RACK_FACTS = (
    "rack_name", "rack_site", "rack_feed_limit_w", "rack_feed_margin_percent", "rack_feed_derating",
    "rack_psu_efficiency", "rack_host_base_w", "rack_gpus", "rack_active_gpus", "rack_networks", "rack_uplink_note",
)  # fmt: skip
GPU_KEYS = ("model", "count", "power_max_w", "power_min_w", "power_cap_w", "idle_w", "link_width")
# PCI Express link widths that a graphics card may train to (PCIe base specification).
LINK_WIDTHS = (1, 2, 4, 8, 16)
# A label of a host name: RFC 1123 section 2.1 (letters, digits, inner hyphens; a digit may come first).
LABEL_FORM = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
UUID_FORM = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
BUS_ID_FORM = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
# Words that people use for a GPU's place in nvidia-smi's list.
INDEX_KEYS = ("index", "gpu", "gpu_index", "id", "gpu_id")
MATCH_KEYS = ("uuid", "serial", "bus_id", "model", "all")
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


def is_number(value: Any) -> bool:
    """A finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# --- addresses ---------------------------------------------------------------------------------------


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IP address, bare or (IPv6) in brackets, with its zone; None when it is no address."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") and ":" in text else text
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        return None


def address_fault(value: Any) -> str | None:
    """What is wrong with a host name or address, None when nothing is. One fault, the most telling one."""
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
            return "it has a port; give the port in ansible_port"
        return "it is not an IPv6 address"
    if ":" in text:
        return "it has a port; give the port in ansible_port"
    return _name_fault(text)


def _name_fault(text: str) -> str | None:
    labels = text.rstrip(".").split(".")
    if labels[-1].isdigit():
        # No top-level domain is a number: this was meant as an IPv4 address.
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


def ntp_sources(values: Any, name: str = "sources") -> list[str]:
    """Bare addresses or names of time servers; an empty list, a malformed one and one named twice are refused."""
    if not isinstance(values, (list, tuple)) or not values:
        raise FilterError(f"{name} is {shown(values)}; wanted a list of names or addresses of time servers")
    seen: dict[str, str] = {}
    for value in values:
        fault = address_fault(value)
        if fault:
            raise FilterError(f"{name}: {shown(value)}: {fault}; wanted a name or an address")
        key = normal_address(value)
        if key in seen:
            raise FilterError(f"{name}: {value} and {seen[key]} are one server; wanted each once: it has one vote")
        seen[key] = str(value)
    return [host_address(value) for value in values]


# --- the inventory -----------------------------------------------------------------------------------


class Inventory:
    """The parts of an inventory that are checked, and the errors found so far."""

    def __init__(self, groups: Mapping[str, Any], hostvars: Mapping[str, Any]) -> None:
        self.groups = {str(name): [str(host) for host in hosts or []] for name, hosts in groups.items()}
        self.hosts = list(dict.fromkeys([*self.groups.get("all", []), *(h for g in self.groups.values() for h in g)]))
        self.variables = {host: _plain(hostvars.get(host)) for host in self.hosts}
        self.wide: list[str] = []
        self.by_host: dict[str, list[str]] = {host: [] for host in self.hosts}

    def groups_of(self, host: str) -> list[str]:
        return [name for name, hosts in self.groups.items() if host in hosts]

    def add(self, host: str, text: str) -> None:
        self.by_host[host].append(f"{host}: {text}")

    def members(self, group: str) -> list[str]:
        return self.groups.get(group, [])


def _plain(value: Any) -> dict[str, Any]:
    """Variables by name; whatever is not a mapping has none."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def check_groups(inventory: Inventory) -> None:
    """Groups that nothing here knows, hosts in no role group or both, no relay, a site without one."""
    for name in inventory.groups:
        if name in ROLE_GROUPS or name in BUILT_IN_GROUPS or name.startswith(GROUPING_PREFIXES):
            continue
        guess = did_you_mean(name, ROLE_GROUPS)
        wanted = "wanted relays, gpu_nodes, or a name that begins with site_ or rack_"
        inventory.wide.append(f"group {name}: unknown{guess}; {wanted}. Rename it: no playbook would ever reach its hosts")
    if not inventory.members("relays"):
        inventory.wide.append(
            "group relays: no host in it; wanted at least one, the machine that may reach outside. "
            "Nodes get time and packages from it alone: add it to the group relays"
        )
    for host in inventory.hosts:
        _check_membership(inventory, host)
    _check_sites(inventory)


def _check_membership(inventory: Inventory, host: str) -> None:
    roles = [group for group in ROLE_GROUPS if host in inventory.members(group)]
    if not roles:
        others = [name for name in inventory.groups_of(host) if name not in BUILT_IN_GROUPS] or ["none"]
        inventory.add(
            host, f"in no role group (its groups: {', '.join(others)}); wanted relays or gpu_nodes. Add it to one of them"
        )
    if len(roles) > 1:
        inventory.add(host, "in both relays and gpu_nodes; wanted one of them. Take it out of one: a node's relay is another machine")
    racks = [name for name in inventory.groups_of(host) if name.startswith("rack_")]
    if len(racks) > 1:
        inventory.add(host, f"in {len(racks)} rack groups ({', '.join(racks)}); wanted one. Leave it where its power cable is")


def _check_sites(inventory: Inventory) -> None:
    if not inventory.members("relays"):
        return  # said once, for the whole inventory
    served = {_site(inventory, host) for host in inventory.members("relays")}
    for host in inventory.members("gpu_nodes"):
        site = _site(inventory, host)
        if site is not None and site not in served:
            inventory.add(host, f"no relay at its site {site!r}; wanted one in relays with the same rack_site. Add it, or correct rack_site")


def _site(inventory: Inventory, host: str) -> str | None:
    site = inventory.variables[host].get("rack_site")
    return str(site) if isinstance(site, str) and site.strip() else None


def check_addresses(inventory: Inventory) -> None:
    """Malformed names and addresses, and two hosts behind one address."""
    owners: dict[tuple[str, str], str] = {}
    for host in inventory.hosts:
        variables = inventory.variables[host]
        address = variables.get("ansible_host", host)
        fault = address_fault(address)
        if fault:
            what = "name" if address is host or address == host else "ansible_host"
            inventory.add(host, f"{what} {shown(address)}: {fault}; wanted a host name, an IPv4 or an IPv6 address. Correct it in the inventory")
        name_fault = address_fault(host)
        if name_fault and address != host:
            inventory.add(host, f"name {shown(host)}: {name_fault}; wanted a host name. Rename it: file and unit names are made of it")
        if fault:
            continue
        # Two ports of one address are two hosts (behind a forwarding, or in a laboratory).
        key = (normal_address(address), str(variables.get("ansible_port") or 22))
        if key in owners:
            text = f"address {address} is also that of {owners[key]}; wanted one for each. Correct ansible_host of one of them"
            inventory.add(host, text)
            inventory.add(owners[key], f"address {address} is also that of {host}; wanted one for each. Correct ansible_host of one of them")
        else:
            owners[key] = host


# --- rack facts --------------------------------------------------------------------------------------

IN_RACK = "set it in group_vars of the rack"


def _fact_number(inventory: Inventory, host: str, name: str, low: float, high: float, required: bool = False) -> None:
    value = inventory.variables[host].get(name)
    if value is None:
        if required:
            inventory.add(host, f"{name}: not set; wanted a number. {IN_RACK.capitalize()}, for example {name}: 4000")
        return
    if not is_number(value):
        kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
        inventory.add(host, f"{name}: {shown(value)}, {kind}; wanted a number without quotes or unit. Correct it")
    elif not low <= value <= high:
        inventory.add(host, f"{name}: {value!r}; wanted between {low:g} and {high:g}. Correct it")


def _fact_text(inventory: Inventory, host: str, name: str) -> None:
    value = inventory.variables[host].get(name)
    if value is None:
        inventory.add(host, f"{name}: not set; wanted a name. {IN_RACK.capitalize()}")
    elif not isinstance(value, str) or not value.strip():
        inventory.add(host, f"{name}: {shown(value)}; wanted a name (quote it if it looks like a number). Correct it")


def check_rack_facts(inventory: Inventory) -> None:
    """Facts that are missing, of the wrong type, impossible or misspelt. Any Unicode is welcome in names."""
    for host in inventory.hosts:
        for name in inventory.variables[host]:
            if name.startswith("rack_") and name not in RACK_FACTS:
                inventory.add(host, f"{name}: unknown{did_you_mean(name, RACK_FACTS)}; wanted one of {', '.join(RACK_FACTS)}. Rename or remove it")
        _fact_text(inventory, host, "rack_name")
        _fact_text(inventory, host, "rack_site")
        node = host in inventory.members("gpu_nodes")
        _fact_number(inventory, host, "rack_feed_limit_w", 1, 1000000, required=node)
        _fact_number(inventory, host, "rack_feed_margin_percent", 0, 99)
        _fact_number(inventory, host, "rack_feed_derating", 0.01, 1)
        _fact_number(inventory, host, "rack_psu_efficiency", 0.5, 1)
        _fact_number(inventory, host, "rack_host_base_w", 0, 100000)
        _check_gpus(inventory, host, required=node)
        _check_networks(inventory, host)


def _check_networks(inventory: Inventory, host: str) -> None:
    value = inventory.variables[host].get("rack_networks")
    if value is None:
        if host in inventory.members("relays"):
            inventory.add(host, f"rack_networks: not set; wanted the networks it serves, such as [10.1.0.0/24]. {IN_RACK.capitalize()} or site")
        return
    if not isinstance(value, (list, tuple)) or not value:
        inventory.add(host, f"rack_networks: {shown(value)}; wanted a list such as [10.1.0.0/24, '2001:db8::/64']. Correct it")
        return
    for network in value:
        fault = network_fault(network)
        if fault:
            inventory.add(host, f"rack_networks: {shown(network)}: {fault}; wanted a network such as 10.1.0.0/24. Correct it")


def _check_gpus(inventory: Inventory, host: str, required: bool) -> None:
    value = inventory.variables[host].get("rack_gpus")
    if value is None:
        if required:
            inventory.add(host, f"rack_gpus: not set; wanted a list of models with count, power_max_w and power_min_w. {IN_RACK.capitalize()}")
        return
    if not isinstance(value, (list, tuple)):
        inventory.add(host, f"rack_gpus: {shown(value)}; wanted a list, one entry for each model. Correct it")
        return
    for position, entry in enumerate(value):
        _check_gpu_entry(inventory, host, f"rack_gpus[{position}]", entry)
    counts = [entry.get("count") for entry in value if isinstance(entry, Mapping)]
    active = inventory.variables[host].get("rack_active_gpus")
    if active is not None and all(is_number(count) for count in counts):
        total = int(sum(counts))
        if isinstance(active, bool) or not isinstance(active, int) or not 0 <= active <= total:
            inventory.add(host, f"rack_active_gpus: {shown(active)}; wanted a whole number from 0 to {total}, the GPUs of this host. Correct it")


def _check_gpu_entry(inventory: Inventory, host: str, where: str, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        inventory.add(host, f"{where}: {shown(entry)}; wanted model, count, power_max_w and power_min_w. Correct it")
        return
    for key in entry:
        if str(key) not in GPU_KEYS:
            inventory.add(host, f"{where}.{key}: unknown{did_you_mean(str(key), GPU_KEYS)}; wanted one of {', '.join(GPU_KEYS)}. Rename or remove it")
    model, count = entry.get("model"), entry.get("count")
    if not isinstance(model, str) or not model.strip():
        inventory.add(host, f"{where}.model: {shown(model)}; wanted the model as nvidia-smi -L prints it. Correct it")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 64:
        inventory.add(host, f"{where}.count: {shown(count)}; wanted a whole number from 1. Correct it")
    width = entry.get("link_width")
    if width is not None and (isinstance(width, bool) or width not in LINK_WIDTHS):
        inventory.add(host, f"{where}.link_width: {shown(width)}; wanted one of {', '.join(map(str, LINK_WIDTHS))}. Correct it")
    _check_gpu_watts(inventory, host, where, entry)


def _check_gpu_watts(inventory: Inventory, host: str, where: str, entry: Mapping[str, Any]) -> None:
    good = {}
    for key in ("power_max_w", "power_min_w"):
        if is_number(entry.get(key)) and entry[key] > 0:
            good[key] = entry[key]
        else:
            inventory.add(host, f"{where}.{key}: {shown(entry.get(key))}; wanted watts above 0, as nvidia-smi -q -d POWER prints them. Correct it")
    if len(good) < 2:
        return
    low, high = good["power_min_w"], good["power_max_w"]
    if low > high:
        inventory.add(host, f"{where}.power_min_w: {low!r}, above power_max_w {high!r}; wanted at most that. Correct it")
        return
    cap, idle = entry.get("power_cap_w"), entry.get("idle_w")
    if cap is not None and cap != "auto":
        _check_cap(inventory, host, f"{where}.power_cap_w", cap, [(str(entry.get("model")), low, high)])
    if idle is not None and (not is_number(idle) or not 0 <= idle <= high):
        inventory.add(host, f"{where}.idle_w: {shown(idle)}; wanted watts from 0 to {high!r}. Correct it")


def _check_cap(inventory: Inventory, host: str, where: str, cap: Any, limits: list[tuple[str, float, float]]) -> None:
    """A cap against the range of every model it would reach."""
    if not is_number(cap):
        inventory.add(host, f"{where}: {shown(cap)}; wanted watts, or auto. Correct it")
        return
    for model, low, high in limits:
        if not low <= cap <= high:
            inventory.add(host, f"{where}: {cap!r} W; wanted {low:g} to {high:g} W, the range of {model}. Correct it")


# --- inputs of roles ---------------------------------------------------------------------------------


def spec_options(specs: Mapping[str, Any]) -> dict[str, list[str]]:
    """Role -> its inputs, from the argument specifications of the roles (whole files, or their entry points)."""
    inputs: dict[str, list[str]] = {}
    for role, spec in specs.items():
        points = spec.get("argument_specs", spec) if isinstance(spec, Mapping) else {}
        names = []
        for point in points.values() if isinstance(points, Mapping) else []:
            options = point.get("options") if isinstance(point, Mapping) else None
            names += [str(option) for option in options or []]
        inputs[str(role)] = names
    return inputs


def check_role_inputs(inventory: Inventory, inputs: Mapping[str, list[str]]) -> None:
    """Variables that look like a role's input and are none: Ansible would ignore them without a word."""
    known = [name for names in inputs.values() for name in names]
    for host in inventory.hosts:
        for name in inventory.variables[host]:
            role = next((role for role in sorted(inputs, key=len, reverse=True) if name.startswith(role + "_")), None)
            if role is not None:
                if name not in inputs[role] and name != f"{role}_result":
                    guess = did_you_mean(name, inputs[role])
                    inventory.add(host, f"{name}: role {role} has no such input{guess}; wanted one of its README. Rename or remove it")
            elif not name.startswith(("ansible_", "rack_")):
                guess = did_you_mean(name, [*known, *RACK_FACTS], CLOSE_LIKENESS)
                if guess:
                    inventory.add(host, f"{name}: nothing reads it{guess}; wanted the right name. Rename or remove it")


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
    """Caps outside the cards' range, an index in a UUID's place, models that the host does not have."""
    for host in inventory.hosts:
        variables = inventory.variables[host]
        models = _models_of(variables)
        ranges = [(model, low, high) for model, (low, high) in models.items()]
        cap = variables.get("gpu_policy_power_cap_w")
        if cap is not None and cap != "auto":
            _check_cap(inventory, host, "gpu_policy_power_cap_w", cap, ranges)
        overrides = variables.get("gpu_policy_overrides")
        if overrides is None:
            continue
        if not isinstance(overrides, (list, tuple)):
            inventory.add(host, f"gpu_policy_overrides: {shown(overrides)}; wanted a list. Correct it")
            continue
        for position, entry in enumerate(overrides):
            _check_override(inventory, host, f"gpu_policy_overrides[{position}]", entry, models)


def _check_override(
    inventory: Inventory, host: str, where: str, entry: Any, models: dict[str, tuple[float, float]]
) -> None:
    if not isinstance(entry, Mapping):
        inventory.add(host, f"{where}: {shown(entry)}; wanted which GPU (uuid, serial, bus_id or model) and its cap. Correct it")
        return
    match = entry.get("match") if isinstance(entry.get("match"), Mapping) else entry
    by_uuid = "name the GPU by its UUID (nvidia-smi -L): an index changes when a card drops out"
    for key in INDEX_KEYS:
        if key in match:
            inventory.add(host, f"{where}.{key}: {shown(match[key])}, an index; wanted uuid, serial, bus_id or model. {by_uuid.capitalize()}")
    uuid = match.get("uuid")
    if uuid is not None and not (isinstance(uuid, str) and UUID_FORM.fullmatch(uuid)):
        digits = re.sub(r"(?i)^gpu[\s:#-]*", "", str(uuid)).strip()
        kind = ", an index" if digits.isdigit() and not isinstance(uuid, bool) else ""
        inventory.add(host, f"{where}.uuid: {shown(uuid)}{kind}; wanted the form GPU-12345678-1234-1234-1234-123456789abc. {by_uuid.capitalize()}")
    bus_id = match.get("bus_id")
    if bus_id is not None and not (isinstance(bus_id, str) and BUS_ID_FORM.fullmatch(bus_id)):
        inventory.add(host, f"{where}.bus_id: {shown(bus_id)}; wanted the form 0000:31:00.0, as in /sys/bus/pci/devices. Correct it")
    model = match.get("model")
    ranges = [(name, low, high) for name, (low, high) in models.items()]
    if model is not None:
        if model not in models and models:
            guess = did_you_mean(str(model), models)
            inventory.add(host, f"{where}.model: {shown(model)}, not among this host's rack_gpus{guess}; wanted one of {', '.join(models)}. Correct one of the two")
        ranges = [entry for entry in ranges if entry[0] == model]
    elif any(key in match for key in ("uuid", "serial", "bus_id")) and ranges:
        # Which model it is only the node knows: refuse what none of them could take.
        ranges = [("any GPU of this host", min(low for _m, low, _h in ranges), max(high for _m, _l, high in ranges))]
    if entry.get("power_cap_w") is not None:
        _check_cap(inventory, host, f"{where}.power_cap_w", entry["power_cap_w"], ranges)


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
    return {"inventory": inventory.wide, "hosts": inventory.by_host}


def inventory_facts(hostvars: Any, hosts: Any, prefixes: Any) -> dict[str, dict[str, Any]]:
    """The variables of ``hosts`` that preflight looks at, read out of ``hostvars`` one by one.

    A value that cannot be evaluated (it names an undefined variable) becomes a text that says so: it
    then fails its own check with its host's name, instead of ending the whole run.
    """
    wanted = tuple(str(prefix) for prefix in prefixes or [])
    facts: dict[str, dict[str, Any]] = {}
    for host in hosts or []:
        facts[str(host)] = {}
        variables = hostvars[host]
        for name in list(variables):
            # Of other names the name alone is looked at (is it a misspelling?): evaluating all would be slow.
            facts[str(host)][str(name)] = _value(variables, name) if str(name).startswith(wanted) else None
    return facts


def _value(variables: Any, name: Any) -> Any:
    try:
        return variables[name]
    except Exception as error:  # whatever Ansible raises for a template that fails; told, never swallowed
        return f"(cannot be evaluated: {str(error).splitlines()[0][:120]})"


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
            lines += rack["lines"] if refused else rack["lines"][-1:]
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
            "ntp_sources": ntp_sources,
            "preflight_findings": preflight_findings,
            "url_host": url_host,
        }
