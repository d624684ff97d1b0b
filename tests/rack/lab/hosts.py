"""Create, look at and remove a rack of containers. Every function may be run again, also after a kill half-way.

A container carries a label with the hash of everything it was made from; one whose hash is still right is kept or
started, any other is replaced. So `up` after an abort, after a change of the recipe and from another clone all end
in the same rack.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lab import images, orphans
from lab.engine import podman, podman_env
from lab.paths import ROOT
from lab.say import RackError, run, step
from lab.topology import Host, Rack

LABEL = "steadyrack.rack"
MADE_FROM = "steadyrack.made-from"
CHECKOUT = "steadyrack.checkout"
BOOT_TIMEOUT_S = 60


@contextmanager
def machine_lock(rack: Rack) -> Iterator[None]:
    """One command at a time may change this rack on this machine, whichever clone it comes from."""
    path = Path("/run/lock") / f"{rack.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step(f"waiting for another ./rack that is changing {rack.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def up(rack: Rack) -> None:
    """Bring the whole rack up: images, keys, networks, containers; return when every host answers over SSH."""
    images.settle(sorted({host.suite for host in rack.hosts.values()}))
    with machine_lock(rack):
        write_keys(rack)
        _other_checkouts(rack)
        for network in rack.networks.values():
            _network(rack, network.name)
        with ThreadPoolExecutor(max_workers=8) as pool:
            for job in [pool.submit(_host_up, rack, host) for host in rack.hosts.values()]:
                job.result()
    step(f"rack {rack.short}: {len(rack.hosts)} hosts up, each answers over SSH with its own key")


def down(rack: Rack, keep_state: bool = False) -> None:
    """Remove the containers, the networks and the keys of this rack. Images stay (see images.purge)."""
    with machine_lock(rack):
        names = podman("ps", "-aq", "--filter", f"label={LABEL}={rack.name}").split()
        if names:
            step(f"rack {rack.short}: removing {len(names)} containers")
            podman("rm", "-f", "-t", "0", "-i", *names)
        for name in podman("network", "ls", "--format", "{{.Name}}").split():
            if name.startswith(rack.name + "-"):
                podman("network", "rm", "-f", name)
        if not keep_state:
            shutil.rmtree(rack.state, ignore_errors=True)
    step(f"rack {rack.short}: gone")


def status(rack: Rack) -> list[dict[str, str]]:
    """One row a host: container state, what systemd in it says, addresses, release."""
    rows = []
    for host in rack.hosts.values():
        state = _state(rack, host)
        system = "-"
        if state == "running":
            system = podman("exec", rack.container(host.name), "systemctl", "is-system-running", check=False) or "?"
        rows.append(
            {
                "host": host.name,
                "container": state,
                "system": system,
                "addresses": " ".join(host.addresses),
                "release": host.suite,
                "gpus": host.gpu_profile or "-",
            }
        )
    return rows


_ENTERED: dict[str, tuple[int, str]] = {}
"""container -> its init's process id and PID namespace."""
_INSIDE = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")


def execute(rack: Rack, host: str, *words: str, check: bool = True, stdin: str | None = None) -> str:
    """Run a command on a host, past SSH: for faults and for looking when SSH is the fault.

    Its namespaces are entered directly: `podman exec` takes 0.4 s of a processor where this takes a hundredth, which
    counts where every host is looked at every second. Where the host is off this is an error, or empty without `check`.
    """
    container = rack.container(rack.host(host).name)
    pid, namespace = _ENTERED.get(container, (0, ""))
    if not pid or _pid_namespace(pid) != namespace:
        pid = states(rack)[host][1]
        _ENTERED[container] = pid, _pid_namespace(pid)
    if not pid:
        if check:
            raise RackError(f"{host} is not running", next_step="./rack status")
        return ""
    inside = ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "--", "env", "-i", *_INSIDE]
    return run([*inside, *words], check=check, stdin=stdin, timeout_s=300).stdout.strip()


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") if pid else ""
    except OSError:
        return ""


def restart(rack: Rack, host: str) -> None:
    """Restart a host as a power cycle would: volatile state is lost, disks are kept."""
    podman("restart", "-t", "10", rack.container(rack.host(host).name))
    _wait_boot(rack, rack.hosts[host])
    _wait_ssh(rack, rack.hosts[host])


def start(rack: Rack, host: str) -> None:
    """Switch a host on that is off; return when it answers."""
    podman("start", rack.container(rack.host(host).name))
    _wait_boot(rack, rack.hosts[host])
    _wait_ssh(rack, rack.hosts[host])


def states(rack: Rack) -> dict[str, tuple[str, int]]:
    """host -> what podman says of its container (running, exited ...; `absent` without one) and the process id of its
    init, 0 where none runs. One call for all."""
    text = podman("ps", "-a", "--filter", f"label={LABEL}={rack.name}", "--format", "{{.Names}} {{.Pid}} {{.State}}")
    found = {name: (state.lower(), int(pid)) for name, pid, state, *_ in map(str.split, text.splitlines())}
    return {name: found.get(rack.container(name), ("absent", 0)) for name in rack.hosts}


