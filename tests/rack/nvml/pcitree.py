"""The emulated host's PCI devices, /proc/driver/nvidia and module version as files, rendered from the state.

Three trees, each laid over the place where a kernel shows the real thing:

    pci      /sys/bus/pci        devices/<address> -> ../tree/<root bus>/<root port>/.../<address>; links stay inside it
    driver   /proc/driver        nvidia/version, nvidia/gpus/<address>/information
    module   /sys/module         nvidia/version; every other module as a link to the real one, which is bound beside

Rendering changes files in place, for a bind mount holds on to the directory it was made from.

A GPU that fell off the bus: without hotplug the kernel keeps its directory, and reads of its config space give all
ones. From those the kernel's own functions make link speed "Unknown", width 63 (six bits), maximum speed 64.0 GT/s
(highest bit of LNKCAP2 looked at first) and width 63; the port above sees no partner: 2.5 GT/s, width 0. That is what
is shown here.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Dict, NamedTuple, Union

from statefiles import View

SPEEDS = {
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
    6: "64.0 GT/s PCIe",
}
"""As Linux writes them (drivers/pci/probe.c, pci_speed_string)."""

INTEL_ROOT_PORT = 0x347A8086
PLX_SWITCH = 0xC0101000
GPU_CLASS, BRIDGE_CLASS = 0x030200, 0x060400
"""3D controller; PCI to PCI bridge."""
TYPE_ENDPOINT, TYPE_ROOT, TYPE_UPSTREAM, TYPE_DOWNSTREAM = 0, 4, 5, 6
"""PCIe capability, device/port type."""


class Symlink(str):
    """Where a link points, as opposed to a file's text."""


Content = Union[str, bytes, Symlink]
Tree = Dict[str, Content]


class Link(NamedTuple):
    """One end of a PCIe link: generation and lanes, possible and present."""

    max_gen: int
    max_width: int
    gen: int
    width: int


class Node(NamedTuple):
    """One PCI function on the way from the root complex to a GPU."""

    address: str
    path: str  # below tree/, "pci0000:30/0000:30:02.0"
    ids: int  # device id << 16 | vendor id
    subsystem: int
    class_code: int
    port_type: int
    link: Link
    numa_node: int
    cpulist: str
    driver: str | None
    secondary_bus: int
    lost: bool = False
    below_lost: bool = False
    revision: int = 0
    irq: int = 0


def gpu_link(view: View, gpu: int) -> Link:
    """The GPU's own end. Card, slot and present state are three facts (README.md, "The link")."""
    device_gen, device_width = view.gpu_int(gpu, "pcie_device_gen", 4), view.gpu_int(gpu, "pcie_device_width", 16)
    top_gen = min(device_gen, view.gpu_int(gpu, "pcie_system_gen", 4))
    top_width = min(device_width, view.gpu_int(gpu, "pcie_system_width", 16))
    return Link(
        device_gen,
        device_width,
        min(top_gen, view.gpu_int(gpu, "pcie_gen", 6)),
        min(top_width, view.gpu_int(gpu, "pcie_width", 16)),
    )


def nodes_of(view: View, gpu: int) -> list[Node]:
    """Root port first, GPU last. With a switch between: root port, upstream port, downstream port, GPU."""
    address = view.gpu(gpu, "bus_id") or ""
    bus_root, *bridges = (view.gpu(gpu, "pci_path") or "pci0000:00").split("/")
    own = gpu_link(view, gpu)
    system_gen, system_width = view.gpu_int(gpu, "pcie_system_gen", 4), view.gpu_int(gpu, "pcie_system_width", 16)
    # The hop above a switch: as wide as it can be unless pcie_uplink_width narrows it.
    uplink = Link(system_gen, 16, system_gen, view.gpu_int(gpu, "pcie_uplink_width", 16))
    numa_node, cpulist = view.gpu_int(gpu, "numa_node"), view.gpu(gpu, "local_cpulist") or ""
    chain = [*bridges, address]
    found, path = [], bus_root
    lost = view.flag(gpu, "lost")
    for place, here in enumerate(bridges):
        path += f"/{here}"
        is_root, is_last = place == 0, place == len(bridges) - 1
        link = Link(system_gen, system_width, own.gen, own.width) if is_last else uplink
        kind = TYPE_ROOT if is_root else TYPE_DOWNSTREAM if is_last else TYPE_UPSTREAM
        found.append(
            Node(here, path, INTEL_ROOT_PORT if is_root else PLX_SWITCH, 0, BRIDGE_CLASS, kind, link, numa_node,
                 cpulist, "pcieport", int(chain[place + 1].split(":")[1], 16), below_lost=lost and is_last)
        )  # fmt: skip
    driver = "nvidia" if view.driver_loaded else None  # stays bound to a GPU that is gone
    found.append(
        Node(address, f"{path}/{address}", view.gpu_int(gpu, "pci_device_id"), view.gpu_int(gpu, "pci_subsystem_id"),
             GPU_CLASS, TYPE_ENDPOINT, own, numa_node, cpulist, driver, 0, lost=lost,
             revision=view.gpu_int(gpu, "pci_revision"), irq=view.gpu_int(gpu, "irq") + gpu)
    )  # fmt: skip
    return found


