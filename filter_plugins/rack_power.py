# SPDX-License-Identifier: Apache-2.0
"""Whether the hosts of a rack fit on its power feed, with the arithmetic written out.

All figures are watts. A host's draw is taken at its worst: the host without GPUs, plus every active GPU
at its cap, plus every idle one at its idle draw, divided by the efficiency of the power supplies (1.0
where the figures were read at the plug). The feed's share that may be used is its limit, times a derating
(0.8 where the limit is a breaker's rating), less a margin: a cap is a control target, not a fuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# Defaults of the rack facts; the same as in inventory/example and docs.
DEFAULTS: dict[str, Any] = {
    "rack_feed_margin_percent": 5,
    "rack_feed_derating": 1.0,
    "rack_psu_efficiency": 1.0,
    "rack_host_base_w": 600,
}
AUTO = "auto"
# Sums are compared to a hundredth of a watt: 3 x (1800 / 0.94) must not be refused for its last bits.
RESOLUTION_W = 0.01


class Gpus(NamedTuple):
    """GPUs of one model in one host."""

    model: str
    number: int
    power_max_w: float
    power_min_w: float
    idle_w: float | None  # None: nobody stated it, so an idle one counts like an active one
    cap_w: float | None  # the operator's cap; None: none given
    auto: bool  # the operator leaves the cap to the plan

    @property
    def peak_w(self) -> float:
        """The cap the operator asked for; without one, the most the card can draw."""
        return self.power_max_w if self.cap_w is None else self.cap_w

    def idles_at(self, cap_w: float) -> float:
        """An idle GPU's draw, never above its cap."""
        return cap_w if self.idle_w is None else min(self.idle_w, cap_w)


class Host(NamedTuple):
    """What the plan needs of one host."""

    name: str
    base_w: float
    efficiency: float
    active: int
    gpus: tuple[Gpus, ...]

    @property
    def total(self) -> int:
        return sum(entry.number for entry in self.gpus)


# The cap under which a GPU is calculated.
Caps = Callable[[Gpus], float]


class BadFactError(ValueError):
    """A rack fact that cannot be calculated with; the text names host and fact."""


# --- reading the facts ---------------------------------------------------------------------------


def _number(host: str, facts: Mapping[str, Any], key: str, span: tuple[float, float], note: str = "") -> float:
    low, high = span
    value = facts.get(key, DEFAULTS.get(key))
    where = f"{host}: {note}{key}"
    if value is None:
        raise BadFactError(f"{where} is not set; it needs a number")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadFactError(f"{where} is {value!r}; it needs a number")
    if not low <= value <= high:
        raise BadFactError(f"{where} is {value!r}; it must lie between {low:g} and {high:g}")
    return value


def _gpus(host: str, entry: Any, position: int) -> Gpus:
    note = f"rack_gpus[{position}]."
    if not isinstance(entry, Mapping):
        raise BadFactError(
            f"{host}: rack_gpus[{position}] is {entry!r}; it needs model, count, power_max_w, power_min_w"
        )
    model = entry.get("model")
    if not isinstance(model, str) or not model.strip():
        raise BadFactError(f"{host}: {note}model is {model!r}; it needs the model's name")
    count = _number(host, entry, "count", (1, 64), note)
    if count != int(count):
        raise BadFactError(f"{host}: {note}count is {count!r}; it needs a whole number")
    high = _number(host, entry, "power_max_w", (1, 10000), note)
    low = _number(host, entry, "power_min_w", (1, high), note)
    cap = entry.get("power_cap_w")
    given = None
    if cap is not None and cap != AUTO:
        given = _number(host, entry, "power_cap_w", (low, high), note)
    idle = None if entry.get("idle_w") is None else _number(host, entry, "idle_w", (0, high), note)
    return Gpus(str(model), int(count), high, low, idle, given, cap == AUTO)


