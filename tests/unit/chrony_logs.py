"""chronyd's logs as chronyd writes them, for any clock a test thinks of."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

BANNER = (
    "   Date (UTC) Time     IP Address   St   Freq ppm   Skew ppm     Offset L Co  Offset sd Rem. corr. "
    "Root delay Root disp. Max. error"
)


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def tracking_line(
    at: float,
    ahead_s: float | None,
    source: str = "10.213.1.21",
    skew: float = 0.05,
    error_s: float = 2e-4,
    *,
    stratum: int = 3,
) -> str:
    """reference.c's format. The offset stands in the remaining correction, as while a clock is being bent."""
    if ahead_s is None:
        return f"{stamp(at)} {'0.0.0.0':<15s} {0:2d} {-3.5:10.3f} {skew:10.3f} {0:10.3e} ?  0 {0:10.3e} {0:10.3e} " + (
            f"{1:10.3e} {1:10.3e} {1.5:10.3e}"
        )
    numbers = (0.0, -ahead_s, error_s / 2, error_s / 2, abs(ahead_s) + error_s)
    offset, remaining, delay, dispersion, most = (f"{number:10.3e}" for number in numbers)
    head = f"{stamp(at)} {source:<15s} {stratum:2d} {-3.5:10.3f} {skew:10.3f}"
    return f"{head} {offset} N  1 {1e-5:10.3e} {remaining} {delay} {dispersion} {most}"


def measurement_line(at: float, ahead_s: float, source: str, tests: str = "111 111 1111") -> str:
    """ntp_core.c's format; the source is `ahead_s` ahead of the host."""
    numbers = " ".join(f"{number:10.3e}" for number in (ahead_s, 1.4e-4, 1e-6, 0.0, 1.5e-4))
    return f"{stamp(at)} {source:<15s} N  1 {tests}   6  6 1.00 {numbers} 4C4F434C 4B K K"


def with_banners(lines: Iterable[str], banner: str = BANNER) -> str:
    told = []
    for number, line in enumerate(lines):
        if number % 32 == 0:
            told += ["=" * len(banner), banner, "=" * len(banner)]
        told.append(line)
    return "".join(f"{line}\n" for line in told)


def write_day(
    folder: Path, until: float, ahead: Callable[[float], float | None], step: int = 16, hours: int = 24
) -> Path:
    """tracking.log of the hours before `until`: a line every `step` seconds; `ahead` gets seconds since the begin.

    None from it is a clock that follows nobody, NaN a daemon that writes nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    start = int(until) - hours * 3600
    seen = ((start + second, ahead(second)) for second in range(step, hours * 3600, step))
    lines = [tracking_line(at, value) for at, value in seen if value is None or not math.isnan(value)]
    path = folder / "tracking.log"
    path.write_text(with_banners(lines))
    return path
