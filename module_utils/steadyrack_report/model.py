# SPDX-License-Identifier: BSD-2-Clause
"""The clocks of many hosts side by side: who is worst, who is unknown, how far they are apart.

Milliseconds and epoch seconds. + = that clock is ahead. What is not known is None and never counts as well.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from itertools import combinations
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

# Instants at which the clocks are compared with each other.
GRID = 720
# A node's clock and the controller's differ by the time a task takes to start; more than this is worth a word, seconds.
CLOCK_OFF_S = 60
ALARM_MS, SITE_ALARM_MS = 30.0, 100.0
# The axis reaches this much beyond the largest value; it is logarithmic, so this is a finger's breadth.
HEADROOM = 1.8
# A source is named as a liar when at least so many of its measurements lay beyond the alarm line: one is the network.
LIES = 4
# A clock of which nothing is known for this long is worth a line, seconds.
HOLE_S = 300
# A clock on local fallback, as chrony_log names such a gap: it follows its own oscillator, or a relay that does.
FALLBACK = "local fallback"

Point = tuple  # (epoch s, offset ms or None, bound ms or None)
Known = Sequence[Optional[Tuple[float, float]]]  # (offset, how uncertain) at each instant of the grid


class Upstream(NamedTuple):
    """A source of a relay."""

    label: str
    kind: str
    points: list[Point]
    median_ms: float
    last_ms: float
    worst_ms: float
    beyond: int  # measurements beyond the alarm line


class Host(NamedTuple):
    """One host's clock in the window."""

    name: str
    site: str
    relay: bool
    reason: str | None  # why there is nothing to draw
    alarm_ms: float
    warn_ms: float
    points: list[Point]
    gaps: list[tuple[int, int, str]]
    jumps: list[tuple[int, float, float]]
    upstreams: list[Upstream]
    summary: Mapping[str, Any]
    problems: list[str]

    @property
    def worst_ms(self) -> float | None:
        return _ms(self.summary.get("worst_us"))

    @property
    def worst_bound_ms(self) -> float | None:
        return _ms(self.summary.get("worst_bound_us"))

    @property
    def now_ms(self) -> float | None:
        return _ms(self.summary.get("now_us"))

    @property
    def state(self) -> str:
        """no data, silent (nothing now), alarm, was in alarm, warn, ok: the order in which somebody has to look."""
        if self.reason:
            return "no data"
        bound = max(abs(self.now_ms or 0.0), _ms(self.summary.get("now_bound_us")) or 0.0)
        if self.now_ms is None:
            return "silent"
        if bound > self.alarm_ms:
            return "alarm"
        if max(abs(self.worst_ms or 0.0), self.worst_bound_ms or 0.0) > self.alarm_ms:
            return "was in alarm"
        return "warn" if bound > self.warn_ms else "ok"


STATES = ("no data", "silent", "alarm", "was in alarm", "warn", "ok")


class Skew(NamedTuple):
    """The largest difference between two clocks of a group, over time and at its worst."""

    name: str  # a site, or "between sites"
    alarm_ms: float
    points: list[Point]  # (at, difference or None, how uncertain it is)
    at: int | None
    worst_ms: float | None
    uncertain_ms: float
    pair: tuple[str, str]  # ahead, behind


class Report(NamedTuple):
    """Everything that is drawn."""

    inventory: str
    since: int
    until: int
    hosts: list[Host]  # worst first
    skews: list[Skew]

    @property
    def alarm_ms(self) -> float:
        """The tightest alarm line of all."""
        return min((host.alarm_ms for host in self.hosts), default=ALARM_MS)

    @property
    def warn_ms(self) -> float:
        return min((host.warn_ms for host in self.hosts), default=ALARM_MS / 3)


def build(inventory: str, answers: Iterable[Mapping[str, Any]], until: int, hours: float) -> Report:
    """``answers``: host, site, relay, alarm_ms, warn_ms, site_alarm_ms, and either reason or log (time_log_info)."""
    listed = list(answers)
    since = int(until - hours * 3600)
    hosts = [_host(one) for one in listed]
    order = {state: place for place, state in enumerate(STATES)}
    hosts.sort(key=lambda host: (order[host.state], -max(abs(host.worst_ms or 0), host.worst_bound_ms or 0), host.name))
    site_alarm = min((float(one.get("site_alarm_ms") or SITE_ALARM_MS) for one in listed), default=SITE_ALARM_MS)
    return Report(inventory, since, int(until), hosts, skews(hosts, since, int(until), site_alarm))


