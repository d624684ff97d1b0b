# SPDX-License-Identifier: BSD-2-Clause
"""The NTP port in a firewall that the host already runs: firewalld or ufw, by their own commands, read back.

In nftables a packet has to pass every table, so an accept of ours does not help against their drop. On a relay
the port is therefore opened there too: in firewalld for the zone that the asking network's packets are judged
by (its source, else its interface; never simply the default zone), now and for good; in ufw for each network.
Who may ask is still decided by our own table.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from typing import Any, Callable, NamedTuple, Sequence

from . import units
from .errors import NotAppliedError, ToolError
from .files import read_text
from .run import Completed, run

Runner = Callable[..., Completed]

NTP_PORT = 123
FIREWALLD = "firewalld.service"
UFW_CONFIGURATION = "/etc/ufw/ufw.conf"
UFW_COMMENT = "steadyrack ntp"
# firewall-cmd and ufw are Python programs that talk to a daemon or call iptables many times, seconds.
TOOL_TIMEOUT_S = 45.0
# A zone with one of these targets lets everything in.
OPEN_TARGETS = ("ACCEPT",)


class Opening(NamedTuple):
    """One thing that a firewall still has to be told."""

    argv: tuple[str, ...]
    what: str


def openings(
    networks: Sequence[str], runner: Runner = run, ufw_configuration: str = UFW_CONFIGURATION
) -> list[Opening]:
    """What the firewalls that run here lack before these networks can ask for the time."""
    if not networks:
        return []
    found: list[Opening] = []
    if units.show_units([FIREWALLD], runner)[FIREWALLD].up:
        found += firewalld_openings(networks, runner)
    if ufw_enabled(ufw_configuration):
        found += ufw_openings(networks, runner)
    return found


def carry_out(wanted: Sequence[Opening], networks: Sequence[str], runner: Runner = run,
              ufw_configuration: str = UFW_CONFIGURATION) -> None:  # fmt: skip
    """Say it to them, and read back that nothing is left to say."""
    for opening in wanted:
        _ask(list(opening.argv), opening.what, runner)
    left = openings(networks, runner, ufw_configuration) if wanted else []
    if left:
        raise NotAppliedError(
            "the host's own firewall", "still lacks: " + "; ".join(one.what for one in left), "open for NTP",
            " ".join(left[0].argv),
        )  # fmt: skip


def _ask(argv: list[str], wanted: str, runner: Runner) -> str:
    done = runner(argv, TOOL_TIMEOUT_S)
    if done.rc != 0:
        raise ToolError(" ".join(argv), f"exit status {done.rc}: {done.said}", wanted, "run it by hand")
    return done.out


# --- firewalld -----------------------------------------------------------------------------------


class Zone(NamedTuple):
    """What of a zone decides here."""

    name: str
    target: str
    interfaces: tuple[str, ...]
    sources: tuple[str, ...]
    services: tuple[str, ...]
    ports: tuple[str, ...]

    @property
    def open(self) -> bool:
        return self.target in OPEN_TARGETS or "ntp" in self.services or f"{NTP_PORT}/udp" in self.ports


def firewalld_openings(networks: Sequence[str], runner: Runner = run) -> list[Opening]:
    """Per zone that judges one of the networks: the service ntp, in the running firewall and in the stored one."""
    default = _ask(["firewall-cmd", "--get-default-zone"], "the default zone", runner).strip()
    running = parse_zones(_ask(["firewall-cmd", "--list-all-zones"], "the zones", runner))
    stored = parse_zones(_ask(["firewall-cmd", "--permanent", "--list-all-zones"], "the stored zones", runner))
    found = []
    for name in zones_of(networks, running, default, lambda network: device_of(network, runner)):
        for zones, words, where in ((running, [], "now"), (stored, ["--permanent"], "for good")):
            if name not in zones:
                if words:
                    continue  # a zone that somebody made for this boot only
                raise ToolError("firewall-cmd", f"no zone {name}", "the zone of the network", "firewall-cmd --reload")
            if not zones[name].open:
                argv = ("firewall-cmd", *words, f"--zone={name}", "--add-service=ntp")
                found.append(Opening(argv, f"firewalld: service ntp in zone {name}, {where}"))
    return found


def zones_of(networks: Sequence[str], zones: dict[str, Zone], default: str, device: Callable[[str], str]) -> list[str]:
    """The zones by which firewalld judges packets from these networks: a source's before an interface's (its rule)."""
    chosen: list[str] = []
    for network in networks:
        chosen += [zone.name for zone in zones.values() if any(overlap(network, source) for source in zone.sources)]
        by_interface = [zone.name for zone in zones.values() if device(network) in zone.interfaces]
        chosen += by_interface or [default]
    return list(dict.fromkeys(chosen))


def overlap(one: str, other: str) -> bool:
    """Whether two networks share an address; a source that is no network (a MAC, an ipset) shares none we know of."""
    try:
        first, second = ipaddress.ip_network(one, strict=False), ipaddress.ip_network(other, strict=False)
    except ValueError:
        return False
    return first.version == second.version and first.overlaps(second)


def device_of(network: str, runner: Runner = run) -> str:
    """The interface on which packets from a network arrive: the one by which its addresses are reached."""
    subnet = ipaddress.ip_network(network, strict=False)
    address = subnet.network_address + (1 if subnet.num_addresses > 2 else 0)
    out = _ask(["ip", "-j", "route", "get", str(address)], f"a route to {network}", runner)
    try:
        return str(json.loads(out)[0]["dev"])
    except (ValueError, LookupError, TypeError):
        raise ToolError(
            "ip route get", out.strip() or "nothing", f"the interface towards {network}", "ip route"
        ) from None


def parse_zones(text: str) -> dict[str, Zone]:
    """``firewall-cmd --list-all-zones``: a zone's name at the start of a line, its settings indented below it."""
    zones: dict[str, Zone] = {}
    name, values = "", {}  # type: str, dict[str, list[str]]
    for line in [*text.splitlines(), "end"]:
        if line.strip() and not line[0].isspace():
            if name:
                zones[name] = _zone(name, values)
            name, values = line.split()[0], {}
        elif ":" in line:
            key, _colon, rest = line.strip().partition(":")
            values.setdefault(key, rest.split())
    return zones


