"""What the end-to-end tests look at: runs as events, the acceptance report as rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

from running import ROOT

REPORT = ROOT / "reports" / "demo" / "acceptance.json"
RELAYS = ("relay-a1", "relay-a2", "relay-b1")
NODES = ("gpu-a1", "gpu-a2", "gpu-b1")
HOSTS = (*RELAYS, *NODES)
RESULT_EVENTS = ("runner_on_ok", "runner_on_skipped", "runner_on_failed", "runner_on_unreachable")


@dataclass
class Run:
    """One playbook run: exit code, statistics and every task result."""

    rc: int
    stats: dict[str, dict[str, int]]
    events: list[dict]
    text: str

    def changed(self, host: str) -> list[tuple[str, dict]]:
        """(task, result) of everything that changed, or under check mode would change, on `host`."""
        return [
            (e["event_data"]["task"], e["event_data"]["res"])
            for e in self.events
            if e["event"] == "runner_on_ok"
            and e["event_data"]["host"] == host
            and e["event_data"]["res"].get("changed")
        ]

    def failures(self, host: str | None = None) -> list[tuple[str, str]]:
        """(host, message) of every failed or unreachable result."""
        return [
            (e["event_data"]["host"], json.dumps(e["event_data"]["res"]))
            for e in self.events
            if e["event"] in ("runner_on_failed", "runner_on_unreachable")
            and host in (None, e["event_data"]["host"])
            and not e["event_data"].get("ignore_errors")
        ]

    def results(self, host: str, but_play: str = "Acceptance") -> int:
        """How many results (ok, skipped, failed) `host` had, acceptance aside."""
        return sum(
            e["event"] in RESULT_EVENTS
            and e["event_data"].get("host") == host
            and not e["event_data"].get("play", "").startswith(but_play)
            for e in self.events
        )

    def commands(self) -> Counter[str]:
        """SSH commands for each address, from -vvv."""
        return Counter(re.findall(r"^<([^>]+)> SSH: EXEC", self.text, re.M))

    @property
    def recap(self) -> dict[str, tuple[int, int]]:
        """host -> (changed, failed or unreachable)"""
        names = set().union(*(self.stats.get(k, {}) for k in ("ok", "changed", "failures", "dark", "skipped")))
        return {
            h: (self.stats["changed"].get(h, 0), self.stats["failures"].get(h, 0) + self.stats["dark"].get(h, 0))
            for h in names
        }


def report_rows() -> list[dict]:
    return json.loads(REPORT.read_text())["checks"]


def not_passed(rows: list[dict]) -> set[tuple[str, str]]:
    """(host, check id) of every row that fails a run; `not_judged` has its reason and does not."""
    return {(r["host"], r["id"]) for r in rows if r["verdict"] not in ("pass", "not_judged")}
