# SPDX-License-Identifier: Apache-2.0
"""Whether the hosts of a rack fit on its power feed, with the arithmetic written out.

All figures are watts. A host's draw is taken at its worst: the host without GPUs, plus every active GPU
at its cap, plus every idle spare at its draw, divided by the efficiency of the power supplies (1.0
where the figures were read at the plug). The feed's share that may be used is its limit, times a derating
(0.8 where the limit is a breaker's rating), less a margin: a cap is a control target, not a fuse. What else
hangs on the feed (rack_other_w) is added. The caps are those that role gpu_policy will set: see rack_facts.py.

The worst moment is a fail-over. A card that has fallen off the bus cannot be capped and may go on drawing its
last cap until its host is powered off, while the spare opens at its own: a host that fails over counts with every
GPU at its cap, for its spares may go one after the other. A rack fits when that moment fits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Ansible loads every file here by itself; this is how one finds its neighbour.
sys.path.append(str(Path(__file__).resolve().parent))
from rack_facts import BadFactError, Caps, Feed, Gpus, Host, gain_w, raised, read_feed, read_host

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


def _opened_w(host: Host, caps: Caps) -> float:
    """What the spares of a host add when all have taken over from cards that still draw."""
    return host_watts(host, caps, host.total) - host_watts(host, caps)


def sum_w(hosts: list[Host], caps: Caps, feed: Feed) -> float:
    """Watts of the rack at the plug, every spare idle."""
    return sum(host_watts(host, caps) for host in hosts) + feed.other_w


def failover_w(hosts: list[Host], caps: Caps, feed: Feed) -> float:
    """The same at the worst moment: the spares of one host have taken over, or those of all at once."""
    opened = [_opened_w(host, caps) for host in hosts]
    return sum_w(hosts, caps, feed) + (sum(opened) if feed.failover_hosts == "all" else max(opened, default=0.0))


def fits(hosts: list[Host], caps: Caps, feed: Feed) -> bool:
    """Whether both fit, each within what is allowed to it."""
    now, worst = sum_w(hosts, caps, feed), failover_w(hosts, caps, feed)
    return now <= feed.usable_w + RESOLUTION_W and worst <= feed.moment_w + RESOLUTION_W


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


def highest_caps(hosts: list[Host], feed: Feed, movable: set[str] | None = None) -> Caps | None:
    """The highest caps that fit: all movable models at the same share. None when even the lowest do not fit.

    Both sums grow with the share, so the best of the shares at which some cap is a whole watt is found by halving.
    """
    peaks = {entry.peak_w for host in hosts for entry in host.gpus}
    shares = sorted({watt / peak for peak in peaks for watt in range(int(peak) + 1)} | {0.0, 1.0})
    if not fits(hosts, at_share(shares[0], movable), feed):
        return None
    low, high = 0, len(shares) - 1
    while low < high:
        middle = (low + high + 1) // 2
        enough = fits(hosts, at_share(shares[middle], movable), feed)
        low, high = (middle, high) if enough else (low, middle - 1)
    return at_share(shares[low], movable)


def most_hosts(hosts: list[Host], caps: Caps, feed: Feed) -> list[Host]:
    """As many of the hosts as fit, the thriftiest first; in the order given where they are alike.

    Exact, but for all hosts failing over at once with a limit of its own (rack_failover_may_exceed): two sums to keep.
    """
    best: list[Host] = []
    still = sorted(hosts, key=lambda host: host_watts(host, caps))
    for order in (still, sorted(hosts, key=lambda host: host_watts(host, caps, host.total))):
        # Among hosts whose fail-over adds no more than this one's, the sum alone decides.
        for opened in sorted({_opened_w(host, caps) for host in hosts}):
            chosen: list[Host] = []
            for host in order:
                if _opened_w(host, caps) <= opened and fits([*chosen, host], caps, feed):
                    chosen.append(host)
            best = max(best, chosen, key=len)
    return best


def with_another_spare(hosts: list[Host]) -> list[Host]:
    """One more spare in each host that keeps an active GPU."""
    return [host._replace(active=host.active - 1) if host.active > 1 else host for host in hosts]


def proposals(hosts: list[Host], caps: Caps, feed: Feed) -> list[dict[str, Any]]:
    """What would fit instead: lower caps, fewer hosts, one more spare a host; each with its sums."""

    def proposal(kind: str, some: list[Host], at: Caps, **change: Any) -> dict[str, Any]:
        sums = {"sum_w": round(sum_w(some, at, feed), 2), "failover_w": round(failover_w(some, at, feed), 2)}
        return {"kind": kind, **change, **sums}

    found = []
    lower, few, spared = highest_caps(hosts, feed), most_hosts(hosts, caps, feed), with_another_spare(hosts)
    if lower is not None:
        found.append(proposal("caps", hosts, lower, host_cap_w=cap_table(hosts, lower)))
    if few:
        found.append(proposal("hosts", few, caps, hosts=[host.name for host in hosts if host in few]))
    if spared != hosts and fits(spared, caps, feed):
        found.append(proposal("spares", spared, caps, spares={host.name: host.total - host.active for host in spared}))
    return found


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


def _cards(host: Host, caps: Caps) -> list[tuple[int, float, str, str]]:
    """The GPUs as the sum counts them: how many, watts of each, active or spare, what is said of them."""
    cards: list[tuple[int, float, str, str]] = []
    ones: list[tuple[int, float, str, str]] = []
    above = raised(host, caps)
    for kind, (entry, active, spare) in enumerate(_drawn(host, caps, host.active)):
        own = [override for override, raises in above if raises == kind]
        at_cap = min(active, len(own))
        for place, override in enumerate(own):
            state, before = ("active", caps(entry)) if place < at_cap else ("spare", entry.idles_at(caps(entry)))
            ones.append((1, before + gain_w(override, entry, caps), state, f"override {override.name}"))
        busy, idle = active - at_cap, spare - (len(own) - at_cap)
        if busy:
            cards.append((busy, caps(entry), "active", f"{entry.model}; {entry.pinned}".removesuffix("; ")))
        if idle:
            cards.append((idle, entry.idles_at(caps(entry)), "spare", entry.model))
    return cards + ones


def _host_line(host: Host, caps: Caps) -> str:
    terms = [f"host {watts(host.base_w)}"]
    for number, each, state, said in _cards(host, caps):
        word = " spare" if state == "spare" and not said.startswith("override") else ""
        terms.append(f"{number}{word} x {watts(each)} ({said})")
    text = " + ".join(terms)
    if host.efficiency != 1:
        text = f"({text}) / {host.efficiency:g} efficiency"
    return f"{host.name}: {text} = {watts(host_watts(host, caps))} W"


def _row(host: Host, caps: Caps) -> dict[str, Any]:
    """The host for a table, and for a comparison with what is measured."""
    cards: list[dict[str, Any]] = [
        {"number": number, "w": each, "state": state, "said": said} for number, each, state, said in _cards(host, caps)
    ]
    most = sum(entry.number * entry.power_max_w for entry in host.gpus)
    return {
        "host": host.name,
        "gpus": cards,
        "gpu_w": sum(card["number"] * card["w"] for card in cards),
        "base_w": host.base_w,
        "efficiency": host.efficiency,
        "w": host_watts(host, caps),
        "failover_w": host_watts(host, caps, host.total),
        "most_w": (host.base_w + most) / host.efficiency,  # caps lost, as after a boot before its unit ran
        "cap_w": cap_table([host], caps)[host.name],
    }


def _host_notes(host: Host, caps: Caps) -> list[str]:
    """What the inventory says and the sum does not count on."""
    counted = [override for override, _ in raised(host, caps)]
    names = ", ".join(f"{one.name} ({one.wish})" for one in host.cards if one not in counted)
    if not names:
        return []
    return [f"{host.name}: override {names} not counted: a swapped card would not answer to that name"]


def _budget_line(label: str, feed: Feed) -> str:
    text = f"{label}: feed {watts(feed.limit_w)} W"
    if feed.number > 1 and feed.redundant:
        text = f"{label}: each of {feed.number} redundant feeds alone {watts(feed.limit_w)} W"
    elif feed.number > 1:
        text = f"{label}: {feed.number} feeds x {watts(feed.limit_w)} W, not redundant"
    if feed.derating != 1:
        text += f" x {feed.derating:g} derating"
    return text + f" less {feed.margin_percent:g} % margin = {watts(feed.usable_w)} W usable"


def _verdict(now_w: float, allowed_w: float, allowed: str) -> str:
    """The end of a sum."""
    text = f"{watts(now_w)} W of {watts(allowed_w)} W{allowed}"
    if now_w <= allowed_w + RESOLUTION_W:
        return f"{text}: fits, {watts(allowed_w - now_w)} W left"
    return f"{text}: over by {watts(now_w - allowed_w)} W"


def _sum_line(hosts: list[Host], caps: Caps, feed: Feed) -> str:
    terms = [watts(host_watts(host, caps)) for host in hosts]
    if feed.other_w:
        terms.append(f"{watts(feed.other_w)} (rack_other_w)")
    text = f"{len(hosts)} host{'s' if len(hosts) != 1 else ''}: {' + '.join(terms) or 0}"
    return f"{text} = {_verdict(sum_w(hosts, caps, feed), feed.usable_w, '')}"


def _failing(hosts: list[Host], caps: Caps, feed: Feed) -> list[Host]:
    """The hosts in which, at the worst moment, every spare has taken over from a card that still draws."""
    with_spares = [host for host in hosts if host.active < host.total]
    if feed.failover_hosts == "all" or not with_spares:
        return with_spares
    return [max(with_spares, key=lambda host: _opened_w(host, caps))]


def _moment_line(hosts: list[Host], caps: Caps, feed: Feed) -> str:
    """The worst moment, host by host; a lost card counts at its last cap, the spare that took over at its own."""
    opened = _failing(hosts, caps, feed)
    terms = [watts(host_watts(host, caps, host.total if host in opened else None)) for host in hosts]
    if feed.other_w:
        terms.append(f"{watts(feed.other_w)} (rack_other_w)")
    allowed = " without derating and margin (rack_failover_may_exceed)" if feed.may_exceed else ""
    who = ", ".join(host.name for host in opened)
    text = f"fail-over on {who}, what was lost still draws: {' + '.join(terms)}"
    return f"{text} = {_verdict(failover_w(hosts, caps, feed), feed.moment_w, allowed)}"


def _proposal_line(proposal: Mapping[str, Any], total: int) -> str:
    """One proposal in a sentence."""
    if proposal["kind"] == "caps":
        lowest = lowest_per_model(proposal["host_cap_w"])
        what = "lower caps (power_cap_w in rack_gpus): " + ", ".join(
            f"{watts(cap)} W for {model}" for model, cap in sorted(lowest.items())
        )
    elif proposal["kind"] == "hosts":
        what = f"at these caps {len(proposal['hosts'])} of the {total} hosts ({', '.join(proposal['hosts'])})"
    else:
        by_number: dict[int, list[str]] = {}
        for host, number in proposal["spares"].items():
            by_number.setdefault(number, []).append(host)
        numbers = "; ".join(f"{number} on {', '.join(names)}" for number, names in by_number.items())
        what = f"one more spare a host (gpu_policy_spares {numbers})"
    text = f"next: {what} would make {watts(proposal['sum_w'])} W"
    if proposal["failover_w"] > proposal["sum_w"]:
        text += f", {watts(proposal['failover_w'])} W in a fail-over"
    return text


def _next_lines(found: list[dict[str, Any]], hosts: list[Host]) -> list[str]:
    lines = [_proposal_line(proposal, len(hosts)) for proposal in found]
    if any(proposal["kind"] == "caps" for proposal in found):
        return lines
    told = [host.name for host in hosts if host.cards or any(entry.pinned for entry in host.gpus)]
    text = "next: move a host to another feed; even the lowest caps do not fit"
    if told:
        text += f" beside gpu_policy_power_cap_w and gpu_policy_overrides of {', '.join(told)}"
    return [*lines, text]


# --- the plan ------------------------------------------------------------------------------------


def _rack_key(facts: Mapping[str, Any]) -> tuple[str, str]:
    return str(facts.get("rack_site") or ""), str(facts.get("rack_name") or "")


def _plan_rack(key: tuple[str, str], members: list[Mapping[str, Any]]) -> dict[str, Any]:
    site, rack = key
    label = f"rack {rack or '(no name)'}" + (f" at {site}" if site else "")
    names = [str(facts.get("host") or "?") for facts in members]
    plan: dict[str, Any] = {"rack": rack, "site": site, "label": label, "hosts": names, "fits": False}
    plan.update(errors=[], lines=[])
    plan.update(feed_limit_w=None, usable_w=None, moment_w=None, sum_w=None, left_w=None, failover_w=None)
    plan.update(other_w=None, margin_percent=None, failing=[], rows=[], proposals=[], notes=[], next=[])
    plan.update(host_w={}, cap_w={}, host_cap_w={})
    if not rack:
        plan["errors"] = [f"{name}: rack_name is not set; it needs the name of the rack" for name in names]
        return plan
    hosts = []
    for facts in members:
        try:
            hosts.append(read_host(facts))
        except BadFactError as error:
            plan["errors"].append(str(error))
    try:
        feed = read_feed(names, members)
    except BadFactError as error:
        plan["errors"].append(str(error))
    if plan["errors"]:
        plan["lines"] = [f"{label}: its power cannot be planned", *plan["errors"]]
        return plan
    return _judge(plan, label, feed, hosts)


def _left_to_us(hosts: list[Host]) -> set[str]:
    """Models whose every entry says power_cap_w: auto, apart from those for which role gpu_policy is told a cap."""
    entries = [entry for host in hosts for entry in host.gpus if not entry.pinned]
    return {entry.model for entry in entries} - {entry.model for entry in entries if not entry.auto}


def _judge(plan: dict[str, Any], label: str, feed: Feed, hosts: list[Host]) -> dict[str, Any]:
    """Fill in the sums. The caps judged are the operator's: given, or the maximum, or (auto) the plan's own."""
    # Lower caps than asked for are only a proposal, unless the operator wrote "auto" for the model.
    ours = _left_to_us(hosts)
    granted = highest_caps(hosts, feed, ours)
    judged = granted if granted is not None else at_share(0.0, ours)
    now, worst = sum_w(hosts, judged, feed), failover_w(hosts, judged, feed)
    plan["fits"] = granted is not None
    plan["proposals"] = [] if plan["fits"] else proposals(hosts, judged, feed)
    lower: dict[str, Any] = next((one["host_cap_w"] for one in plan["proposals"] if one["kind"] == "caps"), {})
    plan.update(feed_limit_w=feed.limit_w, usable_w=round(feed.usable_w, 2), moment_w=round(feed.moment_w, 2))
    plan.update(sum_w=round(now, 2), left_w=round(feed.usable_w - now, 2), failover_w=round(worst, 2))
    plan["host_w"] = {host.name: round(host_watts(host, judged), 2) for host in hosts}
    plan["host_cap_w"] = cap_table(hosts, judged) if plan["fits"] else lower
    plan["cap_w"] = lowest_per_model(plan["host_cap_w"])
    plan.update(other_w=feed.other_w, margin_percent=feed.margin_percent)
    plan["rows"] = [_row(host, judged) for host in hosts]
    plan["failing"] = [host.name for host in _failing(hosts, judged, feed)]
    plan["notes"] = [note for host in hosts for note in _host_notes(host, judged)]
    plan["next"] = [] if plan["fits"] else _next_lines(plan["proposals"], hosts)
    sums = [_sum_line(hosts, judged, feed), *([_moment_line(hosts, judged, feed)] if plan["failing"] else [])]
    own = [_host_line(host, judged) for host in hosts]
    plan["lines"] = [_budget_line(label, feed), *own, *plan["notes"], *sums, *plan["next"]]
    return plan


def rack_power_plan(hosts: Any) -> dict[str, Any]:
    """The plan of every rack in ``hosts``, a list of dictionaries with ``host``, its rack facts and the inputs
    gpu_policy_power_cap_w and gpu_policy_overrides of role gpu_policy, whose caps are the ones that count.

    Returns ``racks``, a list of one dictionary per rack (site and name), and ``hosts``, which leads from
    a host's name to the position of its rack in that list. ``host_cap_w`` is per host and model the highest
    cap that fits (the maximum where it fits, empty where even the lowest does not), ``cap_w`` the lowest of
    these per model; ``fits`` judges the caps that
    the operator asked for: those given, or the maximum, or the plan's own where power_cap_w is "auto".
    ``sum_w`` is with every spare idle, ``failover_w`` the worst moment; ``proposals`` is empty for a rack that fits.
    """
    members: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for facts in hosts or []:
        if not isinstance(facts, Mapping):
            raise TypeError(f"rack_power_plan: {facts!r} where a dictionary of a host's rack facts belongs")
        members.setdefault(_rack_key(facts), []).append(facts)
    racks = [_plan_rack(key, members[key]) for key in sorted(members)]
    where = {name: position for position, rack in enumerate(racks) for name in rack["hosts"]}
    return {"racks": racks, "hosts": where}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"rack_power_plan": rack_power_plan}
