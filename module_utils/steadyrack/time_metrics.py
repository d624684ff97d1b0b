# SPDX-License-Identifier: BSD-2-Clause
"""The clock for Prometheus: a text file that node_exporter's textfile collector reads.

A value that is not known has no line: 0 would read as perfect.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any, Iterable, Mapping, Sequence

from . import alarms, chronyc, firewall_checks, time_checks, time_egress

# Where Debian's prometheus-node-exporter looks; ours, where that is not installed.
EXPORTER_DIRECTORY = "var/lib/prometheus/node-exporter"
OWN_DIRECTORY = "var/lib/steadyrack/metrics"
FILE = "steadyrack_time.prom"
STATES = (
    chronyc.SYNCHRONISED, chronyc.STALE, chronyc.ISLANDED, chronyc.UNSYNCHRONISED, chronyc.DOWN, chronyc.UNREADABLE,
)  # fmt: skip
# What the watch looks at: each has a line, 0 while it is quiet.
CHECKS = (
    "time.synchronised", "time.sources", "time.offset", "time.skew", "time.daemon", "time.config", "time.egress",
    firewall_checks.CHECK,
)  # fmt: skip


class Lines:
    """Samples by metric, each with its HELP and TYPE once."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], Any]]) -> None:
        """Samples whose value is None are left out, and so is a metric without any."""
        known = [(labels, value) for labels, value in samples if value is not None]
        if not known:
            return
        kind = "counter" if name.endswith("_total") else "gauge"
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for labels, value in known:
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            self._lines.append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def render(
    policy: time_checks.TimePolicy | None,
    clock: chronyc.Clock | None,
    standing: Sequence[alarms.Standing],
    egress: time_egress.Record | None,
    now: float,
) -> str:
    """The whole file, from one look at ``now`` (epoch s)."""
    lines = Lines()
    lines.add("steadyrack_time_look_timestamp_seconds", "When the clock was last looked at.", [({}, round(now, 3))])
    # An alarm of a check that is not listed above shows all the same.
    names = [*CHECKS, *sorted({one.id for one in standing} - set(CHECKS))]
    active = {name: sum(one.id == name for one in standing) for name in names}
    lines.add(
        "steadyrack_time_alarm_active", "Alarms that stand, by check.",
        [({"check": name}, number) for name, number in active.items()],
    )  # fmt: skip
    named = [({"check": one.id, "subject": one.subject, "severity": one.severity}, one) for one in standing]
    lines.add("steadyrack_time_alarm_since_seconds", "Since when each alarm stands.",
              [(labels, round(one.since, 3)) for labels, one in named])  # fmt: skip
    lines.add("steadyrack_time_egress_packets_total", "Packets to foreign time servers, rejected.",
              [({}, egress.packets if egress else None)])  # fmt: skip
    if policy is not None:
        lines.add("steadyrack_time_info", "What this host is.", [({"mode": policy.mode, "site": policy.site or ""}, 1)])
        lines.add(
            "steadyrack_time_alarm_seconds", "Above this bound the clock is wrong.", [({}, policy.alarm_ms / 1000)]
        )
        if clock is not None:
            _clock(lines, policy, clock, now)
    return lines.text()


def _clock(lines: Lines, policy: time_checks.TimePolicy, clock: chronyc.Clock, now: float) -> None:
    state = chronyc.state_of(clock, now)
    lines.add("steadyrack_time_state", "1 for the state of the clock.",
              [({"state": word}, int(word == state)) for word in STATES])  # fmt: skip
    tracking = clock.tracking
    if tracking is not None:
        lines.add("steadyrack_time_offset_seconds", "Offset from NTP time, + is ahead.", [({}, tracking.offset_s)])
        lines.add("steadyrack_time_bound_seconds", "The most the clock can be wrong.", [({}, tracking.bound_s)])
        lines.add("steadyrack_time_stratum", "Stratum.", [({}, tracking.stratum or None)])
        lines.add(
            "steadyrack_time_frequency_ppm", "How fast this crystal runs, + is fast.", [({}, tracking.frequency_ppm)]
        )
        leap = {"Normal": 0, "Insert second": 1, "Delete second": -1}.get(tracking.leap)
        lines.add("steadyrack_time_leap", "Leap second announced: 1 inserted, -1 deleted.", [({}, leap)])
    named = [({"source": one.name}, one) for one in clock.sources if one.mode != "refclock"]
    lines.add("steadyrack_time_source_reachable", "1 when any of the last 8 polls was answered.",
              [(labels, int(one.reachable)) for labels, one in named])  # fmt: skip
    lines.add("steadyrack_time_source_falseticker", "1 when the others outvote it.",
              [(labels, int(one.state == "falseticker")) for labels, one in named])  # fmt: skip
    lines.add("steadyrack_time_source_offset_seconds", "Offset from this source, + is ahead of it.",
              [(labels, one.offset_s if one.reachable else None) for labels, one in named])  # fmt: skip
    sites = {chronyc.canonical(name): site for name, site in policy.other_sites.items()}
    others = [
        ({"site": sites[chronyc.canonical(one.name)], "relay": one.name}, one)
        for one in clock.sources
        if chronyc.canonical(one.name) in sites and one.reachable
    ]
    lines.add("steadyrack_time_skew_seconds", "This relay from another site's, + is ahead.",
              [(labels, one.offset_s) for labels, one in others])  # fmt: skip
    lines.add("steadyrack_time_skew_uncertainty_seconds", "Of the skew, either way.",
              [(labels, one.margin_s) for labels, one in others])  # fmt: skip


def directory(root: str, wanted: str | None) -> str:
    """Where the file goes. Ours is made where it is missing; another one must be there."""
    if wanted:
        return os.path.join(root, wanted.lstrip("/"))
    exporter = os.path.join(root, EXPORTER_DIRECTORY)
    if os.path.isdir(exporter):
        return exporter
    own = os.path.join(root, OWN_DIRECTORY)
    os.makedirs(own, mode=0o755, exist_ok=True)
    return own


def write(folder: str, text: str, name: str = FILE) -> None:
    """Replace the file. Without fsync: it is written every few seconds and worth nothing after a crash. OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
            os.fchmod(handle.fileno(), 0o644)
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _escaped(text: str) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
