# SPDX-License-Identifier: BSD-2-Clause
"""The clock's part of the node's checks: what the role asked for, held against what chronyd says.

The role time_sync leaves a note of its wishes in /etc/steadyrack/time_sync.json; without that note
this node's clock is nobody's business here, and the one row says so.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Callable, NamedTuple

from . import chronyc, units, verdict
from .errors import StateFileError, SteadyrackError
from .files import load_json
from .run import Completed, run

POLICY_PATH = "etc/steadyrack/time_sync.json"
VERSION = 1


class TimePolicy(NamedTuple):
    """What the role time_sync wants of this node."""

    mode: str  # relay or client
    sources: list[str] | None  # the only sources the daemon may have, as configured; None: nobody said
    alarm_ms: float  # above this the clock is called wrong
    warn_ms: float | None  # above this it is mentioned
    unit: str  # the daemon's unit


def load_policy(root: str = "/") -> TimePolicy | None:
    """The note of the role, None when there is none; malformed or of a newer version is StateFileError."""
    path = os.path.join(root, POLICY_PATH)
    value = load_json(path)
    if value is None:
        return None
    again = "run the role time_sync again"
    if value.get("version") not in (VERSION, 2):
        raise StateFileError(path, f"version {value.get('version')!r}", f"version {VERSION}", again)
    if value.get("mode") not in (chronyc.RELAY, chronyc.CLIENT):
        raise StateFileError(path, f"mode {value.get('mode')!r}", "mode relay or client", again)
    sources, unit = value.get("sources"), value.get("unit")
    if not isinstance(sources, list) or not sources or not all(isinstance(name, str) for name in sources):
        raise StateFileError(path, f"sources {sources!r}", "a list of names or addresses", again)
    if not isinstance(unit, str) or not unit:
        raise StateFileError(path, f"unit {unit!r}", "the name of the daemon's unit", again)
    alarm_ms, warn_ms = _milliseconds(value.get("alarm_ms")), _milliseconds(value.get("warn_ms"))
    if alarm_ms is None or (warn_ms is None and value.get("warn_ms") is not None):
        seen = f"alarm_ms {value.get('alarm_ms')!r}, warn_ms {value.get('warn_ms')!r}"
        raise StateFileError(path, seen, "milliseconds above 0", again)
    sources = [*sources, *(value.get("peers") or []), *(value.get("other_sites") or {})]
    return TimePolicy(value["mode"], sources, alarm_ms, warn_ms, unit)


def checks(root: str = "/", runner: Callable[..., Completed] = run, now: float | None = None) -> list[dict[str, Any]]:
    """The rows of this host's clock. Never raises: a note that cannot be used is a row ``unknown``."""
    subject = socket.gethostname()
    try:
        policy = load_policy(root)
    except SteadyrackError as error:
        return [
            verdict.check_row(
                "time.synchronised", subject, verdict.UNKNOWN, reason=error.sentence(), hint=error.next_step
            )
        ]
    if policy is None:
        reason = f"/{POLICY_PATH} is not there: the role time_sync has not run on this host"
        return [verdict.check_row("time.synchronised", subject, verdict.NOT_JUDGED, reason=reason)]
    return judge(policy, subject, runner, now)


def judge(
    policy: TimePolicy, subject: str, runner: Callable[..., Completed] = run, now: float | None = None
) -> list[dict[str, Any]]:
    """One look at the daemon, as rows. Where systemd may not start it here, nothing is judged."""
    clock = chronyc.look(runner)
    if clock.down:
        condition = unmet_condition(policy.unit, runner)
        if condition:
            reason = f"{policy.unit} does not run here: {condition}; the clock is not this host's to keep"
            return [
                verdict.check_row(name, subject, verdict.NOT_JUDGED, state="skipped", reason=reason)
                for name in ("time.synchronised", "time.sources", "time.offset")
            ]
    return chronyc.assess(
        clock, subject, policy.mode, policy.sources, alarm_ms=policy.alarm_ms, warn_ms=policy.warn_ms, now=now
    )


def unmet_condition(unit: str, runner: Callable[..., Completed] = run) -> str | None:
    """The condition for which systemd skipped the last start of ``unit``; None when it did not skip it."""
    try:
        seen = units.show_units([unit], runner)[unit]
        return units.failed_condition(unit, runner) if seen.skipped else None
    except SteadyrackError:
        return None  # no systemd to ask: then a silent daemon is simply down


def _milliseconds(value: Any) -> float | None:
    """A span above 0, or None for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        return None
    return float(value)