def config_space(node: Node) -> bytes:
    """The first 256 bytes: header, power management, MSI, and PCI Express with the link's capabilities and state."""
    if node.lost:
        return b"\xff" * 256
    data = bytearray(256)
    bridge = node.class_code == BRIDGE_CLASS
    status_capabilities = 0x0010
    struct.pack_into("<IHH", data, 0x00, node.ids, 0x0406 | bridge, status_capabilities)
    struct.pack_into(
        "<BBBB", data, 0x08, node.revision, node.class_code & 0xFF, node.class_code >> 8 & 0xFF, node.class_code >> 16
    )
    data[0x0C] = 0x10  # cache line, in words
    data[0x0E] = 1 if bridge else 0
    if bridge:
        primary = int(node.address.split(":")[1], 16)
        struct.pack_into("<BBB", data, 0x18, primary, node.secondary_bus, node.secondary_bus)
    else:
        struct.pack_into("<HH", data, 0x2C, node.subsystem & 0xFFFF, node.subsystem >> 16)
    data[0x34] = 0x60
    struct.pack_into("<BBH", data, 0x60, 0x01, 0x68, 0x0003)  # power management
    struct.pack_into("<BBH", data, 0x68, 0x05, 0x78, 0x0080)  # MSI, 64 bit
    struct.pack_into("<BBH", data, 0x78, 0x10, 0x00, 0x0002 | node.port_type << 4)  # PCI Express, version 2
    link = Link(node.link.max_gen, node.link.max_width, 1, 0) if node.below_lost else node.link
    struct.pack_into("<I", data, 0x78 + 0x0C, link.max_gen | link.max_width << 4)
    active = 0x2000 if link.width and bridge else 0
    struct.pack_into("<HH", data, 0x78 + 0x10, 0x0040, link.gen | link.width << 4 | active)
    struct.pack_into("<I", data, 0x78 + 0x2C, sum(1 << gen for gen in range(1, link.max_gen + 1)))
    struct.pack_into("<H", data, 0x78 + 0x30, link.max_gen)
    return bytes(data)


def link_files(node: Node) -> Tree:
    if node.lost:
        return {
            "current_link_speed": "Unknown\n", "current_link_width": "63\n",
            "max_link_speed": SPEEDS[6] + "\n", "max_link_width": "63\n",
        }  # fmt: skip
    gen, width = (1, 0) if node.below_lost else (node.link.gen, node.link.width)
    return {
        "current_link_speed": f"{SPEEDS[gen]}\n", "current_link_width": f"{width}\n",
        "max_link_speed": f"{SPEEDS[node.link.max_gen]}\n", "max_link_width": f"{node.link.max_width}\n",
    }  # fmt: skip


def device_files(node: Node) -> Tree:
    vendor, device = node.ids & 0xFFFF, node.ids >> 16
    up = "../" * (node.path.count("/") + 2)
    files: Tree = {
        "vendor": f"0x{vendor:04x}\n",
        "device": f"0x{device:04x}\n",
        "subsystem_vendor": f"0x{node.subsystem & 0xFFFF:04x}\n",
        "subsystem_device": f"0x{node.subsystem >> 16:04x}\n",
        "class": f"0x{node.class_code:06x}\n",
        "revision": f"0x{node.revision:02x}\n",
        "irq": f"{node.irq}\n",
        "enable": "1\n",
        "numa_node": f"{node.numa_node}\n",
        "local_cpulist": f"{node.cpulist}\n",
        "resource": "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13,
        "config": config_space(node),
        "modalias": f"pci:v{vendor:08X}d{device:08X}sv{node.subsystem & 0xFFFF:08X}sd{node.subsystem >> 16:08X}"
        f"bc{node.class_code >> 16:02X}sc{node.class_code >> 8 & 0xFF:02X}i{node.class_code & 0xFF:02X}\n",
        "uevent": (f"DRIVER={node.driver}\n" if node.driver else "")
        + f"PCI_CLASS={node.class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\n"
        + f"PCI_SUBSYS_ID={node.subsystem & 0xFFFF:04X}:{node.subsystem >> 16:04X}\nPCI_SLOT_NAME={node.address}\n",
        **link_files(node),
    }
    if node.driver:
        files["driver"] = Symlink(f"{up}drivers/{node.driver}")
    return files


