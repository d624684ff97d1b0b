# SPDX-License-Identifier: BSD-2-Clause
"""Axes that page and picture share: milliseconds, linear near zero and logarithmic beyond; hours of UTC."""

from __future__ import annotations

import math
import time
from typing import Any, Sequence

# Linear up to here, so that noise of 0.02 ms is still seen on the axis that shows 50 ms. What comes over the
# Internet is noisier.
LINEAR_MS, OUTSIDE_LINEAR_MS = 0.1, 1.0


def squeeze(value_ms: float, linear_ms: float = LINEAR_MS) -> float:
    """Position on the axis: one unit up to ``linear_ms``, then one for each factor of ten."""
    size = abs(value_ms) / linear_ms
    return math.copysign(size if size <= 1 else 1 + math.log10(size), value_ms)


def y_ticks(reach_ms: float, linear_ms: float = LINEAR_MS) -> list[float]:
    """0, ±0.1, ±1 … as far as the axis reaches."""
    powers = [float(f"1e{power}") for power in range(-3, 12)]
    positive = [power for power in powers if linear_ms <= power <= reach_ms]
    return [-value for value in reversed(positive)] + [0.0] + positive


def y_label(value_ms: float) -> str:
    """+1, 0, −0.1; from a second on in seconds, or it runs out of the margin."""
    if value_ms == 0:
        return "0"
    sign, size = "+" if value_ms > 0 else "−", abs(value_ms)
    return f"{sign}{size:g}" if size < 1000 else f"{sign}{size / 1000:g} s"


def x_ticks(since: int, until: int, most: int = 7) -> list[tuple[int, str]]:
    """Round times of day, at most ``most`` of them."""
    span = max(1, until - since)
    steps = (60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
    step = next((one for one in steps if span / one <= most), 604800)
    first = -(-since // step) * step
    shape = "%H:%M" if step < 86400 else "%d %b"
    return [(at, time.strftime(shape, time.gmtime(at))) for at in range(first, until + 1, step)]


class Column:
    """What a curve does in one column of a drawing."""

    __slots__ = ("at", "high", "low", "mean")

    def __init__(self, at: float, values: Sequence[float]) -> None:
        self.at, self.low, self.high = at, min(values), max(values)
        self.mean = math.fsum(values) / len(values)

    def shown(self, limit: float) -> float:
        """Where the line goes: through the mean, and through the extreme when that lies beyond ``limit``."""
        worst = max(self.low, self.high, key=abs)
        return worst if abs(worst) > limit else self.mean


def columns(points: Sequence[Any], place: int, since: int, until: int, number: int) -> list[list[Column]]:
    """A curve as columns, in stretches that no gap divides. ``place`` is which value of a point is meant.

    Noise becomes a shade with a line in it, a spike stays as high as it was. A column that a gap divides is two.
    """
    width = max(1e-9, (until - since) / number)
    runs: list[list[Column]] = []
    values: list[float] = []
    ats: list[float] = []
    fresh = True
    for point in [*points, (None, None, None)]:
        at, value = point[0], point[place]
        new = at is None or value is None or (ats and (at // width != ats[0] // width or at < ats[-1]))
        if values and new:
            runs[-1].append(Column((ats[0] + ats[-1]) / 2, values))
            values, ats = [], []
        if value is None:
            fresh = True
            continue
        if fresh:
            runs.append([])
            fresh = False
        values.append(value)
        ats.append(at)
    return runs
