# SPDX-License-Identifier: BSD-2-Clause
"""GPUs as the PCI bus sees them: who is there, who has fallen off, and how wide the way up is.

The second witness beside NVML. Reads sysfs below a root path and nothing else. Width is judged
against the *declared* width: NVML's maximum is the best of card and slot together, so a card in a
narrow slot calls itself perfect. Speed is judged under load alone, by gpu_links.py: an idle GPU lowers it on purpose.
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict

from . import files
from .errors import InputError, SteadyrackError

NVIDIA_VENDOR = 0x10DE
# Base class 03, display controller: 0300 VGA, 0302 3D controller (PCI code and ID assignment).
DISPLAY_BASE_CLASS = 0x03

# Class 0108, non-volatile memory controller, whatever its programming interface.
NVME_CLASS = 0x0108

# Link widths that PCI Express has, and its generations by gigatransfers a second.
WIDTHS = (1, 2, 4, 8, 12, 16, 32)
GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

# Configuration space beyond its first 256 bytes (PCIe base specification): a chain of extended capabilities. Whoever
# is not root reads 64 bytes of it.
EXTENDED_SPACE = 0x100
WHOLE_SPACE = 0x1000
ACS_CAPABILITY = 0x000D
# ACS control register: at 6 in the capability; redirects requests, or their completions, to the root complex.
ACS_CONTROL = 6
ACS_REDIRECT = 0x04 | 0x08

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)

Record = Dict[str, Any]


def bus_id(text: str) -> str:
    """A PCI address in sysfs form, ``0000:31:00.0``.

    Takes NVML's ``00000000:31:00.0`` and ``0000:31:00.0``, lspci's ``31:00.0``, the kernel log's
    ``PCI:0000:31:00`` and nvidia-smi's shortened domains; anything else is InputError.
    """
    found = _BUS_ID.fullmatch(re.sub(r"^PCI:", "", text.strip(), flags=re.IGNORECASE))
    if not found:
        raise InputError("PCI bus id", repr(text), "a form such as 0000:31:00.0", "take it from `steadyrack status`")
    domain, bus, device, function = found.groups()
    return "{:04x}:{}:{}.{}".format(int(domain or "0", 16), bus.lower(), device.lower(), function or "0")


def is_bus_id(text: str) -> bool:
    """True when ``bus_id`` would take the text."""
    try:
        bus_id(text)
    except InputError:
        return False
    return True


def read_gpus(root: str = "/") -> list[Record]:
    """Every NVIDIA display or 3D device on the bus, in bus order, each with its link upwards.

    A device: ``bus_id``, ``vendor``, ``device`` (hex text), ``numa_node``, ``on_bus`` (False: it
    answers with ones, it has fallen off; None: cannot be told), ``link`` (see ``read_link``) and ``peers``
    (see ``read_peers``).
    """
    return [dict(_device(path), peers=read_peers(path)) for path in _devices(root) if _is_gpu(path)]


def read_nvme(root: str = "/") -> list[Record]:
    """Every NVMe controller on the bus, in bus order, as ``read_gpus`` gives a GPU but without ``peers``."""
    return [_device(path) for path in _devices(root) if _class(path) == NVME_CLASS]


def _devices(root: str) -> list[str]:
    """The directories of all devices, in bus order."""
    devices = os.path.join(root, "sys/bus/pci/devices")
    try:
        return [os.path.join(devices, name) for name in sorted(os.listdir(devices))]
    except FileNotFoundError:
        return []


def _class(path: str) -> int | None:
    """Base class and subclass, without the programming interface."""
    klass = _hex(files.read_text(os.path.join(path, "class")))
    return None if klass is None else klass >> 8


def _is_gpu(path: str) -> bool:
    """NVIDIA's vendor id and a display class. The kernel keeps both from when it found the device."""
    vendor = _hex(files.read_text(os.path.join(path, "vendor")))
    klass = _class(path)
    return vendor == NVIDIA_VENDOR and klass is not None and klass >> 8 == DISPLAY_BASE_CLASS