def shell(rack: Rack, host: str, words: list[str]) -> int:
    """A login shell on the host over SSH, or one command."""
    rack.host(host)
    _require_up(rack)
    return subprocess.call(["ssh", "-F", str(rack.state / "ssh_config"), host, *words])


def write_keys(rack: Rack) -> None:
    """A key for the controller and one for each host, made once; known_hosts and ssh_config from them."""
    state = rack.state
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    _keygen(state / "id_ed25519", "steadyrack demo, controller")
    known, config = (
        [],
        [
            "# Written by ./rack. Host keys are checked: they were made here and are written to known_hosts.",
            "Host *",
            "  User root",
            f"  IdentityFile {_quoted(state / 'id_ed25519')}",
            "  IdentitiesOnly yes",
            f"  UserKnownHostsFile {_quoted(state / 'known_hosts')}",
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking yes",
            "  UpdateHostKeys no",
            "  ConnectTimeout 10",
            "  LogLevel ERROR",
        ],
    )
    for host in rack.hosts.values():
        key = _host_folder(rack, host) / "ssh_host_ed25519_key"
        _keygen(key, host.name)
        kind, body = key.with_name(key.name + ".pub").read_text().split()[:2]
        known.append(f"{','.join([host.name, *host.addresses])} {kind} {body}")
        config += [f"Host {host.name}", f"  HostName {host.ssh_address}"]
    (state / "known_hosts").write_text("\n".join(known) + "\n")
    (state / "ssh_config").write_text("\n".join(config) + "\n")


def _quoted(path: Path) -> str:
    """A path as ssh_config takes it, also with blanks in it."""
    return f'"{path}"'


def _host_folder(rack: Rack, host: Host) -> Path:
    folder = rack.state / "hosts" / host.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _keygen(path: Path, comment: str) -> None:
    if path.exists() and path.with_name(path.name + ".pub").exists():
        return
    path.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def _other_checkouts(rack: Rack) -> None:
    """A demo rack of another clone is in the way: same names, same addresses, other keys. It is disposable."""
    text = podman("ps", "-a", "--filter", f"label={LABEL}={rack.name}", "--format", "json") or "[]"
    for row in json.loads(text):
        if row["Labels"].get(CHECKOUT) != str(ROOT):
            step(f"replacing {row['Names'][0]}, made from {row['Labels'].get(CHECKOUT)}")
            podman("rm", "-f", "-t", "0", "-i", row["Names"][0])


def _network(rack: Rack, name: str) -> None:
    network = rack.networks[name]
    full = f"{rack.name}-{name}"
    gateway = str(network.subnet[1])  # named: without it an internal network's bridge has no address on this machine
    text = podman("network", "inspect", full, check=False)
    if text and text != "[]":
        (found,) = json.loads(text)
        subnets = [(row["subnet"], row.get("gateway")) for row in found.get("subnets") or []]
        if subnets == [(str(network.subnet), gateway)] and bool(found.get("internal")) == network.internal:
            return
        step(f"network {full} is not as described: making it anew")
        podman("network", "rm", "-f", full)
    _refuse_overlap(network.subnet)
    step(f"network {full} {network.subnet}{' (internal)' if network.internal else ''}")
    words = ["network", "create", "--disable-dns", "--subnet", str(network.subnet), "--gateway", gateway]
    podman(*words, *(["--internal"] if network.internal else []), full)


def _refuse_overlap(subnet: ipaddress.IPv4Network) -> None:
    """Two routes to one subnet would send the demo's packets somewhere real."""
    for route in json.loads(run(["ip", "-j", "-4", "route"]).stdout or "[]"):
        target = route.get("dst", "default")
        if target != "default" and ipaddress.IPv4Network(target, strict=False).overlaps(subnet):
            raise RackError(
                f"this machine already has a route into {subnet}",
                f"{target} dev {route.get('dev')}",
                "remove that network, or change the subnet in tests/rack/racks/ and inventory/",
            )


def _image(host: Host) -> str:
    return images.outside_name(host.suite) if host.upstream_clocks else images.node_name(host.suite)


