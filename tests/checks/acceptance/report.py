"""What a run found: rows, what was not run, and what is wrong with the run itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from acceptance import rows, waivers
from acceptance.rows import Row

ALLOWED_SKIPS: tuple[str, ...] = ()
"""Reasons for which a check may be skipped. None is known: a check that does not apply says `not_judged`."""


class Report:
    """Collects, and writes once at the end."""

    def __init__(self, inventory: str, today: date | None = None) -> None:
        self.inventory = inventory
        self.today = today or date.today()
        self.rows: list[Row] = []
        self.not_run: list[dict[str, str]] = []
        self.problems: list[str] = []

    def add(self, host: str, found: Iterable[Row], entries: Any = ()) -> list[Row]:
        """Take in rows of one host, waived where `entries` (its acceptance_waivers) say so; returns what counts."""
        held = self._waivers(entries)
        counted = [{"host": host, **waivers.waived(one, host, held, self.today)} for one in found]
        self.rows.extend(counted)
        return counted

    def _waivers(self, entries: Any) -> list[waivers.Waiver]:
        held = []
        for entry in entries if isinstance(entries, list) else [entries] if entries else []:
            try:
                waiver = waivers.parse(entry)
            except waivers.BadWaiverError as error:
                self.problem(str(error))
                continue
            if waiver.expired(self.today):
                self.problem(f"{waiver} expired on {waiver.expires}: renew it with a reason, or remove it")
            held.append(waiver)
        return held

    def problem(self, text: str) -> None:
        """Something for which the run fails though no row says so. The same thing is said once."""
        if text not in self.problems:
            self.problems.append(text)

    def skipped(self, name: str, reason: str) -> None:
        if reason not in ALLOWED_SKIPS:
            self.problem(f"{name} was skipped ({reason}), which is not on the list of allowed reasons")

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": rows.utc_now(),
            "inventory": self.inventory,
            "counts": rows.counts(self.rows),
            "checks": self.rows,
            "not_run": self.not_run,
            "problems": self.problems,
        }

    def write(self, path: Path) -> None:
        """Whole or not at all: a reader never meets half a report."""
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        beside.replace(path)
