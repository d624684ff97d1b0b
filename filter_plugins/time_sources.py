# SPDX-License-Identifier: Apache-2.0
"""Who asks whom for the time: a relay's upstreams as votes, the relays of a site, and what cannot be right.

Votes count by operator: two servers of one operator fail together and lie together. The operator is what the entry
says, else the registered domain of the name; a bare address is an operator of its own, unless it is a known one.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError as FilterError

ENTRY_KEYS = ("address", "operator", "nts", "offset_s")
# Suffixes below which a name is registered, of two labels (publicsuffix.org, those that public time servers use).
TWO_LABEL_SUFFIXES = (
    "ac.cn", "com.cn", "edu.cn", "gov.cn", "net.cn", "org.cn", "ac.jp", "ad.jp", "co.jp", "go.jp", "ac.uk", "co.uk",
    "gov.uk", "org.uk", "com.au", "edu.au", "gov.au", "net.au", "org.au", "com.sg", "edu.sg", "gov.sg", "com.tw",
    "edu.tw", "org.tw", "com.hk", "edu.hk", "ac.kr", "co.kr", "re.kr", "com.br", "co.in", "ac.in",
)  # fmt: skip
# Domains of one operator under several names.
OPERATOR_DOMAINS = {
    "alibaba": ("aliyun.com", "aliyuncs.com", "alibabacloud.com", "alidns.com"),
    "amazon": ("amazonaws.com", "aws.com"),
    "google": ("google.com", "goog"),
    "tencent": ("tencent.com", "tencentyun.com", "qcloud.com"),
}
SAME_OPERATOR = {domain: operator for operator, domains in OPERATOR_DOMAINS.items() for domain in domains}
# Addresses that people copy from reports (mission T3); by address nobody sees whose they are.
KNOWN_ADDRESSES = {"203.107.6.88": "alibaba", "120.25.115.20": "alibaba", "202.120.2.101": "sjtu.edu.cn"}
# Three operators outvote one liar, four still do when one more is silent (chrony FAQ).
LEAST_OPERATORS = 4
# Default of time_sync_alarm_ms, against which a warning level is held where the inventory leaves it out.
ALARM_MS = 30.0
# As chrony.keys(5) has a secret; lengths of the ciphers' keys (FIPS 197), bytes.
SECRET_FORM = re.compile(r"HEX:(?:[0-9A-Fa-f]{2})+|(?!HEX:)(?:ASCII:)?[!-~]+")
CIPHER_BYTES = {"AES128": 16, "AES256": 32}
# Defaults of role time_sync, of which an inventory may set one alone.
POLLS = {"upstream": (6, 8), "relay": (4, 4)}
UNEVALUATED = "(cannot be evaluated: "


def canonical(name: Any) -> str:
    """One spelling of a name or an address."""
    bare = str(name).strip().strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return bare
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def operator_of(address: str) -> str:
    """Who is taken to run a server, from its name alone."""
    name = canonical(address)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        labels = name.split(".")
        if name.endswith(".pool.ntp.org"):
            return name  # each of its names stands for servers of many operators
        count = 3 if ".".join(labels[-2:]) in TWO_LABEL_SUFFIXES else 2
        domain = ".".join(labels[-count:])
        return SAME_OPERATOR.get(domain, domain)
    return KNOWN_ADDRESSES.get(name, name)


def time_upstreams(
    values: Any, own: Any = (), least: Any = LEAST_OPERATORS, name: str = "time_sync_upstreams"
) -> list[dict[str, Any]]:
    """Entries (names, addresses, or dictionaries of address, operator, nts, offset_s) as ``chrony_config`` takes them.

    ``own``: addresses of the relays of this inventory, which are no upstreams. Everything that makes the vote less
    than it seems is refused: an operator with two votes, a loop, fewer operators than ``least``.
    """
    if not isinstance(values, (list, tuple)) or not values:
        raise FilterError(f"{name} is {values!r}; wanted a list of time servers outside. Next: name at least {least}")
    entries = [_entry(value, f"{name}[{place}]") for place, value in enumerate(values)]
    _refuse_repeated(entries, name)
    fewest = _as_number(least)
    if fewest is None or (own and not isinstance(own, (list, tuple))):
        raise FilterError(f"{name}: {least!r} operators, own relays {own!r}; wanted a number and a list")
    relays = {canonical(address): str(address) for address in own or []}
    loops = [entry["address"] for entry in entries if canonical(entry["address"]) in relays]
    if loops:
        raise FilterError(
            f"{name}: {', '.join(loops)}: a relay of this inventory; wanted servers outside. Next: remove it, relays "
            "of a site ask each other by themselves"
        )
    if len(entries) < fewest:
        raise FilterError(
            f"{name}: {len(entries)} operators; wanted at least {fewest:g}: three outvote one that lies, four still do "
            "when one is silent. Next: add servers of other operators, or lower time_sync_min_operators knowingly"
        )
    return entries


def _refuse_repeated(entries: list[dict[str, Any]], name: str) -> None:
    servers: dict[str, str] = {}
    operators: dict[str, str] = {}
    for entry in entries:
        address, operator = entry["address"], entry["operator"]
        if canonical(address) in servers:
            raise FilterError(f"{name}: {address} and {servers[canonical(address)]} are one server; wanted each once")
        if operator in operators:
            raise FilterError(
                f"{name}: {operators[operator]} and {address} are both run by {operator}: one vote; wanted different "
                "operators. Next: keep one of them, or say who runs each (operator)"
            )
        servers[canonical(address)] = operators[operator] = address


def _entry(value: Any, where: str) -> dict[str, Any]:
    given = dict(value) if isinstance(value, Mapping) else {"address": value}
    for key in map(str, given):
        if key not in ENTRY_KEYS:
            close = difflib.get_close_matches(key, ENTRY_KEYS, n=1)
            guess = f" (did you mean {close[0]}?)" if close else ""
            raise FilterError(f"{where}.{key}: unknown{guess}; wanted {', '.join(ENTRY_KEYS)}")
    address, offset = given.get("address"), given.get("offset_s", 0.0)
    if not isinstance(address, str) or not address.strip():
        raise FilterError(f"{where}.address: {address!r}; wanted a name or an address")
    if _is_nobody(address):
        raise FilterError(
            f"{where}.address: {address}: this host itself, or no host; wanted a server outside. Next: remove it"
        )
    if _lacks_zone(address):
        wanted = "the interface after it (fe80::1%eth0), or an address that is routed"
        raise FilterError(f"{where}.address: {address}: link-local, on no interface; wanted {wanted}. Next: correct it")
    if isinstance(offset, bool) or not isinstance(offset, (int, float)) or not -1 <= offset <= 1:
        raise FilterError(f"{where}.offset_s: {offset!r}; wanted seconds, at most 1 either way")
    if not isinstance(given.get("nts", False), bool):
        raise FilterError(f"{where}.nts: {given['nts']!r}; wanted true or false")
    if not isinstance(given.get("operator", ""), (str, type(None))):
        raise FilterError(f"{where}.operator: {given['operator']!r}; wanted a name")
    operator = str(given.get("operator") or operator_of(address)).strip().lower()
    return {"address": str(address).strip(), "operator": operator, "nts": given.get("nts", False), "offset_s": offset}


def _is_nobody(name: str) -> bool:
    """A server that cannot be: a relay that asks itself agrees with itself."""
    bare = canonical(name)
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        # 0x7f000001, 2130706433 and 127.1 are addresses to the C library.
        last = bare.rpartition(".")[2]
        return bare.partition(".")[0] == "localhost" or re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last) is not None
    # The upper 240.0.0.0/4, 255.255.255.255 with it, is nobody's (RFC 1112 section 4).
    unused = address.version == 4 and address.is_reserved
    return address.is_loopback or address.is_unspecified or address.is_multicast or unused


def _lacks_zone(name: str) -> bool:
    """IPv4's 169.254.0.0/16 needs none; a cloud's own clock is there."""
    try:
        address = ipaddress.ip_address(canonical(name))
    except ValueError:
        return False
    return isinstance(address, ipaddress.IPv6Address) and address.is_link_local and not address.scope_id


# --- the inventory's relays --------------------------------------------------------------------------


def relay_addresses(hostvars: Any, relays: Any) -> list[str]:
    """Every address by which a relay of this inventory is known: name, ansible_host, rack_outside_address."""
    found: list[str] = []
    for host in relays or []:
        variables = hostvars[host]
        found += [str(host), *(str(variables[key]) for key in ("ansible_host", "rack_outside_address")
                               if variables.get(key))]  # fmt: skip
    return list(dict.fromkeys(found))


def site_peers(hostvars: Any, relays: Any, host: Any) -> list[str]:
    """Addresses of the other relays of ``host``'s site."""
    site = hostvars[host].get("rack_site")
    return [
        str(hostvars[other].get("ansible_host") or other)
        for other in relays or []
        if other != host and hostvars[other].get("rack_site") == site
    ]


