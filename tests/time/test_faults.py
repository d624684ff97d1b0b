"""Every fault of time, power, packets and disk does what it says, as chronyd and apt on the hosts see it.

What our own checks and alarms make of these is tested elsewhere: here a fault that breaks nothing is found out. Servers
are measured by one exchange of `chronyd -Q`, so that nobody waits for polls.
"""

from __future__ import annotations

import json
import math
import time

import pytest
from chronyd_on import Chronyd

from lab import faults, hosts
from lab.say import RackError

pytestmark = pytest.mark.usefixtures("built")
CLOSE_S = 0.005
"""Two containers of one busy machine agree to better than this."""


@pytest.fixture(scope="module")
def on(rack):
    return lambda host: Chronyd(rack, host)


def test_all_upstreams_lie_by_the_same_to_everybody(fault, on):
    fault("clock", "all", "-0.05")
    for relay, upstream in (("relay-a1", "10.213.0.11"), ("relay-b1", "10.213.0.14")):
        ahead, said = on(relay).measure(upstream)
        assert ahead == pytest.approx(0.05, abs=CLOSE_S), said


def test_one_relay_sees_every_upstream_shifted_and_the_other_none(fault, on):
    fault("bend", "relay-a1", "0.05")
    for upstream in ("10.213.0.11", "10.213.0.13"):
        ahead, said = on("relay-a1").measure(upstream)
        assert ahead == pytest.approx(-0.05, abs=CLOSE_S), said
        ahead, said = on("relay-a2").measure(upstream)
        assert ahead == pytest.approx(0, abs=CLOSE_S), said
    fault("bend", "relay-a1", "none")
    assert on("relay-a1").measure("10.213.0.11")[0] == pytest.approx(0, abs=CLOSE_S)


@pytest.mark.parametrize(("word", "said"), [("insert", "Insert second"), ("delete", "Delete second")])
def test_an_upstream_announces_a_leap_second(word, said, fault, on):
    """chronyd's own word for what each source says, in its list of candidates. It believes them on the day only."""
    relay = on("relay-a1")
    fault("leap", "ntp1", word)
    relay.eventually(lambda c: leap_of(c, "10.213.0.11") == said)
    assert leap_of(relay, "10.213.0.12") == "Normal"
    fault("leap", "ntp1", "none")
    relay.eventually(lambda c: leap_of(c, "10.213.0.11") == "Normal")


def leap_of(chronyd: Chronyd, source: str) -> str:
    hosts.execute(chronyd.rack, chronyd.host, "chronyc", "burst", "1/1", source)
    return chronyd.leaps()[source]


def test_an_upstream_that_has_lost_its_time_says_so_and_is_not_measured(fault, on):
    fault("leap", "ntp1", "lost")
    ahead, said = on("relay-a1").measure("10.213.0.11")
    assert math.isnan(ahead), said
    fault("leap", "all", "none")
    assert on("relay-a1").measure("10.213.0.11")[0] == pytest.approx(0, abs=CLOSE_S)


def test_a_smearing_upstream_is_a_quarter_of_a_second_behind_and_says_nothing(fault, on):
    fault("leap", "ntp2", "smear")
    ahead, said = on("relay-a1").measure("10.213.0.12")
    assert ahead == pytest.approx(0.25, abs=CLOSE_S), said
    fault("leap", "ntp2", "none")
    assert on("relay-a1").measure("10.213.0.12")[0] == pytest.approx(0, abs=CLOSE_S)


@pytest.mark.parametrize("node", ["gpu-a1", "gpu-a2"])
@pytest.mark.parametrize("seconds", [0.05, -0.035])
def test_a_node_whose_clock_is_apart_says_so_in_sign_and_size(node, seconds, fault, on):
    """The fault of the founding incident. + is ahead: `chronyc tracking` says so many seconds "fast of NTP time"."""
    fault("skew", node, seconds)
    on(node).eventually(lambda c: c.source and abs(c.offset_s - seconds) < CLOSE_S)
    text = hosts.execute(on(node).rack, node, "chronyc", "tracking")
    assert f"seconds {'fast' if seconds > 0 else 'slow'} of NTP time" in text
    assert abs(on("gpu-b1").offset_s) < CLOSE_S


