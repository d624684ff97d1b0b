"""Each check passes on good evidence and fails on the fault that it is there for.

All variations are hosts of one inventory, judged in one run. A variation names every bad row it should cause,
so that a fault which trips an unrelated check is a failure here, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from recorded_rack import GROUPS, Outcome, Rack

Evidence = dict[str, Any]
POLICY = "/etc/steadyrack/gpu_policy.json"
CHRONY = "/etc/chrony/chrony.conf"
SOURCES = "/etc/chrony/steadyrack.d/*.sources"
SQUID = "/etc/squid/squid.conf"
TRACKING = "chronyc tracking"


@dataclass(frozen=True)
class Case:
    """One fault. `bad`: check id → the worst verdict of its rows; `text` occurs in one of the bad rows."""

    name: str
    base: str
    break_it: Callable[[Evidence], object] | None = None
    bad: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    variables: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None
    site: str | None = None  # beside other variations, where hosts are compared; else alone at a site of its own


# --- small faults --------------------------------------------------------------------------------


def command(label: str, pattern: str, new: str) -> Callable[[Evidence], object]:
    """Other words in what a command printed."""

    def change(evidence: Evidence) -> None:
        record = evidence["commands"][label]
        record["out"], count = re.subn(pattern, new, record["out"], flags=re.MULTILINE)
        assert count, f"{pattern} does not occur in {label}: {record['out']}"

    return change


def says(label: str, out: str, rc: int = 1) -> Callable[[Evidence], object]:
    return lambda evidence: evidence["commands"][label].update(out=out, rc=rc)


def column(label: str, place: int, value: str, line: int = 0) -> Callable[[Evidence], object]:
    """Another value in one column of a `chronyc -c` report."""

    def change(evidence: Evidence) -> None:
        lines = evidence["commands"][label]["out"].splitlines()
        words = lines[line].split(",")
        words[place] = value
        lines[line] = ",".join(words)
        evidence["commands"][label]["out"] = "\n".join(lines) + "\n"

    return change


def unit(name: str, **properties: str) -> Callable[[Evidence], object]:
    return lambda evidence: evidence["units"][name].update(properties)


def gpu(place: int, **values: Any) -> Callable[[Evidence], object]:
    return lambda evidence: evidence["nvml"]["gpus"][place].update(values)


def given(*places: int) -> Callable[[Evidence], object]:
    """A command over SSH is told of these GPUs."""

    def change(evidence: Evidence) -> None:
        uuids = [evidence["nvml"]["gpus"][place]["uuid"] for place in places]
        evidence["session"]["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)

    return change


def spare(place: int) -> Callable[[Evidence], object]:
    """This GPU stands by, and the others are for jobs."""
    others = [other for other in range(4) if other != place]
    return both(gpu(place, compute_mode=2, requested_mw=150000, enforced_mw=150000), given(*others))


def boot_unit_is_new(evidence: Evidence) -> None:
    """It came after the last boot, so it had no occasion to run."""
    evidence["units"]["steadyrack-gpu.service"].update(ActiveState="inactive", SubState="dead")
    path = "/usr/lib/systemd/system/steadyrack-gpu.service"
    evidence["files"][path][path]["mtime"] = evidence["now"] - 60


def card_lost(evidence: Evidence) -> None:
    """NVML does not even give a handle; the bus answers with ones."""
    evidence["nvml"]["gpus"][1] = {"errors": {"handle": 15}}
    evidence["pci"][1]["gone"] = True


def end(device: int, place: int, **values: str) -> Callable[[Evidence], object]:
    return lambda evidence: evidence["pci"][device]["path_up"][place].update(values)


def content(path: str, old: str, new: str, pattern: str | None = None) -> Callable[[Evidence], object]:
    """Other text in a file; it was there when the daemon started."""

    def change(evidence: Evidence) -> None:
        file = evidence["files"][pattern or path][path]
        assert re.search(old, file["content"]), f"{old} does not occur in {path}"
        file["content"] = re.sub(old, new, file["content"], count=1)

    return change


def without_file(pattern: str, path: str | None = None) -> Callable[[Evidence], object]:
    return lambda evidence: evidence["files"][pattern].pop(path or pattern)


def edited_after_start(path: str) -> Callable[[Evidence], object]:
    return lambda evidence: evidence["files"][path][path].update(mtime=evidence["now"])


def both(*changes: Callable[[Evidence], object]) -> Callable[[Evidence], object]:
    return lambda evidence: [change(evidence) for change in changes] and None


def chronyd_down(evidence: Evidence) -> None:
    evidence["processes"]["chronyd"] = []
    evidence["units"]["chrony.service"].update(ActiveState="inactive", SubState="dead")
    for label in ("chronyc tracking", "chronyc sources"):
        says(label, "506 Cannot talk to daemon\n")(evidence)


def rules(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Evidence], object]:
    """Another ruleset in the kernel: `change` gets nft's own list of objects."""

    def apply(evidence: Evidence) -> None:
        record = evidence["commands"]["nft ruleset"]
        ruleset = json.loads(record["out"])
        change(ruleset["nftables"])
        record["out"] = json.dumps(ruleset)

    return apply


def rule(chain: str, expr: list[Any], place: int | None = None) -> Callable[[Evidence], object]:
    """One more rule in a chain of our table, at its beginning or at a place in it."""

    def change(objects: list[dict[str, Any]]) -> None:
        first = next(at for at, one in enumerate(objects) if one.get("rule", {}).get("chain") == chain)
        new = {"rule": {"family": "inet", "table": "steadyrack_ntp", "chain": chain, "expr": expr}}
        objects.insert(first + (place or 0), new)

    return rules(change)


def no_rules_in(chain: str) -> Callable[[Evidence], object]:
    def change(objects: list[dict[str, Any]]) -> None:
        objects[:] = [one for one in objects if one.get("rule", {}).get("chain") != chain]

    return rules(change)


def asks(key: str, value: Any) -> dict[str, Any]:
    """The match `PROTOCOL FIELD VALUE`."""
    protocol, field_ = key.split()
    return {"match": {"op": "==", "left": {"payload": {"protocol": protocol, "field": field_}}, "right": value}}


def probed(change: Callable[[dict[str, Any]], object]) -> Callable[[Evidence], object]:
    def apply(evidence: Evidence) -> None:
        record = evidence["commands"]["ntp probe"]
        said = json.loads(record["out"])
        change(said)
        record["out"] = json.dumps(said)

    return apply


def peer(number: int, reach: str = "377") -> Callable[[Evidence], object]:
    """The daemon also asks the relay beside it, and that relay answers NTP questions."""
    address, file = f"10.213.1.{number}", "/etc/chrony/steadyrack.d/steadyrack.sources"

    def change(evidence: Evidence) -> None:
        evidence["commands"]["chronyc sources"]["out"] += f"^,?,{address},2,4,{reach},19,0.00001,0.00001,0.0004\n"
        evidence["files"][SOURCES][file]["content"] += f"server {address} iburst minpoll 4 maxpoll 4\n"
        probed(lambda said: said["relays"].update({address: "answered"}))(evidence)

    return change