def other_sites(hostvars: Any, relays: Any, host: Any) -> dict[str, str]:
    """Outside address -> site, of the relays of other sites; empty for a relay that has no such address itself."""
    site = hostvars[host].get("rack_site")
    if not hostvars[host].get("rack_outside_address"):
        return {}
    return {
        str(hostvars[other]["rack_outside_address"]): str(hostvars[other].get("rack_site"))
        for other in relays or []
        if hostvars[other].get("rack_site") != site and hostvars[other].get("rack_outside_address")
    }


def as_networks(addresses: Any) -> list[str]:
    """Addresses as networks of one host; names are left out (an allow line needs an address)."""
    networks = []
    for address in addresses or []:
        try:
            networks.append(str(ipaddress.ip_network(canonical(address))))
        except ValueError:
            continue
    return networks


def time_errors(errors: Any, facts: Any, groups: Any) -> dict[str, Any]:
    """``errors`` of ``inventory_errors`` with what is wrong with who asks whom, added to the host it concerns.

    ``facts``: host -> variables (``inventory_facts``). Only what the inventory says is looked at, before any host is
    contacted: the role applies the same rules to what it is given.
    """
    relays = [host for host in groups.get("relays", []) if host in facts]
    hosts = {}
    for host, lines in errors["hosts"].items():
        own = [*lines, *(f"{host}: {text}" for text in _host_errors(host, facts, relays, groups, lines))]
        # A key of a wrong form is told of its own host; held against others it would be told twice.
        if not any("time_sync_key" in line for line in own):
            own += [f"{host}: {text}" for text in _shared_key_errors(host, facts, relays)]
        if not any("time_sync_upstreams" in line for line in own):
            own += [f"{host}: {text}" for text in _shared_nts_errors(host, facts, relays)]
        hosts[host] = own
    return {**errors, "hosts": hosts}


