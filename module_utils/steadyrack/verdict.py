# SPDX-License-Identifier: BSD-2-Clause
"""The one shape in which everything here gives its finding: a row of ``checks``.

A row answers for one subject (a GPU by UUID, a link, a source, a host). The verdict is one of four
words, and ``unknown`` is never counted as ``pass``: a reading that could not be taken proves nothing.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any, Iterable

PASS = "pass"  # noqa: S105  a verdict, no secret
FAIL = "fail"
UNKNOWN = "unknown"
NOT_JUDGED = "not_judged"
VERDICTS = (PASS, FAIL, UNKNOWN, NOT_JUDGED)

INFO = "info"
WARNING = "warning"
CRITICAL = "critical"
SEVERITIES = (INFO, WARNING, CRITICAL)

KEYS = (
    "id", "subject", "verdict", "state", "severity", "expected", "measured", "unit",
    "source", "at", "reason", "hint",
)  # fmt: skip

# `area.subject`, as in docs/checks: lower case, digits and underscores.
ID_FORM = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")

# What a severity is when the caller has nothing special to say.
_DEFAULT_SEVERITY = {PASS: INFO, FAIL: CRITICAL, UNKNOWN: WARNING, NOT_JUDGED: INFO}


def utc_now() -> str:
    """The present moment as ISO 8601 in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def age_s(at: str) -> float:
    """Seconds since a moment in the form of ``utc_now``."""
    moment = datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    return (datetime.now(timezone.utc) - moment).total_seconds()


def check_row(
    id: str,  # noqa: A002  the row's own key
    subject: str,
    verdict: str,
    state: str | None = None,
    *,
    severity: str | None = None,
    expected: Any = None,
    measured: Any = None,
    unit: str | None = None,
    source: str | None = None,
    at: str | None = None,
    reason: str | None = None,
    hint: str | None = None,
) -> dict[str, Any]:
    """One row of ``checks``. A wrong word here is a mistake in our own code, hence ValueError.

    ``reason`` is demanded for ``unknown`` and ``not_judged``: not judging needs an excuse.
    A warning is a pass with severity ``warning``.
    """
    if not ID_FORM.fullmatch(id):
        raise ValueError(f"check id {id!r} is not of the form area.subject")
    if verdict not in VERDICTS:
        raise ValueError("verdict {!r} of {} is none of {}".format(verdict, id, ", ".join(VERDICTS)))
    severity = _DEFAULT_SEVERITY[verdict] if severity is None else severity
    if severity not in SEVERITIES:
        raise ValueError("severity {!r} of {} is none of {}".format(severity, id, ", ".join(SEVERITIES)))
    if verdict in (UNKNOWN, NOT_JUDGED) and not reason:
        raise ValueError(f"{id} is {verdict} without a reason")
    values = (id, subject, verdict, state, severity, expected, measured, unit, source, at or utc_now(), reason, hint)
    return dict(zip(KEYS, values))


def failed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that say something is wrong."""
    return [row for row in rows if row["verdict"] == FAIL]


def unknown(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that could not be judged though they should have been."""
    return [row for row in rows if row["verdict"] == UNKNOWN]


def exit_code(rows: list[dict[str, Any]]) -> int:
    """0: all passed (or were excused); 1: something failed; 2: nothing failed, something is unknown.

    No rows at all is 2: having looked at nothing proves nothing.
    """
    if failed(rows):
        return 1
    if unknown(rows) or not rows:
        return 2
    return 0