def asked_about(address: str, out: str) -> Callable[[Evidence], object]:
    """One more answer of `chronyc accheck`."""
    argv = ["chronyc", "accheck", address]
    record = {"argv": argv, "rc": 0, "out": out, "err": "", "error": None}
    return lambda evidence: evidence["commands"].update({" ".join(argv): record})


UPSTREAMS = [{"address": f"10.213.0.{number}", "operator": f"operator {number}"} for number in range(11, 15)]
SECOND = {"ansible_host": "10.213.1.22"}
ACCEPT = {"accept": None}
TO_PORT = asks("udp dport", 123)
LEAK = {"firewall.ntp": "fail"}

NO_CLOCK = {"time.synchronised": "fail", "time.offset": "unknown", "time.skew": "unknown"}
UNREAD_CLOCK = dict.fromkeys(NO_CLOCK, "unknown")
DOWN = {
    "time.daemon": "fail",
    "time.config": "fail",
    "time.synchronised": "fail",
    "time.sources": "unknown",
    "time.offset": "unknown",
    "time.skew": "unknown",
}
CHECKS = (
    "gpu.count",
    "gpu.power_cap",
    "gpu.persistence",
    "gpu.allow_list",
    "gpu.compute_mode",
    "gpu.remapped_rows",
    "gpu.throttle",
    "pcie.width",
    "agent.files",
    "agent.units",
    "package.relay_only",
    "time.daemon",
    "time.config",
    "time.synchronised",
    "time.sources",
    "time.offset",
    "time.skew",
    "time.serving",
    "firewall.ntp",
)
NVML_SILENT = dict.fromkeys(
    (
        "gpu.power_cap",
        "gpu.persistence",
        "gpu.allow_list",
        "gpu.compute_mode",
        "gpu.remapped_rows",
        "gpu.throttle",
    ),
    "unknown",
)
NVML_GONE = {"gpu.count": "fail", **NVML_SILENT}
ONE_SPARE = {"gpu_policy_spares": 1}