def _host_errors(host: str, facts: Any, relays: list[str], groups: Any, lines: Any) -> Iterable[str]:
    variables = {name: value for name, value in facts.get(host, {}).items() if not str(value).startswith(UNEVALUATED)}
    alarm, warn = (_as_number(variables.get(f"time_sync_{name}_ms")) for name in ("alarm", "warn"))
    if warn is not None and warn > (ALARM_MS if alarm is None else alarm):
        limit = ALARM_MS if alarm is None else alarm
        yield f"time_sync_warn_ms: {warn:g}, above time_sync_alarm_ms ({limit:g}). Next: correct one of the two"
    for kind, defaults in POLLS.items():
        names = [f"time_sync_{kind}_{end}poll" for end in ("min", "max")]
        ends = [_as_number(variables.get(name)) for name in names]
        low, high = (default if value is None else value for value, default in zip(ends, defaults, strict=True))
        if low > high:
            found = f"{low:g}, above {names[1]} ({high:g}{', its default' if ends[1] is None else ''})"
            yield f"{names[0]}: {found}; wanted at most that. Next: set both"
    # What the inventory's own rules refuse already (a malformed address, one server twice) is said once.
    judged = any("time_sync_upstreams" in line for line in lines)
    if host in relays and variables.get("time_sync_upstreams") is not None and not judged:
        least = _as_number(variables.get("time_sync_min_operators"))
        try:
            entries = time_upstreams(
                variables["time_sync_upstreams"],
                relay_addresses(facts, relays),
                LEAST_OPERATORS if least is None else least,
            )
            yield from _own_node_errors(entries, facts, groups)
            mixed = {entry["nts"] for entry in entries}
            if len(mixed) > 1:
                yield "time_sync_upstreams: nts on some and not on others; wanted all or none. Next: correct it"
        except FilterError as error:
            yield str(error)
    yield from _key_errors(variables)


def _own_node_errors(entries: list[dict[str, Any]], facts: Any, groups: Any) -> Iterable[str]:
    """Upstreams that are nodes of this inventory: they follow the relays, so that a relay would follow itself.

    Another address within `rack_networks` may be a clock of one's own, such as a GPS receiver on the same switch.
    """
    nodes = [host for host in groups.get("gpu_nodes", []) if host in facts]
    own = {canonical(name): host for host in nodes for name in (host, facts[host].get("ansible_host") or host)}
    for entry in entries:
        name = canonical(entry["address"])
        if name in own:
            found = f"{entry['address']}: {own[name]}, a node of this inventory, which follows its relays"
            yield f"time_sync_upstreams: {found}; wanted servers outside. Next: remove it"
            return


