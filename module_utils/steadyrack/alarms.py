# SPDX-License-Identifier: BSD-2-Clause
"""Rows of checks over time: when an alarm begins, when it ends, and what is said of it in between.

Pure but for :func:`load` and :func:`save`: time is handed in, seconds of a clock that never steps. One alarm
belongs to one check id and subject. It is raised by a few bad looks among the latest, ends after all has
been well for a while, and while it flaps it stays raised. ``unknown`` neither clears an alarm nor counts as
well; lasting long enough it raises one of its own, unless another alarm explains it. ``not_judged`` neither
raises nor clears: that nobody looks is no proof that all is well again.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Collection, Iterable, NamedTuple

from . import verdict
from .errors import StateFileError
from .files import atomic_write, dump_json, load_json

STATE_PATH = "var/lib/steadyrack/alarms.json"
VERSION = 1

# Bad looks that raise, among the latest 2n - 1: one bad look may be a burst of load. A silent source has missed
# eight polls already, a leak was counted by the kernel: one look is enough.
# After a restart of chronyd some seconds pass until every source has answered: three looks.
RAISE_LOOKS = {"time.offset": 2, "time.synchronised": 3, "time.sources": 3, "time.skew": 3, "time.egress": 1}
RAISE_STATES = {"unreachable": 1}
RAISE_DEFAULT = 2
# How long a reading may be missing before that alone is worth a word, seconds.
UNKNOWN_S = 300.0
# All well for this long ends an alarm, seconds.
CLEAR_S = 60.0
# This many returns within the window are flapping; then all must be well for longer.
FLAP_RETURNS = 3
FLAP_WINDOW_S = 1800.0
FLAP_CLEAR_S = 900.0
# The year 9999, the last that datetime knows, epoch s.
LATEST_S = 253402300799.0
# How often an alarm that stands is mentioned again, seconds, by severity.
REMIND_S = {verdict.CRITICAL: 6 * 3600.0, verdict.WARNING: 24 * 3600.0}

# State of a row for a check that is not made here any more (verdict not_judged): what stood of it ends.
GIVEN_UP = "given_up"
# What this check fails for, the whole clock suffers from: in the same state no other row of the host needs a word.
HOST_CHECK = "time.synchronised"

RAISED, CLEARED, LOWERED, FLAPPING, REMINDER = "raised", "cleared", "lowered", "flapping", "reminder"
# Levels are compared; severities are shown.
WELL, WARN, BAD = 0, 1, 2
_SEVERITY = {WELL: verdict.INFO, WARN: verdict.WARNING, BAD: verdict.CRITICAL}
_LEVEL = {severity: level for level, severity in _SEVERITY.items()}
# What an alarm says of itself, of the row that raised it or the last bad one since.
SHOWN = ("state", "reason", "hint", "measured", "expected", "unit")


class Standing(NamedTuple):
    """One alarm as the metrics and the state file show it."""

    id: str
    subject: str
    severity: str
    since: float  # epoch s
    flapping: bool


class _Subject:
    """What is remembered of one check id and subject."""

    def __init__(self) -> None:
        self.levels: deque[int] = deque(maxlen=5)  # of the latest looks that told something
        self.raised = WELL
        self.since = 0.0  # epoch s of the first bad look
        self.quiet_since: float | None = None  # better than `raised` ever since, monotonic s
        self.quiet_worst = WELL
        self.unknown_since: float | None = None
        self.returns: deque[float] = deque(maxlen=16)  # when it became bad again, monotonic s
        self.flapping = False
        self.told_at = 0.0  # monotonic s of the last event
        self.row: dict[str, Any] = {}


class Alarms:
    """All alarms of a host. Call :meth:`update` with the rows of every look."""

    def __init__(self) -> None:
        self._subjects: dict[tuple[str, str], _Subject] = {}

    # --- a look ---

    def update(self, rows: Iterable[dict[str, Any]], now: float, at: float) -> list[dict[str, Any]]:
        """What is to be said after this look. ``now`` never steps back; ``at`` is the wall clock, for people.

        Only check ids that occur among ``rows`` were looked at; a subject of such an id that has no row any more
        is gone, and thereby well, if the look told anything about that id.
        """
        rows = list(rows)
        told = {(row["id"], row["subject"]): row for row in rows}
        judged = {row["id"] for row in rows if level_of(row) is not None}
        # Not known because something else is wrong: that alarm says it already. A word alone does not connect two
        # rows: that one source is unreachable does not explain why another is.
        failing = [row for row in rows if row["verdict"] == verdict.FAIL]
        everywhere = {row["state"] for row in failing if row["id"] == HOST_CHECK}
        events: list[dict[str, Any]] = []
        for key, row in told.items():
            subject = self._subjects.setdefault(key, _Subject())
            here = {one["state"] for one in failing if one["subject"] == row["subject"]}
            self._feed(subject, row, everywhere | here, now, at)
        for key in [key for key in self._subjects if key[0] in judged and key not in told]:
            gone = {"verdict": verdict.PASS, "severity": verdict.INFO, "state": "gone", "reason": "not there any more"}
            self._feed(self._subjects[key], gone, (), now, at)
        for key, subject in list(self._subjects.items()):
            if key in told or key[0] in judged:
                events += [dict(event, id=key[0], subject=key[1]) for event in self._decide(key[0], subject, now, at)]
            if key not in told and subject.raised == WELL and not any(subject.levels):
                del self._subjects[key]
        return events

    def _feed(self, subject: _Subject, row: dict[str, Any], explained: Collection[Any], now: float, at: float) -> None:
        level = level_of(row)
        if level is None:
            subject.quiet_since = None
            excused = row["verdict"] == verdict.NOT_JUDGED
            if excused or (row["state"] in explained and row["state"] is not None):
                subject.unknown_since = None
                return
            subject.unknown_since = now if subject.unknown_since is None else subject.unknown_since
            if now - subject.unknown_since < UNKNOWN_S:
                return
            level = WARN
        else:
            subject.unknown_since = None
        was_well = bool(subject.levels) and subject.levels[-1] == WELL
        subject.levels.append(level)
        if level:
            if subject.raised == WELL and not any(list(subject.levels)[:-1]):
                subject.since = at
            subject.row = {key: row.get(key) for key in SHOWN}
            if was_well and (subject.raised or subject.returns):
                subject.returns.append(now)
        if level >= max(subject.raised, WARN):
            subject.quiet_since = None
        elif subject.quiet_since is None:
            subject.quiet_since, subject.quiet_worst = now, level
        else:
            subject.quiet_worst = max(subject.quiet_worst, level)

    def _decide(self, check: str, subject: _Subject, now: float, at: float) -> list[dict[str, Any]]:
        while subject.returns and now - subject.returns[0] > FLAP_WINDOW_S:
            subject.returns.popleft()
        level = _called_for(check, subject)
        if level > subject.raised:
            if not subject.returns:
                subject.returns.append(now)
            subject.raised, subject.quiet_since = level, None
            return [self._event(subject, RAISED, now, at)]
        if subject.raised == WELL:
            return []
        if not subject.flapping and len(subject.returns) > FLAP_RETURNS:
            subject.flapping = True
            return [self._event(subject, FLAPPING, now, at)]
        hold_s = FLAP_CLEAR_S if subject.flapping else CLEAR_S
        if subject.quiet_since is not None and now - subject.quiet_since >= hold_s:
            was = _SEVERITY[subject.raised]
            subject.raised, subject.quiet_since = subject.quiet_worst, None
            if subject.raised == WELL:
                subject.levels.clear()
                subject.levels.append(WELL)
                event = self._event(subject, CLEARED, now, at, was)
                subject.flapping = False
                return [event]
            return [self._event(subject, LOWERED, now, at, was)]
        if now - subject.told_at >= REMIND_S[_SEVERITY[subject.raised]]:
            return [self._event(subject, REMINDER, now, at)]
        return []

    def _event(self, subject: _Subject, kind: str, now: float, at: float, was: str | None = None) -> dict[str, Any]:
        subject.told_at = now
        return {
            "event": kind,
            "severity": _SEVERITY[subject.raised],
            "was": was,
            "flapping": subject.flapping,
            "since": subject.since,
            "at": at,
            "lasted_s": max(0.0, round(at - subject.since, 1)),
            **subject.row,
        }

    # --- what stands ---

    def standing(self) -> list[Standing]:
        """The alarms that are raised."""
        return [
            Standing(check, name, _SEVERITY[one.raised], one.since, one.flapping)
            for (check, name), one in sorted(self._subjects.items())
            if one.raised
        ]

    # --- across a restart ---

    def dump(self, now: float) -> dict[str, Any]:
        """What a new process needs, so that it neither raises an alarm again nor forgets one."""
        kept = []
        for (check, name), one in sorted(self._subjects.items()):
            if one.raised or one.returns:
                kept.append(
                    {
                        "id": check, "subject": name, "severity": _SEVERITY[one.raised], "since": one.since,
                        "flapping": one.flapping, "returns_ago_s": [round(now - when, 1) for when in one.returns],
                        "told_ago_s": round(now - one.told_at, 1), "row": one.row,
                    }
                )  # fmt: skip
        return {"version": VERSION, "alarms": kept}

    @classmethod
    def restored(cls, value: dict[str, Any], now: float) -> Alarms:
        """From :meth:`dump`; ValueError or its kin for what is none."""
        alarms = cls()
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']!r}")
        for entry in value["alarms"]:
            one = _Subject()
            one.raised = _LEVEL[entry["severity"]]
            one.since = _moment(entry["since"])
            one.flapping = entry["flapping"] is True
            # Ages, not moments: the monotonic clock begins anew at a boot. The pause counts as no time.
            one.returns.extend(now - _moment(ago) for ago in entry["returns_ago_s"])
            one.told_at = now - _moment(entry["told_ago_s"])
            one.row = {key: entry["row"].get(key) for key in SHOWN}
            alarms._subjects[(str(entry["id"]), str(entry["subject"]))] = one
        return alarms


def _moment(value: Any) -> float:
    """Seconds that a calendar has; ValueError for what would stop the watch when it is told (nan, inf, 1e300)."""
    seconds = float(value)
    if not -LATEST_S <= seconds <= LATEST_S:
        raise ValueError(f"{value!r} where seconds belong")
    return seconds


def level_of(row: dict[str, Any]) -> int | None:
    """How bad a row is; None when it does not tell."""
    if row["verdict"] == verdict.UNKNOWN:
        return None
    if row["verdict"] == verdict.NOT_JUDGED:
        return WELL if row["state"] == GIVEN_UP else None
    if row["verdict"] == verdict.FAIL:
        return WARN if row["severity"] == verdict.WARNING else BAD
    return WARN if row["verdict"] == verdict.PASS and row["severity"] == verdict.WARNING else WELL


def _called_for(check: str, subject: _Subject) -> int:
    """The level that enough of the latest looks reach."""
    looks = RAISE_STATES.get(str(subject.row.get("state")), RAISE_LOOKS.get(check, RAISE_DEFAULT))
    latest = list(subject.levels)[-(2 * looks - 1) :]
    for level in (BAD, WARN):
        if sum(one >= level for one in latest) >= looks and latest[-1] >= level:
            return level
    return WELL


# --- the state file ------------------------------------------------------------------------------


def load(root: str, now: float) -> tuple[Alarms, dict[str, Any]]:
    """The alarms of the process before, and what else it left (``undelivered``).

    A file that cannot be used is StateFileError: the caller says so and begins anew.
    """
    path = os.path.join(root, STATE_PATH)
    value = load_json(path)
    if value is None:
        return Alarms(), {}
    try:
        return Alarms.restored(value, now), value
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateFileError(
            path, f"{type(error).__name__}: {error}", f"alarms of version {VERSION}", "nothing: it is written anew"
        ) from None


def save(root: str, alarms: Alarms, now: float, undelivered: list[dict[str, Any]]) -> None:
    """Keep everything; raises what ``files`` raises."""
    value = dict(alarms.dump(now), undelivered=undelivered)
    atomic_write(os.path.join(root, STATE_PATH), dump_json(value))
