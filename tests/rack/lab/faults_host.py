"""Faults of hosts and of what lies between them: power, cables, packets, firewall, disk, the webhook outside."""

from __future__ import annotations

import json
import shutil

from lab import hosts
from lab.engine import podman
from lab.say import RackError, number, run, step
from lab.topology import Host, Rack

LOGS = "/var/log/chrony"
DISK_FULL = f"""
mountpoint -q {LOGS} && exit 0
used=$(du -sk {LOGS} | cut -f1)
mkdir -p /run/demo-rack-disk
mount -t tmpfs -o size=$((used + 256))k demo-rack-disk /run/demo-rack-disk
cp -a {LOGS}/. /run/demo-rack-disk/
chown --reference={LOGS} /run/demo-rack-disk && chmod --reference={LOGS} /run/demo-rack-disk
mount --move /run/demo-rack-disk {LOGS} 2>/dev/null || mount --bind /run/demo-rack-disk {LOGS}
chronyc cyclelogs >/dev/null || true
dd if=/dev/zero of={LOGS}/.filler bs=4k 2>/dev/null || true
"""
DISK_FREE = f"""
mountpoint -q {LOGS} || exit 0
rm -f {LOGS}/.filler
mkdir -p /run/demo-rack-logs && cp -a {LOGS}/. /run/demo-rack-logs/
umount -l {LOGS}
if mountpoint -q /run/demo-rack-disk; then umount -l /run/demo-rack-disk; fi
cp -a /run/demo-rack-logs/. {LOGS}/ && rm -rf /run/demo-rack-logs
chronyc cyclelogs >/dev/null || true
"""
"""chronyd keeps its logs open: told to open them anew, it goes over to the other disk."""


def relay(rack: Rack, words: list[str]) -> None:
    """The power of a whole host goes, and comes back: nothing answers, not even its network."""
    host, state = rack.host(words[0]), words[1]
    if state not in ("stop", "start"):
        raise RackError("a relay is stopped or started", f"given: {state!r}")
    if not is_relay(rack, host):
        raise RackError(f"{host.name} is no relay", "relays: " + ", ".join(relays(rack)))
    if state == "stop":
        podman("stop", "-t", "0", rack.container(host.name))
    else:
        hosts.start(rack, host.name)


def uplink(rack: Rack, words: list[str]) -> None:
    """More specific routes than the uplink's: the relay can send nothing out, the rack side is not touched."""
    name, state = words
    _cut_or_mend("an uplink", state)
    verb = "replace" if state == "cut" else "del"
    script = "; ".join(f"ip route {verb} unreachable {half}" for half in _outer_routes(rack))
    hosts.execute(rack, rack.host(name).name, "sh", "-ec" if state == "cut" else "-c", script, check=state == "cut")


def inside(rack: Rack, words: list[str]) -> None:
    """The relay's cable to its rack: pulled at the far end, so that the relay sees its carrier go and lives on."""
    host, state = rack.host(words[0]), words[1]
    _cut_or_mend("a relay's inside", state)
    if not is_relay(rack, host):
        raise RackError(f"{host.name} is no relay", "relays: " + ", ".join(relays(rack)))
    run(["ip", "link", "set", _far_end(host, _pid(rack, host)), "down" if state == "cut" else "up"])


def loss(rack: Rack, words: list[str]) -> None:
    """Packets that a host sends into its last network are lost at random."""
    host, given = rack.host(words[0]), words[1]
    percent = 0 if given == "none" else int(number(given, "a loss in per cent"))
    if not 0 <= percent <= 100:
        raise RackError("a loss is a whole number from 0 to 100", f"given: {given!r}")
    pid = _pid(rack, host)
    cable = _far_end(host, pid)
    _no_loss(rack, host, pid)
    if not percent:
        return
    netem = ["tc", "qdisc", "replace", "dev", _near_end(host, pid)["ifname"], "root", "netem", "loss", f"{percent}%"]
    if run([*_in_network_of(pid), *netem], check=False).returncode == 0:
        step(f"{host.name}: tc netem at its interface")
        return
    if shutil.which("nft") is None:
        raise RackError("this kernel has no netem and this machine no nft", next_step="apt-get install nftables")
    # numgen takes no threshold that every number is below
    rule = "drop" if percent == 100 else f"numgen random mod 100 < {percent} drop"
    hook = f'type filter hook ingress device "{cable}" priority 0;'
    table = [f"table netdev {_table(rack, host)} {{", "chain sent {", hook, rule, "}", "}", ""]
    run(["nft", "-f", "-"], stdin="\n".join(table))
    step(f"{host.name}: this kernel has no netem; nftables drops at random at the far end of its cable")


