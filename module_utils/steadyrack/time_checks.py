# SPDX-License-Identifier: BSD-2-Clause
"""The clock's part of the node's checks: what the role asked for, held against what chronyd says.

The role time_sync leaves a note of its wishes in /etc/steadyrack/time_sync.json; without that note
this node's clock is nobody's business here, and the one row says so.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from . import chronyc, time_config, time_daemon, time_egress, time_rows, units, verdict
from .errors import StateFileError, SteadyrackError
from .files import load_json
from .run import Completed, run

POLICY_PATH = "etc/steadyrack/time_sync.json"
# 1 had neither sites nor peers; a node keeps such a note until its role runs again.
VERSIONS = (1, 2)
# A warning from a third of the alarm on, where the note names none.
WARN_SHARE = 1 / 3


class TimePolicy(NamedTuple):
    """What the role time_sync wants of this node."""

    mode: str  # relay or client
    sources: list[str] | None  # the only sources to follow, as configured; None: nobody said
    alarm_ms: float  # above this the clock is called wrong
    warn_ms: float | None  # above this it is mentioned
    unit: str  # the daemon's unit
    site: str | None = None
    operators: Mapping[str, str] = {}  # relay: who runs each upstream
    peers: Sequence[str] = ()  # relay: the site's other relays
    other_sites: Mapping[str, str] = {}  # relay: address of another site's relay -> that site
    site_skew_alarm_ms: float = 100.0
    min_upstreams: int = 3  # relay: fewer that answer are no majority against one liar
    rivals: Sequence[str] = time_daemon.RIVALS  # units that must not run
    files: Mapping[str, str] | None = None  # path -> sha256 of chronyd's files as written; None: nobody said

    @property
    def neighbours(self) -> time_rows.Neighbours:
        """What a relay polls beside its upstreams."""
        return time_rows.Neighbours(self.peers, self.other_sites, self.operators, self.min_upstreams)


def load_policy(root: str = "/") -> TimePolicy | None:
    """The note of the role, None when there is none; malformed or of a newer version is StateFileError."""
    path = os.path.join(root, POLICY_PATH)
    value = load_json(path)
    if value is None:
        return None
    again = "run the role time_sync again"
    if value.get("version") not in VERSIONS:
        wanted = "version " + " or ".join(map(str, VERSIONS))
        raise StateFileError(path, f"version {value.get('version')!r}", wanted, again)
    if value.get("mode") not in (chronyc.RELAY, chronyc.CLIENT):
        raise StateFileError(path, f"mode {value.get('mode')!r}", "mode relay or client", again)
    sources, unit = value.get("sources"), value.get("unit")
    if not _texts(sources) or not sources:
        raise StateFileError(path, f"sources {sources!r}", "a list of names or addresses", again)
    if not isinstance(unit, str) or not unit:
        raise StateFileError(path, f"unit {unit!r}", "the name of the daemon's unit", again)
    alarm_ms, warn_ms = _milliseconds(value.get("alarm_ms")), _milliseconds(value.get("warn_ms"))
    if alarm_ms is None or (warn_ms is None and value.get("warn_ms") is not None):
        seen = f"alarm_ms {value.get('alarm_ms')!r}, warn_ms {value.get('warn_ms')!r}"
        raise StateFileError(path, seen, "milliseconds above 0", again)
    if warn_ms is None:
        warn_ms = alarm_ms * WARN_SHARE
    return TimePolicy(value["mode"], sources, alarm_ms, warn_ms, unit, **_of_version_2(path, value, again))


def _of_version_2(path: str, value: Mapping[str, Any], again: str) -> dict[str, Any]:
    """The keys that came with version 2, those that are there."""
    tests: dict[str, tuple[Callable[[Any], bool], str]] = {
        "site": (lambda one: isinstance(one, str), "a text"),
        "operators": (_named, "an object of texts"),
        "peers": (_texts, "a list of names or addresses"),
        "other_sites": (_named, "an object of texts"),
        "site_skew_alarm_ms": (lambda one: _milliseconds(one) is not None, "milliseconds above 0"),
        "min_upstreams": (lambda one: isinstance(one, int) and not isinstance(one, bool) and one >= 0, "a number"),
        "rivals": (_texts, "a list of units"),
        "files": (_named, "an object of digests"),
    }
    found = {}
    for key, (good, wanted) in tests.items():
        if value.get(key) is None:
            continue
        if not good(value[key]):
            raise StateFileError(path, f"{key} {value[key]!r}", wanted, again)
        found[key] = value[key]
    return found


def checks(root: str = "/", runner: Callable[..., Completed] = run, now: float | None = None) -> list[dict[str, Any]]:
    """The rows of this host's clock. Never raises: a note that cannot be used is a row ``unknown``."""
    subject = socket.gethostname()
    moment = time.time() if now is None else now
    try:
        policy = load_policy(root)
    except SteadyrackError as error:
        return [
            verdict.check_row(
                "time.synchronised", subject, verdict.UNKNOWN, reason=error.sentence(), hint=error.next_step
            )
        ]
    if policy is None:
        return [not_declared(subject), *time_config.without_note(subject, POLICY_PATH, root)]
    rows = judge(policy, subject, runner, moment) + time_config.rows(subject, policy.files, root)
    return rows + time_egress.rows(subject, root, moment, time_egress.load_record(root), runner)[0]


