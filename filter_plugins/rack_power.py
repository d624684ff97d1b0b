# SPDX-License-Identifier: Apache-2.0
"""Whether the hosts of a rack fit on its power feed, with the arithmetic written out.

All figures are watts. A host's draw is taken at its worst: the host without GPUs, plus every active GPU
at its cap, plus every idle one at its idle draw, divided by the efficiency of the power supplies (1.0
where the figures were read at the plug). The feed's share that may be used is its limit, times a derating
(0.8 where the limit is a breaker's rating), less a margin: a cap is a control target, not a fuse. What else
hangs on the feed (rack_other_w) is added. The caps are those that role gpu_policy will set: see rack_facts.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Ansible loads every file here by itself; this is how one finds its neighbour.
sys.path.append(str(Path(__file__).resolve().parent))
from rack_facts import BadFactError, Caps, Gpus, Host, gain_w, raised, read_feed, read_host

# Sums are compared to a hundredth of a watt: 3 x (1800 / 0.94) must not be refused for its last bits.
RESOLUTION_W = 0.01


# --- arithmetic ----------------------------------------------------------------------------------


def _drawn(host: Host, caps: Caps, active: int) -> list[tuple[Gpus, int, int]]:
    """For each kind of GPU: how many at their cap, how many idle. The hungriest ones count as the active ones."""
    left, split = active, {}
    gained = [caps(entry) - entry.idles_at(caps(entry)) for entry in host.gpus]
    order = sorted(range(len(host.gpus)), key=lambda i: -gained[i])
    for i in order:
        busy = min(host.gpus[i].number, left)
        left -= busy
        split[i] = busy
    return [(entry, split[i], entry.number - split[i]) for i, entry in enumerate(host.gpus)]


def host_watts(host: Host, caps: Caps, active: int | None = None) -> float:
    """Watts at the plug, at worst."""
    wanted = host.active if active is None else active
    inside = host.base_w
    for entry, busy, idle in _drawn(host, caps, wanted):
        inside += busy * caps(entry) + idle * entry.idles_at(caps(entry))
    inside += sum(gain_w(override, host.gpus[kind], caps) for override, kind in raised(host, caps))
    return inside / host.efficiency


def _failover_extra_w(host: Host, caps: Caps) -> float:
    """What one more active GPU adds: the lost card counts as still drawing its cap when the spare takes over."""
    if host.active >= host.total:
        return 0.0
    return host_watts(host, caps, host.active + 1) - host_watts(host, caps)


def as_asked(entry: Gpus) -> float:
    """The caps that the inventory asks for."""
    return entry.peak_w


def at_share(share: float, movable: set[str] | None = None) -> Caps:
    """Every GPU at one share of the cap asked for, in whole watts, never below its minimum.

    ``movable`` names the models to which that applies, None means all; never where role gpu_policy is told a cap.
    """

    def cap(entry: Gpus) -> float:
        if entry.pinned or (movable is not None and entry.model not in movable):
            return entry.peak_w
        # The small addition undoes the last bit of 166 / 300 * 300.
        return min(entry.peak_w, max(math.ceil(entry.power_min_w), math.floor(entry.peak_w * share + 1e-9)))

    return cap


def _sum_w(hosts: list[Host], caps: Caps) -> float:
    return sum(host_watts(host, caps) for host in hosts)


def highest_caps(hosts: list[Host], usable_w: float, movable: set[str] | None = None) -> Caps | None:
    """The highest caps that fit: all movable models at the same share. None when even the lowest do not fit.

    The sum grows with the share, so the best of the shares at which some cap is a whole watt is found by halving.
    """
    peaks = {entry.peak_w for host in hosts for entry in host.gpus}
    shares = sorted({watt / peak for peak in peaks for watt in range(int(peak) + 1)} | {0.0, 1.0})

    def fits(share: float) -> bool:
        return _sum_w(hosts, at_share(share, movable)) <= usable_w + RESOLUTION_W

    if not fits(shares[0]):
        return None
    low, high = 0, len(shares) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(shares[middle]) else (low, middle - 1)
    return at_share(shares[low], movable)


def cap_table(hosts: list[Host], caps: Caps) -> dict[str, dict[str, float]]:
    """Host -> model -> cap; of two entries of one model the lower cap."""
    table: dict[str, dict[str, float]] = {}
    for host in hosts:
        row = table.setdefault(host.name, {})
        for entry in host.gpus:
            cap = caps(entry)
            whole = int(cap) if cap == int(cap) else cap
            row[entry.model] = min(whole, row.get(entry.model, whole))
    return table


def lowest_per_model(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Model -> cap; where hosts differ, the lowest."""
    lowest: dict[str, float] = {}
    for row in table.values():
        for model, cap in row.items():
            lowest[model] = min(cap, lowest.get(model, cap))
    return lowest


