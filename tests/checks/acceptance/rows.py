"""The row: one finding about one subject. The shape is the house's (docs/checks); the code is the checks' own."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

Row = dict[str, Any]

PASS, FAIL, UNKNOWN, NOT_JUDGED = "pass", "fail", "unknown", "not_judged"
VERDICTS = (PASS, FAIL, UNKNOWN, NOT_JUDGED)
BAD = (FAIL, UNKNOWN)
"""Verdicts that fail a run. What could not be read proves nothing, so unknown is among them."""

_SEVERITY = {PASS: "info", FAIL: "critical", UNKNOWN: "warning", NOT_JUDGED: "info"}


def utc_now() -> str:
    """The present moment, ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def row(
    check: str,
    subject: str,
    verdict: str,
    *,
    expected: Any = None,
    measured: Any = None,
    unit: str | None = None,
    state: str | None = None,
    severity: str | None = None,
    source: str | None = None,
    reason: str | None = None,
    hint: str | None = None,
) -> Row:
    """A row of `checks`. `unknown` and `not_judged` need a reason: not judging needs an excuse."""
    if verdict not in VERDICTS:
        raise ValueError(f"{check}: verdict {verdict!r} is none of {', '.join(VERDICTS)}")
    if verdict in (UNKNOWN, NOT_JUDGED) and not reason:
        raise ValueError(f"{check} of {subject} is {verdict} without a reason")
    return {
        "id": check,
        "subject": subject,
        "verdict": verdict,
        "state": state,
        "severity": severity or _SEVERITY[verdict],
        "expected": expected,
        "measured": measured,
        "unit": unit,
        "source": source,
        "at": utc_now(),
        "reason": reason,
        "hint": hint,
    }


def judged(check: str, subject: str, good: bool, **fields: Any) -> Row:
    """`pass` or `fail`; a pass keeps no hint."""
    if good:
        fields.pop("hint", None)
    return row(check, subject, PASS if good else FAIL, **fields)


def sentence(found: Row) -> str:
    """One line for people: what, where, expected, measured, why, what to do."""
    unit = f" {found['unit']}" if found["unit"] else ""
    text = f"{found['id']} {found['subject']}: {found['verdict']}"
    if found["expected"] is not None or found["measured"] is not None:
        text += f", expected {found['expected']}{unit}, measured {found['measured']}{unit}"
    for part in (found["reason"], found["hint"] and f"next: {found['hint']}"):
        text += f"; {part}" if part else ""
    return text


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many rows have each verdict; all four are named."""
    words = [found["verdict"] for found in rows]
    return {verdict: words.count(verdict) for verdict in VERDICTS}
