# SPDX-License-Identifier: BSD-2-Clause
"""A running chronyd against its configuration: whom it asks and whom it serves, compared and put right.

A file that is right proves nothing: ``chronyc add server`` and ``chronyc allow`` leave no trace in any file, and
releases before 4.7 can lose or multiply a source in a reload (NEWS of chrony 4.5 and 4.7).
"""

from __future__ import annotations

import ipaddress
from typing import Callable, Mapping, NamedTuple, Sequence

from .chronyc import CHRONYC_TIMEOUT_S, DaemonDownError, canonical, parse_sources
from .errors import BusyError, NotAppliedError, ToolError
from .run import Completed, run

Runner = Callable[..., Completed]

# Addresses that nobody has (RFC 5737, RFC 3849): whoever serves these serves the world.
STRANGERS = ("192.0.2.1", "2001:db8:ffff:ffff::1")
# How often two reports are asked for until they tell of the same sources.
LOOKS = 3
# chronyc's word for the address of a name that is not resolved (`ID#0000000001`).
UNRESOLVED = "ID#"


class Running(NamedTuple):
    """What the daemon does now."""

    sources: list[tuple[str, str]]  # (name as configured, address or ID# of a name that is not resolved)
    denied: list[str]  # networks that should be served and are not
    served_strangers: list[str]  # addresses that should not be served and are


class Fix(NamedTuple):
    """One chronyc command and why."""

    words: tuple[str, ...]
    why: str


def look(networks: Sequence[str] | None, runner: Runner = run) -> Running:
    """Sources, and for a relay (``networks`` not None) whom it serves. DaemonDownError when it does not answer."""
    sources = _sources(runner)
    denied: list[str] = []
    strangers: list[str] = []
    if networks is not None:
        probes = {probe_of(network): network for network in networks}
        denied = [network for probe, network in probes.items() if not allowed(probe, runner)]
        foreign = [address for address in STRANGERS if not _inside(address, networks)]
        strangers = [address for address in foreign if allowed(address, runner)]
    return Running(sources, denied, strangers)


def _sources(runner: Runner) -> list[tuple[str, str]]:
    """(name, address) of every server. One report has the names, another one the addresses, in the same order."""
    for _ in range(LOOKS):
        named = parse_sources(_chronyc(["-c", "-N", "sources", "-a"], runner))
        plain = parse_sources(_chronyc(["-c", "-n", "sources", "-a"], runner))
        # Otherwise one was added or removed between the two looks, and names would get another one's address.
        if len(named) == len(plain):
            return [(name.name, address.name) for name, address in zip(named, plain) if name.mode != "refclock"]
    raise BusyError("the sources of chronyd", "another number at each look", "at rest", "who else commands it?")


def probe_of(network: str) -> str:
    """An address inside a network, its first host where it has one."""
    parsed = ipaddress.ip_network(network)
    return str(parsed[1] if parsed.num_addresses > 1 else parsed[0])


def _inside(address: str, networks: Sequence[str]) -> bool:
    found = ipaddress.ip_address(address)
    return any(found in ipaddress.ip_network(network) for network in networks)


def allowed(address: str, runner: Runner = run) -> bool:
    """Whether the daemon answers an NTP packet from this address (``chronyc accheck``)."""
    said = _chronyc(["accheck", address], runner)
    if "Access allowed" in said:
        return True
    if "Access denied" in said:
        return False
    raise ToolError(f"chronyc accheck {address}", said.strip(), "allowed or denied", "run it as root")


def fixes(running: Running, wanted: Mapping[str, str], reload_command: Sequence[str]) -> list[Fix]:
    """Commands that bring a running daemon to ``wanted`` (server -> options). Pure."""
    keys = {canonical(name): name for name in wanted}
    found: dict[str, int] = {}
    todo: list[Fix] = []
    # Of two the one that has an address stays.
    for name, address in sorted(running.sources, key=lambda source: source[1].startswith(UNRESOLVED)):
        key = canonical(name)
        found[key] = found.get(key, 0) + 1
        if key not in keys:
            todo.append(Fix(("delete", address), f"source {name} is not configured"))
        elif found[key] > 1:
            todo.append(Fix(("delete", address), f"source {name} is there twice"))
    todo += [
        Fix(("add", "server", name, *options.split()), f"source {name} is configured and not there")
        for name, options in wanted.items()
        if canonical(name) not in found
    ]
    access = [f"{network} is not served" for network in running.denied]
    access += [f"{address} is served, and so is the world around it" for address in running.served_strangers]
    if access:
        todo.append(Fix(tuple(reload_command[1:]), "; ".join(access)))
    return todo


def carry_out(todo: Sequence[Fix], runner: Runner = run) -> None:
    """Run the commands; what came of them is seen by the next look."""
    for fix in todo:
        words = list(fix.words)
        done = runner(["chronyc", *words], CHRONYC_TIMEOUT_S)
        if done.rc != 0:
            raise NotAppliedError(
                "chronyc " + " ".join(words), done.said, "200 OK", "systemctl status chrony; run it as root"
            )


def _chronyc(words: Sequence[str], runner: Runner) -> str:
    done = runner(["chronyc", *words], CHRONYC_TIMEOUT_S)
    if done.missing or done.rc != 0:
        said = "chronyc is not installed" if done.missing else done.out.strip() or done.said
        if words[0] == "accheck" and not done.missing and "Access" in said:
            return said
        raise DaemonDownError("chronyd", said, "an answer", "systemctl status chrony; journalctl -u chrony")
    return done.out
