"""Lines of chronyc and clocks made of them, for the tests of what is said about them."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.steadyrack import chronyc
from ansible.module_utils.steadyrack.chronyc import Clock, parse_sources, parse_tracking

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/chrony"
SYNCED = "0A580033,10.88.0.51,3,1000000.0,{offset},0.0,0.0,0.274,0.004,0.189,{delay},{dispersion},2.0,Normal"
SOURCE = "^,{state},{name},2,{poll},{reach},1,-0.000006252,-0.000006312,0.000172011"
NOW = 1000010.0


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.csv").read_text()


def tracking(offset: float = 0.0, delay: float = 0.0, dispersion: float = 0.0) -> chronyc.Tracking:
    return parse_tracking(SYNCED.format(offset=f"{offset:.9f}", delay=f"{delay:.9f}", dispersion=f"{dispersion:.9f}"))


def sources(*entries: tuple[str, str, str]) -> list[chronyc.Source]:
    """Sources of (name, state, reach)."""
    lines = [SOURCE.format(name=name, state=state, reach=reach, poll=4) for name, state, reach in entries]
    return parse_sources("\n".join(lines))


def good(offset: float = 0.0, **more: float) -> Clock:
    return Clock(tracking(offset, **more), sources(("10.88.0.51", "*", "377")))
