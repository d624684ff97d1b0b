"""A second time service is installed after us, by real apt through the relay: what Debian then does with chrony."""

from __future__ import annotations

import time

import pytest
from scenario import RINGS_S, figure

from lab import faults, hosts

NODE = "gpu-b1"


def installed(rack) -> set[str]:
    text = hosts.execute(rack, NODE, "dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n")
    return {line.split()[1] for line in text.splitlines() if line.startswith("ii")}


@pytest.mark.parametrize(("word", "package"), [("timesyncd", "systemd-timesyncd")])
def test_it_takes_the_place_of_chrony_rings_and_is_put_out_of_action(word, package, rack, watched, play):
    """Each of them conflicts with chrony, as Debian packages it: apt removes chrony without asking.

    openntpd does it to a node in test_scenarios_cut.py, where there is time to wait anyway.
    """
    watched.calm()
    assert "chrony" in installed(rack)
    since = time.time()
    faults.inject(rack, "daemon", [NODE, word])
    done = time.time()
    assert package in installed(rack)
    assert "chrony" not in installed(rack)
    assert hosts.execute(rack, NODE, "systemctl", "is-enabled", package) == "enabled"
    moments = watched.until(
        90,
        **{
            c: lambda h, c=c: h[NODE].event(c, since=since, severity="critical")
            for c in ("time.daemon", "time.synchronised")
        },
    )
    figure(
        f"{package} installed, apt removes chrony: alarm time.daemon after", f"{moments['time.daemon'] - since:.0f} s"
    )
    assert max(moments.values()) - done <= RINGS_S
    assert hosts.execute(rack, NODE, "sh", "-c", "steadyrack time gate >/dev/null; echo $?") == "1"
    first, second = (play("playbooks/time.yml", "--limit", NODE) for _ in range(2))
    assert first.rc == second.rc == 0, first.failures() or second.failures()
    assert first.recap[NODE][0] > 0
    assert second.recap[NODE][0] == 0
    assert "chrony" in installed(rack)
    state = hosts.execute(rack, NODE, "systemctl", "is-active", "chrony", package, check=False).split()
    assert state[0] == "active"
    assert state[1] != "active"
