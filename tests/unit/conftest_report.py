"""Answers as time_log_info gives them, for the drawing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

UNTIL = 1796104800
SINCE = UNTIL - 86400
Answer = Callable[..., dict[str, Any]]


def _answer(host: str, offset_us: float | Callable[[int], float | None] = 20.0, **changes: Any) -> dict[str, Any]:
    site = changes.pop("site", "site-a")
    at = range(16, 86400, 320)
    told = [(second, offset_us(second) if callable(offset_us) else offset_us) for second in at]
    points = [[second, us, None if us is None else abs(us) + 200] for second, us in told]
    known = [us for _second, us in told if us is not None]
    worst = max(known, key=abs, default=None)
    bound = None if worst is None else abs(worst) + 200
    summary = {
        "entries": len(points), "gaps": 0, "jumps": 0, "gap_s": 0, "above_warn_s": 0, "above_alarm_s": 0,
        "now_us": told[-1][1], "now_bound_us": bound, "worst_us": worst, "worst_at": 100, "worst_bound_us": bound,
        "frequency_ppm": [-1.0, 0.0, 1.0],
    }  # fmt: skip
    log = {
        "state": "ok", "reason": None, "now": UNTIL, "since": SINCE, "until": UNTIL, "policy": {}, "problems": [],
        "points": points, "gaps": [], "jumps": [], "summary": summary, "upstreams": [], **changes,
    }  # fmt: skip
    return {"host": host, "site": site, "relay": host.startswith("relay"), "alarm_ms": 30, "warn_ms": 10, "log": log}


@pytest.fixture
def answer() -> Answer:
    """One host's entry; the offset is a number of microseconds or a function of the second."""
    return _answer


@pytest.fixture
def unreachable() -> dict[str, Any]:
    return {"host": "gpu-a9", "site": "site-a", "relay": False, "reason": "unreachable (no route)"}
