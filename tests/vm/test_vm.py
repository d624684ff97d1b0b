"""What the VM is for: a kernel, a kernel log, an initrd and a clock of its own. Slow: it really boots.

One machine is booted for all tests, its clock a year behind; it goes when pytest goes, also by a kill.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rack"))

from lab import vm
from lab.say import RackError

pytestmark = pytest.mark.slow
YEAR = datetime.timedelta(days=365)
CLOSE = datetime.timedelta(seconds=60)
XID = "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def clock_against_counter() -> float:
    """This machine's clock minus a counter nobody can set, in seconds: moves only when somebody moves the clock."""
    return time.time() - time.monotonic()


def eventually(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


class Guest:
    """A machine, and the two ways to it: plain SSH and Ansible."""

    def __init__(self, machine: vm.Machine, asked_clock: datetime.datetime, late: datetime.timedelta) -> None:
        self.machine, self.asked_clock = machine, asked_clock
        self.close = CLOSE + late  # its clock began somewhere in the time that switching it on took

    def ssh(self, command: str, check: bool = True) -> str:
        words = ["ssh", "-F", str(vm.SSH_CONFIG), "-o", "BatchMode=yes", self.machine.name, command]
        done = subprocess.run(words, check=False, text=True, capture_output=True, timeout=300)
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def ansible(self, *words: str, known_hosts: Path | None = None) -> subprocess.CompletedProcess[str]:
        extra = [f"--ssh-extra-args=-o UserKnownHostsFile={known_hosts} -o ControlPath=none"] if known_hosts else []
        return subprocess.run(
            [Path(sys.executable).with_name("ansible"), "-i", vm.INVENTORY, self.machine.name, *words, *extra],
            check=False, text=True, capture_output=True, timeout=600, cwd=vm.LAB.parents[1],
        )  # fmt: skip

    def status(self) -> dict[str, str]:
        (row,) = [row for row in vm.status() if row["machine"] == self.machine.name]
        return row

    def clock(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(float(self.ssh("date +%s.%N")), datetime.UTC)


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    machine = vm.Machine("test-vm")
    vm.down(machine.name)
    clock = datetime.datetime.now(datetime.UTC).replace(microsecond=0) - datetime.timedelta(days=365)
    began = time.monotonic()
    vm.up(machine, clock=clock, owner=os.getpid())  # makes the image first, where there is none
    yield Guest(machine, clock, datetime.timedelta(seconds=time.monotonic() - began))
    vm.down(machine.name)


@pytest.fixture
def started() -> Iterator[tuple[vm.Machine, subprocess.Popen[bytes]]]:
    """A machine that has been switched on but need not come up, and the process it belongs to."""
    machine = vm.Machine("test-vm-owned", memory_mib=512)
    vm.down(machine.name)
    with subprocess.Popen(["sleep", "600"]) as owner:
        vm.start(machine, owner=owner.pid)
        yield machine, owner
        owner.kill()
    vm.down(machine.name)


def test_runs_a_debian_kernel_of_its_own(guest: Guest) -> None:
    release = guest.ssh("uname -r")
    assert release.endswith("cloud-amd64")
    assert release != os.uname().release
    assert guest.status()["kernel"] == release
    boot_id = "/proc/sys/kernel/random/boot_id"
    assert guest.ssh(f"cat {boot_id}") != Path(boot_id).read_text().strip()
    assert guest.ssh("systemd-detect-virt --vm") in ("qemu", "kvm")
    assert guest.ssh("systemctl is-system-running") == "running"


def test_has_what_a_fresh_server_has_and_no_chrony(guest: Guest) -> None:
    assert guest.ssh("python3 -c 'import apt; print(1)'") == "1"
    assert guest.ssh("command -v chronyd", check=False) == ""


def test_ansible_reaches_it_and_checks_its_host_key(guest: Guest, tmp_path: Path) -> None:
    done = guest.ansible("-m", "ansible.builtin.ping")
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    wrong.write_text(f"{guest.machine.name} {(tmp_path / 'other.pub').read_text()}")
    refused = guest.ansible("-m", "ansible.builtin.ping", known_hosts=wrong)
    assert refused.returncode != 0
    assert "UNREACHABLE" in refused.stdout


def test_starts_a_year_behind_and_stays_there(guest: Guest) -> None:
    before = clock_against_counter()
    off = datetime.datetime.now(datetime.UTC) - guest.clock()
    assert abs(off - YEAR) < guest.close
    assert guest.clock() >= guest.asked_clock
    assert abs(clock_against_counter() - before) < 0.5


def test_setting_its_clock_leaves_this_machines_alone(guest: Guest) -> None:
    before = clock_against_counter()
    start = guest.clock()
    guest.ssh("date -s '+1 hour'")
    assert abs(guest.clock() - start - datetime.timedelta(hours=1)) < CLOSE
    guest.ssh("date -s '-1 hour'")
    assert abs(clock_against_counter() - before) < 0.5


def test_kernel_log_line_is_read_back_by_journalctl(guest: Guest) -> None:
    """As text, not field by field: of a line written by a program journald takes `NVRM:` for the identifier."""
    guest.ssh(f'echo "<3>{XID}" > /dev/kmsg')
    assert eventually(lambda: XID in guest.ssh("journalctl -k -b --no-pager"))


def test_reaches_nothing_of_this_machine(guest: Guest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = f"import socket; socket.create_connection(('10.0.2.2', {port}), 3)"
        assert guest.ssh(f'python3 -c "{code}" 2>&1', check=False).endswith(("timed out", "unreachable", "refused"))


def test_reboot_module_boots_the_initrd_the_guest_made(guest: Guest) -> None:
    """ansible.builtin.reboot unmodified; kernel-level changes take effect; the hardware clock is not set by it."""
    boots, initrd = int(guest.status()["boots"]), guest.machine.folder / "initrd"
    was = hashlib.sha256(initrd.read_bytes()).hexdigest()
    # What update-initramfs would write, without the minutes it takes under emulation: one more archive at its end.
    guest.ssh('cd /etc && file=$(readlink -f /initrd.img) && truncate -s %4 "$file" && '
              'echo machine-id | cpio -o -H newc --quiet >> "$file"')  # fmt: skip
    made = guest.ssh("sha256sum < /initrd.img").split()[0]
    assert made != was
    done = guest.ansible("-m", "ansible.builtin.reboot", "-a", "reboot_timeout=400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CHANGED" in done.stdout
    assert int(guest.status()["boots"]) == boots + 1
    assert hashlib.sha256(initrd.read_bytes()).hexdigest() == made
    assert abs(datetime.datetime.now(datetime.UTC) - guest.clock() - YEAR) < guest.close
    assert XID in guest.ssh("journalctl -k -b -1 --no-pager")


def test_powered_off_it_keeps_its_disk_and_a_new_power_on_has_the_right_time(guest: Guest) -> None:
    made = guest.ssh("cat /etc/machine-id")
    vm.down(guest.machine.name, keep_disk=True)
    assert guest.status()["state"] == "stopped (guest-shutdown)"
    vm.up(guest.machine, owner=os.getpid())
    assert guest.ssh("cat /etc/machine-id") == made
    assert abs(datetime.datetime.now(datetime.UTC) - guest.clock()) < CLOSE


def test_ends_with_the_process_it_belongs_to(started: tuple[vm.Machine, subprocess.Popen[bytes]]) -> None:
    machine, owner = started
    assert eventually(lambda: vm.read_json(machine.folder / "status.json").get("phase") == "running")
    qemu = vm.read_json(machine.folder / "status.json")["qemu"]
    owner.send_signal(signal.SIGKILL)
    assert eventually(lambda: vm.keeper_pid(machine.folder) is None)
    assert not Path(f"/proc/{qemu}").exists()
    assert vm.read_json(machine.folder / "status.json")["why"] == "the owner is gone"


def test_qemu_does_not_outlive_a_killed_keeper(started: tuple[vm.Machine, subprocess.Popen[bytes]]) -> None:
    machine, _ = started
    assert eventually(lambda: vm.read_json(machine.folder / "status.json").get("phase") == "running")
    qemu = vm.read_json(machine.folder / "status.json")["qemu"]
    keeper = vm.keeper_pid(machine.folder)
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    assert eventually(lambda: not Path(f"/proc/{qemu}").exists())
    assert vm.keeper_pid(machine.folder) is None
    vm.start(machine)  # and the next command goes on from there
    assert vm.keeper_pid(machine.folder) not in (None, keeper)


def test_clock_is_refused_while_it_runs(started: tuple[vm.Machine, subprocess.Popen[bytes]]) -> None:
    with pytest.raises(RackError, match="power-on"):
        vm.start(started[0], clock=datetime.datetime(2025, 11, 30, tzinfo=datetime.UTC))
