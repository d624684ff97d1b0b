"""A leap second is announced: what chronyd makes of it, from the upstreams through a relay to a node.

chronyd believes an announcement only on the last day of June or December, by the host's own clock. So site b lives
through New Year's Eve, with its upstreams; nobody's real clock is touched.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from chronyd_on import Chronyd
from scenario import ANEW

from lab import hosts

pytestmark = pytest.mark.usefixtures("built")
SITE_B = ("relay-b1", "gpu-b1")
THERE = "LD_PRELOAD=/usr/lib/demo-rack/libbentclock.so BENTCLOCK_FILE=/run/demo-rack-skew"


@pytest.fixture
def eve(rack, fault, watched):
    """Site b and all upstreams at noon of the coming New Year's Eve, synchronised."""
    watched.calm()
    noon = datetime(datetime.now(tz=UTC).year, 12, 31, 12, tzinfo=UTC)
    ahead_s = noon.timestamp() - time.time()
    fault("clock", "all", ahead_s)
    for host in SITE_B:
        fault("skew", host, ahead_s)
        watched.each(ANEW, [host])
        Chronyd(rack, host).eventually(lambda c: c.source != "" and abs(c.offset_s) < 0.005)
    yield
    # Those of site a have taken the upstreams' lie for the truth, or nobody's word.
    fault("heal")
    # What was logged of that day is no curve for who comes next.
    watched.each(f"rm -f /var/log/chrony/*.log; {ANEW}")


@pytest.mark.parametrize(
    ("announcing", "believed"),
    [(["ntp1", "ntp2", "ntp3"], "Insert second"), (["ntp1"], "Normal")],
    ids=["three-of-four", "one-of-four"],
)
def test_most_of_the_upstreams_must_announce_it(announcing, believed, eve, rack, fault):
    for upstream in announcing:
        fault("leap", upstream, "insert")
    relay, node = (Chronyd(rack, host) for host in SITE_B)
    heard = [rack.hosts["outside"].upstream_clocks[upstream] for upstream in announcing]
    relay.eventually(lambda c: all(c.leaps()[address] == "Insert second" for address in heard))
    relay.eventually(lambda c: c.leap == believed)
    node.eventually(lambda c: c.source != "" and c.leap == believed)
    assert abs(node.offset_s) < 0.005
    if believed == "Normal":
        assert relay.leap == "Normal"
        return
    for host in SITE_B:
        (row,) = [row for row in rows(rack, host) if row["id"] == "time.synchronised"]
        assert row["severity"] == "warning", row
        assert "announces that a leap second is inserted" in row["reason"]
    code = hosts.execute(rack, "gpu-b1", "sh", "-c", f"{THERE} steadyrack time gate >/dev/null; echo $?")
    assert code == "0"  # the clock is right all the same


def rows(rack, host: str) -> list[dict]:
    """Its own rows, judged at its own time: `skew` bends the clock of chronyd alone."""
    text = hosts.execute(rack, host, "sh", "-c", f"{THERE} steadyrack check --json", check=False)
    return json.loads(text)["checks"]