# --- writing it out ------------------------------------------------------------------------------


def watts(value: float) -> str:
    """Whole watts as such, others with one decimal: what is printed must add up."""
    rounded = round(value, 1)
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded:.1f}"


def _host_line(host: Host, caps: Caps) -> str:
    terms, ones = [f"host {watts(host.base_w)}"], []
    above = raised(host, caps)
    for kind, (entry, active, spare) in enumerate(_drawn(host, caps, host.active)):
        own = [override for override, raises in above if raises == kind]
        at_cap = min(active, len(own))
        for place, override in enumerate(own):
            before = caps(entry) if place < at_cap else entry.idles_at(caps(entry))
            ones.append(f"1 x {watts(before + gain_w(override, entry, caps))} (override {override.name})")
        busy, idle = active - at_cap, spare - (len(own) - at_cap)
        if busy:
            said = f"{entry.model}; {entry.pinned}" if entry.pinned else entry.model
            terms.append(f"{busy} x {watts(caps(entry))} ({said})")
        if idle:
            terms.append(f"{idle} idle x {watts(entry.idles_at(caps(entry)))} ({entry.model})")
    terms += ones
    text = " + ".join(terms)
    if host.efficiency != 1:
        text = f"({text}) / {host.efficiency:g} efficiency"
    return f"{host.name}: {text} = {watts(host_watts(host, caps))} W"


def _host_notes(host: Host, caps: Caps) -> list[str]:
    """What the inventory says and the sum does not count on."""
    counted = [override for override, _ in raised(host, caps)]
    names = ", ".join(f"{one.name} ({one.wish})" for one in host.cards if one not in counted)
    notes = []
    if names:
        notes.append(f"{host.name}: override {names} not counted: a swapped card would not answer to that name")
    if host.unenforced is not None:
        text = f"{host.name}: rack_active_gpus {host.unenforced} of {host.total} is not enforced yet"
        notes.append(f"{text}: all {host.total} are counted at their caps")
    return notes


def _budget_line(label: str, feed: dict[str, float], usable_w: float) -> str:
    text = f"{label}: feed {watts(feed['limit_w'])} W"
    if feed["derating"] != 1:
        text += f" x {feed['derating']:g} derating"
    return text + f" less {feed['margin']:g} % margin = {watts(usable_w)} W usable"


def _sum_line(hosts: list[Host], caps: Caps, other_w: float, usable_w: float) -> str:
    sum_w = _sum_w(hosts, caps) + other_w
    terms = " + ".join(watts(host_watts(host, caps)) for host in hosts)
    if other_w:
        terms += f" + {watts(other_w)} (rack_other_w)"
    text = f"{len(hosts)} host{'s' if len(hosts) != 1 else ''}: {terms or 0} = {watts(sum_w)} W"
    if sum_w <= usable_w + RESOLUTION_W:
        return text + f" of {watts(usable_w)} W: fits, {watts(usable_w - sum_w)} W left"
    return text + f" of {watts(usable_w)} W: over by {watts(sum_w - usable_w)} W"


def _next_line(caps: Caps | None, hosts: list[Host], other_w: float) -> str:
    told = [host.name for host in hosts if host.cards or any(entry.pinned for entry in host.gpus)]
    if caps is None:
        text = "next: move a host to another feed; even the lowest caps do not fit"
        return text + (f" beside gpu_policy_power_cap_w and gpu_policy_overrides of {', '.join(told)}" if told else "")
    lowest = lowest_per_model(cap_table(hosts, caps))
    listed = ", ".join(f"{watts(cap)} W for {model}" for model, cap in sorted(lowest.items()))
    total = watts(_sum_w(hosts, caps) + other_w)
    step = "next: move a host to another feed, or accept lower caps (power_cap_w in rack_gpus)"
    return f"{step}: {listed} would make {total} W"


# --- the plan ------------------------------------------------------------------------------------


def _rack_key(facts: Mapping[str, Any]) -> tuple[str, str]:
    return str(facts.get("rack_site") or ""), str(facts.get("rack_name") or "")


