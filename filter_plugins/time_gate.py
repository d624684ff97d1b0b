# SPDX-License-Identifier: Apache-2.0
"""Whether a job may start on these hosts: each clock, and every pair of clocks, within a site and between sites.

A clock is known to within its bound (root dispersion + root delay / 2, seconds). A pair is too far apart when their
difference exceeds the threshold by more than both bounds together, close enough when it stays below by as much,
and in between nobody knows: which is no yes. What two nodes of one relay have in common (that relay's own
distance from true time) does not part them and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, nan
from statistics import median
from typing import Any, NamedTuple

from ansible.errors import AnsibleFilterError as FilterError

# Thresholds where neither the caller nor the hosts' notes say one, milliseconds (defaults of role time_sync).
SITE_MS = 30.0
BETWEEN_MS = 100.0
RELAY, SYNCHRONISED = "relay", "synchronised"

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
ORDER = {PASS: 0, UNKNOWN: 1, FAIL: 2}


class Clock(NamedTuple):
    """One node's clock. Seconds; + is ahead."""

    host: str
    site: str
    offset: float
    doubt: float  # from true time
    own: float  # from its relay: what is left of the doubt without the relay's
    relay: str | None  # whom it follows, where that relay was asked, too


class Link(NamedTuple):
    """What one site's relay measures of another's. Seconds; + when the first is ahead."""

    offset: float
    doubt: float
    relays: str


class Pair(NamedTuple):
    """Two clocks and what may lie between them, milliseconds."""

    one: str
    other: str
    apart: float
    doubt: float
    verdict: str


def time_gate(
    answers: Any,
    facts: Any,
    nodes: Any,
    skipped: Iterable[str] = (),
    *,
    skew_ms: float | None = None,
    site_skew_ms: float | None = None,
) -> dict[str, Any]:
    """The answer for all hosts: {ok, lines, hosts: {host: {ok, lines}}}.

    ``answers``: host -> what chrony_info answered (or why there is none); ``facts``: host -> its variables, of which
    rack_site and the addresses count; ``nodes``: the hosts that a job would run on, the others (relays) only
    measure; ``skipped``: nodes that this run leaves out.
    """
    wanted = [str(host) for host in nodes if host in answers]
    reasons: dict[str, list[str]] = {host: _own_reasons(host, answers[host]) for host in wanted}
    relays = {str(host): answers[host] for host in answers if _is_relay(answers[host])}
    addresses = _addresses(relays, facts)
    sites = {str(host): _site(answers[host], facts.get(host, {})) for host in answers}
    clocks = [_clock(host, sites[host], answers[host], relays, addresses) for host in wanted if not reasons[host]]
    lines: list[str] = []
    verdicts = [FAIL if reasons[host] else PASS for host in wanted]
    for site in dict.fromkeys(clock.site for clock in clocks):
        members = [clock for clock in clocks if clock.site == site]
        limit = _limit(skew_ms, (answers[one.host] for one in members), "alarm_ms", SITE_MS)
        pair = worst_within(members, limit)
        if pair is not None:
            lines.append(f"site {site}: {_told(pair, limit)}")
            verdicts.append(pair.verdict)
            _blame(pair, members, lines[-1], reasons)
    links = _links(relays, sites)
    for one, other in _pairs(list(dict.fromkeys(clock.site for clock in clocks))):
        members = [clock for clock in clocks if clock.site in (one, other)]
        limit = _limit(site_skew_ms, relays.values(), "site_skew_alarm_ms", BETWEEN_MS)
        link = links.get((one, other))
        if link is None:
            text = f"between {one} and {other}: not known, no relay of either that was asked measures the other"
            lines.append(text)
            verdicts.append(UNKNOWN)
            for clock in members:
                reasons[clock.host].append(text)
            continue
        pair = worst_between(
            [c for c in members if c.site == one], [c for c in members if c.site == other], link, limit
        )
        lines.append(f"between {one} and {other} (measured by {link.relays}): {_told(pair, limit)}")
        verdicts.append(pair.verdict)
        if pair.verdict != PASS:
            for host in (pair.one, pair.other):
                reasons[host].append(lines[-1])
    lines += [
        text for host in relays if not answers[host].get("may_start") for text in _own_reasons(host, answers[host])
    ]
    lines += [f"{host}: not asked (relay): {_missing(answers[host])}" for host in answers
              if host not in wanted and not _is_relay(answers[host])]  # fmt: skip
    left_out = sorted(str(host) for host in skipped)
    if left_out:
        lines.append("not judged, left out by --limit: " + ", ".join(left_out))
    ok = bool(wanted) and all(word == PASS for word in verdicts)
    guilty = [host for host in wanted if reasons[host]]
    return {
        "ok": ok,
        "lines": [_headline(ok, wanted, guilty), *[reasons[host][0] for host in guilty], *lines],
        "guilty": guilty,
        "hosts": {host: {"ok": not reasons[host], "lines": reasons[host]} for host in wanted},
    }


def _headline(ok: bool, wanted: list[str], guilty: list[str]) -> str:
    if not wanted:
        return "NO: no node was asked"
    if ok:
        return f"YES: a job may start on {len(wanted)} node{'s' if len(wanted) > 1 else ''}"
    return "NO: " + ", ".join(guilty)


# --- one host ------------------------------------------------------------------------------------


def _own_reasons(host: str, answer: Mapping[str, Any]) -> list[str]:
    """Why this host's own clock is no yes."""
    if answer.get("may_start"):
        return []
    if "gate_line" in answer:
        return [str(answer["gate_line"])]
    return [f"no: {host}: {_missing(answer)}"]