def _device(path: str) -> Record:
    return {
        "bus_id": bus_id(os.path.basename(path)),
        "vendor": files.read_text(os.path.join(path, "vendor")),
        "device": files.read_text(os.path.join(path, "device")),
        "numa_node": _numa(files.read_text(os.path.join(path, "numa_node"))),
        "on_bus": on_bus(path),
        "link": read_link(path),
    }


def on_bus(path: str) -> bool | None:
    """Whether the device still answers: its configuration space is not all ones.

    ``config`` asks the device, while ``vendor`` and ``revision`` may be what the kernel remembers;
    a revision of ff alone still tells (`lspci` prints ``rev ff``). None when neither can be read.
    """
    config = files.read_bytes(os.path.join(path, "config"))
    if config:
        return config[:16].strip(b"\xff") != b""
    revision = _hex(files.read_text(os.path.join(path, "revision")))
    return None if revision is None else revision != 0xFF


def read_link(path: str) -> Record:
    """The way from a device up to its root port, and its narrowest place.

    ``width``/``speed_gt``: the minimum over the way, None when nothing on it tells. ``narrow_at``:
    the link (``port -> device``) with that width. ``device_max``/``port_max``: the widest that the
    card, and the port it is plugged into, can do. ``hops``: every end read, from the card upwards.
    ``complete``: every end gave a width.
    """
    hops = [_hop(step) for step in _upwards(path)]
    narrow = _narrowest(hops)
    speeds = [hop["speed_gt"] for hop in hops if hop["speed_gt"] is not None]
    return {
        "width": None if narrow is None else hops[narrow]["width"],
        "speed_gt": min(speeds) if speeds else None,
        "narrow_at": None if narrow is None else _link_name(hops, narrow),
        "device_max": hops[0]["max_width"] if hops else None,
        "port_max": hops[1]["max_width"] if len(hops) > 1 else None,
        "complete": bool(hops) and all(hop["width"] is not None for hop in hops),
        "hops": hops,
    }


def read_peers(path: str) -> Record:
    """What decides whether other devices reach this one without going through the root complex.

    ``bridges``: those above it, from its own port upwards, each with ``bus_id`` and ``redirect``: whether ACS sends
    peers' traffic up to the root complex; None where the space that tells could not be read. ``iommu_group``: its
    number as text, None without an IOMMU. Devices that the kernel could isolate are in groups of their own.
    """
    bridges = [
        {"bus_id": bus_id(os.path.basename(step)), "redirect": acs_redirect(_config(step))}
        for step in _upwards(path)[1:]
    ]
    group = os.path.join(path, "iommu_group")
    return {"bridges": bridges, "iommu_group": os.path.basename(os.readlink(group)) if os.path.islink(group) else None}


def _config(path: str) -> bytes | None:
    """A device's configuration space, as much of it as the caller may read."""
    try:
        return files.read_bytes(os.path.join(path, "config"))
    except SteadyrackError:
        return None


def acs_redirect(config: bytes | None) -> bool | None:
    """Whether access control redirects peers' requests to the root complex; None: not told, or all ones."""
    if config is None or len(config) < WHOLE_SPACE or config[:16].strip(b"\xff") == b"":
        return None
    at, seen = EXTENDED_SPACE, set()
    # A chain that comes back to itself, or points before its space, is a device that answers nonsense.
    while EXTENDED_SPACE <= at <= WHOLE_SPACE - 8 and at not in seen:
        seen.add(at)
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == ACS_CAPABILITY:
            control = int.from_bytes(config[at + ACS_CONTROL : at + ACS_CONTROL + 2], "little")
            return bool(control & ACS_REDIRECT)
        at = head >> 20
    return False if at == 0 else None


def _upwards(path: str) -> list[str]:
    """The directories of the device and of each bridge above it, up to the root port."""
    steps = []
    here = os.path.realpath(path)
    while is_bus_id(os.path.basename(here)):
        steps.append(here)
        here = os.path.dirname(here)
    return steps


