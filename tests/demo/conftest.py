"""The demo rack end to end. Runs go through ansible-runner: events are asserted, not text."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass

import pytest
from running import ROOT, run_playbook

from lab import faults, hosts
from lab.topology import Rack, load

REPORT = ROOT / "reports" / "demo" / "acceptance.json"
NODES = ("gpu-a1", "gpu-a2")
HOSTS = ("relay-a1", *NODES)
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


@pytest.fixture(scope="session")
def rack() -> Rack:
    """The demo rack, up. Emulated faults of an earlier, aborted run are taken back."""
    found = load("demo")
    hosts.up(found)
    faults.inject(found, "heal", [])
    return found


@pytest.fixture(scope="session")
def play(rack, tmp_path_factory):
    """Run a playbook on the demo rack: play("site.yml", "--check", "--diff")."""

    def run(playbook: str, *words: str, verbosity: int = 0) -> Run:
        folder = tmp_path_factory.mktemp("run")
        done = run_playbook(playbook, ROOT / "inventory" / "demo", folder, list(words), verbosity)
        events = list(done.events)
        text = "\n".join(e.get("stdout", "") for e in events)
        return Run(done.rc, done.stats or {}, events, re.sub(r"\x1b\[[0-9;]*m", "", text))

    return run


@pytest.fixture(scope="session")
def built(play) -> Run:
    """The rack after site.yml: what every test here starts from."""
    run = play("site.yml")
    assert run.rc == 0, run.failures() or run.text[-3000:]
    return run


@pytest.fixture
def fault(rack):
    """Inject faults; emulated ones are taken back afterwards."""
    yield lambda name, *words: faults.inject(rack, name, [str(w) for w in words])
    faults.inject(rack, "heal", [])


def report_rows() -> list[dict]:
    return json.loads(REPORT.read_text())["checks"]


def not_passed(rows: list[dict]) -> set[tuple[str, str]]:
    """(host, check id) of every row that is not a pass."""
    return {(r["host"], r["id"]) for r in rows if r["verdict"] != "pass"}


@pytest.fixture
def sh(rack):
    """sh("gpu-a1", "cat /etc/hostname"): a command on a host, past SSH."""
    return lambda host, text, check=True: hosts.execute(rack, host, "sh", "-c", text, check=check)