def test_a_skew_is_healed_with_everything_else(fault, rack, on):
    fault("skew", "gpu-a1", 0.05)
    faults.inject(rack, "heal", [])
    on("gpu-a1").eventually(lambda c: c.source and abs(c.offset_s) < CLOSE_S)


def test_a_rogue_server_is_known_to_the_running_daemon_only(rack, on):
    faults.inject(rack, "rogue", ["gpu-a2", "10.213.1.1"])
    try:
        assert "10.213.1.1" in on("gpu-a2").states()
        assert "10.213.1.1" not in hosts.execute(rack, "gpu-a2", "sh", "-c", "cat /etc/chrony/*.conf /etc/chrony/*/*")
    finally:
        hosts.execute(rack, "gpu-a2", "chronyc", "delete", "10.213.1.1")


# --- power and cables ------------------------------------------------------------------------------


def answers(rack, host: str, address: str, tries: int = 1) -> bool:
    """Whether `address` answers a TCP connection to its sshd, asked from `host`."""
    script = f"for i in $(seq {tries}); do timeout 1 bash -c '</dev/tcp/{address}/22' && exit 0; done; exit 1"
    return (
        hosts.execute(rack, host, "sh", "-c", f"if ( {script} ) 2>/dev/null; then echo yes; fi", check=False) == "yes"
    )


def by_apt(rack, host: str, script: str) -> None:
    """Through the relays, whose squid may meet a name server that is silent for half a minute, and remembers it."""
    for pause in (70, 70, 0):
        try:
            hosts.execute(rack, host, "sh", "-c", script)
        except RackError:
            if not pause:
                raise
            time.sleep(pause)
        else:
            return


def test_a_relay_without_power_answers_nobody_and_apt_goes_to_the_other(fault, rack, on):
    """Two relays, one gone: time and packages come from the other, and it comes back by itself."""
    fault("relay", "relay-a1", "stop")
    assert hosts.states(rack)["relay-a1"] == ("exited", 0)
    assert not answers(rack, "gpu-a1", "10.213.1.21")
    assert hosts.execute(rack, "gpu-a1", "steadyrack-apt-proxy") == "http://10.213.1.22:3128"
    by_apt(rack, "gpu-a1", "cd /tmp && apt-get -q download hostname && rm hostname_*.deb")
    fault("relay", "relay-a1", "start")
    assert answers(rack, "gpu-a1", "10.213.1.21")
    assert on("relay-a1").ask("tracking")


def test_a_dead_squid_is_passed_over_as_well(fault, rack):
    fault("service", "relay-a1", "stop", "squid")
    try:
        assert hosts.execute(rack, "gpu-a2", "steadyrack-apt-proxy") == "http://10.213.1.22:3128"
        by_apt(rack, "gpu-a2", "apt-get install -qy --reinstall hostname")
    finally:
        hosts.execute(rack, "relay-a1", "systemctl", "start", "squid")
    assert hosts.execute(rack, "gpu-a2", "steadyrack-apt-proxy") == "http://10.213.1.21:3128"


def test_a_relay_cut_off_from_its_nodes_is_alive(fault, rack, on):
    fault("inside", "relay-a1", "cut")
    assert not answers(rack, "gpu-a1", "10.213.1.21")
    assert answers(rack, "gpu-a1", "10.213.1.22")
    assert on("relay-a1").measure("10.213.0.11")[0] == pytest.approx(0, abs=CLOSE_S)
    fault("inside", "relay-a1", "mend")
    assert answers(rack, "gpu-a1", "10.213.1.21", tries=5)


def test_a_relay_without_uplink_still_serves(fault, rack, on):
    fault("uplink", "relay-a1", "cut")
    assert answers(rack, "gpu-a1", "10.213.1.21")
    ahead, said = on("relay-a1").measure("10.213.0.11")
    assert math.isnan(ahead), said  # nothing was measured
    assert answers(rack, "relay-a2", "10.213.0.11")


