"""The VM tool's pure parts. What it is for is tested in tests/vm, where it really boots."""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "rack"))

from lab import vm, vm_keeper
from lab.say import RackError
from lab.topology import parse

UTC = datetime.UTC
SPEC: dict[str, Any] = {"name": "vm1", "accelerator": "tcg", "cpus": 2, "memory_mib": 1024, "port": 2222}
RACK = parse(
    "demo",
    {
        "name": "steadyrack-demo",
        "networks": {"rack-a": {"subnet": "10.213.1.0/24", "internal": True}},
        "hosts": {"gpu-a1": {"suite": "bookworm", "networks": {"rack-a": "10.213.1.31"}}},
    },
)
CARD = vm.Card("podman2", vm.card_address("rack-a=10.213.1.41", RACK)[1])


def words(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    vm.arguments(parser)
    return parser.parse_args(shlex.split(line))


# --- the clock ---


@pytest.mark.parametrize("text", ["2025-11-30T00:00:00", "2025-11-30", "2025-11-30T01:00+01:00", "2025-11-30T00:00Z"])
def test_clock_is_utc_unless_it_says_otherwise(text: str) -> None:
    assert vm.parse_clock(text) == datetime.datetime(2025, 11, 30, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "1999-12-31", "2038-06-01", ""])
def test_clock_that_no_hardware_clock_says_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        vm.parse_clock(text)


def test_clock_of_its_own_does_not_follow_this_machine() -> None:
    assert vm_keeper.rtc_option(None) == "base=utc,clock=host"
    assert vm_keeper.rtc_option("2025-11-30T00:00:00") == "base=2025-11-30T00:00:00,clock=vm"


@pytest.mark.parametrize(
    ("behind_s", "expected"),
    [(0, None), (2, None), (-2, None), (3600, "2026-01-01T11:00:10"), (-3600, "2026-01-01T13:00:10")],
)
def test_reboot_does_not_set_the_hardware_clock(behind_s: int, expected: str | None) -> None:
    now = datetime.datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert vm_keeper.rtc_after_reboot(now - datetime.timedelta(seconds=behind_s), now, 9.6) == expected


# --- QEMU ---


def option(argv: list[str], flag: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == flag]


def test_guest_reaches_nothing_and_is_reached_from_loopback_only() -> None:
    argv = vm_keeper.qemu_words(SPEC, None)
    assert option(argv, "-netdev") == ["user,id=n0,restrict=on,hostfwd=tcp:127.0.0.1:2222-10.0.2.15:22"]


def test_card_in_a_rack_goes_with_qemu() -> None:
    argv = vm_keeper.qemu_words({**SPEC, "bridge": CARD.bridge, "mac": CARD.mac}, None)
    assert option(argv, "-netdev")[1] == "tap,id=n1,script=./bridge-up,downscript=no"
    assert option(argv, "-device")[-1] == "virtio-net-pci,netdev=n1,mac=52:54:00:0a:01:29,romfile="


def test_accelerator_is_the_one_that_was_chosen() -> None:
    assert option(vm_keeper.qemu_words({**SPEC, "accelerator": "kvm"}, None), "-accel") == ["kvm"]
    assert option(vm_keeper.qemu_words(SPEC, None), "-accel") == ["tcg,thread=multi"]


def test_guest_address_is_the_one_baked_into_the_image() -> None:
    text = (vm.TREE / "etc/systemd/network/10-rack-vm.network").read_text()
    assert f"Address={vm_keeper.FORWARDED}/" in text
    assert f"PermanentMACAddress={vm_keeper.FORWARDED_MAC}\n" in text


def test_link_target_out_of_debugfs() -> None:
    assert vm_keeper.link_target('Inode: 14\nFast link dest: "boot/vmlinuz-6.12"\n') == "boot/vmlinuz-6.12"
    assert vm_keeper.link_target("/vmlinuz: File not found by ext2_lookup\n") is None