def _zone(name: str, values: dict[str, list[str]]) -> Zone:
    def listed(key: str) -> tuple[str, ...]:
        return tuple(values.get(key, ()))

    target = (values.get("target") or ["default"])[0].strip("%")
    return Zone(name, target, listed("interfaces"), listed("sources"), listed("services"), listed("ports"))


# --- ufw -----------------------------------------------------------------------------------------


def ufw_enabled(path: str = UFW_CONFIGURATION) -> bool:
    """Whether ufw filters here; its own file says so, and is there only with ufw."""
    lines = [line.strip().lower().replace(" ", "") for line in (read_text(path) or "").splitlines()]
    return "enabled=yes" in lines


def ufw_openings(networks: Sequence[str], runner: Runner = run) -> list[Opening]:
    """A rule for each network; one of ours for a network that may not ask any more is taken away."""
    there = parse_added(_ask(["ufw", "show", "added"], "the rules of ufw", runner))
    rules = [("allow", "from", network, "to", "any", "port", str(NTP_PORT), "proto", "udp") for network in networks]
    found = [
        Opening(("ufw", *rule, "comment", UFW_COMMENT), f"ufw: {' '.join(rule)}") for rule in rules if rule not in there
    ]
    found += [
        Opening(("ufw", "--force", "delete", *rule), f"ufw: delete {' '.join(rule)}")
        for rule, comment in there.items()
        if comment == UFW_COMMENT and rule not in rules
    ]
    return found


def parse_added(text: str) -> dict[tuple[str, ...], str]:
    """``ufw show added``: rule words (in ufw's order) -> comment. A lone address is listed without its /32."""
    found = {}
    for line in text.splitlines():
        words = shlex.split(line) if line.startswith("ufw ") else []
        if not words:
            continue
        comment = words[words.index("comment") + 1] if "comment" in words[:-1] else ""
        rule = words[1 : words.index("comment")] if comment else words[1:]
        found[tuple(_canonical(word) for word in rule)] = comment
    return found


def _canonical(word: str) -> str:
    """An address as a network, so that 10.0.0.1 and 10.0.0.1/32 compare equal; any other word as it is."""
    try:
        return str(ipaddress.ip_network(word, strict=False)) if "." in word or ":" in word else word
    except ValueError:
        return word


def told(wanted: Sequence[Opening]) -> dict[str, Any]:
    """One entry of Ansible's diff."""
    return {
        "before_header": "the host's own firewall",
        "after_header": "the host's own firewall",
        "before": "",
        "after": "".join(one.what + "\n" for one in wanted),
    }