@pytest.mark.parametrize(("percent", "few", "many"), [(100, 95, 100), (40, 25, 55)])
def test_packets_get_lost(percent, few, many, fault, rack):
    fault("loss", "gpu-a1", percent)
    assert few <= lost_of(rack, "gpu-a1", "gpu-a2") <= many
    fault("loss", "gpu-a1", "none")
    assert lost_of(rack, "gpu-a1", "gpu-a2") <= 2


def lost_of(rack, sender: str, receiver: str, number: int = 400) -> float:
    """Per cent of `number` UDP packets that did not arrive, from the receiver's own counter; others' make it less."""

    def arrived() -> int:
        return int(hosts.execute(rack, receiver, "cat", "/sys/class/net/eth0/statistics/rx_packets"))

    address = rack.hosts[receiver].ssh_address
    script = (
        "import socket, time\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"for i in range({number}): s.sendto(b'x', ('{address}', 9)); time.sleep(0.001)\n"
    )
    before = arrived()
    hosts.execute(rack, sender, "python3", "-c", script)
    return max(0.0, 100 * (1 - (arrived() - before) / number))


# --- disk, firewall, webhook -----------------------------------------------------------------------


def test_a_full_disk_stops_the_log_and_not_the_clock(fault, rack, on, sh):
    def log_size() -> int:
        return int(sh("gpu-a2", "cat /var/log/chrony/*.log 2>/dev/null | wc -c"))

    before = log_size()
    fault("disk", "gpu-a2", "full")
    assert "No space left" in sh("gpu-a2", "head -c 8192 /dev/zero 2>&1 >/var/log/chrony/more || true; "
                                 "dd if=/dev/zero of=/var/log/chrony/more bs=8k count=1 2>&1 || true")  # fmt: skip
    assert log_size() >= before
    assert on("gpu-a2").ask("tracking")
    fault("disk", "gpu-a2", "free")
    sh("gpu-a2", "rm -f /var/log/chrony/more; ! mountpoint -q /var/log/chrony")
    assert log_size() >= before
    assert sh("gpu-a2", "stat -c %U /var/log/chrony") == "_chrony"


def test_flushed_rules_are_gone(fault, sh):
    sh("gpu-a1", "command -v nft || apt-get install -qy --no-install-recommends nftables")
    sh("gpu-a1", "nft add table inet demo_fault")
    fault("flush", "gpu-a1")
    assert sh("gpu-a1", "nft list ruleset") == ""
    sh("gpu-a1", "systemctl restart steadyrack-firewall")
    assert "steadyrack_ntp" in sh("gpu-a1", "nft list tables")


def post(rack, body: str, path: str = "/alarm", host: str = "relay-a1") -> str:
    """The HTTP status that the receiver gives a relay, or `none`."""
    script = (
        "import sys, urllib.request, urllib.error\n"
        "try: print(urllib.request.urlopen(urllib.request.Request('http://10.213.0.11:8080' + sys.argv[2],"
        " sys.argv[1].encode()), timeout=2).status)\n"
        "except urllib.error.HTTPError as e: print(e.code)\n"
        "except OSError: print('none')"
    )
    return hosts.execute(rack, host, "python3", "-c", script, body, path)


def test_the_webhook_takes_json_and_refuses_the_rest(fault, rack, sh):
    mark = f"test {time.time()}"
    assert post(rack, json.dumps({"id": "time.offset", "mark": mark})) == "200"
    assert post(rack, "offset too large") == "400"
    assert post(rack, "{}", path="/elsewhere") == "404"
    last = json.loads(sh("outside", "tail -n 1 /var/log/webhook.jsonl"))
    assert last["alarm"] == {"id": "time.offset", "mark": mark}
    assert last["from"] == "10.213.0.21"
    assert abs(last["at"] - time.time()) < 60


@pytest.mark.parametrize(("word", "status"), [("error", "500"), ("hang", "none")])
def test_a_webhook_out_of_order_keeps_nothing(word, status, fault, rack, sh):
    lines = sh("outside", "wc -l </var/log/webhook.jsonl || echo 0")
    fault("webhook", word)
    assert post(rack, "{}") == status
    assert sh("outside", "wc -l </var/log/webhook.jsonl || echo 0") == lines
    fault("webhook", "ok")
    assert post(rack, "{}") == "200"
