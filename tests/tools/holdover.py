#!/usr/bin/env python3
"""How long a clock is good for once nobody tells it the time: the tables of docs/holdover.md, from drift alone.

    python tests/tools/holdover.py            the table
    python tests/tools/holdover.py 1.7 30     hours until 30 ms at 1.7 ppm

The error after t seconds is `residual * t` plus what the crystal wanders meanwhile: a random walk of frequency of
w per square root of a second has moved the clock by w * sqrt(t^3 / 3) (one sigma) after t.
"""

from __future__ import annotations

import math
import sys

# Residual frequency error, ppm, and where it comes from (sources: docs/holdover.md).
RATES = (
    (0.1, "a good crystal in a quiet room, well learnt"),
    (0.5, "half a degree warmer than when it was learnt"),
    (1.0, "one degree; what a day does to most"),
    (1.7, "a GPU node whose jobs come and go (measured by simulation)"),
    (5.0, "five degrees; what `maxclockerror 5` allows for"),
    (10.0, "a poor crystal (chrony.conf's own figure)"),
    (78.0, "never disciplined: the median of 20 000 hosts"),
)
WANDER = 1e-9  # per sqrt(s), the "typical" profile
LIMITS_MS = (1.0, 10.0, 30.0)


def error_ms(seconds: float, ppm: float, wander: float = WANDER) -> float:
    """How wrong the clock is after so many seconds alone."""
    return (abs(ppm) * 1e-6 * seconds + wander * math.sqrt(seconds**3 / 3)) * 1e3


def seconds_until(limit_ms: float, ppm: float, wander: float = WANDER) -> float:
    """When the error reaches the limit, seconds; infinite for a perfect clock."""
    if limit_ms <= 0:
        return 0.0
    if not ppm and not wander:
        return math.inf
    low, high = 0.0, 1.0
    while error_ms(high, ppm, wander) < limit_ms:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if error_ms(middle, ppm, wander) < limit_ms else (low, middle)
    return high


def span(seconds: float) -> str:
    """13 s, 7 min, 4.9 h, 2.5 d."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} d"


def table() -> list[str]:
    """Markdown: a row a rate; two clocks that drift apart reach 30 ms in the time one needs for 15."""
    lines = [
        "| off by | which clock | until 1 ms | until 10 ms | until 30 ms | two nodes 30 ms apart |",
        "|---|---|---|---|---|---|",
    ]
    for ppm, which in RATES:
        cells = [span(seconds_until(limit, ppm)) for limit in (*LIMITS_MS, LIMITS_MS[-1] / 2)]
        lines.append(f"| {ppm:g} ppm | {which} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    if len(sys.argv) == 3:
        print(span(seconds_until(float(sys.argv[2]), float(sys.argv[1]))))
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