def _host(facts: Mapping[str, Any]) -> Host:
    name = str(facts.get("host") or "?")
    listed = facts.get("rack_gpus")
    if not isinstance(listed, (list, tuple)):
        raise BadFactError(f"{name}: rack_gpus is {listed!r}; it needs a list, empty for a host without GPUs")
    gpus = tuple(_gpus(name, entry, position) for position, entry in enumerate(listed))
    base = _number(name, facts, "rack_host_base_w", (0, 100000))
    efficiency = _number(name, facts, "rack_psu_efficiency", (0.5, 1))
    total = sum(entry.number for entry in gpus)
    active = total
    if facts.get("rack_active_gpus") is not None:
        active = int(_number(name, facts, "rack_active_gpus", (0, total)))
        if active != facts["rack_active_gpus"]:
            raise BadFactError(f"{name}: rack_active_gpus is {facts['rack_active_gpus']!r}; it needs a whole number")
    return Host(name, base, efficiency, active, gpus)


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

    ``movable`` names the models to which that applies, None means all.
    """

    def cap(entry: Gpus) -> float:
        if movable is not None and entry.model not in movable:
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
    terms = [f"host {watts(host.base_w)}"]
    for entry, busy, idle in _drawn(host, caps, host.active):
        if busy:
            terms.append(f"{busy} x {watts(caps(entry))} ({entry.model})")
        if idle:
            terms.append(f"{idle} idle x {watts(entry.idles_at(caps(entry)))} ({entry.model})")
    text = " + ".join(terms)
    if host.efficiency != 1:
        text = f"({text}) / {host.efficiency:g} efficiency"
    return f"{host.name}: {text} = {watts(host_watts(host, caps))} W"


def _budget_line(label: str, feed: dict[str, float], usable_w: float) -> str:
    text = f"{label}: feed {watts(feed['limit_w'])} W"
    if feed["derating"] != 1:
        text += f" x {feed['derating']:g} derating"
    return text + f" less {feed['margin']:g} % margin = {watts(usable_w)} W usable"


def _sum_line(hosts: list[Host], caps: Caps, sum_w: float, usable_w: float) -> str:
    terms = " + ".join(watts(host_watts(host, caps)) for host in hosts)
    text = f"{len(hosts)} host{'s' if len(hosts) != 1 else ''}: {terms or 0} = {watts(sum_w)} W"
    if sum_w <= usable_w + RESOLUTION_W:
        return text + f" of {watts(usable_w)} W: fits, {watts(usable_w - sum_w)} W left"
    return text + f" of {watts(usable_w)} W: over by {watts(sum_w - usable_w)} W"


def _next_line(caps: Caps | None, hosts: list[Host], usable_w: float) -> str:
    if caps is None:
        return "next: move a host to another feed; even the lowest caps do not fit"
    lowest = lowest_per_model(cap_table(hosts, caps))
    listed = ", ".join(f"{watts(cap)} W for {model}" for model, cap in sorted(lowest.items()))
    total = watts(_sum_w(hosts, caps))
    step = "next: move a host to another feed, or accept lower caps (power_cap_w in rack_gpus)"
    return f"{step}: {listed} would make {total} W"


# --- the plan ------------------------------------------------------------------------------------


def _rack_key(facts: Mapping[str, Any]) -> tuple[str, str]:
    return str(facts.get("rack_site") or ""), str(facts.get("rack_name") or "")


def _feed(names: list[str], members: list[Mapping[str, Any]]) -> dict[str, float]:
    """The rack's feed, on which all its hosts must agree."""
    feeds = []
    for name, facts in zip(names, members, strict=True):
        limit = _number(name, facts, "rack_feed_limit_w", (1, 1000000))
        margin = _number(name, facts, "rack_feed_margin_percent", (0, 99))
        derating = _number(name, facts, "rack_feed_derating", (0.01, 1))
        feeds.append({"limit_w": limit, "margin": margin, "derating": derating})
    for name, feed in zip(names, feeds, strict=True):
        if feed != feeds[0]:
            raise BadFactError(f"{name} and {names[0]} are in one rack but differ in its feed: {feed} and {feeds[0]}")
    return feeds[0]


