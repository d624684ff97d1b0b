# SPDX-License-Identifier: BSD-2-Clause
"""The last hours of a clock as a few kilobytes: what time_log_info returns and the report draws.

Offsets travel in microseconds, + = that clock is ahead; times in seconds since the window's begin.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from typing import Any, Callable, NamedTuple, Sequence

from . import chrony_log
from .chrony_log import Entry, Sample
from .errors import InputError, SteadyrackError
from .files import load_json
from .run import Completed, run

POLICY_PATH = "etc/steadyrack/time_sync.json"
# Most gaps and jumps that are listed one by one; the summary counts all.
LISTED = 100
# Hours: a month is what logrotate keeps; below a minute there is nothing to see.
HOURS = (1 / 60, 31 * 24)
# Fewer points than this show nothing; more make the answer of 64 hosts heavy.
POINTS = (50, 20000)


class Wish(NamedTuple):
    """What to read, and what to hold it against."""

    since: int
    until: int
    now: float
    points: int
    sources: bool
    directory: str
    alarm_ms: float
    warn_ms: float
    policy: dict[str, Any]
    problems: list[str]


def wish(
    *,
    hours: float = 24,
    end: float | None = None,
    points: int = 1500,
    sources: bool | None = None,
    directory: str | None = None,
    alarm_ms: float | None = None,
    warn_ms: float | None = None,
    root: str = "/",
) -> Wish:
    """The options, completed by the note of role time_sync; a note that cannot be read is a problem, not the end."""
    for name, value, (low, high) in (("hours", hours, HOURS), ("points", points, POINTS)):
        if not (math.isfinite(value) and low <= value <= high):
            raise InputError(name, value, f"between {low:g} and {high:g}", "give another number")
    for name, limit in (("alarm_ms", alarm_ms), ("warn_ms", warn_ms)):
        if limit is not None and not limit > 0:
            raise InputError(name, limit, "milliseconds above 0", "give another number")
    problems, note = [], {}
    try:
        note = load_json(os.path.join(root, POLICY_PATH)) or {}
    except SteadyrackError as error:
        problems.append(error.sentence())
    now = time.time()
    last = now if end is None else end
    alarm = alarm_ms or _positive(note.get("alarm_ms")) or 30.0
    warn = warn_ms or _positive(note.get("warn_ms")) or alarm / 3
    policy = {key: note.get(key) for key in ("mode", "site", "alarm_ms", "warn_ms", "site_skew_alarm_ms")}
    for key, kind in (("operators", dict), ("other_sites", dict), ("peers", list)):
        policy[key] = note[key] if isinstance(note.get(key), kind) else kind()
    where = directory or note.get("log_directory") or os.path.join(root, chrony_log.LOG_DIRECTORY[1:])
    wanted = note.get("mode") == "relay" if sources is None else sources
    since = int(last - hours * 3600)
    return Wish(since, int(last), now, points, wanted, str(where), alarm, warn, policy, problems)


def _positive(value: Any) -> float | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return float(value) if good else None


def look(wanted: Wish, runner: Callable[..., Completed] = run) -> dict[str, Any]:
    """Everything that the report shows of this host. Never raises for what the logs are like."""
    tail = chrony_log.read_tail(wanted.directory, chrony_log.TRACKING, wanted.since, wanted.until)
    entries, damaged = chrony_log.parse_entries(tail.lines)
    problems = [*wanted.problems, *tail.problems, *_disk(wanted.directory)]
    if damaged:
        problems.append(f"{damaged} damaged lines of tracking.log were left out")
    if tail.ahead:
        newest = chrony_log.stamp(tail.newest or 0)
        problems.append(f"{tail.ahead} entries lie in the future, the newest at {newest} UTC: a clock was or is wrong")
    found = {
        "now": wanted.now, "since": wanted.since, "until": wanted.until, "policy": wanted.policy,
        "alarm_ms": wanted.alarm_ms, "warn_ms": wanted.warn_ms, "problems": problems,
        **_state(tail, entries, wanted), **_curve(entries, wanted), "upstreams": [],
    }  # fmt: skip
    if wanted.sources:
        found["upstreams"] = upstreams(wanted, problems, runner)
    return found


def _state(tail: chrony_log.Tail, entries: Sequence[Entry], wanted: Wish) -> dict[str, Any]:
    if entries:
        return {"state": "ok", "reason": None}
    if not os.path.isdir(wanted.directory):
        return {"state": "nothing", "reason": f"there is no {wanted.directory}: chronyd is missing, or does not log"}
    if tail.problems:
        return {"state": "unreadable", "reason": tail.problems[0]}
    if not tail.found:
        reason = f"there is no tracking.log in {wanted.directory}: chronyd has never followed a source, or does not log"
    elif tail.newest is None:
        reason = f"{wanted.directory}/tracking.log has no entry"
    elif tail.ahead:
        reason = f"all entries lie in the future, the newest at {chrony_log.stamp(tail.newest)} UTC"
    else:
        hours = (wanted.until - tail.newest) / 3600
        reason = f"nothing logged for {hours:.1f} h, the last entry is of {chrony_log.stamp(tail.newest)} UTC"
    return {"state": "nothing", "reason": reason}


def _disk(directory: str) -> list[str]:
    try:
        seen = os.statvfs(directory)
    except OSError:
        return []  # said already by whoever wanted to read it
    if seen.f_bavail == 0 or (seen.f_files and seen.f_favail == 0):
        return [f"the file system of {directory} is full: nothing is being logged"]
    return []


# --- the host's own curve ------------------------------------------------------------------------


def _curve(entries: Sequence[Entry], wanted: Wish) -> dict[str, Any]:
    limit_s = chrony_log.gap_limit([entry.at for entry in entries])
    stretches = chrony_log.runs(entries, limit_s)
    gaps = chrony_log.find_gaps(entries, wanted.since, wanted.until, limit_s)
    jumps = chrony_log.find_jumps(stretches)
    start = wanted.since
    return {
        "points": _thin(stretches, bool(gaps) and gaps[-1].until >= wanted.until, wanted),
        "gaps": [[gap.since - start, gap.until - start, gap.why] for gap in gaps[-LISTED:]],
        "jumps": [[one.at - start, _us(one.before_s), _us(one.after_s)] for one in jumps[-LISTED:]],
        "summary": _summary(entries, stretches, gaps, len(jumps), wanted),
    }


def _thin(stretches: Sequence[Sequence[Entry]], ended: bool, wanted: Wish) -> list[list[int | float | None]]:
    """Points of all stretches, a point without offset where one ends; ``wanted.points`` at most, if need be coarser."""
    keys = (lambda e: e.offset_s, lambda e: -e.offset_s, lambda e: e.bound_s or 0.0)
    rows: list[list[int | float | None]] = []
    width_s = (wanted.until - wanted.since) * 3 / wanted.points
    while True:
        rows = []
        for stretch in stretches:
            if rows:
                rows.append([int(rows[-1][0] or 0) + 1, None, None])
            kept = chrony_log.thinned(stretch, width_s, keys)
            rows += [[e.at - wanted.since, _us(e.offset_s), _us(e.bound_s)] for e in kept]  # type: ignore[union-attr]
        if rows and ended:
            rows.append([int(rows[-1][0] or 0) + 1, None, None])
        if len(rows) <= wanted.points or width_s > wanted.until - wanted.since:
            # A log that is nothing but gaps: the latest are worth most.
            return rows[-wanted.points :]
        width_s *= 1.5


def _summary(
    entries: Sequence[Entry],
    stretches: Sequence[Sequence[Entry]],
    gaps: Sequence[chrony_log.Gap],
    jumps: int,
    wanted: Wish,
) -> dict[str, Any]:
    known = [entry for stretch in stretches for entry in stretch]
    found: dict[str, Any] = {"entries": len(entries), "gaps": len(gaps), "jumps": jumps, "now_us": None}
    found["gap_s"] = sum(max(0, min(gap.until, wanted.until) - gap.since) for gap in gaps)
    found["fallback_s"] = sum(
        max(0, min(gap.until, wanted.until) - gap.since) for gap in gaps if gap.why == chrony_log.LOCAL_FALLBACK
    )
    found["bound_unknown_s"] = round(chrony_log.seconds_unbounded(stretches, wanted.alarm_ms / 1e3))
    found["above_warn_s"] = round(chrony_log.seconds_above(stretches, wanted.warn_ms / 1e3))
    found["above_alarm_s"] = round(chrony_log.seconds_above(stretches, wanted.alarm_ms / 1e3))
    found.update(worst_us=None, worst_at=None, worst_bound_us=None, frequency_ppm=None, source=None, last_at=None)
    if not known:
        return found
    worst = max(known, key=lambda entry: abs(entry.offset_s or 0.0))
    last, bounds = entries[-1], [entry.bound_s for entry in known if entry.bound_s is not None]
    ended = bool(gaps) and gaps[-1].until >= wanted.until
    found.update(
        worst_us=_us(worst.offset_s), worst_at=worst.at - wanted.since,
        worst_bound_us=_us(max(bounds)) if bounds else None,
        now_us=None if ended else _us(last.offset_s), now_bound_us=None if ended else _us(last.bound_s),
        source=last.source, last_at=last.at - wanted.since,
        frequency_ppm=_frequencies([entry.frequency_ppm for entry in known if entry.settled]),
    )  # fmt: skip
    return found


def _frequencies(values: Sequence[float]) -> list[float] | None:
    """Least, median and greatest of how fast the crystal runs, ppm: what a node without its relay lives by."""
    if not values:
        return None
    return [round(value, 3) for value in (min(values), statistics.median(values), max(values))]


def _us(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1e6, 1)


# --- what a relay sees of others -----------------------------------------------------------------


def upstreams(wanted: Wish, problems: list[str], runner: Callable[..., Completed] = run) -> list[dict[str, Any]]:
    """The offset of each source of this host, by address: from measurements, or statistics where there are none."""
    samples: list[Sample] = []
    for name, parse in (
        (chrony_log.MEASUREMENTS, chrony_log.parse_measurement),
        (chrony_log.STATISTICS, chrony_log.parse_statistic),
    ):
        tail = chrony_log.read_tail(wanted.directory, name, wanted.since, wanted.until)
        problems += [text for text in tail.problems if text not in problems]
        samples = [sample for sample in map(parse, tail.lines) if sample is not None]
        if samples:
            break
    by_source: dict[str, list[Sample]] = {}
    for sample in samples:
        by_source.setdefault(sample.source, []).append(sample)
    names = source_names(runner)
    share = max(POINTS[0], wanted.points // max(1, len(by_source)))
    return [_upstream(source, by_source[source], names, share, wanted) for source in sorted(by_source)]


def _upstream(
    source: str, samples: Sequence[Sample], names: dict[str, str], share: int, wanted: Wish
) -> dict[str, Any]:
    limit_s = chrony_log.gap_limit([sample.at for sample in samples])
    width_s = (wanted.until - wanted.since) * 2 / share
    points: list[list[int | float | None]] = []
    stretch: list[Sample] = []
    for sample in [*samples, None]:
        if stretch and (sample is None or not -1 <= sample.at - stretch[-1].at <= limit_s):
            if points:
                points.append([int(points[-1][0] or 0) + 1, None])
            keys = (lambda s: s.offset_s, lambda s: -s.offset_s)
            kept = chrony_log.thinned(stretch, width_s, keys)
            points += [[one.at - wanted.since, _us(one.offset_s)] for one in kept]
            stretch = []
        if sample is not None:
            stretch.append(sample)
    ordered = sorted(sample.offset_s for sample in samples)
    worst = max(samples, key=lambda sample: abs(sample.offset_s))
    return {
        "address": source, "name": names.get(source, source), "kind": _kind(source, names.get(source, ""), wanted),
        "points": points[-share:], "samples": len(samples), "median_us": _us(ordered[len(ordered) // 2]),
        "worst_us": _us(worst.offset_s), "last_us": _us(samples[-1].offset_s), "last_at": samples[-1].at - wanted.since,
        "beyond_alarm": sum(abs(sample.offset_s) > wanted.alarm_ms / 1e3 for sample in samples),
    }  # fmt: skip


def _kind(address: str, name: str, wanted: Wish) -> str:
    """upstream, peer (another relay of this site), or the site that the source belongs to."""
    for key in (address, name):
        if key in wanted.policy["other_sites"]:
            return f"site {wanted.policy['other_sites'][key]}"
        if key in wanted.policy["peers"]:
            return "peer"
    return "upstream"


def source_names(runner: Callable[..., Completed] = run) -> dict[str, str]:
    """Address of each source -> name as configured. Empty when the daemon does not say; then addresses must do."""
    answers = []
    for flag in ("-n", "-N"):
        try:
            done = runner(["chronyc", "-c", flag, "sources"], 5.0)
        except SteadyrackError:
            return {}
        if done.rc != 0:
            return {}
        answers.append([line.split(",")[2] for line in done.out.splitlines() if line.count(",") >= 9])
    return dict(zip(*answers)) if len(answers[0]) == len(answers[1]) else {}