# --- networks of a rack ---


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rack-b=10.213.1.41", "no network"),
        ("rack-a=10.214.1.41", "no host can have"),
        ("rack-a=10.213.1.1", "no host can have"),
        ("rack-a=10.213.1.255", "no host can have"),
        ("rack-a=10.213.1.31", "gpu-a1 has that address"),
        ("rack-a=10.213.1.400", "not an address"),
        ("rack-a", "not an address"),
    ],
)
def test_address_that_cannot_work_is_refused(text: str, why: str) -> None:
    with pytest.raises(RackError, match=why):
        vm.card_address(text, RACK)


# --- what it is made from ---


@pytest.mark.parametrize("name", ["", "VM1", "-vm", "vm_1", "../vm", "v" * 40])
def test_name_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(RackError):
        vm.Machine(name)


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(RackError, match="too few"):
        vm.Machine(memory_mib=128)


def test_machine_is_replaced_when_what_it_consists_of_changes_and_only_then() -> None:
    same = vm.made_from(vm.Machine(), "trixie-0.img", "key")
    assert vm.made_from(vm.Machine(memory_mib=2048), "trixie-0.img", "key") == same
    others = [
        vm.made_from(vm.Machine(suite="bookworm"), "trixie-0.img", "key"),
        vm.made_from(vm.Machine(gpus="a100x4"), "trixie-0.img", "key"),
        vm.made_from(vm.Machine(card=CARD), "trixie-0.img", "key"),
        vm.made_from(vm.Machine(), "trixie-1.img", "key"),
        vm.made_from(vm.Machine(), "trixie-0.img", "another key"),
    ]
    assert len({same, *others}) == 6


def test_changed_tree_needs_a_new_file_system_but_not_a_new_debian(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(vm.TREE, tmp_path / "tree")
    monkeypatch.setattr(vm, "TREE", tmp_path / "tree")
    base, image = vm.base_key("trixie"), vm.image_key("trixie", gpus=False)
    (tmp_path / "tree/etc/fstab").write_text("# changed\n")
    assert vm.base_key("trixie") == base
    assert vm.image_key("trixie", gpus=False) != image
    (tmp_path / "tree/etc/initramfs-tools/conf.d/rack-vm").write_text("MODULES=most\n")
    assert vm.base_key("trixie") != base
    assert vm.base_key("bookworm") != base


def test_neither_chrony_nor_timesyncd_is_in_the_image() -> None:
    assert not {"chrony", "systemd-timesyncd"} & set(vm.PACKAGES)
    assert "linux-image-cloud-amd64" in vm.PACKAGES


def test_keys_are_readable_by_root_only() -> None:
    files = {file.path: file for file in vm.files_of(vm.Machine(), "PUBLIC", "SECRET", "0" * 32)}
    assert files["/etc/ssh/ssh_host_ed25519_key"].mode == 0o600
    assert files["/root/.ssh/authorized_keys"].mode == 0o600
    assert not any("network" in path or "nvml" in path for path in files)


def test_card_and_gpus_are_configured_in_the_guest() -> None:
    files = {file.path: file.content for file in vm.files_of(vm.Machine(gpus="a100x4", card=CARD), "", "", "")}
    assert "Address=10.213.1.41/24\n" in files["/etc/systemd/network/20-rack.network"]
    assert files["/etc/nvml-emulator.conf"] == "PROFILE=a100x4\nHOST=vm1\n"


def test_path_that_debugfs_would_take_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="apart"):
        vm.debugfs_script([vm.File("/etc/a b", "")])


