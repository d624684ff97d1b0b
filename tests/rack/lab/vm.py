"""`./rack vm`: a host with a Debian kernel of its own, for what containers cannot show.

A container has no kernel log, no initrd, no modules and no clock of its own. This is one more node that has them,
under QEMU: emulated (TCG) unless KVM is shown to work. It is reached over SSH like any host, with a key and a host
key made at its creation, and nothing else of this machine or its networks is reachable from it, unless it is given
a card in a network of a rack of containers (`--network`): then it installs through the relay as the nodes do.

What it does not show: a boot loader (QEMU is given kernel and initrd, see vm_keeper), and graphics drivers (Debian's
cloud kernel is built without them).

Everything lies below .rack/vm: images, keyed by what they are made from, and one folder a machine.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import images, mirror, setup, vm_keeper
from lab.engine import podman
from lab.paths import LAB, NVML, STATE
from lab.say import RackError, run, step
from lab.topology import Host, Rack, load

VM = STATE / "vm"
KEY, KNOWN_HOSTS, SSH_CONFIG, INVENTORY = (
    VM / "id_ed25519", VM / "known_hosts", VM / "ssh_config", VM / "inventory.yml",
)  # fmt: skip
TREE = LAB / "vm" / "tree"
COMMANDS = {
    **setup.VM_COMMANDS, "e2fsck": "e2fsprogs", "mmdebstrap": "mmdebstrap", "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
}  # fmt: skip
PACKAGES = (*(name for name in images.PACKAGES if name != "systemd-timesyncd"), "linux-image-cloud-amd64")
"""The rack hosts' packages and a kernel. Without timesyncd: it would move a clock that is asked to be behind."""
ENABLED = ("ssh.service", "systemd-networkd.service", "rack-vm-clock.service")
MASKED = ("getty@tty1.service", "serial-getty@ttyS0.service", "apt-daily.timer", "apt-daily-upgrade.timer",
          "e2scrub_reap.service")  # fmt: skip
"""Nobody logs in at a console, and nothing that starts by itself takes half of an emulated processor."""
DISK_BYTES = 4 << 30
"""Sparse: a fresh image takes about 300 MiB."""
CLOCK_RANGE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2037, 12, 31, tzinfo=datetime.UTC)
"""What the emulated hardware clock and 32-bit counts of seconds can both say."""
BOOT_TIMEOUT_S = {"kvm": 90, "tcg": 300}
POWER_OFF_S = 180
"""systemd gives a service 90 s to stop; emulated on a busy machine everything takes its time."""
KVM_TRIAL_S = 10
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


