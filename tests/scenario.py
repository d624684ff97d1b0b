"""What the scenarios of time look at: every host at once, what chronyd says there and what its watch has told a hook.

One look costs each host one command, and milliseconds. A moment is seconds since 1970; alarms have theirs from the
hook that was told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from demo_rack import NODES, RELAYS

from lab import hosts
from lab.topology import Rack

HOOK = "/etc/steadyrack/alarm.d/10-scenario"
TOLD = "/var/log/scenario.log"
HOOK_TEXT = f'#!/bin/sh\nprintf "%s %s\\n" "$(date +%s.%N)" "$(cat)" >>{TOLD}\n'
LOOK = f"echo @; chronyc -n -c tracking 2>/dev/null; echo =; chronyc -n -c sources; echo =; cat {TOLD} 2>/dev/null"
ANEW = "rm -f /run/steadyrack/chrony.env; systemctl restart chrony"
"""chronyd with nothing remembered. Without the file in /run it would keep its samples."""
CLOSE_S = 0.001
"""Within this of its source a clock counts as right: at rest it is a hundred times closer."""
RINGS_S = 60.0
"""Design: an alarm within this of the first measurement past the threshold."""
FIGURES: list[tuple[str, str]] = []
"""What was measured, for the end of the run."""


@dataclass
class Look:
    """One host at one moment. A daemon that does not answer has no tracking."""

    tracking: list[str] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    told: list[dict] = field(default_factory=list)

    @property
    def follows(self) -> str:
        """The address it follows; empty for nobody, and for its own local fallback."""
        return self.tracking[1] if self.tracking else ""

    @property
    def refid(self) -> str:
        return self.tracking[0] if self.tracking else ""

    @property
    def stratum(self) -> int:
        return int(self.tracking[2]) if self.tracking else -1

    @property
    def offset_s(self) -> float:
        """+ is ahead."""
        return -float(self.tracking[4]) if self.tracking else float("nan")

    @property
    def bound_s(self) -> float:
        return abs(self.offset_s) + float(self.tracking[11]) + float(self.tracking[10]) / 2 if self.tracking else 0.0

    @property
    def leap(self) -> str:
        return self.tracking[13] if self.tracking else ""

    def state(self, source: str) -> str:
        """Its letter in `chronyc sources`; empty when there is no such source."""
        return self.sources[source][1] if source in self.sources else ""

    def reach(self, source: str) -> int:
        return int(self.sources[source][5], 8) if source in self.sources else -1

    def event(
        self, check: str, subject: str = "", kind: str = "raised", since: float = 0.0, severity: str = ""
    ) -> dict:
        """The first such event after `since`; {} for none."""
        for one in self.told:
            same = (one["id"], one["event"]) == (check, kind) and subject in one["subject"]
            if same and one["told"] >= since and severity in ("", one["severity"]):
                return one
        return {}


Looks = dict[str, Look]
Condition = Callable[[Looks], object]


class Watched:
    """The hosts of the demo rack, looked at together."""

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.names = [host.name for host in rack.hosts.values() if not host.upstream_clocks]
        self.pool = ThreadPoolExecutor(max_workers=8)
        self.worst: dict[str, float] = {}
        """Of each host, the largest offset of any look (s); a test that wants its own empties it first."""

    def each(self, script: str, names: Iterable[str] = ()) -> dict[str, str]:
        """A script on several hosts at once, past SSH."""
        names = list(names or self.names)
        answers = self.pool.map(lambda name: hosts.execute(self.rack, name, "sh", "-c", script, check=False), names)
        return dict(zip(names, answers, strict=True))

    def look(self) -> Looks:
        found = {name: parse(text) for name, text in self.each(LOOK).items()}
        for name, one in found.items():
            if one.tracking:
                self.worst[name] = max(self.worst.get(name, 0.0), abs(one.offset_s))
        return found

    def until(self, limit_s: float, **conditions: Condition) -> dict[str, float]:
        """name -> when its condition was first true, an event's own moment; all of them, or AssertionError."""
        started, found = time.time(), {}
        while True:
            looks = self.look()
            for name, condition in conditions.items():
                if name in found:
                    continue
                held = condition(looks)
                if held:
                    found[name] = held["told"] if isinstance(held, dict) else time.time()
            if len(found) == len(conditions):
                return found
            if time.time() - started > limit_s:
                raise AssertionError(self.story(set(conditions) - set(found), limit_s, looks, started))
            time.sleep(0.3)

    def story(self, missing: set[str], limit_s: float, looks: Looks, started: float) -> str:
        """What every host said when a condition did not come true."""
        lines = [f"not within {limit_s:g} s: {', '.join(sorted(missing))}"]
        for name, look in looks.items():
            lines.append(f"{name}: {','.join(look.tracking)}")
            lines += ["    " + ",".join(row) for row in look.sources.values()]
            lines += [
                f"    {one['told'] - started:+.0f} s {one['event']} {one['text']}"
                for one in look.told
                if one["told"] > started - 120
            ]
        return "\n".join(lines)

    def calm(self, limit_s: float = 120) -> None:
        """Every clock well and at rest, and no alarm: what came and went in one scenario is no flapping in the next,
        and a leak that ended minutes ago does not stand in its way. Who still swings about a lie forgets it, as by a
        boot: relays first, whose nodes would learn it from them again."""
        rested = all(self.at_rest().values())
        for names in (RELAYS, NODES):
            self.each(f"{{ {str(rested).lower()} && steadyrack time gate >/dev/null 2>&1; }} || {{ {ANEW}; }}", names)
            deadline = time.time() + limit_s
            while bad := {n: t for n, t in self.each("steadyrack time gate 2>&1", names).items() if t[:4] != "yes:"}:
                assert time.time() < deadline, f"not well after {limit_s:g} s: {bad}"
                time.sleep(0.5)
        if not rested:
            swings = [name for name, rests in self.at_rest().items() if not rests]
            assert not swings, f"their clocks swing although chronyd was started anew: {swings}"
        unit, state = "steadyrack-time-watch", "/var/lib/steadyrack"
        self.each(
            f"systemctl stop {unit}; rm -f {TOLD} {state}/alarms.json {state}/ntp_egress.json; systemctl start {unit}"
        )

    def at_rest(self) -> dict[str, bool]:
        """Host -> within CLOSE_S over three polls: a clock that swings passes through zero, too."""
        rests = dict.fromkeys(self.names, True)
        for number in range(4):
            time.sleep(4 if number else 0)
            for name, look in self.look().items():
                rests[name] = rests[name] and bool(look.follows) and abs(look.offset_s) < CLOSE_S
        return rests


def parse(text: str) -> Look:
    """The look from what LOOK printed; a host without power printed nothing."""
    parts = text.split("\n=")
    if len(parts) < 3:
        return Look()
    row = parts[0].removeprefix("@").strip().split(",")
    sources = [line.split(",") for line in parts[1].strip().splitlines()]
    told = []
    for line in parts[2].strip().splitlines():
        at, _, event = line.partition(" ")
        told.append({**json.loads(event), "told": float(at)})
    return Look(row if len(row) >= 14 else [], {s[2]: s for s in sources if len(s) >= 10}, told)


def figure(what: str, measured: str) -> None:
    """A measured figure, printed with the others at the end of the run."""
    FIGURES.append((what, measured))
    print(f"{what}: {measured}")
