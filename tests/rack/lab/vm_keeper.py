"""Keeps one virtual machine running, across reboots of its guest. Started by lab.vm, a program of its own.

There is no boot loader: QEMU is given a kernel and an initrd. So that a guest which changed either boots what it
changed, this program takes both out of the disk image before every start, as a boot loader would. QEMU stops at a
guest's reboot and is started again; it ends for good when the guest powers off or panics, when this program gets
SIGTERM, when the process named as owner is gone, or when the machine's folder is removed.

While it lives it holds a lock on `keeper.lock` in that folder. Whoever asks whether the machine runs tries that
lock: a process id alone may belong to somebody else by now.
"""

from __future__ import annotations

import ctypes
import datetime
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

UTC = datetime.UTC
FORWARDED = "10.0.2.15"
"""The guest's address on QEMU's user network; written in tests/rack/vm/tree/etc/systemd/network."""
FORWARDED_MAC = "52:54:00:0a:00:0f"
RACK_MAC = "52:54:00:0a:01:{:02x}"
CPU_MODEL = {"kvm": "max", "tcg": "Nehalem"}
"""Emulated, a plain processor: each feature of a newer one has udev load one more module, seconds a boot in all."""
KERNEL_WORDS = "root=/dev/vda rw console=ttyS0 mitigations=off lsm=landlock,yama,apparmor systemd.ssh_auto=no"
"""lsm= without bpf spares systemd the loading of a BPF program at each boot (5 s emulated), ssh_auto a search for
sockets a virtual machine could be reached at. Neither touches what roles set or read."""
QMP_TIMEOUT_S = 20.0
_LINK = re.compile(r'^Fast link dest: "(.*)"$', re.M)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class KeeperError(Exception):
    """Why the machine cannot go on; ends up in status.json as `why`."""


class StopRequest(Exception):  # noqa: N818 (no error: the way it ends)
    """Somebody wants the machine gone: a signal, the owner's end, the folder's removal."""


# --- what boots next ------------------------------------------------------------------------------------------------


def link_target(stat_text: str) -> str | None:
    """Where a symbolic link points, from what debugfs's `stat` prints; None when it is no (short) link."""
    match = _LINK.search(stat_text)
    return match[1] if match else None


def boot_files(disk: Path, folder: Path) -> str:
    """Take the kernel and initrd that /vmlinuz and /initrd.img name out of the image; the kernel's path in it.

    They are left in `folder` as `kernel` and `initrd`. A journal left by a guest that stopped hard is replayed
    first: debugfs reads the disk as it lies there, and would see an older state than the guest left.
    """
    fsck = _words("e2fsck", "-p", str(disk))
    if fsck.returncode not in (0, 1):  # e2fsck(8): 1 = errors corrected
        raise KeeperError(f"the file system of {disk.name} cannot be repaired by itself: {_tail(fsck)}")
    kernel = ""
    for link, name in (("/vmlinuz", "kernel"), ("/initrd.img", "initrd")):
        target = link_target(_words("debugfs", "-R", f"stat {link}", str(disk)).stdout)
        if target is None:
            raise KeeperError(f"{link} in {disk.name} is not a symbolic link, so nothing says what to boot")
        temporary = folder / f".{name}"
        temporary.unlink(missing_ok=True)
        # Relative name: debugfs takes blanks in a path apart. It returns 0 whatever happens: look at the file.
        done = _words("debugfs", "-R", f"dump /{target.lstrip('/')} .{name}", str(disk.resolve()), cwd=folder)
        if not temporary.exists() or temporary.stat().st_size == 0:
            raise KeeperError(f"{target} cannot be read from {disk.name}: {_tail(done)}")
        temporary.rename(folder / name)
        kernel = kernel or target
    return kernel


