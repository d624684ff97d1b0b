"""What chronyd itself says on a host of the demo rack: the tests of faults ask it and none of our own code."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from lab import hosts
from lab.say import RackError
from lab.topology import Rack

UNSYNCHRONISED = "Not synchronised"


class Chronyd:
    """The chronyd of one host, asked by chronyc in its container."""

    def __init__(self, rack: Rack, host: str) -> None:
        self.rack, self.host = rack, host

    def ask(self, *words: str) -> list[list[str]]:
        """Rows of `chronyc -n -c WORDS`."""
        text = hosts.execute(self.rack, self.host, "chronyc", "-n", "-c", *words)
        return [line.split(",") for line in text.splitlines()]

    @property
    def offset_s(self) -> float:
        """Its system clock against the time it has measured: + is ahead, as `chronyc tracking` says "fast"."""
        return -float(self.ask("tracking")[0][4])

    @property
    def source(self) -> str:
        """The address it follows; empty when it follows nobody."""
        return self.ask("tracking")[0][1]

    @property
    def stratum(self) -> int:
        return int(self.ask("tracking")[0][2])

    @property
    def leap(self) -> str:
        return self.ask("tracking")[0][13]

    def states(self) -> dict[str, str]:
        """source -> its letter in `chronyc sources`: * selected, + combined, x false ticker, ? unusable."""
        return {row[2]: row[1] for row in self.ask("sources")}

    def leaps(self) -> dict[str, str]:
        """source -> what it says of a leap second, as the daemon heard it, in its list of candidates."""
        return {row[1]: row[-1] for row in self.ask("selectdata")}

    def measure(self, server: str) -> tuple[float, str]:
        """(seconds by which this host's clock is ahead of `server`, everything it said): one exchange of chronyd -Q."""
        words = ["timeout", "8", "chronyd", "-Q", "-t", "4", f"server {server} iburst maxsamples 1"]
        text = hosts.execute(self.rack, self.host, "sh", "-c", '"$@" 2>&1', "sh", *words, check=False)
        match = re.search(r"System clock wrong by (-?[\d.]+) seconds", text)
        return (-float(match[1]) if match else float("nan")), text

    def eventually(self, condition: Callable[[Chronyd], bool], limit_s: float = 30) -> float:
        """Seconds until `condition(self)` holds; an AssertionError with what chronyd said if it does not in time."""
        started = time.monotonic()
        while True:
            try:
                if condition(self):
                    return time.monotonic() - started
            except RackError:
                pass  # it is just starting
            if time.monotonic() - started > limit_s:
                said = hosts.execute(self.rack, self.host, "chronyc", "-n", "tracking", check=False)
                said += "\n" + hosts.execute(self.rack, self.host, "chronyc", "-n", "sources", check=False)
                raise AssertionError(f"{self.host}: not within {limit_s:g} s:\n{said}")
            time.sleep(0.3)
