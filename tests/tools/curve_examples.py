#!/usr/bin/env python3
"""The example pictures of docs/curve.md, from made-up logs; written anew by `python tests/tools/curve_examples.py`.

The numbers are made up, the way is not: log files as chronyd writes them, read by time_log_info's code, drawn by
time_curve's.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "module_utils"), str(ROOT / "tests/unit")]

import chrony_logs  # noqa: E402

from steadyrack import chrony_curve  # noqa: E402
from steadyrack_report import model, page, picture  # noqa: E402

UNTIL = 1796104800  # 2026-12-01 06:00 UTC: the morning after
SMALL_DPI = 64
UPSTREAMS = ("203.0.113.5", "198.51.100.20", "192.0.2.101", "203.0.113.77")
Clock = Callable[[float], "float | None"]


def noise(seed: int, ms: float = 0.02) -> Clock:
    chance = random.Random(seed)
    return lambda second: chance.gauss(0, ms / 1e3)


def answer(folder: Path, clock: Clock, relay: bool, sources: dict[str, Clock] | None = None) -> dict[str, Any]:
    chrony_logs.write_day(folder, UNTIL, clock, step=64 if relay else 16)
    if sources:
        start = UNTIL - 86400
        lines = []
        for second in range(64, 86400, 128):
            for source, ahead in sources.items():
                value = ahead(second)
                if value is not None:
                    lines.append(chrony_logs.measurement_line(start + second, value, source))
        (folder / "measurements.log").write_text(chrony_logs.with_banners(lines))
    wish = chrony_curve.wish(end=UNTIL, directory=str(folder), sources=relay, root=str(folder))
    return chrony_curve.look(wish._replace(now=UNTIL + 2.0), runner=silent)


def silent(argv: Any, timeout_s: float) -> Any:
    from steadyrack.run import Completed

    return Completed([], 1, "", "506 Cannot talk to daemon")


def rack(folder: Path, clocks: dict[str, Clock], sources: dict[str, Clock]) -> list[dict[str, Any]]:
    hosts = []
    for name, clock in clocks.items():
        relay = name.startswith("relay")
        log = answer(folder / name, clock, relay, sources if relay else None)
        site = "site-" + name.split("-")[1][0]
        hosts.append({"host": name, "site": site, "relay": relay, "alarm_ms": 30.0, "warn_ms": 10.0, "log": log})
    return hosts


def upstreams(seed: int) -> dict[str, Clock]:
    return {name: noise(seed + place, 0.4 + 0.3 * place) for place, name in enumerate(UPSTREAMS)}


def healthy(folder: Path) -> list[dict[str, Any]]:
    clocks = {"relay-a1": noise(1, 0.2), "relay-a2": noise(2, 0.2), "gpu-a1": noise(3), "gpu-a2": noise(4)}
    return rack(folder, clocks, upstreams(10))


def bent(folder: Path) -> list[dict[str, Any]]:
    """From 02:10 to 03:00 relay-a1 serves a time 50 ms late. gpu-a1 knows no other relay and follows, bending its clock
    by 500 ppm; gpu-a2 asks both relays, which disagree, and follows nobody. One upstream lies all day and is voted out.
    """
    begin, end = 86400 - 230 * 60, 86400 - 180 * 60

    def follower(second: float) -> float | None:
        late = max(0.0, 0.05 - 5e-4 * (second - begin)) if begin <= second < end else 0.0
        early = max(0.0, 0.05 - 5e-4 * (second - end)) if second >= end else 0.0
        return (quiet(second) or 0.0) + late - early

    def torn(second: float) -> float | None:
        return None if begin <= second < end else quiet(second)

    def bad_peer(second: float) -> float | None:
        return (quiet(second) or 0.0) - (0.05 if begin <= second < end else 0.0)

    quiet = noise(3)
    clocks = {"relay-a2": noise(2, 0.1), "gpu-a1": follower, "gpu-a2": torn}
    lying = noise(9, 0.5)
    seen = {**upstreams(10), UPSTREAMS[3]: lambda second: 0.05 + (lying(second) or 0.0), "10.213.1.21": bad_peer}
    hosts = rack(folder, clocks, seen)
    hosts[0]["log"]["upstreams"][0]["kind"] = "peer"
    relay = answer(folder / "relay-a1", noise(1, 0.1), True, upstreams(30))
    return [*hosts, {**hosts[0], "host": "relay-a1", "log": relay}]


def dead(folder: Path) -> list[dict[str, Any]]:
    """Both relays silent from 22:00 on and back at 03:30, gpu-a2 does not answer at all."""
    lost, back = 86400 - 8 * 3600, 86400 - 2.5 * 3600

    def away(seed: int, ms: float, drift_ppm: float) -> Clock:
        base = noise(seed, ms)

        def clock(second: float) -> float | None:
            if lost < second < back:
                return math.nan
            if second >= back:
                late = drift_ppm * 1e-6 * (back - lost) - 5e-4 * (second - back)
                return (base(second) or 0.0) + max(0.0, late)
            return base(second)

        return clock

    clocks = {"relay-a1": away(1, 0.2, 0), "gpu-a1": away(3, 0.02, 1.8), "gpu-b1": noise(7)}
    hosts = rack(folder, clocks, upstreams(10))
    return [
        *hosts,
        {"host": "gpu-a2", "site": "site-a", "relay": False, "reason": "unreachable (connection timed out)"},
    ]


def many(folder: Path) -> list[dict[str, Any]]:
    """64 hosts for the eye of whoever changes the drawing; not in the documentation."""
    clocks: dict[str, Clock] = {f"gpu-a{number:02d}": noise(number, 0.02) for number in range(1, 61)}
    for number, far in ((7, 0.04), (23, 0.012), (41, -0.035)):
        base = noise(number)
        clocks[f"gpu-a{number:02d}"] = lambda s, far=far, base=base: (base(s) or 0.0) + (far if s > 60000 else 0.0)
    clocks.update({"relay-a1": noise(91, 0.2), "relay-b1": noise(92, 0.2), "gpu-b1": noise(93)})
    return [
        *rack(folder, clocks, upstreams(10)),
        {"host": "gpu-b2", "site": "site-b", "reason": "unreachable (no route)"},
    ]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images"
    out.mkdir(parents=True, exist_ok=True)
    scenes = [healthy, bent, dead] + ([many] if len(sys.argv) > 1 else [])
    for scene in scenes:
        with tempfile.TemporaryDirectory() as folder:
            report = model.build("demo", scene(Path(folder)), UNTIL, 24)
        path = out / f"time-{scene.__name__}.png"
        path.write_bytes(picture.png(report, picture.DPI if len(sys.argv) > 1 else SMALL_DPI))
        print(path, path.stat().st_size, *model.headline(report), sep="\n  ")
        if len(sys.argv) > 1:
            text = page.page(report)
            (out / f"time-{scene.__name__}.html").write_text(text)
            print(len(text))


if __name__ == "__main__":
    main()