def _plan_rack(key: tuple[str, str], members: list[Mapping[str, Any]]) -> dict[str, Any]:
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
            hosts.append(_host(facts))
        except BadFactError as error:
            plan["errors"].append(str(error))
    try:
        feed = _feed(names, members)
    except BadFactError as error:
        plan["errors"].append(str(error))
    if plan["errors"]:
        plan["lines"] = [f"{label}: its power cannot be planned", *plan["errors"]]
        return plan
    usable_w = feed["limit_w"] * feed["derating"] * (1 - feed["margin"] / 100)
    plan.update(feed_limit_w=feed["limit_w"], usable_w=round(usable_w, 2))
    return _judge(plan, label, feed, usable_w, hosts)


def _left_to_us(hosts: list[Host]) -> set[str]:
    """Models whose every entry says power_cap_w: auto."""
    every = {entry.model for host in hosts for entry in host.gpus}
    return every - {entry.model for host in hosts for entry in host.gpus if not entry.auto}


def _judge(
    plan: dict[str, Any], label: str, feed: dict[str, float], usable_w: float, hosts: list[Host]
) -> dict[str, Any]:
    """Fill in the sums. The caps judged are the operator's: given, or the maximum, or (auto) the plan's own."""
    # Lower caps than asked for are only a proposal, unless the operator wrote "auto" for the model.
    granted = highest_caps(hosts, usable_w, _left_to_us(hosts))
    best = granted if granted is not None else highest_caps(hosts, usable_w)
    judged = as_asked if granted is None else granted
    sum_w = _sum_w(hosts, judged)
    plan["fits"] = granted is not None
    plan["host_w"] = {host.name: round(host_watts(host, judged), 2) for host in hosts}
    plan["sum_w"], plan["spare_w"] = round(sum_w, 2), round(usable_w - sum_w, 2)
    plan["failover_w"] = round(sum_w + max((_failover_extra_w(host, judged) for host in hosts), default=0.0), 2)
    plan["host_cap_w"] = {} if best is None else cap_table(hosts, best)
    plan["cap_w"] = lowest_per_model(plan["host_cap_w"])
    plan["lines"] = [_budget_line(label, feed, usable_w), *(_host_line(host, judged) for host in hosts)]
    plan["lines"].append(_sum_line(hosts, judged, sum_w, usable_w))
    if not plan["fits"]:
        plan["lines"].append(_next_line(best, hosts, usable_w))
    elif plan["failover_w"] > plan["sum_w"]:
        text = f"while one spare takes over: {watts(plan['failover_w'])} W of {watts(usable_w)} W"
        over = plan["failover_w"] > usable_w + RESOLUTION_W
        plan["lines"].append(text + (": over for as long as that lasts" if over else ""))
    return plan


def rack_power_plan(hosts: Any) -> dict[str, Any]:
    """The plan of every rack in ``hosts``, a list of dictionaries with ``host`` and its rack facts.

    Returns ``racks``, a list of one dictionary per rack (site and name), and ``hosts``, which leads from
    a host's name to the position of its rack in that list. ``host_cap_w`` is per host and model the highest
    cap that fits (the maximum where it fits, empty where even the lowest does not), ``cap_w`` the lowest of
    these per model; ``fits`` judges the caps that
    the operator asked for: those given, or the maximum, or the plan's own where power_cap_w is "auto".
    """
    members: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for facts in hosts or []:
        if not isinstance(facts, Mapping):
            raise TypeError(f"rack_power_plan: {facts!r} where a dictionary of a host's rack facts belongs")
        members.setdefault(_rack_key(facts), []).append(facts)
    racks = [_plan_rack(key, members[key]) for key in sorted(members)]
    where = {name: position for position, rack in enumerate(racks) for name in rack["hosts"]}
    return {"racks": racks, "hosts": where}


def rack_hosts(facts: Any, hosts: Any) -> list[dict[str, Any]]:
    """The list that ``rack_power_plan`` takes: of host -> facts (``inventory_facts``), those hosts that draw power."""
    return [{**facts.get(host, {}), "host": str(host)} for host in hosts or []]


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"rack_hosts": rack_hosts, "rack_power_plan": rack_power_plan}
