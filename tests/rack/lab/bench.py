"""`./rack bench`: what runs cost, as ratios to a ping of the same hosts in the same minute.

Hosts are containers, never an sshd on this machine's own file system: site.yml would configure this machine. Hosts
and controller share the cores here, so wall time is pessimistic; controller CPU and SSH commands carry over to a
real rack. Every row is the median of a few runs, each divided by the ping just before it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lab import hosts, setup
from lab.demo import table
from lab.engine import podman
from lab.paths import ROOT, STATE
from lab.say import RackError, step
from lab.topology import Rack, parse

ROWS: dict[str, list[str]] = {
    "site.yml, no change, without acceptance": ["site.yml", "--skip-tags", "acceptance"],
    "  role time_sync (nodes)": ["playbooks/time.yml"],
    "  role node_agent": ["playbooks/agent.yml"],
    "  role rack_firewall": ["playbooks/firewall.yml"],
    "  role gpu_policy": ["playbooks/gpu.yml"],
    "time gate": ["playbooks/time_gate.yml"],
    "acceptance": ["playbooks/acceptance.yml"],
}
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
RELAYS = 2
"""As recommended; a run's costs on a relay do not depend on their number, those of a node hardly."""
INSTANCES_A_HOST = 5
"""inotify instances that one systemd container holds; above the limit the next one hangs while booting."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--nodes", type=int, action="append", help="GPU nodes (default: 1, 4 and 16, one after the other)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each row (default 3)")
    parser.add_argument(
        "--timesync", type=Path, metavar="DIR", help="a copy of linux-system-roles/timesync to compare with"
    )
    parser.add_argument("--keep", action="store_true", help="leave the containers up")


def command(args: argparse.Namespace) -> int:
    setup.install(setup.missing_packages())
    setup.python(dev=False)
    rows = []
    for number in args.nodes or [1, 4, 16]:
        rows += measure(number, args.rounds)
        if args.timesync:
            rows += against(number, args.rounds, args.timesync.resolve())
    if not args.keep:
        hosts.down(rack_of(1))
    out = ROOT / "reports" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n")
    print(
        "\nRatios to `ansible all -m ping` of the same round (median); commands: SSH commands of the costliest host\n"
    )
    print(table([{k: str(v) for k, v in row.items()} for row in rows]))
    print("\nreports/bench.json")
    return 0


def rack_of(nodes: int) -> Rack:
    """A rack of `nodes` GPU hosts with two relays and an outside, on a subnet of its own."""
    data: dict = {
        "name": "steadyrack-bench",
        "networks": {"outside": {"subnet": "10.215.0.0/24"}, "rack-x": {"subnet": "10.215.1.0/24", "internal": True}},
        "hosts": {
            "outside": {
                "suite": "bookworm",
                "networks": {"outside": "10.215.0.11"},
                "upstream_clocks": {f"ntp{i}": f"10.215.0.1{i}" for i in range(1, 5)},
            },
        },
    }
    for number in range(1, RELAYS + 1):
        data["hosts"][f"relay-x{number}"] = {
            "suite": "bookworm",
            "networks": {"outside": f"10.215.0.2{number}", "rack-x": f"10.215.1.{20 + number}"},
        }
    for number in range(1, nodes + 1):
        data["hosts"][f"gpu-x{number}"] = {
            "suite": "bookworm",
            "networks": {"rack-x": f"10.215.1.{30 + number}"},
            "gpu_profile": "a100x4",
        }
    return parse("bench", data)


def inventory(rack: Rack) -> Path:
    """The inventory of a bench rack, written below .rack/bench."""
    folder = STATE / "bench" / "inventory"
    (folder / "group_vars" / "all").mkdir(parents=True, exist_ok=True)
    nodes = [h for h in rack.hosts.values() if h.gpu_profile]
    relays = [h for h in rack.hosts.values() if not h.gpu_profile and not h.upstream_clocks]
    tree = {
        "relays": {"hosts": {h.name: {"ansible_host": h.ssh_address} for h in relays}},
        "gpu_nodes": {"hosts": {h.name: {"ansible_host": h.ssh_address} for h in nodes}},
        "rack_x": {"hosts": dict.fromkeys(h.name for h in (*relays, *nodes))},
    }
    gpus = [{"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150, "link_width": 16}]
    variables = {
        "ansible_user": "root",
        "ansible_ssh_common_args": f'-F "{rack.state / "ssh_config"}"',
        "rack_site": "bench",
        "rack_name": "bench",
        "rack_networks": ["10.215.1.0/24"],
        "rack_feed_limit_w": 2000 * len(nodes),
        "rack_gpus": gpus,
        "time_sync_upstreams": list(rack.hosts["outside"].upstream_clocks.values()),
    }
    # JSON is YAML: the controller's tool needs no YAML library of its own.
    (folder / "hosts.yml").write_text(json.dumps({"all": {"children": tree}}))
    (folder / "group_vars" / "all" / "bench.yml").write_text(json.dumps(variables))
    return folder


def measure(nodes: int, rounds: int) -> list[dict]:
    limit = int(INOTIFY.read_text()) if INOTIFY.exists() else 128
    rack = rack_of(nodes)
    needed = len(rack.hosts) * INSTANCES_A_HOST
    if needed > limit:
        raise RackError(
            f"{nodes} nodes with their relays need {needed} inotify instances",
            f"this machine allows {limit}",
            f"sysctl -w fs.inotify.max_user_instances={needed + 64}, or fewer nodes",
        )
    hosts.down(rack, keep_state=True)
    hosts.up(rack)
    folder = inventory(rack)
    step(f"bench: first run on {nodes} nodes")
    _playbook(folder, ["site.yml", "--skip-tags", "acceptance"])
    results = []
    for name, words in ROWS.items():
        ratios: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            ping = _cost(rack, partial(_ansible, folder, ["ansible", "all", "-m", "ping"]))
            own = _cost(rack, partial(_playbook, folder, words))
            ratios.append((own[0] / ping[0], own[1] / ping[1], own[2] / ping[2]))
        wall, both, controller = (round(statistics.median(column), 1) for column in zip(*ratios, strict=True))
        counts = re.findall(r"^<([^>]+)> SSH: EXEC", _playbook(folder, [*words, "-vvv"]), re.M)
        results.append(
            {
                "nodes": nodes,
                "run": name,
                "wall": wall,
                "cpu (both sides)": both,
                "cpu (controller)": controller,
                "commands": max((counts.count(a) for a in set(counts)), default=0),
            }
        )
        step(f"bench: {nodes} nodes, {name.strip()}: {wall} x ping")
    return results


def against(nodes: int, rounds: int, role: Path) -> list[dict]:
    """Both time roles on the same nodes in the same minutes, with nothing left to change; CPU of ours over theirs.

    The two write the same files, so each is run once before its own rounds, and ours at the end.
    """
    rack, folder = rack_of(nodes), STATE / "bench" / "inventory"
    theirs = folder.parent / "timesync.yml"
    relays = [h.ssh_address for h in rack.hosts.values() if not h.gpu_profile and not h.upstream_clocks]
    servers = [{"hostname": address, "iburst": True, "minpoll": 4, "maxpoll": 4} for address in relays]
    play = {"hosts": "gpu_nodes", "become": True, "roles": [{"role": str(role)}],
            "vars": {"timesync_ntp_provider": "chrony", "timesync_ntp_servers": servers}}  # fmt: skip
    theirs.write_text(json.dumps([play]))
    cost: dict[str, list[tuple[float, float, float]]] = {}
    for name, words in (("theirs", [str(theirs)]), ("ours", ["playbooks/time.yml"])):
        _playbook(folder, words)
        cost[name] = [_cost(rack, partial(_playbook, folder, words)) for _ in range(rounds)]
    commands = {
        name: re.findall(r"^<([^>]+)> SSH: EXEC", _playbook(folder, [*words, "-vvv"]), re.M)
        for name, words in (("theirs", [str(theirs)]), ("ours", ["playbooks/time.yml"]))
    }
    _playbook(folder, ["playbooks/time.yml"])
    wall, both, controller = (
        round(statistics.median(o / t for o, t in zip(ours, th, strict=True)), 3)
        for ours, th in zip(zip(*cost["ours"], strict=True), zip(*cost["theirs"], strict=True), strict=True)
    )
    counts = {name: max(seen.count(a) for a in set(seen)) for name, seen in commands.items()}
    step(f"bench: {nodes} nodes, our time role / linux-system-roles/timesync: CPU {both}, commands {counts}")
    return [{"nodes": nodes, "run": "time_sync / linux-system-roles timesync", "wall": wall, "cpu (both sides)": both,
             "cpu (controller)": controller, "commands": f"{counts['ours']} / {counts['theirs']}"}]  # fmt: skip


def _ansible(folder: Path, words: list[str]) -> str:
    env = {**os.environ, **setup.environment()}
    name, *rest = words
    done = subprocess.run(
        [setup.tool(name), "-i", folder, *rest],
        cwd=ROOT,
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RackError(f"{' '.join(words)} failed", (done.stdout + done.stderr)[-2000:])
    return done.stdout


def _playbook(folder: Path, words: list[str]) -> str:
    return _ansible(folder, ["ansible-playbook", *words])


def _cost(rack: Rack, action: Callable[[], object]) -> tuple[float, float, float]:
    """(wall s, CPU s of controller and hosts, CPU s of the controller) of an action."""
    names = [rack.container(h) for h in rack.hosts]
    before_hosts, before = _hosts_cpu_s(names), resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    action()
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    controller = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, controller + _hosts_cpu_s(names) - before_hosts, controller


def _hosts_cpu_s(names: list[str]) -> float:
    """CPU seconds that the containers have used since they started, from their cgroups."""
    total = 0.0
    for pid in podman("inspect", "--format", "{{.State.Pid}}", *names).split():
        rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        paths = {controllers: path for _, controllers, path in rows}
        v1 = next((p for c, p in paths.items() if "cpuacct" in c.split(",")), None)
        if v1 is not None:
            total += int(_container(Path("/sys/fs/cgroup/cpuacct" + v1), "cpuacct.usage").read_text()) / 1e9
        else:
            text = _container(Path("/sys/fs/cgroup" + paths[""]), "cpu.stat").read_text()
            total += int(text.split()[1]) / 1e6  # its first line is "usage_usec N"
    return total


def _container(path: Path, leaf: str) -> Path:
    """The container's own group: PID 1 may sit in a child of it (init.scope)."""
    while path.name in ("init.scope", "container"):
        path = path.parent
    return path / leaf