# --- a real file system ---


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A small file system with what the keeper looks for in it."""
    if shutil.which("mkfs.ext4") is None or shutil.which("debugfs") is None:
        pytest.fail("e2fsprogs is missing: apt-get install e2fsprogs")
    root = tmp_path / "root"
    for word in ("boot", "etc"):
        (root / word).mkdir(parents=True)
    (root / "boot/vmlinuz-1").write_bytes(b"kernel one")
    (root / "boot/initrd.img-1").write_bytes(b"initrd one")
    (root / "vmlinuz").symlink_to("boot/vmlinuz-1")
    (root / "initrd.img").symlink_to("boot/initrd.img-1")
    (root / "etc/hostname").write_text("nobody\n")
    (root / "etc/hostname").chmod(0o666)
    path = tmp_path / "folder with blanks" / "disk.img"
    path.parent.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-d", root, path, "8M"], check=True)
    return path


def test_files_are_replaced_in_the_disk_with_owner_and_mode(disk: Path) -> None:
    vm.inject(disk, [vm.File("/etc/hostname", "vm1\n", 0o600), vm.File("/etc/new", "x\n")])
    for path, mode in (("/etc/hostname", "0600"), ("/etc/new", "0644")):
        said = subprocess.check_output(["debugfs", "-R", f"stat {path}", disk], text=True, stderr=subprocess.DEVNULL)
        assert f"Mode:  {mode}" in said
        assert "Type: regular" in said
        assert "User:     0   Group:     0" in said
    assert subprocess.run(["e2fsck", "-fn", disk], check=False, capture_output=True).returncode == 0


def test_file_that_could_not_be_written_is_noticed(disk: Path) -> None:
    with pytest.raises(RackError, match="could not be written"):
        vm.inject(disk, [vm.File("/no/such/folder", "x\n")])


def test_kernel_and_initrd_are_the_ones_the_links_name(disk: Path) -> None:
    folder = disk.parent
    assert vm_keeper.boot_files(disk, folder) == "boot/vmlinuz-1"
    assert (folder / "kernel").read_bytes() == b"kernel one"
    vm.inject(disk, [vm.File("/boot/initrd.img-1", "initrd two")])
    vm_keeper.boot_files(disk, folder)
    assert (folder / "initrd").read_bytes() == b"initrd two"


@pytest.mark.parametrize("gone", ["/vmlinuz", "/boot/initrd.img-1"])
def test_disk_without_a_kernel_is_an_error_not_the_last_one(disk: Path, gone: str) -> None:
    vm_keeper.boot_files(disk, disk.parent)
    subprocess.run(["debugfs", "-w", "-R", f"rm {gone}", disk], check=True, capture_output=True)
    with pytest.raises(vm_keeper.KeeperError):
        vm_keeper.boot_files(disk, disk.parent)


def test_broken_disk_is_an_error(disk: Path) -> None:
    disk.write_bytes(b"\0" * 8192)
    with pytest.raises(vm_keeper.KeeperError, match="cannot be repaired"):
        vm_keeper.boot_files(disk, disk.parent)


# --- the keeper as a process ---


def test_keeper_that_cannot_go_on_says_why_and_frees_its_lock(disk: Path) -> None:
    folder = disk.parent
    disk.write_bytes(b"\0" * 8192)
    (folder / "machine.json").write_text(json.dumps(SPEC))
    done = subprocess.run([sys.executable, vm_keeper.__file__, folder], check=False, timeout=30)
    assert done.returncode == 1
    status = vm.read_json(folder / "status.json")
    assert status["phase"] == "failed"
    assert "cannot be repaired" in status["why"]
    assert vm.keeper_pid(folder) is None


def test_second_keeper_of_one_machine_leaves(tmp_path: Path) -> None:
    with (tmp_path / "keeper.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert subprocess.run([sys.executable, vm_keeper.__file__, tmp_path], check=False, timeout=30).returncode == 3
    assert not (tmp_path / "status.json").exists()


def test_process_id_without_a_lock_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"keeper": os.getpid()}))
    assert vm.keeper_pid(tmp_path) is None
    with (tmp_path / "keeper.lock").open("a") as held:
        assert vm.keeper_pid(tmp_path) is None
        fcntl.flock(held, fcntl.LOCK_EX)
        assert vm.keeper_pid(tmp_path) == os.getpid()


def test_owner_that_is_gone_already_ends_it() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(vm_keeper.StopRequest, match="gone"):
        vm_keeper.Owner(gone.pid)


def test_keeper_ends_qemu_when_told_to_and_when_the_owner_ends(tmp_path: Path) -> None:
    """With `cat` as QEMU: it answers what it is asked, which is enough to wait on."""
    with subprocess.Popen(["sleep", "60"]) as owner, (tmp_path / "log").open("wb") as log:
        qemu = vm_keeper.Qemu(["cat"], tmp_path, log, vm_keeper.Owner(owner.pid))
        owner.send_signal(signal.SIGKILL)
        with pytest.raises(vm_keeper.StopRequest, match="owner"):
            qemu.wait_shutdown()
        qemu.end()
        assert qemu.process.poll() is not None


def test_qemu_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        qemu = vm_keeper.Qemu(["false"], tmp_path, log, vm_keeper.Owner(None))
        with pytest.raises(vm_keeper.KeeperError, match="exit code 1"):
            qemu.wait_shutdown()


# --- ports, KVM, SSH ---


def test_port_in_use_is_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert vm.free_port(port) != port
    assert vm.free_port(port) == port


def test_finding_about_kvm_is_kept_and_kvm_asked_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.access("/dev/kvm", os.R_OK | os.W_OK) or shutil.which("qemu-system-x86_64") is None:
        assert vm.choose_accelerator(tmp_path) == "tcg"
        return
    monkeypatch.setattr(vm, "VM", tmp_path)
    trials: list[Path] = []

    def trial(folder: Path) -> tuple[bool, str]:
        trials.append(folder)
        return False, "failed to set MSR"

    monkeypatch.setattr(vm, "kvm_works", trial)
    assert vm.choose_accelerator(tmp_path) == "tcg"
    assert vm.choose_accelerator(tmp_path) == "tcg"
    assert len(trials) == 1
    with pytest.raises(RackError, match="KVM does not work"):
        vm.choose_accelerator(tmp_path, "kvm")


def test_ssh_files_check_host_keys_and_know_machines_by_name() -> None:
    files = vm.ssh_files({"vm1": {"port": 2222, "host_key": "ssh-ed25519 AAAA", "address": "10.213.1.41"}})
    assert files[vm.KNOWN_HOSTS] == "vm1,[127.0.0.1]:2222,10.213.1.41 ssh-ed25519 AAAA\n"
    config = files[vm.SSH_CONFIG]
    for line in ("StrictHostKeyChecking yes", "HostKeyAlias vm1", "Port 2222", f'IdentityFile "{vm.KEY}"'):
        assert line in config
    assert f'ansible_ssh_common_args: "-F \\"{vm.SSH_CONFIG}\\""' in files[vm.INVENTORY]
    assert "hosts: {}" in vm.ssh_files({})[vm.INVENTORY]


# --- the command line ---


def test_words_of_the_command() -> None:
    assert words("up").suite == "trixie"
    assert words("up --clock 2025-11-30T00:00:00").clock == datetime.datetime(2025, 11, 30, tzinfo=UTC)
    assert words("shell uname -r").words == ["uname", "-r"]
    with pytest.raises(SystemExit):
        words("up --suite sid")
    with pytest.raises(SystemExit):
        words("")


@pytest.mark.parametrize("line", ["shell --name nobody", "log --name nobody"])
def test_machine_that_is_not_there_is_said_with_the_next_step(line: str) -> None:
    with pytest.raises(RackError, match="no machine nobody") as error:
        vm.command(words(line))
    assert "./rack vm up --name nobody" in str(error.value)


def test_cut_without_keep_is_refused() -> None:
    with pytest.raises(RackError, match="--cut goes with --keep"):
        vm.command(words("down --cut"))
