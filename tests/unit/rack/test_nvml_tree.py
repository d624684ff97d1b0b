"""The files beside the library: PCI tree, /proc/driver/nvidia, module version, all from the same state."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from nvml.host import EmulatedHost

GEN1, GEN4 = "2.5 GT/s PCIe", "16.0 GT/s PCIe"


@pytest.fixture
def host(tmp_path: Path) -> EmulatedHost:
    return rendered(tmp_path / "host", "a100x4")


def rendered(root: Path, profile: str) -> EmulatedHost:
    made = EmulatedHost(root)
    assert made.command("init", "--profile", profile, "--host", "gpu-a1") == 0
    assert made.command("tree") == 0
    return made


def device(host: EmulatedHost, address: str) -> Path:
    return host.tree("pci") / "devices" / address


def text(path: Path) -> str:
    return path.read_text().strip()


def link(path: Path) -> list[str]:
    names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
    return [text(path / name) for name in names]


def path_up(host: EmulatedHost, address: str) -> list[Path]:
    """The device and every bridge above it, walked as in the real sysfs: resolve, then parents that are functions."""
    here = Path(os.path.realpath(device(host, address)))
    found = []
    while (here / "vendor").exists():
        found.append(here)
        here = here.parent
    return found


def test_a_gpu_is_found_where_the_kernel_shows_it(host: EmulatedHost) -> None:
    path = device(host, "0000:31:00.0")
    assert path.is_symlink()
    assert not os.path.isabs(os.readlink(path))
    wanted = {"vendor": "0x10de", "device": "0x20b5", "class": "0x030200", "numa_node": "0", "revision": "0xa1",
              "local_cpulist": "0-15,32-47", "subsystem_vendor": "0x10de", "subsystem_device": "0x1533"}  # fmt: skip
    assert {name: text(path / name) for name in wanted} == wanted
    assert link(path) == ["16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16"]
    assert Path(os.path.realpath(path / "driver")).name == "nvidia"
    assert os.path.realpath(host.tree("pci") / "drivers/nvidia/0000:31:00.0") == os.path.realpath(path)
    assert text(device(host, "0000:b1:00.0") / "numa_node") == "1"


def test_no_link_leads_out_of_the_tree(host: EmulatedHost) -> None:
    """It is laid over /sys/bus/pci: a link upwards out of it would end somewhere else."""
    top = os.path.realpath(host.tree("pci"))
    links = [path for path in host.tree("pci").rglob("*") if path.is_symlink()]
    assert len(links) > 10
    for path in links:
        assert os.path.realpath(path).startswith(top + "/")
        assert os.path.exists(path)


def test_the_way_up_from_a_gpu_ends_at_a_root_port_with_its_own_link(host: EmulatedHost) -> None:
    chain = path_up(host, "0000:31:00.0")
    assert [path.name for path in chain] == ["0000:31:00.0", "0000:30:02.0"]
    assert chain[-1].parent.name == "pci0000:30"
    assert text(chain[-1] / "class") == "0x060400"
    assert link(chain[-1]) == ["16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16"]


def test_a_gpu_behind_a_switch_has_three_bridges_above_it(tmp_path: Path) -> None:
    host = rendered(tmp_path, "h100x8")
    chain = path_up(host, "0000:19:00.0")
    assert [path.name for path in chain] == ["0000:19:00.0", "0000:17:01.0", "0000:16:00.0", "0000:15:01.0"]
    host.set("gpu.0.pcie_uplink_width=8")
    # the GPU's own link is wide, the hop above the switch is not, for either GPU behind it
    for address in ("0000:18:00.0", "0000:19:00.0"):
        assert [link(path)[1] for path in path_up(host, address)] == ["16", "16", "8", "8"]


@pytest.mark.parametrize(
    ("keys", "gpu", "port"),
    [
        (["pcie_width=8"], [GEN4, "8", GEN4, "16"], [GEN4, "8", GEN4, "16"]),
        (["pcie_system_width=8"], [GEN4, "8", GEN4, "16"], [GEN4, "8", GEN4, "8"]),
        (["pcie_gen=1"], [GEN1, "16", GEN4, "16"], [GEN1, "16", GEN4, "16"]),
        (["lost=1"], ["Unknown", "63", "64.0 GT/s PCIe", "63"], [GEN1, "0", GEN4, "16"]),
    ],
)  # fmt: skip
def test_a_fault_of_the_link_shows_at_both_ends(
    host: EmulatedHost, keys: list[str], gpu: list[str], port: list[str]
) -> None:
    healthy = [link(path) for path in path_up(host, "0000:4b:00.0")]
    host.set(*(f"gpu.1.{key}" for key in keys))
    assert [link(path) for path in path_up(host, "0000:4b:00.0")] == [gpu, port]
    assert [link(path) for path in path_up(host, "0000:31:00.0")] == healthy
    assert host.command("clear-faults") == 0
    assert [link(path) for path in path_up(host, "0000:4b:00.0")] == healthy


def test_config_space_says_what_the_files_say(host: EmulatedHost) -> None:
    host.set("gpu.0.pcie_width=8")
    data = (device(host, "0000:31:00.0") / "config").read_bytes()
    assert len(data) == 256
    assert struct.unpack_from("<HH", data, 0) == (0x10DE, 0x20B5)
    offset = data[0x34]
    while data[offset] != 0x10:  # walk the capabilities to PCI Express
        offset = data[offset + 1]
    (capabilities,) = struct.unpack_from("<I", data, offset + 0x0C)
    (status,) = struct.unpack_from("<H", data, offset + 0x12)
    assert (capabilities & 0xF, capabilities >> 4 & 0x3F) == (4, 16)
    assert (status & 0xF, status >> 4 & 0x3F) == (4, 8)


def test_config_space_of_a_lost_gpu_reads_all_ones(host: EmulatedHost) -> None:
    host.set("gpu.1.lost=1")
    assert (device(host, "0000:4b:00.0") / "config").read_bytes() == b"\xff" * 256


def test_a_removed_gpu_has_no_directory(host: EmulatedHost) -> None:
    host.set("gpu.2.removed=1")
    assert not device(host, "0000:b1:00.0").exists()
    assert not (host.tree("driver") / "nvidia/gpus/0000:b1:00.0").exists()
    host.set("gpu.2.removed=")
    assert device(host, "0000:b1:00.0").exists()


def information(host: EmulatedHost, address: str) -> dict[str, str]:
    lines = (host.tree("driver") / "nvidia/gpus" / address / "information").read_text().splitlines()
    return {key.strip(): value.strip() for key, value in (line.split(":", 1) for line in lines)}


def test_proc_tells_the_same_as_the_library_would(host: EmulatedHost) -> None:
    host.set("gpu.1.vbios=92.00.45.00.01")
    found = information(host, "0000:4b:00.0")
    assert found["Model"] == "NVIDIA A100 80GB PCIe"
    assert found["GPU UUID"] == host.identity["gpu.1.uuid"]
    assert found["Video BIOS"] == "92.00.45.00.01"
    assert found["Bus Location"] == "0000:4b:00.0"
    assert found["Device Minor"] == "1"
    assert information(host, "0000:31:00.0")["Video BIOS"] == "92.00.90.00.03"


def test_the_modules_version_is_its_own_after_the_library_was_upgraded(host: EmulatedHost) -> None:
    host.set("module_version=535.261.03")
    assert text(host.tree("module") / "nvidia/version") == "535.261.03"
    assert "Kernel Module  535.261.03  " in (host.tree("driver") / "nvidia/version").read_text()


def test_without_a_driver_the_cards_are_still_on_the_bus(host: EmulatedHost) -> None:
    host.set("driver_loaded=0")
    assert not (host.tree("driver") / "nvidia").exists()
    assert not (host.tree("module") / "nvidia").exists()
    assert link(device(host, "0000:31:00.0"))[1] == "16"
    assert not (device(host, "0000:31:00.0") / "driver").exists()


def test_rendering_again_changes_no_file(host: EmulatedHost) -> None:
    def stamps() -> dict[Path, tuple[int, int]]:
        return {
            path: (path.lstat().st_ino, path.lstat().st_mtime_ns)
            for path in host.tree("pci").rglob("*")
            if not path.is_dir()
        }

    before = stamps()
    assert host.command("tree") == 0
    assert stamps() == before


def test_rendering_keeps_the_directory_that_a_bind_mount_holds(host: EmulatedHost) -> None:
    before = host.tree("pci").stat().st_ino
    host.set("gpu.1.removed=1", "gpu.0.pcie_width=8")
    assert host.tree("pci").stat().st_ino == before