def _hop(path: str) -> Record:
    """One end of a link, as sysfs tells it now."""
    return {
        "bus_id": bus_id(os.path.basename(path)),
        "width": width(files.read_text(os.path.join(path, "current_link_width"))),
        "max_width": width(files.read_text(os.path.join(path, "max_link_width"))),
        "speed_gt": speed(files.read_text(os.path.join(path, "current_link_speed"))),
        "max_speed_gt": speed(files.read_text(os.path.join(path, "max_link_speed"))),
    }


def _narrowest(hops: list[Record]) -> int | None:
    """The place in ``hops`` with the least known width, the one nearest to the card among equals."""
    known = [(hop["width"], place) for place, hop in enumerate(hops) if hop["width"] is not None]
    return min(known)[1] if known else None


def _link_name(hops: list[Record], place: int) -> str:
    """The link an end belongs to. Upwards from the card the ends come in pairs: lower end, upper end."""
    lower = place - place % 2
    if lower + 1 < len(hops):
        return "{} -> {}".format(hops[lower + 1]["bus_id"], hops[lower]["bus_id"])
    return str(hops[lower]["bus_id"])


def width(text: str | None) -> int | None:
    """Lanes, from ``16``. Anything that is no PCIe width is None: Unknown, 0 (no link), 63 and 255 (all ones read)."""
    found = re.fullmatch(r"x?(\d+)", text.strip()) if text else None
    lanes = int(found.group(1)) if found else 0
    return lanes if lanes in WIDTHS else None


def speed(text: str | None) -> float | None:
    """Gigatransfers a second, from ``16.0 GT/s PCIe`` or older ``8 GT/s``; Unknown is None."""
    found = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", text.strip()) if text else None
    return float(found.group(1)) if found else None


def judge_width(link: Record, declared: int) -> Record:
    """``verdict``, ``state``, ``reason`` and ``hint`` for a link that should be ``declared`` lanes wide.

    States: ok, narrow_slot (the port cannot do more: slot, riser or bifurcation), narrow_device
    (the card itself cannot), degraded (both could; reseat), upstream (narrow further up), unknown.
    """
    measured = link["width"]
    if measured is None:
        return _finding("unknown", "unknown", "sysfs does not tell the link width", "compare with `lspci -vv` (LnkSta)")
    if measured >= declared:
        if not link["complete"]:
            return _finding("unknown", "unknown", "part of the way to the root port does not tell its width",
                            "compare with `lspci -vv` (LnkSta)")  # fmt: skip
        return _finding("pass", "ok", None, None)
    state, hint = _why_narrow(link, declared)
    reason = "x{} at {}, declared x{}".format(measured, link["narrow_at"], declared)
    return _finding("fail", state, reason, hint)


def _why_narrow(link: Record, declared: int) -> list[str]:
    """The state of a link that is too narrow, and what to do about it."""
    if all(hop["width"] is None or hop["width"] >= declared for hop in link["hops"][:2]):
        return ["upstream", "a bridge above the slot is narrow: check the riser, the switch and the BIOS bifurcation"]
    if link["device_max"] is not None and link["device_max"] < declared:
        return ["narrow_device", "the card itself is narrower than declared: is it the declared model?"]
    if link["port_max"] is not None and link["port_max"] < declared:
        return ["narrow_slot", "the slot is narrower than declared: move the card, or check the BIOS bifurcation"]
    return ["degraded", "the link trained too narrow: power off, reseat the card, then suspect riser or retimer"]


def _finding(verdict: str, state: str, reason: str | None, hint: str | None) -> Record:
    return {"verdict": verdict, "state": state, "reason": reason, "hint": hint}


def _hex(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _numa(text: str | None) -> int | None:
    """The NUMA node, None where the firmware does not tell (-1)."""
    return int(text) if text and text.isdigit() else None