def _plan_rack(key: tuple[str, str], members: list[Mapping[str, Any]], idle_enforced: bool) -> dict[str, Any]:
    site, rack = key
    label = f"rack {rack or '(no name)'}" + (f" at {site}" if site else "")
    names = [str(facts.get("host") or "?") for facts in members]
    plan: dict[str, Any] = {"rack": rack, "site": site, "hosts": names, "errors": [], "fits": False, "lines": []}
    plan.update(
        feed_limit_w=None, usable_w=None, sum_w=None, spare_w=None, failover_w=None, host_w={}, cap_w={}, host_cap_w={}
    )
    if not rack:
        plan["errors"] = [f"{name}: rack_name is not set; it needs the name of the rack" for name in names]
        return plan
    hosts = []
    for facts in members:
        try:
            hosts.append(read_host(facts, idle_enforced))
        except BadFactError as error:
            plan["errors"].append(str(error))
    try:
        feed = read_feed(names, members)
    except BadFactError as error:
        plan["errors"].append(str(error))
    if plan["errors"]:
        plan["lines"] = [f"{label}: its power cannot be planned", *plan["errors"]]
        return plan
    usable_w = feed["limit_w"] * feed["derating"] * (1 - feed["margin"] / 100)
    plan.update(feed_limit_w=feed["limit_w"], usable_w=round(usable_w, 2))
    return _judge(plan, label, feed, usable_w, hosts)


def _left_to_us(hosts: list[Host]) -> set[str]:
    """Models whose every entry says power_cap_w: auto, apart from those for which role gpu_policy is told a cap."""
    entries = [entry for host in hosts for entry in host.gpus if not entry.pinned]
    return {entry.model for entry in entries} - {entry.model for entry in entries if not entry.auto}


def _judge(
    plan: dict[str, Any], label: str, feed: dict[str, float], usable_w: float, hosts: list[Host]
) -> dict[str, Any]:
    """Fill in the sums. The caps judged are the operator's: given, or the maximum, or (auto) the plan's own."""
    # Lower caps than asked for are only a proposal, unless the operator wrote "auto" for the model.
    other_w = feed["other_w"]
    granted = highest_caps(hosts, usable_w - other_w, _left_to_us(hosts))
    best = granted if granted is not None else highest_caps(hosts, usable_w - other_w)
    judged = as_asked if granted is None else granted
    sum_w = _sum_w(hosts, judged) + other_w
    plan["fits"] = granted is not None
    plan["host_w"] = {host.name: round(host_watts(host, judged), 2) for host in hosts}
    plan["sum_w"], plan["spare_w"] = round(sum_w, 2), round(usable_w - sum_w, 2)
    plan["failover_w"] = round(sum_w + max((_failover_extra_w(host, judged) for host in hosts), default=0.0), 2)
    plan["host_cap_w"] = {} if best is None else cap_table(hosts, best)
    plan["cap_w"] = lowest_per_model(plan["host_cap_w"])
    plan["lines"] = [_budget_line(label, feed, usable_w), *(_host_line(host, judged) for host in hosts)]
    plan["lines"] += [note for host in hosts for note in _host_notes(host, judged)]
    plan["lines"].append(_sum_line(hosts, judged, other_w, usable_w))
    if not plan["fits"]:
        plan["lines"].append(_next_line(best, hosts, other_w))
    elif plan["failover_w"] > plan["sum_w"]:
        text = f"while one spare takes over: {watts(plan['failover_w'])} W of {watts(usable_w)} W"
        over = plan["failover_w"] > usable_w + RESOLUTION_W
        plan["lines"].append(text + (": over for as long as that lasts" if over else ""))
    return plan


def rack_power_plan(hosts: Any, idle_enforced: bool = False) -> dict[str, Any]:
    """The plan of every rack in ``hosts``, a list of dictionaries with ``host``, its rack facts and the inputs
    gpu_policy_power_cap_w and gpu_policy_overrides of role gpu_policy, whose caps are the ones that count.

    Returns ``racks``, a list of one dictionary per rack (site and name), and ``hosts``, which leads from
    a host's name to the position of its rack in that list. ``host_cap_w`` is per host and model the highest
    cap that fits (the maximum where it fits, empty where even the lowest does not), ``cap_w`` the lowest of
    these per model; ``fits`` judges the caps that
    the operator asked for: those given, or the maximum, or the plan's own where power_cap_w is "auto".
    ``idle_enforced``: something keeps all but rack_active_gpus of a host idle; without it every GPU counts at its cap.
    """
    members: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for facts in hosts or []:
        if not isinstance(facts, Mapping):
            raise TypeError(f"rack_power_plan: {facts!r} where a dictionary of a host's rack facts belongs")
        members.setdefault(_rack_key(facts), []).append(facts)
    racks = [_plan_rack(key, members[key], idle_enforced) for key in sorted(members)]
    where = {name: position for position, rack in enumerate(racks) for name in rack["hosts"]}
    return {"racks": racks, "hosts": where}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"rack_power_plan": rack_power_plan}