def pci_tree(view: View) -> Tree:
    files: Tree = {"drivers/nvidia/": "", "drivers/pcieport/": "", "devices/": ""}
    seen: dict[str, Node] = {}
    for gpu in range(view.count):
        if not view.flag(gpu, "removed"):
            for node in nodes_of(view, gpu):
                # GPUs behind one switch share its ports: a narrow hop of either is the hop's width.
                known = seen.get(node.address)
                if known is None or node.link.width < known.link.width:
                    seen[node.address] = node
    for node in seen.values():
        files[f"devices/{node.address}"] = Symlink(f"../tree/{node.path}")
        for name, content in device_files(node).items():
            files[f"tree/{node.path}/{name}"] = content
        if node.driver:
            files[f"drivers/{node.driver}/{node.address}"] = Symlink(f"../../tree/{node.path}")
    return files


def information(view: View, gpu: int) -> str:
    """/proc/driver/nvidia/gpus/<address>/information, as the 550 module writes it."""
    rows = [
        ("Model: \t\t ", view.gpu(gpu, "name")),
        ("IRQ:   \t\t ", view.gpu_int(gpu, "irq") + gpu),
        ("GPU UUID: \t ", view.gpu(gpu, "uuid")),
        ("Video BIOS: \t ", view.gpu(gpu, "vbios")),
        ("Bus Type: \t ", "PCIe"),
        ("DMA Size: \t ", "47 bits"),
        ("DMA Mask: \t ", "0x7fffffffffff"),
        ("Bus Location: \t ", view.gpu(gpu, "bus_id")),
        ("Device Minor: \t ", view.gpu(gpu, "minor")),
        ("GPU Firmware: \t ", view.gpu(gpu, "gsp") or view.module_version),
        ("GPU Excluded:\t ", "Yes" if view.flag(gpu, "excluded") else "No"),
    ]
    return "".join(f"{name}{value}\n" for name, value in rows)


def driver_tree(view: View) -> Tree:
    if not view.driver_loaded:
        return {}
    files: Tree = {
        "nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "
        f"{view.module_version}  Tue Apr  8 12:41:17 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
        "nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
        f'DynamicPowerManagement: 3\nEnableGpuFirmware: 18\nExcludedGpus: "{_excluded(view)}"\n',
    }
    for gpu in range(view.count):
        if not view.flag(gpu, "removed"):
            files[f"nvidia/gpus/{view.gpu(gpu, 'bus_id')}/information"] = information(view, gpu)
    return files


def _excluded(view: View) -> str:
    return ",".join(view.gpu(gpu, "uuid") or "" for gpu in range(view.count) if view.flag(gpu, "excluded"))


def module_tree(view: View, real: Path | None) -> Tree:
    """`real`: where the kernel's own /sys/module can be seen; its modules appear as links there."""
    files: Tree = {}
    if real and real.is_dir():
        files.update({name: Symlink(f"{real}/{name}") for name in sorted(os.listdir(real)) if name != "nvidia"})
    if view.driver_loaded:
        files.update(
            {
                "nvidia/version": f"{view.module_version}\n",
                "nvidia/initstate": "live\n",
                "nvidia/refcnt": f"{view.count}\n",
                "nvidia/taint": "POE\n",
                "nvidia/holders/": "",
                "nvidia/parameters/": "",
            }
        )
    return files


def write(tree: Tree, target: Path) -> None:
    """Make `target` hold exactly `tree`, touching only what differs. Names ending in / are empty directories."""
    target.mkdir(parents=True, exist_ok=True)
    wanted_dirs = {target}
    for name in tree:
        path = target / name.rstrip("/")
        wanted_dirs.update(parent for parent in path.parents if target in parent.parents)
        if name.endswith("/"):
            wanted_dirs.add(path)
    for folder in sorted(wanted_dirs):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    kept = {target / name.rstrip("/") for name in tree} | wanted_dirs
    for name, content in tree.items():
        if not name.endswith("/"):
            _write_one(target / name, content)
    for folder in sorted(wanted_dirs):
        for entry in list(os.scandir(folder)):
            path = Path(entry.path)
            if path not in kept:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(path)
                else:
                    path.unlink()


def _write_one(path: Path, content: Content) -> None:
    if isinstance(content, Symlink):
        if path.is_symlink() and os.readlink(path) == content:
            return
    else:
        wanted = content if isinstance(content, bytes) else content.encode()
        if path.is_file() and not path.is_symlink() and path.read_bytes() == wanted:
            return
    temporary = path.with_name(f".{path.name}.new")
    if temporary.is_symlink() or temporary.exists():
        temporary.unlink()
    if isinstance(content, Symlink):
        temporary.symlink_to(content)
    else:
        temporary.write_bytes(wanted)
        temporary.chmod(0o444)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    temporary.rename(path)
