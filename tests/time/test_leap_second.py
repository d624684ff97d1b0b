"""A leap second is announced: what chronyd makes of it, from the upstreams through a relay to a node.

chronyd believes an announcement only on the last day of June or December, by the host's own clock. So site b lives
through New Year's Eve, with its upstreams; nobody's real clock is touched.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from chronyd_on import Chronyd
from scenario import RINGS_S, figure

from lab import hosts

pytestmark = pytest.mark.usefixtures("built")


@pytest.fixture
def eve(rack, fault, watched):
    """Site b and all upstreams at noon of the coming New Year's Eve."""
    watched.calm()
    noon = datetime(datetime.now(tz=UTC).year, 12, 31, 12, tzinfo=UTC)
    ahead_s = noon.timestamp() - time.time()
    fault("clock", "all", ahead_s)
    yield {host: fault("skew", host, ahead_s) for host in ("relay-b1", "gpu-b1")}
    for host in rack.hosts.values():  # those who took the upstreams' lie for the truth begin anew
        if not host.upstream_clocks and host.name not in ("relay-b1", "gpu-b1"):
            hosts.execute(rack, host.name, "sh", "-c", "rm -f /run/steadyrack/chrony.env; systemctl restart chrony")


@pytest.mark.parametrize(
    ("announcing", "relay_says"),
    [(["ntp1", "ntp2", "ntp3"], "Insert second"), (["ntp1"], "Normal")],
    ids=["three-of-four", "one-of-four"],
)
def test_most_of_the_upstreams_must_announce_it(announcing, relay_says, eve, fault, watched):
    rack, since = watched.rack, time.time()
    for upstream in announcing:
        fault("leap", upstream, "insert")
    relay, node = Chronyd(rack, "relay-b1"), Chronyd(rack, "gpu-b1")
    relay.restart()
    relay.eventually(lambda c: c.source != "" and list(c.states().values()).count("+") >= 1)
    relay.eventually(lambda c: c.leap == relay_says)
    node.restart()
    node.eventually(lambda c: c.source != "" and c.leap == relay_says)
    assert abs(node.offset_s) < 0.005
    if relay_says == "Normal":
        return
    seen = time.time()
    moments = watched.until(
        90, **{host: lambda h, n=host: h[n].event("time.synchronised", since=since) for host in ("relay-b1", "gpu-b1")}
    )
    late = max(moments.values()) - seen
    figure(f"a leap second announced by {len(announcing)} upstreams: warning on relay and node after", f"{late:.0f} s")
    assert late <= RINGS_S
    event = watched.look()["gpu-b1"].event("time.synchronised", since=since)
    assert event["severity"] == "warning"
    assert "announces that a leap second is inserted" in event["text"]
    code = hosts.execute(rack, "gpu-b1", "sh", "-c", "steadyrack time gate >/dev/null; echo $?")
    assert code == "0"  # the clock is right all the same