def _words(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LC_ALL": "C.UTF-8"}
    return subprocess.run(argv, check=False, text=True, capture_output=True, stdin=subprocess.DEVNULL, env=env, cwd=cwd)


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return " / ".join((done.stdout + done.stderr).strip().splitlines()[-4:])


# --- QEMU's words ---------------------------------------------------------------------------------------------------


def rtc_option(clock: str | None) -> str:
    """The word after -rtc. A clock of its own runs with the guest, else a step of this machine's would step it."""
    return "base=utc,clock=host" if clock is None else f"base={clock},clock=vm"


def rtc_after_reboot(rtc: datetime.datetime, now: datetime.datetime, stopped_s: float) -> str | None:
    """What the hardware clock shows when the guest comes back: as on a board, a reboot does not set it.

    `rtc` is what it showed when the guest went down, `now` is this machine's time then, `stopped_s` how long the
    start takes. None: it agrees with this machine (QEMU tells whole seconds) and goes on following it.
    """
    if abs((rtc - now).total_seconds()) <= 2:
        return None
    return (rtc + datetime.timedelta(seconds=stopped_s + 0.5)).strftime("%Y-%m-%dT%H:%M:%S")


def qemu_words(spec: Mapping[str, Any], clock: str | None) -> list[str]:
    """The command that starts QEMU in the machine's folder.

    The network reaches nothing (restrict=on) but the guest's SSH port from this machine's loopback address. With a
    `bridge` there is a second card on it: a tap of QEMU's own, which goes when QEMU goes. `shutdown=pause` leaves
    time to ask a stopped machine for its hardware clock.
    """
    words = [
        "qemu-system-x86_64", "-name", f"{spec['name']},process=rack-vm-{spec['name']}",
        "-accel", "kvm" if spec["accelerator"] == "kvm" else "tcg,thread=multi",
        "-machine", "q35,sata=off,smbus=off", "-cpu", CPU_MODEL[spec["accelerator"]],
        "-smp", str(spec["cpus"]), "-m", str(spec["memory_mib"]),
        "-nodefaults", "-no-user-config", "-display", "none", "-rtc", rtc_option(clock),
        "-action", "reboot=shutdown,shutdown=pause,panic=shutdown",
        "-kernel", "kernel", "-initrd", "initrd", "-append", KERNEL_WORDS,
        "-drive", "file=disk.img,format=raw,if=virtio,cache=unsafe,discard=unmap",
        "-netdev", f"user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:{spec['port']}-{FORWARDED}:22",
        "-device", f"virtio-net-pci,netdev=n0,mac={FORWARDED_MAC},romfile=",
        "-device", "virtio-rng-pci", "-device", "pvpanic-pci",
        "-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console",
        "-chardev", "stdio,id=qmp,signal=off", "-mon", "chardev=qmp,mode=control",
    ]  # fmt: skip
    if spec.get("bridge"):
        words += ["-netdev", "tap,id=n1,script=./bridge-up,downscript=no",
                  "-device", f"virtio-net-pci,netdev=n1,mac={spec['mac']},romfile="]  # fmt: skip
    return words


# --- one start of QEMU ----------------------------------------------------------------------------------------------


class Owner:
    """The process whose end ends the machine; None: it stays until it is told to go."""

    def __init__(self, pid: int | None) -> None:
        self.fd = -1
        if pid is None:
            return
        try:
            self.fd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise StopRequest(f"owner {pid} is gone") from None

    def watch(self, poll: select.poll) -> None:
        if self.fd >= 0:
            poll.register(self.fd, select.POLLIN)


class Qemu:
    """One QEMU process and its control channel, on its standard input and output."""

    def __init__(self, argv: Sequence[str], folder: Path, log: IO[bytes], owner: Owner) -> None:
        prctl = ctypes.CDLL(None).prctl
        self.process = subprocess.Popen(
            list(argv), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            # Were this program killed with SIGKILL, a QEMU nobody knows of would go on: the kernel ends it then.
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 (one thread here)
        )  # fmt: skip
        self.folder, self.owner, self.buffer, self.events = folder, owner, b"", list[dict[str, Any]]()
        self.poll = select.poll()
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        self.poll.register(self.output, select.POLLIN)
        owner.watch(self.poll)

    def _message(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, None when there is none in time; KeeperError when QEMU is gone."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            for fd, _ in self.poll.poll(left * 1000):
                if fd == self.owner.fd:
                    raise StopRequest("the owner is gone")
                if not (data := os.read(fd, 65536)):
                    raise KeeperError(f"QEMU ended by itself, exit code {self.process.wait()}")
                self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def command(self, name: str, **arguments: str) -> Any:
        """Run one QMP command; events that come meanwhile are kept."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        self.process.stdin.flush()
        while (message := self._message(QMP_TIMEOUT_S)) is not None:
            if "return" in message:
                return message["return"]
            if "error" in message:
                raise KeeperError(f"QEMU refuses {name}: {message['error'].get('desc')}")
            self.events.append(message)
        raise KeeperError(f"QEMU does not answer {name} within {QMP_TIMEOUT_S:.0f} s")

    def wait_shutdown(self) -> str:
        """Wait until the guest stops; the reason in QEMU's words (guest-reset, guest-shutdown, guest-panic, …)."""
        while True:
            for event in self.events:
                if event.get("event") == "SHUTDOWN":
                    return str(event["data"]["reason"])
            self.events.clear()
            if (message := self._message(5)) is not None:
                self.events.append(message)
            elif not (self.folder / "disk.img").exists():
                raise StopRequest("the machine's folder was removed")

    def hardware_clock(self) -> datetime.datetime:
        tm = self.command("qom-get", path="/machine", property="rtc-time")
        return datetime.datetime(tm["tm_year"] + 1900, tm["tm_mon"] + 1, tm["tm_mday"], tm["tm_hour"], tm["tm_min"],
                                 tm["tm_sec"], tzinfo=UTC)  # fmt: skip

    def end(self) -> None:
        """Gone when this returns, whatever state it is in. Writes are in this machine's page cache: none is lost."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


# --- the life of the machine ----------------------------------------------------------------------------------------


def write_status(folder: Path, **row: Any) -> None:
    """Replace status.json in one step; never brings back a folder that was removed."""
    temporary = folder / ".status.json"
    temporary.write_text(json.dumps({"keeper": os.getpid(), **row}) + "\n")
    temporary.rename(folder / "status.json")


def keep(folder: Path, spec: Mapping[str, Any], log: IO[bytes]) -> str:
    """Run the machine until its end; why it ended."""
    owner = Owner(spec.get("owner"))
    clock: str | None = spec.get("clock")
    boots = 0
    stopped: tuple[datetime.datetime, datetime.datetime, float] | None = None
    while True:
        kernel = boot_files(folder / "disk.img", folder)
        if stopped is not None:
            rtc, now, since = stopped
            clock = rtc_after_reboot(rtc, now, time.monotonic() - since)
        boots += 1
        qemu = Qemu(qemu_words(spec, clock), folder, log, owner)
        try:
            if qemu._message(QMP_TIMEOUT_S) is None:
                raise KeeperError(f"QEMU says nothing within {QMP_TIMEOUT_S:.0f} s")
            qemu.command("qmp_capabilities")
            write_status(folder, phase="running", boots=boots, qemu=qemu.process.pid, kernel=kernel)
            reason = qemu.wait_shutdown()
            if reason != "guest-reset":
                return reason
            stopped = qemu.hardware_clock(), datetime.datetime.now(UTC), time.monotonic()
        finally:
            qemu.end()
        write_status(folder, phase="rebooting", boots=boots, kernel=kernel)


def main(folder: Path) -> int:
    # Held until this process is gone: closing it early would let a second keeper at the disk.
    lock = (folder / "keeper.lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 3

    def stop(signum: int, _: object) -> None:
        raise StopRequest(signal.Signals(signum).name)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, stop)
    phase = "ended"
    try:
        write_status(folder, phase="starting", boots=0)
        with (folder / "qemu.log").open("wb") as log:
            why = keep(folder, json.loads((folder / "machine.json").read_text()), log)
    except StopRequest as stopped:
        why = str(stopped)
    except (KeeperError, OSError, ValueError) as error:
        phase, why = "failed", str(error)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    if folder.is_dir():
        write_status(folder, phase=phase, boots=0, why=why)
    return 0 if phase == "ended" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
