# SPDX-License-Identifier: BSD-2-Clause
"""Whether a job may start now, as far as this host's clock goes: one answer, one line."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from . import verdict

# What stops a job: a clock that is or may soon be wrong. A leak that the firewall rejected (time.egress) and what
# lies between sites (time.skew, measured on relays) are alarms, not reasons to hold this node back.
ASKED = ("time.synchronised", "time.offset", "time.sources", "time.daemon")


class Decision(NamedTuple):
    """0: yes. 1: no. 2: not known, which is no yes."""

    code: int
    line: str

    @property
    def may_start(self) -> bool:
        return self.code == 0


def decide(host: str, rows: Sequence[dict[str, Any]]) -> Decision:
    """From the rows of one look. The first reason is the root one: the order of ``ASKED`` is that of the verdicts."""
    asked = [row for name in ASKED for row in rows if row["id"] == name]
    failing = verdict.failed(asked)
    if failing:
        return Decision(1, f"no: {host}: {_said(failing)}")
    unknown = verdict.unknown(asked)
    if unknown:
        return Decision(2, f"not known: {host}: {_said(unknown)}")
    followed = next((row for row in asked if row["id"] == "time.synchronised"), None)
    bound = next((row for row in asked if row["id"] == "time.offset"), None)
    if followed is None or followed["verdict"] != verdict.PASS or bound is None or bound["measured"] is None:
        # Nobody vouches for this clock: the role has not run, or the daemon may not run here.
        return Decision(2, f"not known: {host}: {followed['reason'] if followed else 'the clock was not judged'}")
    told = f"yes: {host}: the clock is within {bound['measured']:.3f} ms, it follows {followed['measured']}"
    warnings = [row for row in asked if row["severity"] == verdict.WARNING]
    return Decision(0, told + (f"; note {_said(warnings)}" if warnings else ""))


def _said(rows: Sequence[dict[str, Any]]) -> str:
    first = rows[0]
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    return " ".join(f"{first['id']} {first['subject']}: {first['reason']}{more}".split())