# --- the command ----------------------------------------------------------------------------------------------------


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `./rack vm WORD`."""
    words = parser.add_subparsers(dest="vm_word", metavar="WORD", required=True)

    def word(name: str, text: str) -> argparse.ArgumentParser:
        sub = words.add_parser(name, help=text, description=text)
        sub.add_argument("--name", default="vm1", help="which machine (default: vm1)")
        return sub

    sub = word("up", "make the machine if need be, start it, wait until it answers over SSH")
    sub.add_argument("--suite", default="trixie", choices=images.SUITES, help="Debian release (default: trixie)")
    sub.add_argument("--clock", type=parse_clock, metavar="TIME",
                     help="its hardware clock at power-on, UTC: 2025-11-30T00:00:00")  # fmt: skip
    sub.add_argument("--gpus", metavar="PROFILE", help="install the NVML emulator with this profile, e.g. a100x4")
    sub.add_argument("--network", metavar="NAME=ADDRESS",
                     help="a second card in a network of a rack that is up, e.g. rack-a=10.213.1.41")  # fmt: skip
    sub.add_argument("--rack", default="demo", help="the rack --network means (default: demo)")
    sub.add_argument("--memory", type=int, default=1024, metavar="MIB", help="default: 1024")
    sub.add_argument("--accel", choices=("auto", "kvm", "tcg"), default="auto", help="default: KVM if it works here")
    sub.add_argument("--owner", type=int, metavar="PID", help="end the machine when this process ends")
    sub = word("down", "end the machine and remove its disk")
    sub.add_argument("--keep", action="store_true", help="power it off in good order and keep its disk for the next up")
    sub.add_argument("--cut", action="store_true", help="with --keep: cut the power instead")
    word("status", "which machines there are").set_defaults(name=None)
    sub = word("shell", "a root shell on it, or one command")
    sub.add_argument("words", nargs=argparse.REMAINDER)
    sub = word("log", "what its kernel and systemd wrote to the console, over all its boots")
    sub.add_argument("-f", "--follow", action="store_true", help="go on as it grows")


def command(args: argparse.Namespace) -> int:
    """Run what `arguments` declared; the exit code."""
    if args.vm_word == "status":
        from lab.demo import table  # demo knows all of the tool; only this line needs a bit of it

        print(table(status()))
        return 0
    if args.vm_word == "up":
        up(Machine(args.name, args.suite, args.memory, args.gpus, network(args.network, args.rack)),
           clock=args.clock, accelerator=args.accel, owner=args.owner)  # fmt: skip
        return 0
    if args.vm_word == "down":
        if args.cut and not args.keep:
            raise RackError("--cut goes with --keep", next_step="without --keep the machine and its disk are removed")
        down(args.name, keep_disk=args.keep, cut=args.cut)
        return 0
    folder = _existing(args.name)
    if args.vm_word == "log":
        return subprocess.call(["tail", "-n", "+1", *(["-f"] if args.follow else []), str(folder / "console.log")])
    if keeper_pid(folder) is None:
        raise RackError(f"{args.name} is not running", _why(folder), f"./rack vm up --name {args.name}")
    return subprocess.call(["ssh", "-F", str(SSH_CONFIG), args.name, *args.words])


def parse_clock(text: str) -> datetime.datetime:
    """A UTC time from the command line. Raises the error argparse shows."""
    try:
        clock = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2025-11-30T00:00:00") from None
    clock = clock.replace(tzinfo=datetime.UTC) if clock.tzinfo is None else clock.astimezone(datetime.UTC)
    if not CLOCK_RANGE[0] <= clock <= CLOCK_RANGE[1]:
        first, last = (f"{end:%Y-%m-%d}" for end in CLOCK_RANGE)
        raise argparse.ArgumentTypeError(f"{text} is not from {first} to {last}: no hardware clock says that")
    return clock


@dataclass(frozen=True)
class Card:
    """A network card in a bridge of a rack of containers."""

    bridge: str
    address: ipaddress.IPv4Interface

    @property
    def mac(self) -> str:
        return vm_keeper.RACK_MAC.format(int(self.address.ip) & 0xFF)


@dataclass(frozen=True)
class Machine:
    """What a machine is made from."""

    name: str = "vm1"
    suite: str = "trixie"
    memory_mib: int = 1024
    gpus: str | None = None
    card: Card | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise RackError(f"{self.name!r} is not a name for a machine", next_step="small letters, digits, hyphens")
        if self.memory_mib < 512:
            raise RackError(f"{self.memory_mib} MiB of memory are too few", next_step="512 or more; 1024 is tried")

    @property
    def folder(self) -> Path:
        return VM / "machines" / self.name


def network(text: str | None, rack_name: str) -> Card | None:
    """The card that `--network NAME=ADDRESS` describes; the rack's bridge must be there."""
    if text is None:
        return None
    rack = load(rack_name)
    name, address = card_address(text, rack)
    full = f"{rack.name}-{name}"
    found = json.loads(podman("network", "inspect", full, check=False) or "[]")
    bridge = found[0].get("network_interface") if found else None
    if not bridge or not Path("/sys/class/net", bridge).exists():
        raise RackError(f"network {full} is not up", next_step=f"./rack up --rack {rack_name}")
    return Card(bridge, address)


def _addresses(host: Host) -> list[str]:
    return [*host.addresses, *host.upstream_clocks.values()]


def card_address(text: str, rack: Rack) -> tuple[str, ipaddress.IPv4Interface]:
    """Network name and address with prefix length out of NAME=ADDRESS; refuses one that a host of the rack has."""
    name, _, word = text.partition("=")
    if name not in rack.networks:
        raise RackError(f"no network {name!r} in rack {rack.short}", "networks: " + ", ".join(rack.networks))
    subnet = rack.networks[name].subnet
    try:
        address = ipaddress.IPv4Address(word)
    except ValueError as exc:
        raise RackError(f"--network {text}: not an address", str(exc), f"e.g. {name}={subnet[41]}") from exc
    taken = {own: host.name for host in rack.hosts.values() for own in _addresses(host)}
    if address not in subnet or address in (subnet[0], subnet[1], subnet[-1]):  # itself, the bridge, broadcast
        raise RackError(f"--network {text}: no host can have that in {subnet}", next_step=f"e.g. {name}={subnet[41]}")
    if str(address) in taken:
        raise RackError(f"--network {text}: {taken[str(address)]} has that address")
    return name, ipaddress.IPv4Interface(f"{address}/{subnet.prefixlen}")