def _arguments(rack: Rack, host: Host) -> list[str]:
    """The words of `podman run` for a host, without the label that is their hash."""
    folder = _host_folder(rack, host)
    words = [
        "--name",
        rack.container(host.name),
        "--hostname",
        host.name,
        "--restart",
        "always",
        "--cap-add",
        "NET_ADMIN",  # nftables and addresses inside the container
        "--cap-add",
        "SYS_ADMIN",  # bind mounts: its own boot_id, the emulated PCI tree
        "--label",
        f"{LABEL}={rack.name}",
        "--label",
        f"{CHECKOUT}={ROOT}",
    ]
    for network, address in host.networks.items():
        words += ["--network", f"{rack.name}-{network}:ip={address},mac={_mac(rack, address)}"]
    mounts = {
        rack.state / "id_ed25519.pub": "/root/.ssh/authorized_keys",
        folder / "ssh_host_ed25519_key": "/etc/ssh/ssh_host_ed25519_key",
    }
    if host.upstream_clocks:
        table = folder / "upstream-clocks"
        table.write_text("".join(f"{name} {address}\n" for name, address in host.upstream_clocks.items()))
        mounts[table] = "/etc/upstream-clocks"
    if host.gpu_profile:
        profile = folder / "nvml-emulator.conf"
        profile.write_text(f"PROFILE={host.gpu_profile}\nHOST={host.name}\n")
        mounts[profile] = "/etc/nvml-emulator.conf"
    for source, target in mounts.items():
        words += ["--volume", f"{source}:{target}:ro"]
    return [*words, _image(host), "/sbin/init"]


def _mac(rack: Rack, address: str) -> str:
    """A locally administered MAC that stays with the address.

    A replaced host with a new one would be unreachable for whoever still remembers the old: up to 45 s.
    """
    digits = hashlib.sha256(f"{rack.name} {address}".encode()).hexdigest()
    return ":".join(["02", *(digits[i : i + 2] for i in range(0, 10, 2))])


def _made_from(rack: Rack, host: Host, arguments: list[str]) -> str:
    keys = [
        (rack.state / "id_ed25519.pub").read_bytes(),
        (_host_folder(rack, host) / "ssh_host_ed25519_key.pub").read_bytes(),
    ]
    return hashlib.sha256("\0".join(arguments).encode() + b"".join(keys)).hexdigest()[:16]


def _state(rack: Rack, host: Host) -> str:
    text = podman("container", "inspect", rack.container(host.name), "--format", "{{.State.Status}}", check=False)
    return text.splitlines()[0] if text and "\n" not in text else "absent"


def _host_up(rack: Rack, host: Host) -> None:
    name = rack.container(host.name)
    arguments = _arguments(rack, host)
    wanted = _made_from(rack, host, arguments)
    found = podman(
        "container",
        "inspect",
        name,
        "--format",
        f'{{{{index .Config.Labels "{MADE_FROM}"}}}} {{{{.State.Status}}}}',
        check=False,
    ).split()
    if found[:1] == [wanted] and found[1:] == ["running"]:
        step(f"{host.name}: is up")
    elif found[:1] == [wanted] and found[1:] == ["exited"]:  # any other state is what a killed podman left
        step(f"{host.name}: starting it again")
        podman("start", name)
    else:
        step(f"{host.name}: creating ({host.suite}{', ' + host.gpu_profile if host.gpu_profile else ''})")
        run(["podman", "rm", "-f", "-t", "0", "-i", name], check=False, env=podman_env())
        orphans.sweep(host.addresses)
        podman("run", "-d", "--pull=never", "--label", f"{MADE_FROM}={wanted}", *arguments)
    _wait_boot(rack, host)
    _wait_ssh(rack, host)


def _wait_boot(rack: Rack, host: Host) -> None:
    """Wait until systemd says it has finished; a container used earlier gives errors that look like ours."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    state = ""
    while time.monotonic() < deadline:
        done = run(
            ["podman", "exec", rack.container(host.name), "systemctl", "is-system-running", "--wait"],
            check=False,
            env=podman_env(),
            timeout_s=BOOT_TIMEOUT_S,
        )
        state = done.stdout.strip() or done.stderr.strip()
        if state in ("running", "degraded"):
            break
        time.sleep(0.3)
    if state == "running":
        return
    failed = podman("exec", rack.container(host.name), "systemctl", "--failed", "--no-legend", "--plain", check=False)
    if state == "degraded":
        step(f"{host.name}: up, with failed units: {' '.join(line.split()[0] for line in failed.splitlines())}")
        return
    raise RackError(
        f"{host.name} did not finish booting within {BOOT_TIMEOUT_S} s",
        f"{state}\n{failed}",
        f"podman logs {rack.container(host.name)}; above about 20 hosts look at fs.inotify.max_user_instances",
    )


def _wait_ssh(rack: Rack, host: Host) -> None:
    deadline = time.monotonic() + 20
    words: list[str | Path] = ["ssh", "-F", rack.state / "ssh_config", "-o", "BatchMode=yes", host.name, "true"]
    while (done := run(words, check=False, timeout_s=30)).returncode != 0:
        if time.monotonic() > deadline:
            raise RackError(
                f"{host.name} does not answer over SSH", done.stderr, f"podman exec -it {rack.container(host.name)} sh"
            )
        time.sleep(0.2)


def _require_up(rack: Rack) -> None:
    if not (rack.state / "ssh_config").exists():
        raise RackError(f"rack {rack.short} is not up", next_step="./rack demo")