def _missing(answer: Mapping[str, Any]) -> str:
    """Why there is no answer."""
    text = " ".join(str(answer.get("msg") or answer.get("module_stderr") or "no answer").split())
    return ("unreachable: " if answer.get("unreachable") else "") + text[:300]


def _is_relay(answer: Mapping[str, Any]) -> bool:
    return (answer.get("policy") or {}).get("mode") == RELAY


def _site(answer: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    return str(facts.get("rack_site") or (answer.get("policy") or {}).get("site") or "?")


def _addresses(relays: Mapping[str, Any], facts: Any) -> dict[str, str]:
    """By which names nodes and other sites know each relay -> the relay."""
    found: dict[str, str] = {}
    for relay in relays:
        own = facts.get(relay, {})
        for name in (relay, own.get("ansible_host"), own.get("rack_outside_address")):
            if name:
                found[str(name)] = relay
    return found


def _clock(
    host: str, site: str, answer: Mapping[str, Any], relays: Mapping[str, Any], addresses: Mapping[str, str]
) -> Clock:
    tracking = answer["tracking"]
    doubt = _doubt(tracking)
    relay = addresses.get(str(tracking["source"]))
    own = doubt
    if relay is not None and relays[relay].get("tracking"):
        # Since the node asked, the relay's doubt has grown a little; that much too little is subtracted from nothing.
        own = max(0.0, doubt - _doubt(relays[relay]["tracking"]))
    return Clock(host, site, float(answer["offset_s"]), doubt, own, relay)


def _doubt(tracking: Mapping[str, Any]) -> float:
    return float(tracking["root_dispersion_s"]) + max(0.0, float(tracking["root_delay_s"])) / 2


# --- pairs ---------------------------------------------------------------------------------------


def worst_within(clocks: list[Clock], limit_ms: float) -> Pair | None:
    """The pair of one site that is worst off; None for fewer than two clocks."""
    pairs = [
        _pair(one, other, one.offset - other.offset,
              one.own + other.own if one.relay and one.relay == other.relay else one.doubt + other.doubt, limit_ms)
        for one, other in _pairs(clocks)
    ]  # fmt: skip
    return max(pairs, key=_badness, default=None)


def worst_between(ones: list[Clock], others: list[Clock], link: Link, limit_ms: float) -> Pair:
    """The pair of two sites that is worst off, across what their relays measure."""
    pairs = [
        _pair(one, other, one.offset - other.offset + link.offset, one.own + other.own + link.doubt, limit_ms)
        for one in ones
        for other in others
    ]
    return max(pairs, key=_badness)


def _pair(one: Clock, other: Clock, apart: float, doubt: float, limit_ms: float) -> Pair:
    apart_ms, doubt_ms = abs(apart) * 1000, doubt * 1000
    word = FAIL if apart_ms - doubt_ms > limit_ms else PASS if apart_ms + doubt_ms <= limit_ms else UNKNOWN
    return Pair(one.host, other.host, apart_ms, doubt_ms, word)


def _badness(pair: Pair) -> tuple[int, float]:
    return ORDER[pair.verdict], pair.apart + pair.doubt


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return [(one, other) for place, one in enumerate(items) for other in items[place + 1 :]]


def _told(pair: Pair, limit_ms: float) -> str:
    words = {PASS: "within", FAIL: "above", UNKNOWN: "too uncertain for"}
    return (
        f"worst pair {pair.one} and {pair.other}, {pair.apart:.3f} ± {pair.doubt:.3f} ms apart, "
        f"{words[pair.verdict]} {limit_ms:g} ms"
    )


def _blame(pair: Pair, members: list[Clock], text: str, reasons: dict[str, list[str]]) -> None:
    """Of a bad pair, the one furthest from the site's middle; of two clocks that are all there is, both."""
    if pair.verdict == PASS:
        return
    hosts = [pair.one, pair.other]
    if len(members) > 2 and pair.verdict == FAIL:
        middle = median(clock.offset for clock in members)
        hosts = [max((c for c in members if c.host in hosts), key=lambda clock: abs(clock.offset - middle)).host]
    for host in hosts:
        reasons[host].append(text)


# --- between sites -------------------------------------------------------------------------------


def _links(relays: Mapping[str, Any], sites: Mapping[str, str]) -> dict[tuple[str, str], Link]:
    """(site, other site) -> the surest measurement between their relays, in both directions."""
    found: dict[tuple[str, str], Link] = {}
    for relay, answer in relays.items():
        here = sites[relay]
        others = (answer.get("policy") or {}).get("other_sites") or {}
        for source in answer.get("sources") or []:
            there = others.get(source["name"])
            if there is None or not source.get("reachable") or source.get("offset_s") is None:
                continue
            told = f"{relay} of {source['name']}"
            link = Link(float(source["offset_s"]), float(source["margin_s"]), told)
            for pair, one in (((here, there), link), ((there, here), link._replace(offset=-link.offset))):
                if pair not in found or one.doubt < found[pair].doubt:
                    found[pair] = one
    return found


def _limit(given: float | None, answers: Iterable[Mapping[str, Any]], key: str, otherwise: float) -> float:
    """The caller's threshold, else the strictest of the hosts' own."""
    if given is not None:
        return _milliseconds(given)
    own = [float(policy[key]) for policy in ((one.get("policy") or {}) for one in answers) if policy.get(key)]
    return min(own, default=otherwise)


def _milliseconds(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = nan
    if isinstance(value, bool) or not 0 < number < inf:
        raise FilterError(f"time gate: a threshold of {value!r}; wanted milliseconds above 0. Next: correct the -e")
    return number


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"time_gate": time_gate}