# --- images ---------------------------------------------------------------------------------------------------------


def base_key(suite: str) -> str:
    """Changes with whatever goes into the slow layer: packages, mirror, and how the initrd is made."""
    return images.digest_of([suite, *PACKAGES, *images.DPKG, *mirror.lines(suite), *_initrd_files()])


def image_key(suite: str, gpus: bool) -> str:
    native = images.native_hash() if gpus else ""
    return images.digest_of([base_key(suite), native, str(DISK_BYTES), *ENABLED, *MASKED, *images.tree(TREE)])


def _initrd_files() -> list[str | bytes]:
    return [part for word in ("etc/initramfs-tools", "usr/share/initramfs-tools") for part in images.tree(TREE / word)]


def build_image(suite: str, gpus: bool = False) -> Path:
    """The disk image new machines of `suite` are copied from; made when its recipe has changed."""
    kind = f"{suite}-gpus" if gpus else suite
    image = VM / "images" / f"{kind}-{image_key(suite, gpus)}.img"
    if image.exists():
        return image
    if os.geteuid() != 0:
        raise RackError("the image has files of several owners, only root can make it", f"uid {os.geteuid()}",
                        "sudo ./rack vm up")  # fmt: skip
    image.parent.mkdir(parents=True, exist_ok=True)
    if gpus:
        images.build_native()
    base = _build_base(suite)
    step(f"vm image: file system for {kind} (about 10 s)")
    with images.workdir() as folder:
        root = folder / "root"
        root.mkdir()
        run(["tar", "--numeric-owner", "-xpf", base, "-C", root])
        run(["cp", "-a", f"{TREE}/.", root])
        if gpus:
            run(["sh", LAB / "nvml" / "install.sh", root, NVML])
            run(["chroot", root, "ldconfig"])
        run(["chroot", root, "systemctl", "--quiet", "enable", *ENABLED])
        run(["chroot", root, "systemctl", "--quiet", "mask", *MASKED])
        run(["chroot", root, "systemctl", "--quiet", "set-default", "multi-user.target"])
        (root / "root" / ".ssh").mkdir(exist_ok=True)
        (root / "root" / ".ssh").chmod(0o700)
        # -d fills the file system without a loop device; -m 0: nothing held back for a root that is the only user.
        run(["mkfs.ext4", "-q", "-m", "0", "-L", "root", "-d", root, folder / "new.img", str(DISK_BYTES // 1024) + "k"])
        (folder / "new.img").chmod(0o444)
        (folder / "new.img").rename(image)
    for old in image.parent.glob("*.img"):
        if re.fullmatch(rf"{kind}-[0-9a-f]+\.img", old.name) and old != image:
            old.unlink()
    step(f"vm image: {kind} is there")
    return image


def _build_base(suite: str) -> Path:
    """Debian and a kernel as a tar, kept: a change in tests/rack/vm/tree needs only the fast half anew."""
    base = VM / "images" / f"base-{suite}-{base_key(suite)}.tar"
    if base.exists():
        return base
    step(f"vm image: Debian {suite} with a kernel from this machine's mirror (about a minute)")
    with images.workdir() as folder:
        seed = folder / "seed"
        for word in ("etc/initramfs-tools", "usr/share/initramfs-tools"):
            shutil.copytree(TREE / word, seed / word)
        hooks = [
            # Before the kernel, whose installation makes the initrd.
            f"--essential-hook=sync-in {shlex.quote(str(seed))} /",
            '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id && : > "$1"/etc/machine-id',
        ]
        options = [f"--dpkgopt={line}" for line in images.DPKG]
        words = ["--variant=minbase", f"--include={','.join(PACKAGES)}", *options, *hooks]
        images.mmdebstrap(suite, folder / "new.tar", words)
        (folder / "new.tar").rename(base)
    for old in base.parent.glob(f"base-{suite}-*.tar"):
        if old != base:
            old.unlink()
    return base


# --- a machine's disk -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file put into a disk before the first boot."""

    path: str
    content: str
    mode: int = 0o644


def files_of(machine: Machine, controller_key: str, host_key: str, machine_id: str) -> list[File]:
    """What tells one machine from another made from the same image."""
    files = [
        File("/etc/hostname", machine.name + "\n"),
        File("/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {machine.name}\n::1 localhost ip6-localhost\n"),
        File("/etc/machine-id", machine_id + "\n", 0o444),
        File("/etc/ssh/ssh_host_ed25519_key", host_key, 0o600),
        File("/root/.ssh/authorized_keys", controller_key, 0o600),
    ]
    if machine.card:
        files.append(File(
            "/etc/systemd/network/20-rack.network",
            f"[Match]\nPermanentMACAddress={machine.card.mac}\n\n[Network]\nAddress={machine.card.address}\n"
            "LinkLocalAddressing=no\nIPv6AcceptRA=no\n",
        ))  # fmt: skip
    if machine.gpus:
        files.append(File("/etc/nvml-emulator.conf", f"PROFILE={machine.gpus}\nHOST={machine.name}\n"))
    return files


def debugfs_script(files: list[File]) -> str:
    """debugfs commands that put `files` into a file system; source n lies in the working directory as file-n."""
    lines = []
    for number, file in enumerate(files):
        if re.search(r'[\s"]', file.path):
            raise ValueError(f"debugfs would take {file.path!r} apart")
        lines += [f"rm {file.path}", f"write file-{number} {file.path}"]
        fields = {"mode": f"0{stat.S_IFREG | file.mode:o}", "uid": "0", "gid": "0"}
        lines += [f"sif {file.path} {name} {value}" for name, value in fields.items()]
    return "\n".join(lines) + "\n"


def inject(disk: Path, files: list[File]) -> None:
    """Write files into a disk that nobody uses, and read each back: debugfs returns 0 whatever happened."""
    with images.workdir() as folder:
        for number, file in enumerate(files):
            (folder / f"file-{number}").write_text(file.content)
        (folder / "script").write_text(debugfs_script(files))
        done = run(["debugfs", "-w", "-f", "script", disk.resolve()], cwd=folder)
    for file in files:
        seen = run(["debugfs", "-R", f"cat {file.path}", disk]).stdout
        if seen != file.content:
            raise RackError(f"{file.path} could not be written into {disk.name}", done.stderr, "rm -r .rack/vm/images")


def _make_disk(machine: Machine, image: Path) -> None:
    folder = machine.folder
    step(f"{machine.name}: a disk from {image.name}, its own host key and name")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = folder / "disk.new"
    run(["cp", "--reflink=auto", "--sparse=always", "--no-preserve=mode", image, new])
    keys = KEY.with_suffix(".pub").read_text(), (folder / "host_key").read_text()
    inject(new, files_of(machine, *keys, uuid.uuid4().hex))
    (folder / "console.log").write_text("")
    new.rename(folder / "disk.img")


# --- up, down, status -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """One command at a time changes the machines of this checkout. The kernel frees it when that command is killed."""
    VM.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (VM / "lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            step("waiting for another ./rack vm")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def keeper_pid(folder: Path) -> int | None:
    """The process that keeps this machine running, None when it does not run: its lock is asked, not its number."""
    try:
        with (folder / "keeper.lock").open("r") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        pid = read_json(folder / "status.json").get("keeper")
        return int(pid) if pid else None
    return None


def read_json(path: Path) -> dict[str, Any]:
    """A file this tool wrote, {} when it is not there."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        return {}


def require_tools() -> None:
    """Install what QEMU, the image and SSH need, after saying so."""
    missing = setup.missing_packages(COMMANDS)
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        missing.append("debian-archive-keyring")  # mmdebstrap on an Ubuntu
    setup.install(missing, COMMANDS)


def up(
    machine: Machine,
    *,
    clock: datetime.datetime | None = None,
    accelerator: str = "auto",
    owner: int | None = None,
) -> None:
    """Make, start and wait for a machine; one that runs and is made from the same things is left alone.

    A stopped machine goes on with its disk. `clock` is what the hardware clock shows at power-on. With `owner` the
    machine ends with that process. Raises RackError, the machine stopped again, when it does not come up.
    """
    start(machine, clock=clock, accelerator=accelerator, owner=owner)
    _wait(machine)


def start(
    machine: Machine,
    *,
    clock: datetime.datetime | None = None,
    accelerator: str = "auto",
    owner: int | None = None,
) -> None:
    """`up` without waiting for the guest."""
    require_tools()
    folder = machine.folder
    with _lock():
        image = build_image(machine.suite, machine.gpus is not None)
        _keygen(KEY, "steadyrack VMs, controller")
        wanted = made_from(machine, image.name, KEY.with_suffix(".pub").read_text())
        spec, pid = read_json(folder / "machine.json"), keeper_pid(folder)
        same = spec.get("made_from") == wanted and (folder / "disk.img").exists()
        if pid and not same:
            step(f"{machine.name}: runs, but was made from something else: replacing it")
            _end(folder, pid)
            pid = None
        if pid and clock:
            raise RackError(f"{machine.name} runs: its hardware clock is set at power-on only",
                            next_step=f"./rack vm down --keep --name {machine.name}, then up again")  # fmt: skip
        if pid:
            step(f"{machine.name}: is up")
        else:
            if not same:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, mode=0o700)
                _keygen(folder / "host_key", machine.name)
                _make_disk(machine, image)
            _start(machine, {
                "made_from": wanted, "accelerator": choose_accelerator(folder, accelerator),
                "port": free_port(spec.get("port")), "clock": clock and f"{clock:%Y-%m-%dT%H:%M:%S}", "owner": owner,
            })  # fmt: skip
        write_ssh_files()


def made_from(machine: Machine, image: str, controller_key: str) -> str:
    """Hash of what a machine consists of; how it is run (memory, accelerator, clock) may change between starts."""
    return images.digest_of([machine.suite, str(machine.gpus), str(machine.card), image, controller_key])


def _start(machine: Machine, how: dict[str, Any]) -> None:
    """Start the keeper of a machine that does not run; `how` is what may differ from start to start."""
    folder, card = machine.folder, machine.card
    spec: dict[str, Any] = {
        "name": machine.name, "suite": machine.suite, "memory_mib": machine.memory_mib,
        "cpus": min(2, os.cpu_count() or 1), "address": card and str(card.address.ip),
        "bridge": card and card.bridge, "mac": card and card.mac, **how,
    }  # fmt: skip
    if card:
        script = folder / "bridge-up"
        script.write_text(f'#!/bin/sh\n# QEMU calls it with its tap.\nip link set dev "$1" master {card.bridge} up\n')
        script.chmod(0o755)
    temporary = folder / ".machine.json"
    temporary.write_text(json.dumps(spec, indent=1) + "\n")
    temporary.rename(folder / "machine.json")
    (folder / "status.json").unlink(missing_ok=True)
    step(f"{machine.name}: starting ({machine.suite}, {spec['accelerator']}, port {spec['port']}"
         f"{', clock ' + spec['clock'] if spec['clock'] else ''})")  # fmt: skip
    # A session of its own: Ctrl-C and the end of this terminal do not reach it.
    with (folder / "keeper.log").open("wb") as log:
        subprocess.Popen([sys.executable, vm_keeper.__file__, folder.resolve()], start_new_session=True,
                         stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")  # fmt: skip
    deadline = time.monotonic() + 15
    while not (folder / "status.json").exists():
        if time.monotonic() > deadline:
            raise RackError(f"{machine.name}: its keeper does not start", (folder / "keeper.log").read_text())
        time.sleep(0.05)


def free_port(wanted: int | None = None) -> int:
    """A TCP port nobody listens on at 127.0.0.1; `wanted` again if it still is one."""
    for port in (wanted, 0):
        if port is None:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As QEMU does: connections of the last run that wait to be forgotten do not hold the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise RackError("no free port on 127.0.0.1")


def choose_accelerator(folder: Path, wanted: str = "auto") -> str:
    """kvm where it has been seen to run this very kernel, else tcg. The device being there says little.

    The finding is kept until this machine is booted anew or has another QEMU.
    """
    if wanted == "tcg" or (wanted == "auto" and not os.access("/dev/kvm", os.R_OK | os.W_OK)):
        return "tcg"
    key = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + run(["qemu-system-x86_64", "--version"]).stdout
    kept = read_json(VM / "kvm.json")
    if kept.get("key") != key:
        step("vm: a trial of KVM")
        works, seen = kvm_works(folder)
        kept = {"key": key, "works": works, "seen": seen}
        (VM / "kvm.json").write_text(json.dumps(kept) + "\n")
        if not works:
            step(f"vm: KVM does not run a kernel here ({seen}); emulating, which is slower")
    if wanted == "kvm" and not kept["works"]:
        raise RackError("KVM does not work on this machine", kept["seen"], "leave --accel out")
    return "kvm" if kept["works"] else "tcg"


def kvm_works(folder: Path) -> tuple[bool, str]:
    """Whether KVM runs our kernel to the point where it misses its disk; what was seen where it does not."""
    vm_keeper.boot_files(folder / "disk.img", folder)
    words = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "max", "-m", "256", "-nodefaults", "-no-user-config",
             "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", "kernel",
             "-append", "console=ttyS0 panic=-1"]  # fmt: skip
    try:
        done = run(words, cwd=folder, timeout_s=KVM_TRIAL_S, check=False)
    except RackError:
        return False, f"no end within {KVM_TRIAL_S} s"
    if "Unable to mount root fs" in done.stdout:
        return True, ""
    return False, (done.stderr.strip().splitlines() or ["it ended early, saying nothing"])[0][:200]


def _wait(machine: Machine) -> None:
    """Wait until systemd in the guest has finished; read back which kernel runs and what its clock says."""
    folder, spec = machine.folder, read_json(machine.folder / "machine.json")
    limit = BOOT_TIMEOUT_S[spec["accelerator"]]
    deadline = time.monotonic() + limit
    seen, look = "", f"./rack vm log --name {machine.name}"
    # One command: an SSH login takes an emulated processor a second or two.
    remote = "systemctl is-system-running --wait; uname -r; date +%s; systemctl --failed --no-legend --plain"
    words = ["ssh", "-F", str(SSH_CONFIG), "-o", "BatchMode=yes", "-o", "ConnectTimeout=4", machine.name, remote]
    while True:
        if keeper_pid(folder) is None:
            raise RackError(f"{machine.name} ended while it booted", _why(folder), look)
        try:
            done = run(words, check=False, timeout_s=max(5, deadline - time.monotonic()))
        except RackError as error:
            done = subprocess.CompletedProcess([], 255, "", str(error))
        if done.returncode == 0:
            break
        seen = done.stderr
        if time.monotonic() > deadline:
            last = (folder / "console.log").read_text(errors="replace").splitlines()[-8:]
            if (pid := keeper_pid(folder)) is not None:
                _end(folder, pid)
            raise RackError(f"{machine.name} did not answer over SSH within {limit} s and was stopped",
                            "\n".join([seen.strip(), "console:", *last]), look)  # fmt: skip
        time.sleep(0.5)
    state, release, seconds, *failed = done.stdout.splitlines()
    guest = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC)
    if state != "running":
        step(f"{machine.name}: up, systemd says {state}: {' '.join(line.split()[0] for line in failed)}")
    step(f"{machine.name}: answers over SSH with its own key; Linux {release}, clock {guest:%Y-%m-%d %H:%M:%S} UTC")


def down(name: str, *, keep_disk: bool = False, cut: bool = False) -> None:
    """End a machine; remove it, or keep its disk after a power-off (`cut`: without one)."""
    folder = Machine(name).folder
    with _lock():
        pid = keeper_pid(folder)
        if pid and keep_disk and not cut:
            step(f"{name}: powering off")
            words = ["ssh", "-F", str(SSH_CONFIG), "-o", "BatchMode=yes", name, "systemctl poweroff --no-block"]
            with contextlib.suppress(RackError):  # no answer in time: then its power is cut
                run(words, check=False, timeout_s=60)
            deadline = time.monotonic() + POWER_OFF_S
            while keeper_pid(folder) and time.monotonic() < deadline:
                time.sleep(0.2)
            pid = keeper_pid(folder)
            if pid:
                step(f"{name}: does not power off within {POWER_OFF_S} s: cutting its power")
        if pid:
            _end(folder, pid)
        if not keep_disk:
            shutil.rmtree(folder, ignore_errors=True)
        write_ssh_files()
    step(f"{name}: {'off, its disk is kept' if keep_disk and folder.exists() else 'gone'}")


def purge() -> None:
    """End every machine and remove all of .rack/vm, images too."""
    if not VM.exists():
        return
    for folder in (VM / "machines").glob("*"):
        down(folder.name)
    shutil.rmtree(VM, ignore_errors=True)


def _end(folder: Path, pid: int) -> None:
    """End one machine by its keeper's process id, QEMU with it; returns when its lock is free."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 20
    while keeper_pid(folder) is not None:
        if time.monotonic() > deadline:  # its QEMU goes with it: the kernel sees to that
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.05)


def status() -> list[dict[str, str]]:
    """One row a machine."""
    rows = []
    for folder in sorted((VM / "machines").glob("*")):
        spec, now = read_json(folder / "machine.json"), read_json(folder / "status.json")
        state = now.get("phase", "stopped") if keeper_pid(folder) else f"stopped ({now.get('why', 'killed')})"
        rows.append({
            "machine": folder.name, "state": str(state), "release": spec.get("suite", "?"),
            "by": spec.get("accelerator", "?"), "boots": str(now.get("boots", 0)), "port": str(spec.get("port", "?")),
            "address": spec.get("address") or "-", "kernel": str(now.get("kernel", "-")).removeprefix("boot/vmlinuz-"),
        })  # fmt: skip
    return rows


def _existing(name: str) -> Path:
    folder = Machine(name).folder
    if not (folder / "machine.json").exists():
        known = ", ".join(sorted(path.name for path in (VM / "machines").glob("*"))) or "none"
        raise RackError(f"there is no machine {name}", f"machines: {known}", f"./rack vm up --name {name}")
    return folder


def _why(folder: Path) -> str:
    now = read_json(folder / "status.json")
    log = folder / "qemu.log"
    said = log.read_text(errors="replace").strip()[-600:] if log.exists() else ""
    return "\n".join(part for part in (f"{now.get('phase', 'stopped')}: {now.get('why', 'killed')}", said) if part)


# --- SSH ------------------------------------------------------------------------------------------------------------


def _keygen(path: Path, comment: str) -> None:
    """A key pair, made once. The public half is written last: without it the pair is made again."""
    if path.exists() and path.with_name(path.name + ".pub").exists():
        return
    path.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def write_ssh_files() -> None:
    """known_hosts, ssh_config and an inventory of the machines there are."""
    machines = {}
    for folder in sorted((VM / "machines").glob("*")):
        spec, key = read_json(folder / "machine.json"), folder / "host_key.pub"
        if spec and key.exists():
            machines[folder.name] = {**spec, "host_key": " ".join(key.read_text().split()[:2])}
    for path, text in ssh_files(machines).items():
        temporary = path.with_name(f".{path.name}")
        temporary.write_text(text)
        temporary.rename(path)


def ssh_files(machines: Mapping[str, Mapping[str, Any]]) -> dict[Path, str]:
    """Their contents. A machine is known by its name (HostKeyAlias), so that its port may change."""
    known, hosts = [], []
    config = [
        "# Written by ./rack vm. Host keys are checked: they were made here and are written to known_hosts.",
        "Host *", "  User root", f'  IdentityFile "{KEY}"', "  IdentitiesOnly yes",
        f'  UserKnownHostsFile "{KNOWN_HOSTS}"', "  GlobalKnownHostsFile /dev/null", "  StrictHostKeyChecking yes",
        "  UpdateHostKeys no", "  ConnectTimeout 20", "  LogLevel ERROR",
    ]  # fmt: skip
    for name, machine in machines.items():
        names = [name, f"[127.0.0.1]:{machine['port']}", *([machine["address"]] if machine.get("address") else [])]
        known.append(f"{','.join(names)} {machine['host_key']}")
        config += [f"Host {name}", "  HostName 127.0.0.1", f"  Port {machine['port']}", f"  HostKeyAlias {name}"]
        common = json.dumps(f'-F "{SSH_CONFIG}"')  # a JSON string is a YAML string
        hosts.append(f"    {name}: {{ansible_user: root, ansible_ssh_common_args: {common}}}")
    inventory = ["# Written by ./rack vm.", "all:", "  hosts:" if hosts else "  hosts: {}", *hosts]
    return {
        KNOWN_HOSTS: "".join(line + "\n" for line in known),
        SSH_CONFIG: "\n".join(config) + "\n",
        INVENTORY: "\n".join(inventory) + "\n",
    }