def _host(one: Mapping[str, Any]) -> Host:
    log = one.get("log") or {}
    start = int(log.get("since") or 0)
    policy = log.get("policy") or {}
    alarm = float(policy.get("alarm_ms") or one.get("alarm_ms") or ALARM_MS)
    warn = float(policy.get("warn_ms") or one.get("warn_ms") or alarm / 3)
    reason = one.get("reason") or (log.get("reason") if log.get("state") != "ok" else None)
    if not log and not reason:
        reason = "no answer"
    problems = [str(text) for text in log.get("problems") or []]
    if log and abs(float(log["now"]) - float(log["until"])) > CLOCK_OFF_S:
        off = float(log["now"]) - float(log["until"])
        problems.insert(
            0, f"its clock reads {duration(abs(off))} {'ahead of' if off > 0 else 'behind'} the controller's"
        )
    points = [(start + at, _ms(offset), _ms(bound)) for at, offset, bound in log.get("points") or []]
    return Host(
        str(one["host"]), str(policy.get("site") or one.get("site") or "-"), bool(one.get("relay")),
        str(reason) if reason else None, alarm, warn, points,
        [(start + a, start + b, str(why)) for a, b, why in log.get("gaps") or []],
        [(start + at, (_ms(a) or 0.0), (_ms(b) or 0.0)) for at, a, b in log.get("jumps") or []],
        [_upstream(source, start) for source in log.get("upstreams") or []],
        log.get("summary") or {}, problems,
    )  # fmt: skip


def _upstream(source: Mapping[str, Any], start: int) -> Upstream:
    name, address = str(source["name"]), str(source["address"])
    label = name if name == address else f"{name} ({address})"
    points = [(start + at, _ms(offset), None) for at, offset in source["points"]]
    median, last, worst = (_ms(source[key]) or 0.0 for key in ("median_us", "last_us", "worst_us"))
    return Upstream(label, str(source["kind"]), points, median, last, worst, int(source.get("beyond_alarm") or 0))


def _ms(value_us: float | None) -> float | None:
    return None if value_us is None else float(value_us) / 1e3


# --- apart ---------------------------------------------------------------------------------------


def skews(hosts: Sequence[Host], since: int, until: int, site_alarm_ms: float) -> list[Skew]:
    """The largest pair of each site with two hosts that have data, and of any two sites."""
    grid = [since + (until - since) * step // GRID for step in range(1, GRID + 1)]
    values = {host.name: [value_at(host.points, at) for at in grid] for host in sorted(hosts, key=lambda h: h.name)}
    sites: dict[str, list[str]] = {}
    alarms: dict[str, float] = {}
    for host in sorted(hosts, key=lambda one: one.name):
        sites.setdefault(host.site, []).append(host.name)
        alarms[host.site] = min(host.alarm_ms, alarms.get(host.site, host.alarm_ms))
    found = [
        _skew(site, alarms[site], grid, [{name: values[name] for name in names}])
        for site, names in sorted(sites.items()) if len(names) > 1
    ]  # fmt: skip
    if len(sites) > 1:
        groups = [{name: values[name] for name in names} for _site, names in sorted(sites.items())]
        found.append(_skew("between sites", site_alarm_ms, grid, groups))
    return found


def value_at(points: Sequence[Point], at: int) -> tuple[float, float] | None:
    """(offset, how uncertain) at an instant: the entry before it, None in a gap."""
    place = bisect_right(points, at, key=lambda point: point[0]) - 1
    if place < 0 or points[place][1] is None:
        return None
    offset, bound = points[place][1], points[place][2]
    return offset, max(0.0, (bound or 0.0) - abs(offset))


def _skew(
    name: str,
    alarm_ms: float,
    grid: Sequence[int],
    groups: Sequence[Mapping[str, Sequence[tuple[float, float] | None]]],
) -> Skew:
    """One group: any two of it. Several: two of different ones."""
    points: list[Point] = []
    worst: tuple[float, float, int, tuple[str, str]] | None = None
    for place, at in enumerate(grid):
        now = [{host: row[place] for host, row in group.items() if row[place] is not None} for group in groups]
        pair = _widest(now)
        if pair is None:
            points.append((at, None, None))
            continue
        (ahead, (high, one)), (behind, (low, other)) = pair
        points.append((at, high - low, one + other))
        if worst is None or high - low > worst[0]:
            worst = (high - low, one + other, at, (ahead, behind))
    if worst is None:
        return Skew(name, alarm_ms, points, None, None, 0.0, ("", ""))
    return Skew(name, alarm_ms, points, worst[2], worst[0], worst[1], worst[3])


def _widest(now: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, Any], tuple[str, Any]] | None:
    if len(now) == 1:
        known = sorted(now[0].items(), key=lambda item: item[1][0])
        return (known[-1], known[0]) if len(known) > 1 else None
    ends = [sorted(group.items(), key=lambda item: item[1][0]) for group in now if group]
    pairs = [
        pair
        for one, other in combinations(ends, 2)
        for pair in ((one[-1], other[0]), (other[-1], one[0]))
    ]  # fmt: skip
    return max(pairs, key=lambda pair: pair[0][1][0] - pair[1][1][0]) if pairs else None


