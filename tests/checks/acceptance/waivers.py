"""Waivers: a failing check that somebody has decided to live with, for a reason and until a day.

They are inventory: `acceptance_waivers` (usually in group_vars/all/waivers.yml) is a list of
`{check: gpu.power_cap, hosts: "gpu-b*", subject: "GPU-…", reason: "…", expires: 2027-03-01}`; `hosts` and
`subject` are shell patterns and may be left out. An expired waiver fails the run until it is renewed or removed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from acceptance.rows import BAD, NOT_JUDGED, Row

_KEYS = {"check", "hosts", "subject", "reason", "expires"}


class BadWaiverError(ValueError):
    """A waiver that does not say what it must."""


@dataclass(frozen=True)
class Waiver:
    check: str
    hosts: str
    subject: str
    reason: str
    expires: date

    def __str__(self) -> str:
        return f"waiver of {self.check} on {self.hosts}" + ("" if self.subject == "*" else f" for {self.subject}")

    def expired(self, today: date) -> bool:
        """The day named is the last one on which it holds."""
        return today > self.expires

    def fits(self, found: Row, host: str) -> bool:
        return (
            fnmatch.fnmatchcase(found["id"], self.check)
            and fnmatch.fnmatchcase(host, self.hosts)
            and fnmatch.fnmatchcase(str(found["subject"]), self.subject)
        )


def parse(entry: Any) -> Waiver:
    """One waiver of the inventory; BadWaiverError says what is wrong with it."""
    if not isinstance(entry, dict):
        raise BadWaiverError(f"acceptance_waivers: {entry!r} is not a dictionary with check, reason and expires")
    extra, text = sorted(set(entry) - _KEYS), f"acceptance_waivers: {entry!r}"
    if extra:
        raise BadWaiverError(f"{text} has unknown keys: {', '.join(extra)}")
    for key in ("check", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise BadWaiverError(f"{text} needs {key}, a text")
    try:
        expires = date.fromisoformat(str(entry.get("expires")))
    except ValueError:
        raise BadWaiverError(f"{text} needs expires, a date such as 2027-03-01") from None
    return Waiver(
        entry["check"], str(entry.get("hosts", "*")), str(entry.get("subject", "*")), entry["reason"], expires
    )


def waived(found: Row, host: str, waivers: Iterable[Waiver], today: date) -> Row:
    """The row as it counts: a bad one under a waiver that holds is not judged, and still says what was seen."""
    if found["verdict"] not in BAD:
        return found
    for waiver in waivers:
        if waiver.fits(found, host) and not waiver.expired(today):
            was = f"it was {found['verdict']}" + (f": {found['reason']}" if found["reason"] else "")
            reason = f"waived until {waiver.expires}: {waiver.reason} ({was})"
            return {**found, "verdict": NOT_JUDGED, "state": "waived", "severity": "warning", "reason": reason}
    return found