OUT = {"bus_id": "0000:4b:00.0", "until": "9999-12-31", "reason": "RMA 4711"}
CARDS = {"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150}

CASES = [
    Case("relay-a1", "relay-a1"),
    Case("gpu-a1", "gpu-a1"),
    # --- time.daemon ---
    Case("chronyd-down", "gpu-a1", chronyd_down, DOWN, "506 Cannot talk to daemon"),
    Case("chronyd-not-enabled", "relay-a1", unit("chrony.service", UnitFileState="disabled"), {"time.daemon": "fail"}),
    Case(
        "chrony-half-installed",
        "gpu-a1",
        lambda e: e["packages"]["chrony"].update(status="half-configured"),
        {"time.daemon": "fail"},
        "install ok half-configured",
    ),
    Case("c78-held-is-installed", "gpu-a1", lambda e: e["packages"]["chrony"].update(want="hold")),
    Case(
        "timesyncd-too",
        "gpu-a1",
        unit(
            "systemd-timesyncd.service",
            LoadState="loaded",
            UnitFileState="enabled",
            ActiveState="active",
            SubState="running",
        ),
        {"time.daemon": "fail"},
        "systemd-timesyncd.service",
    ),
    Case(
        "c79-masked-is-out-of-the-way",
        "gpu-a1",
        unit("systemd-timesyncd.service", LoadState="masked", UnitFileState="masked"),
    ),
    # --- time.config ---
    Case("config-newer-than-the-daemon", "relay-a1", edited_after_start(CHRONY)),
    Case(
        "config-newer-and-not-ours",
        "gpu-a1",
        both(edited_after_start(CHRONY), content(CHRONY, r"\A", "pool 2.debian.pool.ntp.org iburst\n")),
        {"time.config": "fail"},
        "2.debian.pool.ntp.org",
    ),
    Case(
        "config-steps-at-any-time",
        "gpu-a1",
        content(CHRONY, r"(?m)^makestep .*$", "makestep 1 -1"),
        {"time.config": "fail"},
        "stepped under running jobs",
    ),
    Case(
        "config-has-a-pool",
        "gpu-a1",
        content(CHRONY, r"\A", "pool 2.debian.pool.ntp.org iburst\n"),
        {"time.config": "fail"},
        "2.debian.pool.ntp.org",
    ),
    Case(
        "config-reads-dhcp-sources",
        "gpu-a1",
        content(CHRONY, r"\A", "sourcedir /run/chrony-dhcp\n"),
        {"time.config": "fail"},
        "/run/chrony-dhcp",
    ),
    Case(
        "config-not-ours",
        "gpu-a1",
        content(CHRONY, r"(?m)^sourcedir .*$", ""),
        {"time.config": "fail"},
        "does not read /etc/chrony/steadyrack.d",
    ),
    Case(
        "config-elsewhere",
        "gpu-a1",
        lambda e: e["processes"]["chronyd"][0]["argv"].extend(["-f", "/tmp/other.conf"]),
        {"time.config": "fail"},
        "-f /tmp/other.conf",
    ),
    Case(
        "sources-directory-is-a-link",
        "gpu-a1",
        lambda e: e["files"][SOURCES.rpartition("/")[0]].update({SOURCES.rpartition("/")[0]: {"link": "/srv/theirs"}}),
        {"time.config": "fail"},
        "/etc/chrony/steadyrack.d is a link to /srv/theirs",
    ),
    Case(
        "config-is-a-link",
        "gpu-a1",
        lambda e: e["files"][CHRONY][CHRONY].update(link="/srv/chrony.conf"),
        {"time.config": "fail"},
        "/etc/chrony/chrony.conf is a link to /srv/chrony.conf",
    ),
    Case(
        "an-empty-stranger-among-the-sources",
        "relay-a1",
        lambda e: e["files"][SOURCES].update({"/etc/chrony/steadyrack.d/a.sources": {"content": "", "mtime": 0.0}}),
        {"time.config": "fail"},
        "/etc/chrony/steadyrack.d/a.sources is not ours",
    ),
    Case(
        "a-dangling-stranger-among-the-sources",
        "relay-a1",
        lambda e: e["files"][SOURCES].update(
            {"/etc/chrony/steadyrack.d/a.sources": {"link": "/gone", "error": "No such file or directory"}}
        ),
        {"time.config": "fail"},
        "/etc/chrony/steadyrack.d/a.sources is a link to /gone",
    ),
    Case("config-gone", "gpu-a1", without_file(CHRONY), {"time.config": "fail"}),
    Case(
        "sources-file-differs",
        "gpu-a1",
        content("/etc/chrony/steadyrack.d/steadyrack.sources", r"10\.213\.1\.21", "10.213.1.99", SOURCES),
        {"time.config": "fail"},
        "10.213.1.99",
    ),
    # --- time.synchronised, time.offset ---
    Case(
        "follows-nobody",
        "gpu-a1",
        both(column("chronyc tracking", 0, "00000000"), column("chronyc tracking", 13, "Not synchronised")),
        NO_CLOCK,
        "follows nobody",
    ),
    Case(
        "follows-itself",
        "relay-a1",
        both(column("chronyc tracking", 0, "7F7F0101"), column("chronyc tracking", 2, "10")),
        NO_CLOCK,
        "local fallback",
    ),
    Case(
        "free-running-relay",
        "gpu-a1",
        column("chronyc tracking", 2, "11"),
        NO_CLOCK,
        "runs free",
    ),
    Case(
        "stale",
        "gpu-a1",
        column("chronyc tracking", 3, "1000000000.0"),
        NO_CLOCK,
        "last update",
    ),
    Case(
        "two-upstreams-silent",
        "relay-a1",
        both(column("chronyc sources", 5, "0", 0), column("chronyc sources", 5, "0", 1)),
        {"time.synchronised": "fail"},
        "only 2 of 4 upstreams answer",
    ),
    Case("one-upstream-silent", "relay-a1", column("chronyc sources", 5, "0", 0)),
    Case(
        "c28-daemon-not-asked",
        "gpu-a1",
        says("chronyc tracking", "501 Not authorised\n"),
        UNREAD_CLOCK,
        "501 Not authorised",
    ),
    Case(
        "tracking-garbled",
        "gpu-a1",
        says("chronyc tracking", "Reference ID    : 0AD50115\n", 0),
        UNREAD_CLOCK,
        "not 14 columns",
    ),
    Case(
        "tracking-in-words",
        "gpu-a1",
        column("chronyc tracking", 4, "slow"),
        UNREAD_CLOCK,
        "slow",
    ),
    Case("offset-above-alarm", "gpu-a1", column("chronyc tracking", 4, "-0.031"), {"time.offset": "fail"}, "31."),
    Case("dispersion-above-alarm", "gpu-a1", column("chronyc tracking", 11, "0.040"), {"time.offset": "fail"}, "40."),
    Case("delay-above-alarm", "gpu-a1", column("chronyc tracking", 10, "0.070"), {"time.offset": "fail"}, "35."),
    Case(
        "alarm-of-the-inventory",
        "gpu-a1",
        column("chronyc tracking", 4, "0.010"),
        {"time.offset": "fail"},
        variables={"time_sync_alarm_ms": 8},
    ),
    # --- time.sources ---
    Case(
        "c27-pool-left-behind",
        "gpu-a1",
        lambda e: e["commands"]["chronyc sources"].update(
            out=e["commands"]["chronyc sources"]["out"] + "^,-,hora.rediris.es,2,6,377,12,0.0001,0.0001,0.002\n"
        ),
        {"time.sources": "fail"},
        "hora.rediris.es",
    ),
    Case(
        "upstream-missing",
        "relay-a1",
        command("chronyc sources", r"^.*10\.213\.0\.14.*\n", ""),
        {"time.sources": "fail"},
        "10.213.0.14",
    ),
    Case(
        "no-sources",
        "gpu-a1",
        command("chronyc sources", r"^.*\n", ""),
        {"time.sources": "fail", **NO_CLOCK},
        "does not have it",
    ),
    Case(
        "relay-silent",
        "gpu-a1",
        both(column("chronyc sources", 1, "?"), column("chronyc sources", 5, "0")),
        {"time.sources": "fail", **NO_CLOCK},
        "no other source is usable",
    ),
    Case(
        "refclock-is-not-compared",
        "relay-a1",
        lambda e: e["commands"]["chronyc sources"].update(
            out=e["commands"]["chronyc sources"]["out"] + "#,-,PPS0,0,4,377,12,0.0001,0.0001,0.002\n"
        ),
    ),
    Case("upstreams-with-operators", "relay-a1", variables={"time_sync_upstreams": UPSTREAMS}),
    Case(
        "upstream-with-operator-missing",
        "relay-a1",
        command("chronyc sources", r"^.*10\.213\.0\.14.*\n", ""),
        {"time.sources": "fail"},
        "10.213.0.14",
        variables={"time_sync_upstreams": UPSTREAMS},
    ),
    Case("peer-1", "relay-a1", peer(22), site="peers"),
    Case("peer-2", "relay-a1", peer(21), site="peers", variables=SECOND),
    Case(
        "peer-unasked",
        "relay-a1",
        None,
        {"time.sources": "fail", "time.config": "fail"},
        "10.213.1.22",
        site="peers-one-way",
    ),
    Case("peer-unasked-of", "relay-a1", peer(21), site="peers-one-way", variables=SECOND),
    Case(
        "peer-is-no-upstream",
        "relay-a1",
        both(peer(22), column("chronyc sources", 5, "0", 0), column("chronyc sources", 5, "0", 1)),
        {"time.synchronised": "fail"},
        "only 2 of 4 upstreams answer",
        site="peers-vote",
    ),
    Case("peer-silent", "relay-a1", peer(21, reach="0"), site="peers-vote", variables=SECOND),
    # --- time.skew: hosts of one site ---
    Case("ahead", "gpu-a1", column(TRACKING, 4, "-0.016"), {"time.skew": "fail"}, "32.000 ms apart", site="apart"),
    Case("behind", "gpu-a1", column(TRACKING, 4, "0.016"), {"time.skew": "fail"}, "behind and ahead", site="apart"),
    Case("between", "gpu-a1", site="apart"),
    Case("a-little-ahead", "gpu-a1", column(TRACKING, 4, "-0.010"), site="together"),
    Case("a-little-behind", "gpu-a1", column(TRACKING, 4, "0.010"), site="together"),
    # Near each other, and neither knows well enough where: 2 · 14 ms, and 3 ms apart.
    Case("vague-1", "gpu-a1", column(TRACKING, 11, "0.014"), {"time.skew": "fail"}, "uncertain", site="vague"),
    Case(
        "vague-2",
        "gpu-a1",
        both(column(TRACKING, 11, "0.014"), column(TRACKING, 4, "0.003")),
        {"time.skew": "fail"},
        "uncertain",
        site="vague",
    ),
    Case("left-over", "gpu-a1", site="unread"),
    Case("unread", "gpu-a1", says(TRACKING, "501 Not authorised\n"), UNREAD_CLOCK, site="unread"),
    # --- time.serving ---
    Case(
        "network-not-served",
        "relay-a1",
        says("chronyc accheck 10.213.1.1", "209 Access denied\n", 0),
        {"time.serving": "fail"},
        "10.213.1.1 refused",
    ),
    Case(
        "stranger-served",
        "relay-a1",
        says("chronyc accheck 192.0.2.1", "208 Access allowed\n", 0),
        {"time.serving": "fail"},
        "192.0.2.1 served",
    ),
    Case(
        "stranger-served-by-ipv6",
        "relay-a1",
        says("chronyc accheck 2001:db8:ffff:ffff::1", "208 Access allowed\n", 0),
        {"time.serving": "fail"},
        "2001:db8:ffff:ffff::1 served",
    ),
    Case(
        "serving-unread",
        "relay-a1",
        says("chronyc accheck 10.213.1.1", "506 Cannot talk to daemon\n"),
        {"time.serving": "unknown"},
        "506 Cannot talk to daemon",
    ),
    Case(
        "serving-not-asked",
        "relay-a1",
        lambda e: e["commands"]["chronyc accheck 10.213.1.1"].update(out="", rc=None, error="no answer within 10 s"),
        {"time.serving": "unknown"},
        "no answer within 10 s",
    ),
    Case(
        "ipv6-network-served",
        "relay-a1",
        asked_about("2001:db8:1::1", "208 Access allowed\n"),
        variables={"time_sync_client_networks": ["10.213.1.0/24", "2001:db8:1::/64"]},
    ),
    Case(
        "ipv6-network-not-served",
        "relay-a1",
        asked_about("2001:db8:1::1", "209 Access denied\n"),
        {"time.serving": "fail"},
        "2001:db8:1::1 refused",
        variables={"time_sync_client_networks": ["10.213.1.0/24", "2001:db8:1::/64"]},
    ),
    Case(
        "a-client-is-no-stranger",
        "relay-a1",
        says("chronyc accheck 192.0.2.1", "208 Access allowed\n", 0),
        variables={"time_sync_client_networks": ["192.0.2.0/24"]},
    ),
    # --- package.relay_only ---
    Case(
        "no-proxy",
        "gpu-a1",
        command("apt-config", r"^Acquire::http::Proxy .*$", ""),
        {"package.relay_only": "fail"},
        "no proxy",
    ),
    Case(
        "other-proxy",
        "gpu-a1",
        command("apt-config", r'^(Acquire::https::Proxy) ".*"', r'\1 "http://203.0.113.1:3128"'),
        {"package.relay_only": "fail"},
        "203.0.113.1",
    ),
    Case(
        "one-host-direct",
        "gpu-a1",
        command("apt-config", r"\A", 'Acquire::http::Proxy::mirror.example "DIRECT";\n'),
        {"package.relay_only": "fail"},
        "DIRECT",
    ),
    Case(
        "strange-detect-script",
        "gpu-a1",
        command("apt-config", r'^(Acquire::http::Proxy) ".*"', r'\1-Auto-Detect "/tmp/x"'),
        {"package.relay_only": "fail"},
        "/tmp/x",
    ),
    Case(
        "proxy-refuses",
        "gpu-a1",
        lambda e: e["tcp"].update({"10.213.1.21 3128": "[Errno 111] Connection refused"}),
        {"package.relay_only": "fail"},
        "refused",
    ),
    Case(
        "apt-config-missing",
        "gpu-a1",
        lambda e: e["commands"]["apt-config"].update(rc=None, error="not installed"),
        {"package.relay_only": "unknown"},
        "not installed",
    ),
    Case(
        "squid-stopped",
        "relay-a1",
        both(unit("squid.service", ActiveState="inactive", SubState="dead"), lambda e: e.update(sockets=[])),
        {"package.relay_only": "fail"},
        "inactive",
    ),
    Case(
        "squid-second-port",
        "relay-a1",
        content(SQUID, r"\A", "http_port 8080\n"),
        {"package.relay_only": "fail"},
        "8080",
    ),
    Case(
        "squid-open-to-all",
        "relay-a1",
        content(SQUID, "http_access deny all", "http_access allow all"),
        {"package.relay_only": "fail"},
        "allow all",
    ),
    Case(
        "squid-more-networks",
        "relay-a1",
        content(SQUID, r"(?m)^acl rack src .*$", r"acl rack src 10.0.0.0/8"),
        {"package.relay_only": "fail"},
        "10.0.0.0/8",
    ),
    Case(
        "squid-includes-more",
        "relay-a1",
        content(SQUID, r"\A", "include /etc/squid/conf.d/*.conf\n"),
        {"package.relay_only": "fail"},
        "conf.d",
    ),
    Case(
        "squid-edited-not-loaded",
        "relay-a1",
        edited_after_start(SQUID),
        {"package.relay_only": "fail"},
        "written after",
    ),
    # --- agent ---
    Case(
        "agent-edited",
        "gpu-a1",
        lambda e: e["files"]["/usr/lib/steadyrack/steadyrack/*.py"]["/usr/lib/steadyrack/steadyrack/nvml.py"].update(
            sha256="0"
        ),
        {"agent.files": "fail"},
        "not of this version: /usr/lib/steadyrack/steadyrack/nvml.py",
    ),
    Case(
        "agent-file-missing",
        "gpu-a1",
        without_file("/usr/lib/steadyrack/*.py", "/usr/lib/steadyrack/pynvml.py"),
        {"agent.files": "fail"},
        "missing: /usr/lib/steadyrack/pynvml.py",
    ),
    Case(
        "agent-file-of-old-version",
        "gpu-a1",
        lambda e: e["files"]["/usr/lib/steadyrack/steadyrack/*.py"].update(
            {"/usr/lib/steadyrack/steadyrack/old.py": {}}
        ),
        {"agent.files": "fail"},
        "not ours: /usr/lib/steadyrack/steadyrack/old.py",
    ),
    Case(
        "launcher-writable",
        "gpu-a1",
        lambda e: e["files"]["/usr/bin/steadyrack"]["/usr/bin/steadyrack"].update(mode="0777"),
        {"agent.files": "fail"},
        "0777",
    ),
    Case(
        "boot-unit-disabled",
        "gpu-a1",
        unit("steadyrack-gpu.service", UnitFileState="disabled"),
        {"agent.units": "fail"},
    ),
    Case(
        "c43-boot-unit-enabled-and-not-run",
        "gpu-a1",
        unit("steadyrack-gpu.service", ActiveState="inactive", SubState="dead"),
        {"agent.units": "fail"},
        "ran at this boot",
    ),
    Case("boot-unit-installed-since-boot", "gpu-a1", boot_unit_is_new),
    Case(
        "boot-unit-failed",
        "gpu-a1",
        unit("steadyrack-gpu.service", ActiveState="failed", Result="exit-code"),
        {"agent.units": "fail"},
        "exit-code",
    ),
    Case(
        "verify-failed",
        "gpu-a1",
        unit("steadyrack-gpu-verify.service", Result="timeout"),
        {"agent.units": "fail"},
        "timeout",
    ),
    Case(
        "verify-does-nothing",
        "gpu-a1",
        unit("steadyrack-gpu-verify.service", ExecStart="{ path=/bin/true ; argv[]=/bin/true ; }"),
        {"agent.units": "fail"},
    ),
    Case(
        "timer-stopped",
        "gpu-a1",
        unit("steadyrack-gpu.timer", ActiveState="inactive", SubState="dead"),
        {"agent.units": "fail"},
        "inactive",
    ),
    Case(
        "timer-masked",
        "gpu-a1",
        unit(
            "steadyrack-gpu.timer", LoadState="masked", UnitFileState="masked", ActiveState="inactive", SubState="dead"
        ),
        {"agent.units": "fail"},
        "masked",
    ),
    Case(
        "c79-timer-unknown",
        "gpu-a1",
        unit("steadyrack-gpu.timer", LoadState="not-found", UnitFileState="", ActiveState="inactive", SubState="dead"),
        {"agent.units": "fail"},
        "missing",
    ),
    Case(
        "unit-edited-not-loaded",
        "gpu-a1",
        unit("steadyrack-gpu.service", NeedDaemonReload="yes"),
        {"agent.units": "fail"},
        "changed on disk",
    ),
    Case(
        "watch-masked-by-hand-and-not-read-yet",
        "gpu-a1",
        unit(
            "steadyrack-time-watch.service",
            Shadow="/etc/systemd/system/steadyrack-time-watch.service",
            ShadowMasks="yes",
            Wanted="yes",
        ),
        {"agent.units": "fail"},
        "masked on disk by /etc/systemd/system/steadyrack-time-watch.service",
    ),
    Case(
        "boot-unit-replaced-and-not-read-yet",
        "gpu-a1",
        unit("steadyrack-gpu.service", Shadow="/etc/systemd/system/steadyrack-gpu.service", ShadowMasks="no"),
        {"agent.units": "fail"},
        "replaced on disk",
    ),
    Case(
        "verify-masked-and-not-read-yet",
        "gpu-a1",
        unit("steadyrack-gpu-verify.service", Shadow="/run/systemd/system/x", ShadowMasks="yes"),
        {"agent.units": "fail"},
    ),
    Case(
        "timer-unlinked-and-not-read-yet",
        "gpu-a1",
        unit("steadyrack-gpu.timer", Wanted="no"),
        {"agent.units": "fail"},
        "no target has a link",
    ),
    Case(
        "watch-stopped",
        "relay-a1",
        unit("steadyrack-time-watch.service", ActiveState="failed", SubState="failed", Result="watchdog"),
        {"agent.units": "fail"},
        "watchdog",
    ),
    Case(
        "gpu-watch-stopped",
        "gpu-a1",
        unit("steadyrack-gpu-watch.service", ActiveState="inactive", SubState="dead"),
        {"agent.units": "fail"},
    ),
    Case(
        "watch-looks-at-something-else",
        "gpu-a1",
        unit("steadyrack-time-watch.service", ExecStart="{ path=/bin/sleep ; argv[]=/bin/sleep infinity ; }"),
        {"agent.units": "fail"},
    ),
    Case(
        "systemd-does-not-answer",
        "gpu-a1",
        lambda e: e.update(units={name: {"error": "systemctl show: no answer within 10 s"} for name in e["units"]}),
        {"agent.units": "unknown", "time.daemon": "unknown", "firewall.ntp": "unknown"},
        "no answer within 10 s",
    ),
    # --- gpu.count ---
    Case(
        "card-lost",
        "gpu-a1",
        card_lost,
        {
            "gpu.count": "fail",
            "gpu.power_cap": "unknown",
            "gpu.persistence": "unknown",
            "gpu.allow_list": "fail",  # a job is given it still: nobody has taken its place
            "gpu.compute_mode": "unknown",
            "pcie.width": "unknown",
        },
        "fallen off the bus",
    ),
    Case(
        "card-off-the-bus",
        "gpu-a1",
        lambda e: (e["pci"].pop(0), e["nvml"]["gpus"].pop(0)),
        {"gpu.count": "fail", "gpu.allow_list": "fail"},
        "3 on the bus, 3 in NVML",
    ),
    Case(
        "card-swapped",
        "gpu-a1",
        gpu(2, name="NVIDIA A30"),
        {"gpu.count": "fail", "gpu.power_cap": "unknown", "pcie.width": "unknown"},
        "a30",
    ),
    Case(
        "more-than-declared",
        "gpu-a1",
        None,
        {"gpu.count": "fail", "gpu.allow_list": "fail"},
        variables={"gpu_policy_gpu_count": 3},
    ),
    Case(
        "c48-card-lost-and-known",
        "gpu-a1",
        both(given(0, 2, 3), card_lost),
        variables={"gpu_policy_known_missing": [OUT]},
    ),
    Case(
        "c48-card-off-the-bus-and-known",
        "gpu-a1",
        both(given(0, 2, 3), lambda e: (e["pci"].pop(1), e["nvml"]["gpus"].pop(1))),
        variables={"gpu_policy_known_missing": [{**OUT, "bus_id": "4B:00.0"}]},
    ),
    Case(
        "c48-another-card-off-the-bus",
        "gpu-a1",
        both(given(1, 2, 3), lambda e: (e["pci"].pop(0), e["nvml"]["gpus"].pop(0))),
        {"gpu.count": "fail"},
        "3 on the bus, 3 in NVML",
        variables={"gpu_policy_known_missing": [OUT]},
    ),
    Case(
        "c48-known-until-yesterday",
        "gpu-a1",
        both(given(0, 2, 3), lambda e: (e["pci"].pop(1), e["nvml"]["gpus"].pop(1))),
        {"gpu.count": "fail"},
        "3 on the bus, 3 in NVML",
        variables={"gpu_policy_known_missing": [{**OUT, "until": "2020-01-01"}]},
    ),
    Case(
        "no-library",
        "gpu-a1",
        lambda e: e.update(
            nvml={
                "state": "done",
                "asking": None,
                "init": None,
                "count": None,
                "gpus": [],
                "error": "libnvidia-ml.so.1: cannot open shared object file",
            }
        ),
        NVML_GONE,
        "cannot open shared object",
    ),
    Case(
        "driver-mismatch",
        "gpu-a1",
        lambda e: e.update(
            nvml={
                "state": "done",
                "asking": None,
                "init": 18,
                "count": None,
                "gpus": [],
                "error": "nvmlInit_v2 answered 18",
            }
        ),
        NVML_GONE,
        "driver and library of two versions",
    ),
    Case(
        "nvml-hangs",
        "gpu-a1",
        lambda e: e["nvml"].update(state="silent", asking="nvmlDeviceGetUUID of GPU at place 2"),
        {"gpu.count": "unknown", **NVML_SILENT},
        "nvmlDeviceGetUUID",
    ),
    # --- gpu.power_cap ---
    Case(
        "cap-drifted",
        "gpu-a1",
        gpu(2, requested_mw=200000, enforced_mw=200000),
        {"gpu.power_cap": "fail"},
        "requested 200 W",
    ),
    Case("cap-not-applied", "gpu-a1", gpu(0, enforced_mw=310000), {"gpu.power_cap": "fail"}, "enforced 310 W"),
    Case("cap-lower-by-bmc", "gpu-a1", gpu(0, enforced_mw=250000)),
    Case(
        "cap-unread",
        "gpu-a1",
        gpu(1, enforced_mw=None, errors={"enforced_mw": 3}),
        {"gpu.power_cap": "unknown"},
        "not supported",
    ),
    Case(
        "cap-of-the-inventory",
        "gpu-a1",
        None,
        {"gpu.power_cap": "fail"},
        "requested 300 W",
        variables={"gpu_policy_power_cap_w": 250},
    ),
    Case(
        "cap-of-the-plan",
        "gpu-a1",
        None,
        {"gpu.power_cap": "fail"},
        "wanted 280 W",
        variables={"acceptance_plan_cap_w": {"NVIDIA A100 80GB PCIe": 280}},
    ),
    Case(
        "cap-auto-without-plan",
        "gpu-a1",
        None,
        {"gpu.power_cap": "unknown"},
        "power_cap_w is auto",
        variables={
            "rack_gpus": [
                {
                    "model": "A100 80GB PCIe",
                    "count": 4,
                    "power_max_w": 300,
                    "power_min_w": 150,
                    "power_cap_w": "auto",
                    "link_width": 16,
                }
            ]
        },
    ),
    Case(
        "override-by-slot",
        "gpu-a1",
        None,
        {"gpu.power_cap": "fail"},
        "wanted 200 W",
        variables={
            "gpu_policy_overrides": [
                {"bus_id": "31:00.0", "power_cap_w": 200},
                {"model": "A100 80GB PCIe", "power_cap_percent": 100},
            ]
        },
    ),
    Case("policy-gone", "gpu-a1", without_file(POLICY), {"gpu.power_cap": "fail"}, "no cap survives a reboot"),
    Case("policy-half-written", "gpu-a1", content(POLICY, r"(?s)\}\s*\Z", ""), {"gpu.power_cap": "fail"}, POLICY),
    Case(
        "policy-of-a-later-version",
        "gpu-a1",
        content(POLICY, r'"version": 1', '"version": 2'),
        {"gpu.power_cap": "fail"},
        "version 2",
    ),
    Case(
        "policy-says-otherwise",
        "gpu-a1",
        content(POLICY, r'"power_cap_w": 300', '"power_cap_w": 150'),
        {"gpu.power_cap": "fail"},
        "150.0 W, wanted 300 W",
    ),
    # --- gpu.persistence ---
    Case("persistence-off", "gpu-a1", gpu(3, persistence=0), {"gpu.persistence": "fail"}),
    Case(
        "persistence-unread",
        "gpu-a1",
        gpu(3, persistence=None, errors={"persistence": 4}),
        {"gpu.persistence": "unknown"},
        "no permission",
    ),
    # --- gpu.allow_list, gpu.compute_mode ---
    Case("one-spare", "gpu-a1", spare(3), variables=ONE_SPARE),
    Case(
        "spare-with-a-cap-of-its-own",
        "gpu-a1",
        both(spare(3), gpu(3, requested_mw=160000, enforced_mw=160000)),
        variables={**ONE_SPARE, "gpu_policy_spare_power_cap_w": 160},
    ),
    Case(
        "c46-a-job-is-given-the-spare-too",
        "gpu-a1",
        both(spare(3), given(0, 1, 2, 3)),
        {"gpu.allow_list": "fail", "gpu.compute_mode": "fail", "gpu.power_cap": "fail"},
        "jobs are given it and cannot open it",
        variables=ONE_SPARE,
    ),
    Case(
        "c46-a-job-is-told-nothing",
        "gpu-a1",
        both(spare(3), lambda e: e["session"].update(CUDA_VISIBLE_DEVICES=None)),
        {"gpu.allow_list": "fail"},
        "a job takes any GPU",
        variables=ONE_SPARE,
    ),
    Case(
        "a-job-is-given-too-few",
        "gpu-a1",
        both(spare(3), given(0, 1), gpu(2, compute_mode=2, requested_mw=150000, enforced_mw=150000)),
        {"gpu.allow_list": "fail"},
        variables=ONE_SPARE,
    ),
    Case(
        "a-job-is-given-one-twice",
        "gpu-a1",
        both(spare(3), given(0, 1, 1), gpu(2, compute_mode=2, requested_mw=150000, enforced_mw=150000)),
        {"gpu.allow_list": "fail"},
        variables=ONE_SPARE,
    ),
    Case(
        "a-job-is-given-numbers",
        "gpu-a1",
        both(spare(3), lambda e: e["session"].update(CUDA_VISIBLE_DEVICES="0,1,2")),
        {"gpu.allow_list": "fail", "gpu.compute_mode": "fail", "gpu.power_cap": "fail"},
        "what is not there: 0, 1, 2",
        variables=ONE_SPARE,
    ),
    Case(
        "spare-open",
        "gpu-a1",
        both(spare(3), gpu(3, compute_mode=0)),
        {"gpu.compute_mode": "fail"},
        "any job can open it",
        variables=ONE_SPARE,
    ),
    Case(
        "spare-not-capped-low",
        "gpu-a1",
        both(spare(3), gpu(3, requested_mw=300000, enforced_mw=300000)),
        {"gpu.power_cap": "fail"},
        "requested 300 W",
        variables=ONE_SPARE,
    ),
    Case(
        "active-closed",
        "gpu-a1",
        both(spare(3), gpu(0, compute_mode=2)),
        {"gpu.compute_mode": "fail"},
        "cannot open it",
        variables=ONE_SPARE,
    ),
    Case(
        "mode-unread",
        "gpu-a1",
        gpu(1, compute_mode=None, errors={"compute_mode": 3}),
        {"gpu.compute_mode": "unknown"},
        "not supported",
    ),
    Case(
        "no-ssh-session",
        "gpu-a1",
        lambda e: e.update(session={"error": "no SSH session above the reader"}),
        {"gpu.allow_list": "unknown", "gpu.compute_mode": "unknown"},
        "no SSH session",
    ),
    Case(
        "a-scheduler-gives-gpus",
        "gpu-a1",
        both(spare(3), lambda e: e["session"].update(CUDA_VISIBLE_DEVICES=None)),
        variables={**ONE_SPARE, "gpu_policy_environment": False},
    ),
    Case(
        "a-scheduler-and-no-spare-closed",
        "gpu-a1",
        None,
        {"gpu.compute_mode": "fail"},
        variables={**ONE_SPARE, "gpu_policy_environment": False},
    ),
    # --- gpu.remapped_rows, gpu.throttle ---
    Case("c63-remap-failed", "gpu-a1", gpu(1, remap_failure=1), {"gpu.remapped_rows": "fail"}, "could not be remapped"),
    Case("remap-pending", "gpu-a1", gpu(1, remap_pending=1)),
    Case(
        "remap-unread",
        "gpu-a1",
        gpu(1, remap_failure=None, remap_pending=None, errors={"remapped": 999}),
        {"gpu.remapped_rows": "unknown"},
        "unknown error",
    ),
    Case("remap-not-supported", "gpu-a1", gpu(1, remap_failure=None, remap_pending=None, errors={"remapped": 3})),
    Case("power-brake", "gpu-a1", gpu(2, event_reasons=0x88), {"gpu.throttle": "fail"}, "power brake"),
    Case("slowed-for-heat", "gpu-a1", gpu(2, event_reasons=0x48), {"gpu.throttle": "fail"}, "for heat"),
    Case("at-its-cap", "gpu-a1", gpu(2, event_reasons=0x4)),
    Case(
        "throttle-unread",
        "gpu-a1",
        gpu(2, event_reasons=None, errors={"event_reasons": 17}),
        {"gpu.throttle": "unknown"},
        "operating system error",
    ),
    # --- pcie.width ---
    Case(
        "narrow-link",
        "gpu-a1",
        both(end(1, 0, current_link_width="8"), end(1, 1, current_link_width="8"), gpu(1, link_width=8)),
        {"pcie.width": "fail"},
        "x8 at",
    ),
    Case("narrow-above-the-slot", "gpu-a1", end(1, -1, current_link_width="8"), {"pcie.width": "fail"}, "x8 at"),
    Case("two-witnesses-disagree", "gpu-a1", gpu(1, link_width=8), {"pcie.width": "fail"}, "sysfs says x16, NVML x8"),
    Case(
        "width-unknown", "gpu-a1", end(1, 0, current_link_width="Unknown"), {"pcie.width": "unknown"}, "does not tell"
    ),
    Case(
        "width-declared-8",
        "gpu-a1",
        variables={"rack_gpus": [CARDS], "gpu_policy_link_width": 8},
        bad={"pcie.width": "fail"},
    ),
    Case(
        "width-of-the-model-declared-8",
        "gpu-a1",
        variables={"rack_gpus": [{**CARDS, "link_width": 8}], "gpu_policy_link_width": 16},
        bad={"pcie.width": "fail"},
    ),
    # --- the host itself ---
    Case(
        "unreachable",
        "gpu-a1",
        lambda e: False,
        dict.fromkeys(
            (
                "firewall.ntp",
                "gpu.count",
                "gpu.power_cap",
                "gpu.persistence",
                "gpu.allow_list",
                "gpu.compute_mode",
                "gpu.remapped_rows",
                "gpu.throttle",
                "pcie.width",
                "agent.files",
                "agent.units",
                "package.relay_only",
                "time.daemon",
                "time.config",
                "time.synchronised",
                "time.sources",
                "time.offset",
                "time.skew",
            ),
            "unknown",
        ),
        "unreachable",
    ),
    Case(
        "template-not-resolved",
        "gpu-a1",
        None,
        {"time.offset": "unknown", "time.skew": "unknown"},
        "only playbooks/acceptance.yml",
        variables={"time_sync_alarm_ms": "{{ site_alarm_ms }}"},
    ),
    # --- waivers ---
    Case(
        "waived",
        "gpu-a1",
        gpu(3, persistence=0),
        variables={
            "acceptance_waivers": [
                {
                    "check": "gpu.persistence",
                    "hosts": "wai*",
                    "reason": "daemon comes with the next image",
                    "expires": "2999-01-01",
                }
            ]
        },
    ),
    Case(
        "waived-elsewhere",
        "gpu-a1",
        gpu(3, persistence=0),
        {"gpu.persistence": "fail"},
        variables={
            "acceptance_waivers": [
                {"check": "gpu.persistence", "hosts": "gpu-b*", "reason": "another rack's", "expires": "2999-01-01"}
            ]
        },
    ),
    Case(
        "waiver-expired",
        "gpu-a1",
        gpu(3, persistence=0),
        {"gpu.persistence": "fail"},
        variables={
            "acceptance_waivers": [{"check": "gpu.persistence", "reason": "for a week", "expires": "2026-01-31"}]
        },
    ),
    Case(
        "waiver-without-reason",
        "gpu-a1",
        variables={"acceptance_waivers": [{"check": "gpu.count", "expires": "2999-01-01"}]},
    ),
    # --- firewall.ntp ---
    Case("flushed", "gpu-a1", rules(lambda objects: objects.clear()), LEAK, "no such chain"),
    Case("flushed-relay", "relay-a1", rules(lambda objects: objects.clear()), LEAK, "no such chain"),
    Case("chain-flushed", "gpu-a1", no_rules_in("output"), LEAK, "no rule stops the rest"),
    Case("containers-get-out", "gpu-a1", no_rules_in("forward"), LEAK, "no rule stops the rest"),
    Case(
        "one-more-way-out",
        "gpu-a1",
        rule("output", [TO_PORT, asks("ip daddr", "192.0.2.1"), ACCEPT]),
        LEAK,
        "192.0.2.1",
    ),
    Case(
        "a-net-around-the-relay-is-open",
        "gpu-a1",
        rule("output", [TO_PORT, asks("ip daddr", {"prefix": {"addr": "10.213.1.0", "len": 24}}), ACCEPT]),
        LEAK,
        "lets it pass",
    ),
    Case(
        "open-for-ipv6",
        "gpu-a1",
        rule("output", [asks("udp dport", 123), asks("ip6 daddr", "2001:db8::1"), ACCEPT]),
        LEAK,
    ),
    Case(
        "open-for-a-port-range",
        "gpu-a1",
        rule("output", [asks("th dport", {"range": [100, 200]}), ACCEPT]),
        LEAK,
        "range",
    ),
    Case("everything-passes", "gpu-a1", rule("output", [ACCEPT]), LEAK, "lets it pass"),
    Case(
        "a-chain-of-somebody-else-decides", "gpu-a1", rule("output", [TO_PORT, {"jump": {"target": "x"}}]), LEAK, "jump"
    ),
    Case("another-port-is-open", "gpu-a1", rule("output", [asks("udp dport", 53), ACCEPT])),
    Case(
        "only-limited-packets-are-stopped",
        "gpu-a1",
        both(
            no_rules_in("forward"), rule("output", [TO_PORT, {"limit": {"rate": 6, "per": "minute"}}, {"drop": None}])
        ),
        LEAK,
        "no rule stops the rest",
    ),
    Case(
        "asleep",
        "gpu-a1",
        rules(
            lambda objects: [
                one["table"].update(flags="dormant")
                for one in objects
                if "table" in one and one["table"]["name"] == "steadyrack_ntp"
            ]
        ),
        LEAK,
        "sleeps",
    ),
    Case("node-is-asked", "gpu-a1", rule("input", [TO_PORT, ACCEPT]), LEAK, "lets it pass"),
    Case("chronyc-from-elsewhere", "relay-a1", rule("input", [asks("udp dport", 323), ACCEPT]), LEAK, "udp/323"),
    Case("world-may-ask", "relay-a1", rule("input", [TO_PORT, ACCEPT]), LEAK, "lets it pass"),
    Case(
        "clients-may-not-ask",
        "relay-a1",
        rule("input", [TO_PORT, {"drop": None}]),
        LEAK,
        "though the inventory lists it",
    ),
    Case(
        "bmcs-may-not-ask",
        "relay-a1",
        asked_about("10.9.0.1", "208 Access allowed\n"),
        LEAK,
        "10.9.0.0/24",
        variables={"rack_bmc_networks": ["10.9.0.0/24"]},
    ),
    Case(
        "c35-relay-silent",
        "gpu-a1",
        probed(lambda said: said["relays"].update({"10.213.1.21": "silent"})),
        LEAK,
        "silent",
    ),
    Case("not-refused", "gpu-a1", probed(lambda said: said["other"].update(said="silent")), LEAK, "it was not refused"),
    Case("refused-by-others", "gpu-a1", probed(lambda said: said["other"].update(after={})), LEAK, "by somebody else"),
    Case(
        "nobody-to-try",
        "gpu-a1",
        probed(lambda said: said["other"].update(said="error: Network is unreachable")),
        {"firewall.ntp": "unknown"},
        "no route",
    ),
    Case(
        "no-nft",
        "gpu-a1",
        lambda e: e["commands"]["nft ruleset"].update(error="not installed"),
        {"firewall.ntp": "unknown"},
    ),
    Case("not-at-boot", "gpu-a1", unit("steadyrack-firewall.service", UnitFileState="disabled"), LEAK),
]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    rack = Rack(tmp_path_factory.mktemp("rack"))
    for case in CASES:
        rack.add(case.name, case.base, case.break_it, case.variables, group=case.group, site=case.site)
    return rack.run()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_fault_is_seen_by_its_check_and_by_no_other(case: Case, outcome: Outcome) -> None:
    rows = outcome.rows(case.name)
    assert rows, outcome.output[-3000:]
    bad = outcome.bad(case.name)
    seen = {row["id"]: {one["verdict"] for one in bad if one["id"] == row["id"]} for row in bad}
    # The worst of a check's rows: a lost card also makes a row unknown beside the one that fails.
    worst = {check: "fail" if "fail" in verdicts else "unknown" for check, verdicts in seen.items()}
    assert worst == dict(case.bad), bad
    if case.text:
        told = [f"{row['subject']} {row['measured']} {row['reason']} {row['expected']}" for row in bad]
        assert any(case.text in text for text in told), told


def test_every_check_has_a_fault_that_it_sees() -> None:
    ids = {check for case in CASES for check in case.bad}
    assert ids == set(CHECKS)


def test_the_run_fails_and_counts_every_row_once(outcome: Outcome) -> None:
    verdicts = [row["verdict"] for row in outcome.report["checks"]]
    assert outcome.code == 1
    assert outcome.report["counts"] == {
        word: verdicts.count(word) for word in ("pass", "fail", "unknown", "not_judged")
    }


def test_gpus_links_and_sources_have_a_row_each(outcome: Outcome) -> None:
    links = {row["subject"] for row in outcome.rows("gpu-a1", "pcie.width")}
    caps = {row["subject"] for row in outcome.rows("gpu-a1", "gpu.power_cap") if row["source"] == "nvml"}
    assert links == {"0000:31:00.0", "0000:4b:00.0", "0000:b1:00.0", "0000:ca:00.0"}
    assert len(caps) == 4
    assert all(name.startswith("GPU-") for name in caps)
    assert {row["subject"] for row in outcome.rows("relay-a1", "time.sources")} == {
        f"10.213.0.{n}" for n in range(11, 15)
    }


def test_a_lower_cap_from_elsewhere_passes_with_a_warning(outcome: Outcome) -> None:
    rows = [row for row in outcome.rows("cap-lower-by-bmc", "gpu.power_cap") if row["state"] == "capped_elsewhere"]
    assert [(row["verdict"], row["severity"], row["measured"]) for row in rows] == [("pass", "warning", 250)]


def test_a_boot_unit_that_had_no_occasion_to_run_is_not_judged(outcome: Outcome) -> None:
    rows = [row for row in outcome.rows("boot-unit-installed-since-boot", "agent.units") if row["state"] == "not_due"]
    assert [row["verdict"] for row in rows] == ["not_judged"]
    assert "installed after this boot" in rows[0]["reason"]


def only(outcome: Outcome, host: str, check: str) -> dict[str, Any]:
    (found,) = outcome.rows(host, check)
    return found


def test_a_configuration_newer_than_the_daemon_passes_with_a_warning(outcome: Outcome) -> None:
    found = only(outcome, "config-newer-than-the-daemon", "time.config")
    assert (found["verdict"], found["severity"], found["state"]) == ("pass", "warning", "newer")
    assert "after chronyd started: it need not have read it" in found["reason"]
    assert "with no job running" in found["hint"]


def test_a_host_is_compared_with_the_worst_of_its_site_and_with_no_other_site(outcome: Outcome) -> None:
    rows = {host: only(outcome, host, "time.skew") for host in ("ahead", "between", "a-little-ahead", "relay-a1")}
    assert {host: (row["subject"], row["state"], row["verdict"]) for host, row in rows.items()} == {
        "ahead": ("ahead and behind", "apart", "fail"),
        "between": (rows["between"]["subject"], "together", "pass"),
        "a-little-ahead": ("a-little-ahead and a-little-behind", "together", "pass"),
        "relay-a1": ("relay-a1 and gpu-a1", "together", "pass"),
    }
    # 0.378 ms is what each of them may be wrong by: dispersion and half the delay.
    assert rows["ahead"]["measured"] == pytest.approx(32 + 2 * 0.378, abs=0.002)
    assert rows["a-little-ahead"]["measured"] == pytest.approx(20 + 2 * 0.378, abs=0.002)
    assert (rows["ahead"]["expected"], rows["ahead"]["unit"]) == (30, "ms")


@pytest.mark.parametrize("host", ["left-over", "cap-drifted"])
def test_a_host_without_a_readable_partner_is_not_judged(host: str, outcome: Outcome) -> None:
    found = only(outcome, host, "time.skew")
    assert (found["verdict"], found["state"]) == ("not_judged", "alone")
    assert "no other host of this site" in found["reason"]


def test_a_relay_beside_is_a_source_that_may_be_unusable_and_is_no_upstream(outcome: Outcome) -> None:
    (found,) = [row for row in outcome.rows("peer-1", "time.sources") if row["subject"] == "10.213.1.22"]
    assert (found["verdict"], found["severity"], found["state"]) == ("pass", "warning", "unusable")
    (silent,) = [row for row in outcome.rows("peer-silent", "time.sources") if row["subject"] == "10.213.1.21"]
    assert (silent["verdict"], silent["severity"], silent["state"]) == ("pass", "warning", "silent")


def test_a_relay_is_asked_about_each_of_its_networks_and_about_strangers(outcome: Outcome) -> None:
    def told(host: str) -> dict[str, tuple[str, str]]:
        return {row["subject"]: (row["verdict"], row["state"]) for row in outcome.rows(host, "time.serving")}

    served, refused = ("pass", "served"), ("pass", "refused")
    strangers = {"192.0.2.1": refused, "2001:db8:ffff:ffff::1": refused}
    assert told("relay-a1") == {"10.213.1.1": served, **strangers}
    assert told("ipv6-network-served") == {"10.213.1.1": served, "2001:db8:1::1": served, **strangers}
    assert told("bmcs-may-not-ask") == {"10.213.1.1": served, "10.9.0.1": served, **strangers}
    assert told("a-client-is-no-stranger") == {**strangers, "192.0.2.1": served}


def test_a_waived_row_is_not_judged_and_says_what_it_was(outcome: Outcome) -> None:
    rows = [row for row in outcome.rows("waived", "gpu.persistence") if row["state"] == "waived"]
    assert [row["verdict"] for row in rows] == ["not_judged"]
    assert "daemon comes with the next image" in rows[0]["reason"]
    assert "it was fail" in rows[0]["reason"]


def test_expired_and_malformed_waivers_are_problems_of_the_run(outcome: Outcome) -> None:
    problems = " / ".join(outcome.report["problems"])
    assert "waiver of gpu.persistence on * expired on 2026-01-31" in problems
    assert "needs reason" in problems


def test_groups_decide_which_checks_a_host_gets(outcome: Outcome) -> None:
    assert GROUPS["relay-a1"] == "relays"
    ids = {row["id"] for row in outcome.rows("relay-a1")}
    assert ids == {
        "agent.files",
        "agent.units",
        "firewall.ntp",
        "package.relay_only",
        "time.config",
        "time.daemon",
        "time.offset",
        "time.serving",
        "time.skew",
        "time.sources",
        "time.synchronised",
    }