def flush(rack: Rack, words: list[str]) -> None:
    """Every rule and table of nftables on the host goes, whoever made it."""
    host = rack.host(words[0]).name
    if not hosts.execute(rack, host, "sh", "-c", "command -v nft || true"):
        raise RackError(f"{host} has no nft, so no rule to flush", next_step="ansible-playbook site.yml")
    hosts.execute(rack, host, "nft", "flush", "ruleset")


def disk(rack: Rack, words: list[str]) -> None:
    """The file system of chrony's logs is full. A small one in memory is put in its place: no other disk is filled."""
    host, state = rack.host(words[0]), words[1]
    if state not in ("full", "free"):
        raise RackError("a disk is full or free", f"given: {state!r}")
    hosts.execute(rack, host.name, "sh", "-ec", DISK_FULL if state == "full" else DISK_FREE)


def webhook(rack: Rack, words: list[str]) -> None:
    """What the receiver outside does with the alarms that it gets."""
    if words[0] not in ("ok", "error", "hang"):
        raise RackError("a webhook is ok, error or hang", f"given: {words[0]!r}")
    for host in rack.hosts.values():
        if host.upstream_clocks:
            hosts.execute(rack, host.name, "sh", "-c", f"echo {words[0]} >/var/lib/webhook/mode")


def heal_network(rack: Rack, host: Host, pid: int) -> None:
    """The cable of a host, whose init is `pid`, is back and loses nothing."""
    run(["ip", "link", "set", _far_end(host, pid), "up"])
    _no_loss(rack, host, pid)


def heal_host(rack: Rack, host: Host) -> str:
    """Shell words that free its disk and mend its uplink, or give the webhook back its manners."""
    if host.upstream_clocks:
        return "rm -f /var/lib/webhook/mode"
    words = f"( set -e; {DISK_FREE} )"
    if is_relay(rack, host):
        words += "\n" + "\n".join(f"ip route del unreachable {half} 2>/dev/null" for half in _outer_routes(rack))
    return words


def is_relay(rack: Rack, host: Host) -> bool:
    """It stands in the network outside and in another one."""
    return "outside" in host.networks and len(host.networks) > 1


def relays(rack: Rack) -> list[str]:
    return [host.name for host in rack.hosts.values() if is_relay(rack, host)]


def _cut_or_mend(what: str, state: str) -> None:
    if state not in ("cut", "mend"):
        raise RackError(f"{what} is cut or mended", f"given: {state!r}")


def _outer_routes(rack: Rack) -> list[str]:
    return [*(str(half) for half in rack.networks["outside"].subnet.subnets(1)), "0.0.0.0/1", "128.0.0.0/1"]


def _pid(rack: Rack, host: Host) -> int:
    """The process id of a running host's init."""
    pid = hosts.states(rack)[host.name][1]
    if not pid:
        raise RackError(f"{host.name} is off", next_step=f"./rack fault relay {host.name} start")
    return pid


def _in_network_of(pid: int) -> list[str]:
    """Words before a command of this machine that is to run in a host's network."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net"]


def _near_end(host: Host, pid: int) -> dict:
    """The host's interface in its last network, as `ip -j address` describes it."""
    links = json.loads(run([*_in_network_of(pid), "ip", "-j", "address"]).stdout)
    return next(link for link in links if any(a.get("local") == host.ssh_address for a in link["addr_info"]))


def _far_end(host: Host, pid: int) -> str:
    """This machine's end of the cable by which the host hangs in its last network."""
    wanted = _near_end(host, pid)["link_index"]
    here = json.loads(run(["ip", "-j", "link"]).stdout)
    return str(next(link["ifname"] for link in here if link["ifindex"] == wanted))


def _table(rack: Rack, host: Host) -> str:
    return f"{rack.name}-{host.name}".replace("-", "_")


def _no_loss(rack: Rack, host: Host, pid: int) -> None:
    for link in json.loads(run([*_in_network_of(pid), "tc", "-j", "qdisc"], check=False).stdout or "[]"):
        if link.get("kind") == "netem":
            run([*_in_network_of(pid), "tc", "qdisc", "del", "dev", link["dev"], "root"], check=False)
    if shutil.which("nft"):
        run(["nft", "delete", "table", "netdev", _table(rack, host)], check=False)