def not_declared(subject: str) -> dict[str, Any]:
    """The row of a host whose clock nobody has declared anything about."""
    reason = f"/{POLICY_PATH} is not there: the role time_sync has not run on this host"
    return verdict.check_row("time.synchronised", subject, verdict.NOT_JUDGED, reason=reason)


def judge(
    policy: TimePolicy,
    subject: str,
    runner: Callable[..., Completed] = run,
    now: float | None = None,
    clock: chronyc.Clock | None = None,
) -> list[dict[str, Any]]:
    """One look at the daemon and its unit, as rows. Where systemd may not start it here, nothing is judged.

    ``clock`` is a look that the caller has already taken.
    """
    clock = chronyc.look(runner) if clock is None else clock
    return clock_rows(policy, subject, clock, runner, now) + time_daemon.daemon_rows(
        subject, policy.unit, policy.rivals, runner
    )


def clock_rows(
    policy: TimePolicy,
    subject: str,
    clock: chronyc.Clock,
    runner: Callable[..., Completed] = run,
    now: float | None = None,
) -> list[dict[str, Any]]:
    """The rows that chronyc's answers alone make: time.synchronised, time.sources, time.offset, time.skew."""
    if clock.down:
        condition = unmet_condition(policy.unit, runner)
        if condition:
            reason = f"{policy.unit} does not run here: {condition}; the clock is not this host's to keep"
            return [
                verdict.check_row(name, subject, verdict.NOT_JUDGED, state="skipped", reason=reason)
                for name in ("time.synchronised", "time.sources", "time.offset")
            ]
    rows = time_rows.assess(
        clock, subject, policy.mode, policy.sources, alarm_ms=policy.alarm_ms, warn_ms=policy.warn_ms, now=now,
        neighbours=policy.neighbours,
    )  # fmt: skip
    return rows + time_rows.skew_rows(clock, policy.other_sites, policy.site_skew_alarm_ms)


def unmet_condition(unit: str, runner: Callable[..., Completed] = run) -> str | None:
    """The condition for which systemd skipped the last start of ``unit``; None when it did not skip it."""
    try:
        seen = units.show_units([unit], runner)[unit]
        return units.failed_condition(unit, runner) if seen.skipped else None
    except SteadyrackError:
        return None  # no systemd to ask: then a silent daemon is simply down


def _milliseconds(value: Any) -> float | None:
    """A span above 0, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        return None
    return float(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _named(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())