# --- words ---------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """4 s, 7 min, 3.2 h, 5.0 d."""
    for unit, span, least in (("d", 86400, 172800), ("h", 3600, 5400), ("min", 60, 120)):
        if seconds >= least:
            return f"{seconds / span:.0f} {unit}" if unit == "min" else f"{seconds / span:.1f} {unit}"
    return f"{seconds:.0f} s"


def milliseconds(value: float | None, sign: bool = True) -> str:
    """As many digits as matter, and a real minus; – where nothing is known."""
    if value is None:
        return "–"
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3
    text = f"{value:+,.{digits}f}" if sign else f"{size:,.{digits}f}"
    return text.replace(",", "\u202f").replace("-", "−")


def clock_text(at: int, since: int, until: int) -> str:
    """HH:MM, with the day where the window has more than one."""
    shape = "%H:%M" if until - since <= 86400 else "%d %b %H:%M"
    return time.strftime(shape, time.gmtime(at))


def headline(report: Report) -> list[str]:
    """What somebody has to know who reads no further."""
    lines = []
    for state, text in (
        ("no data", "no data from {}"), ("silent", "no longer logged, not synchronised or on local fallback: {}"),
        ("alarm", "above the alarm line now: {}"), ("was in alarm", "was above the alarm line: {}"),
        ("warn", "above the warning line now: {}"),
    ):  # fmt: skip
        names = [host.name for host in report.hosts if host.state == state]
        if names:
            lines.append(f"{len(names)} of {len(report.hosts)} hosts: " + text.format(_some(names)))
    holes = [(_hole_s(host), host.name) for host in report.hosts if host.state not in STATES[:2]]
    holes = sorted((hole for hole in holes if hole[0] >= HOLE_S), reverse=True)
    if holes:
        lines.append("unknown for a while: " + _some([f"{name} ({duration(gap)})" for gap, name in holes]))
    alone = [(host.summary.get("fallback_s") or 0, host.name) for host in report.hosts]
    alone = sorted((span for span in alone if span[0] > 0), reverse=True)
    if alone:
        told = _some([f"{name} ({duration(span)})" for span, name in alone])
        lines.append(f"on local fallback, following nobody outside: {told}")
    for host in report.hosts:
        for source in host.upstreams:
            if source.beyond >= LIES:
                now = "sees" if abs(source.last_ms) > host.alarm_ms else "saw"
                kind = "" if source.kind == "upstream" else f" ({source.kind})"
                far = source.last_ms if now == "sees" else source.worst_ms
                lines.append(f"{host.name} {now} its source {source.label}{kind} off by {milliseconds(far)} ms")
    for skew in report.skews:
        if skew.worst_ms is not None and skew.worst_ms > skew.alarm_ms:
            where = f"in {skew.name}" if skew.name != "between sites" else skew.name
            lines.append(
                f"{milliseconds(skew.worst_ms, False)} ms apart {where}: {skew.pair[0]} ahead of {skew.pair[1]}"
                f" at {clock_text(skew.at or 0, report.since, report.until)}"
            )
    if not report.hosts:
        return ["no host was asked"]
    return lines or [f"all {len(report.hosts)} clocks stayed within {report.alarm_ms:g} ms"]


def _hole_s(host: Host) -> float:
    """How long nothing is known of a clock; local fallback has a line of its own."""
    return float(host.summary.get("gap_s") or 0) - float(host.summary.get("fallback_s") or 0)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def reach_ms(report: Report, extra: Iterable[float] = ()) -> float:
    """How far the axis must reach on either side."""
    seen = [abs(p[1]) for host in report.hosts for p in host.points if p[1] is not None]
    return HEADROOM * max([report.alarm_ms, *seen, *extra])