def _key_errors(variables: Mapping[str, Any]) -> Iterable[str]:
    """Keys that role time_sync would refuse when it begins. No message holds a secret."""
    keys = variables.get("time_sync_keys") or []
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, Mapping) for key in keys):
        return  # told by the role's own specification
    ids = [_as_number(key.get("id")) for key in keys]
    for key, number in zip(keys, ids, strict=True):
        secret, size = str(key.get("key") or ""), CIPHER_BYTES.get(str(key.get("type", "SHA256")))
        length = (len(secret) - 4) // 2 if secret.startswith("HEX:") else len(secret.removeprefix("ASCII:"))
        if not SECRET_FORM.fullmatch(secret) or (size is not None and length != size):
            wanted = "HEX: and an even number of digits, for AES128 32 and for AES256 64 of them"
            what = f"time_sync_keys: key {number or 0:g} is not of a form that chronyd takes"
            yield f"{what}; wanted {wanted}. Next: correct it"
    if any(isinstance(key.get("id"), bool) for key in keys):
        yield "time_sync_keys: an id is true or false; wanted a number from 1. Next: correct it"
    if len(set(ids)) != len(ids):
        yield "time_sync_keys: an id is there twice; wanted each id once. Next: correct it"
    wish = _as_number(variables.get("time_sync_key_id"))
    if wish and wish not in ids:
        yield f"time_sync_key_id: {wish:g}, and time_sync_keys has no such key. Next: add it, or correct the id"


def _site_relays(host: str, facts: Any, relays: list[str]) -> list[str]:
    """The other relays of ``host``'s site: those that a relay asks beside it, or that a node follows."""
    site = facts.get(host, {}).get("rack_site")
    return [other for other in relays if other != host and facts[other].get("rack_site") == site]


def _keys_of(variables: Mapping[str, Any]) -> dict[float, tuple[str, str]] | None:
    """Id -> type and secret in one spelling; None where they cannot be read, which is told elsewhere."""
    given = variables.get("time_sync_keys") or []
    if not isinstance(given, (list, tuple)) or not all(isinstance(key, Mapping) for key in given):
        return None
    found = {}
    for key in given:
        number, secret = _as_number(key.get("id")), str(key.get("key", ""))
        if number is None:
            return None
        plain = secret.upper() if secret.startswith("HEX:") else secret.removeprefix("ASCII:")
        found[number] = (str(key.get("type") or "SHA256"), plain)
    return found


def _shared_key_errors(host: str, facts: Any, relays: list[str]) -> Iterable[str]:
    """Keys against the relays of the site: a packet signed with a key that the other end lacks gets no answer.

    One relay without them takes the site's second source away, silently. No message holds a secret.
    """
    own = _keys_of(facts.get(host, {}))
    for other in _site_relays(host, facts, relays):
        others = _keys_of(facts[other])
        if own is None or others is None:
            continue
        lacking = sorted(set(own) - set(others))
        unlike = sorted(number for number in set(own) & set(others) if own[number] != others[number])
        unknown = sorted(set(others) - set(own)) if host in relays else []
        if lacking:
            found, step = f"key {_listed(lacking)} is here and not on {other}", "give all relays of the site the same"
        elif unlike:
            found, step = f"key {_listed(unlike)} has another type or secret than on {other}", "correct one of the two"
        elif unknown:
            found, step = f"key {_listed(unknown)} is on {other} and not here", "give all relays of the site the same"
        else:
            continue
        yield f"time_sync_keys: {found}; wanted one set of keys on all relays of a site, or none. Next: {step}"
        return


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _asks_by_nts(variables: Mapping[str, Any]) -> bool:
    given = variables.get("time_sync_upstreams")
    entries = given if isinstance(given, (list, tuple)) else []
    return any(isinstance(entry, Mapping) and entry.get("nts") is True for entry in entries)


def _shared_nts_errors(host: str, facts: Any, relays: list[str]) -> Iterable[str]:
    """A site is as trustworthy as its least relay: whoever can lie to the one without NTS has half of the votes."""
    if host not in relays:
        return
    own = _asks_by_nts(facts[host])
    other = next((one for one in _site_relays(host, facts, relays) if _asks_by_nts(facts[one]) != own), None)
    if other is not None:
        found = f"nts here and not on {other}" if own else f"nts on {other} and not here"
        wanted = "all relays of a site or none"
        yield f"time_sync_upstreams: {found}; wanted {wanted}. Next: give both the same, in group_vars of the site"


def _as_number(value: Any) -> float | None:
    """A finite number, also as the text that it is when given by ``-e``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {
            "as_networks": as_networks,
            "other_sites": other_sites,
            "relay_addresses": relay_addresses,
            "site_peers": site_peers,
            "time_errors": time_errors,
            "time_upstreams": time_upstreams,
        }
