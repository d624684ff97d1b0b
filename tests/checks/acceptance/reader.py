"""Runs on the node: takes down raw evidence in one go and prints it as one line of JSON.

Sent over the connection as text, so it is one file, standard library only, Python 3.8 or later. It judges
nothing. What could not be read is there as `error`, never left out and never replaced by a guess. Every wait
has a deadline: a sick GPU or a hanging daemon costs seconds, not the run.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import ipaddress
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Dict  # noqa: UP035 (3.8)

Record = Dict[str, Any]  # noqa: UP006 (3.8)

VERSION = 1
CONNECT_S = 3.0  # within a rack a connection takes a millisecond
COMMAND_S = 10.0  # a command that answers at all does so well within this
NVML_SILENCE_S = 15.0  # first contact with one A100 without persistence takes a few seconds
CONTENT_LIMIT = 65536  # bytes of a file that are handed over
WANTED_BY = ("wants", "requires", "upholds")
NVIDIA, DISPLAY_CLASS = 0x10DE, 0x03

UNIT_PROPERTIES = (
    "Id",
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "Result",
    "ConditionResult",
    "Type",
    "MainPID",
    "ExecStart",
    "NeedDaemonReload",
    "FragmentPath",
)
# Where systemd looks for a unit's file, the first one wins (systemd.unit(5)).
UNIT_FOLDERS = (
    "run/systemd/transient",
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
)


def read(request: Record, root: str = "/") -> Record:
    """All the evidence that `request` names. Its keys: commands, units, packages, files, processes, sockets,
    tcp, session, gpus."""
    evidence: Record = {"version": VERSION, "host": _host(root)}
    # Commands first: one of them may wait for the time daemon to settle.
    evidence["commands"] = {
        label: run(wish["argv"], wish.get("timeout_s", COMMAND_S))
        for label, wish in request.get("commands", {}).items()
    }
    evidence["units"] = units(request.get("units", []), root)
    evidence["packages"] = packages(request.get("packages", []))
    evidence["files"] = {
        pattern: files(root, pattern, wish.get("content", False)) for pattern, wish in request.get("files", {}).items()
    }
    evidence["processes"] = {name: processes(root, name) for name in request.get("processes", [])}
    if request.get("sockets"):
        evidence["sockets"] = sockets(root)
    evidence["tcp"] = {place: answers(place) for place in request.get("tcp", [])}
    if request.get("session"):
        evidence["session"] = session(root, request["session"])
    if request.get("gpus"):
        evidence["pci"] = pci_gpus(root)
        evidence["nvml"] = nvml(request.get("nvml_library", "libnvidia-ml.so.1"))
    evidence["now"] = time.time()
    return evidence


def _host(root: str) -> Record:
    release = _text(os.path.join(root, "etc/os-release")) or ""
    return {
        "name": os.uname().nodename,
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
        "uid": os.getuid(),
        "os": dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', release, re.MULTILINE)),
    }


def _text(path: str) -> str | None:
    """The text of a file, None when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(CONTENT_LIMIT).decode("utf-8", "replace").strip()
    except OSError:
        return None


def run(argv: list[str], timeout_s: float = COMMAND_S) -> Record:
    """What a command answered, in the C locale; `error` when it did not get as far as an exit status."""
    record: Record = {"argv": argv, "rc": None, "out": "", "err": "", "error": None}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=dict(os.environ, LC_ALL="C", LANG="C"),
        )
    except FileNotFoundError:
        record["error"] = "not installed"
    except subprocess.TimeoutExpired:
        record["error"] = f"no answer within {timeout_s:g} s"
    except OSError as error:
        record["error"] = str(error)
    else:
        record.update(
            rc=done.returncode, out=done.stdout.decode("utf-8", "replace"), err=done.stderr.decode("utf-8", "replace")
        )
    return record


# --- systemd and dpkg ----------------------------------------------------------------------------


def units(names: list[str], root: str = "/") -> Record:
    """systemd's properties of each unit, and what of its files says otherwise. `show` answers for unknown units too
    (LoadState=not-found), on every release with exit status 0; is-active and is-enabled changed theirs from 3 to 4."""
    if not names:
        return {}
    done = run(["systemctl", "show", "--no-pager", "--property=" + ",".join(UNIT_PROPERTIES), "--", *list(names)])
    blocks = [block for block in done["out"].split("\n\n") if block.strip()]
    if done["error"] or done["rc"] != 0 or len(blocks) != len(names):
        why = done["error"] or done["err"].strip() or f"{len(names)} units asked for, {len(blocks)} told"
        return {name: {"error": "systemctl show: " + why} for name in names}
    found = {
        name: dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for name, block in zip(names, blocks)  # noqa: B905 (strict is not in 3.8; the lengths were compared)
    }
    return {name: {**unit, **_on_disk(root, unit)} for name, unit in found.items()}


def _on_disk(root: str, unit: dict[str, str]) -> dict[str, str]:
    """What the manager has not read yet and will at the next boot: it remembers the state of a unit's file, and a link
    made by hand in a folder that goes before does not even set NeedDaemonReload.

    `Shadow`: another file than the one that is loaded comes first; `ShadowMasks`: it leads to nothing, or is empty.
    `Wanted`: whether any target has a link to a unit that counts as enabled.
    """
    name, fragment = unit.get("Id", ""), unit.get("FragmentPath", "")
    if not name or not fragment:
        return {}
    told: dict[str, str] = {}
    places = [os.path.join(root, folder, name) for folder in UNIT_FOLDERS]
    first = next((place for place in places if os.path.lexists(place)), None)
    if first and os.path.realpath(first) != os.path.realpath(os.path.join(root, fragment.lstrip("/"))):
        told["Shadow"] = "/" + os.path.relpath(first, root)
        masks = os.path.realpath(first) == os.devnull or (os.path.isfile(first) and os.path.getsize(first) == 0)
        told["ShadowMasks"] = "yes" if masks else "no"
    if unit.get("UnitFileState") in ("enabled", "enabled-runtime"):
        links = [os.path.join(root, folder, f"*.{kind}", name) for folder in UNIT_FOLDERS for kind in WANTED_BY]
        told["Wanted"] = "yes" if any(glob.glob(link) for link in links) else "no"
    return told


def packages(names: list[str]) -> Record:
    """dpkg's three status words and the version of each package; None for one that dpkg has never heard of.

    Word by word, because a held package says "hold ok installed" where others say "install ok installed".
    """
    if not names:
        return {}
    form = "${binary:Package}\\t${db:Status-Want}\\t${db:Status-Eflag}\\t${db:Status-Status}\\t${Version}\\n"
    done = run(["dpkg-query", "--show", "--showformat=" + form, *list(names)])
    if done["error"] or done["rc"] not in (0, 1):  # 1: some of the names are unknown
        return {name: {"error": "dpkg-query: " + (done["error"] or done["err"].strip())} for name in names}
    found = dict.fromkeys(names)
    for line in done["out"].splitlines():
        name, want, flag, status, version = line.split("\t")
        found[name.split(":")[0]] = {"want": want, "flag": flag, "status": status, "version": version}
    return found


# --- files, processes, sockets -------------------------------------------------------------------


def files(root: str, pattern: str, content: bool) -> Record:
    """Every file that the glob matches: {path: {mode, uid, mtime, sha256[, content]} or {error}}, with `link` where
    the path itself is a symbolic link. A directory is told of only where it is one."""
    found: Record = {}
    for path in sorted(glob.glob(os.path.join(root, pattern.lstrip("/")))):
        name = "/" + os.path.relpath(path, root)
        record: Record = {}
        try:
            if os.path.islink(path):
                found[name] = record
                record["link"] = os.readlink(path)
            status = os.stat(path)
            if os.path.isdir(path):
                continue
            with open(path, "rb") as stream:
                data = stream.read()
        except OSError as error:
            found[name] = {**record, "error": error.strerror}
            continue
        record.update(
            mode=f"{status.st_mode & 0o7777:04o}",
            uid=status.st_uid,
            mtime=status.st_mtime,
            sha256=hashlib.sha256(data).hexdigest(),
        )
        if content:
            record["content"] = data[:CONTENT_LIMIT].decode("utf-8", "replace")
        found[name] = record
    return found


def processes(root: str, name: str) -> list[Record]:
    """Every process whose command name is `name`: pid, command line, and when it started (epoch seconds)."""
    found = []
    uptime = float((_text(os.path.join(root, "proc/uptime")) or "0").split()[0])
    for path in glob.glob(os.path.join(root, "proc/[0-9]*")):
        stat = _text(os.path.join(path, "stat")) or ""
        head, _, tail = stat.rpartition(")")
        if head.partition("(")[2] != name:
            continue
        line = (_text(os.path.join(path, "cmdline")) or "").strip("\0").split("\0")
        ticks = int(tail.split()[19])  # field 22 of proc(5), counted from after the name
        started = time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
        found.append({"pid": int(os.path.basename(path)), "argv": line, "started": started})
    return sorted(found, key=lambda entry: entry["pid"])


def session(root: str, names: list[str]) -> Record:
    """Settings in the environment that sshd gave to the command we are part of: {name: text, None where not set}, or
    {error}. sudo, which may stand between, has an environment of its own."""
    pid = os.getpid()
    while pid > 1:
        stat = _text(os.path.join(root, f"proc/{pid}/stat")) or ""
        parent = int((stat.rpartition(")")[2].split() or ["0", "0"])[1])
        # `sshd-session` from OpenSSH 9.8 on.
        if (_text(os.path.join(root, f"proc/{parent}/comm")) or "").startswith("sshd"):
            break
        pid = parent
    else:
        return {"error": "no SSH session above the reader"}
    try:
        with open(os.path.join(root, f"proc/{pid}/environ"), "rb") as stream:
            pairs = [entry.partition("=") for entry in stream.read().decode("utf-8", "replace").split("\0")]
    except OSError as error:
        return {"error": f"environment of process {pid}: {error.strerror}"}
    found = {name: value for name, _, value in pairs}
    return {name: found.get(name) for name in names}


def sockets(root: str) -> list[Record]:
    """Listening TCP and bound, unconnected UDP sockets: protocol, address and port."""
    found = []
    for protocol, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in (_text(os.path.join(root, "proc/net", protocol)) or "").splitlines()[1:]:
            words = line.split()
            if words[3] != state:
                continue
            address, port = words[1].split(":")
            found.append({"protocol": protocol.rstrip("6"), "address": _address(address), "port": int(port, 16)})
    return found


def _address(text: str) -> str:
    """The kernel's hex form of an address: 32-bit words, each in the machine's own byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return str(ipaddress.ip_address(packed))


def answers(place: str) -> str | None:
    """Whether `address port` accepts a connection from here: None when it does, else why not."""
    address, port = place.split()
    try:
        socket.create_connection((address, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        return str(error)
    return None


# --- the PCI bus ---------------------------------------------------------------------------------


def pci_gpus(root: str) -> list[Record]:
    """Every NVIDIA display device, as sysfs tells it, with each bridge above it up to the root port."""
    found = []
    for path in sorted(glob.glob(os.path.join(root, "sys/bus/pci/devices/*"))):
        kind, vendor = _hex(_text(os.path.join(path, "class"))), _hex(_text(os.path.join(path, "vendor")))
        if vendor != NVIDIA or kind is None or kind >> 16 != DISPLAY_CLASS:
            continue
        found.append({"bus_id": os.path.basename(path), "gone": _gone(path), "path_up": _path_up(path)})
    return found


def _gone(path: str) -> bool:
    """True when the device answers with ones: it fell off the bus, though the kernel still lists it."""
    try:
        with open(os.path.join(path, "config"), "rb") as stream:
            head = stream.read(16)
        return bool(head) and head == b"\xff" * len(head)
    except OSError:
        return _text(os.path.join(path, "revision")) == "0xff"


def _path_up(path: str) -> list[Record]:
    found: list[Record] = []
    here = os.path.realpath(path)
    while re.match(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", os.path.basename(here)):
        keys = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
        record: Record = {key: _text(os.path.join(here, key)) for key in keys}
        found.append(dict(record, bus_id=os.path.basename(here)))
        here = os.path.dirname(here)
    return found


def _hex(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


# --- NVML, through ctypes: not pynvml, whose installed copy is itself ours to doubt -----------------


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t as of nvmlDeviceGetPciInfo_v3 (nvml.h, 11.0 and later)."""

    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


TEXTS = {"uuid": "nvmlDeviceGetUUID", "serial": "nvmlDeviceGetSerial", "name": "nvmlDeviceGetName"}
NUMBERS = {
    "requested_mw": "nvmlDeviceGetPowerManagementLimit",
    "enforced_mw": "nvmlDeviceGetEnforcedPowerLimit",
    "default_mw": "nvmlDeviceGetPowerManagementDefaultLimit",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "link_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "compute_mode": "nvmlDeviceGetComputeMode",
}


def nvml(library: str) -> Record:
    """What NVML says of each GPU, read by a child that may hang, crash or be killed without harm to the rest.

    `state`: done, silent (no answer in time) or died; `asking` is the call it was in then. A child in
    state D does not die of SIGKILL: it is not waited for.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        try:
            _nvml_child(library, lambda message: _write(writing, message))
        finally:
            os._exit(0)
    os.close(writing)
    messages, state = _receive(reading)
    os.kill(child, signal.SIGKILL)
    time.sleep(0.01)
    os.waitpid(child, os.WNOHANG)
    found: Record = {"state": state, "asking": None, "init": None, "error": None, "count": None, "gpus": []}
    for message in messages:
        found["gpus"].append(message["gpu"]) if "gpu" in message else found.update(message)
    if found.pop("done", False):
        found.update(state="done", asking=None)
    return found


def _write(writing: int, message: Record) -> None:
    os.write(writing, json.dumps(message).encode() + b"\n")


def _receive(reading: int) -> tuple[list[Record], str]:
    """Messages until the child has finished (`died` unless it said done) or is silent for too long."""
    lines: list[bytes] = []
    rest = b""
    while select.select([reading], [], [], NVML_SILENCE_S)[0]:
        data = os.read(reading, 65536)
        if not data:
            return [json.loads(line) for line in lines], "died"
        parts = (rest + data).split(b"\n")
        lines.extend(parts[:-1])
        rest = parts[-1]
    return [json.loads(line) for line in lines], "silent"


def _nvml_child(library: str, tell: Callable[[Record], None]) -> None:
    tell({"asking": "load " + library})
    try:
        nvml_library = ctypes.CDLL(library)
    except OSError as error:
        return tell({"error": str(error), "done": True})
    tell({"asking": "nvmlInit_v2"})
    code = nvml_library.nvmlInit_v2()
    tell({"init": code})
    if code != 0:
        return tell({"error": f"nvmlInit_v2 answered {code}", "done": True})
    count = ctypes.c_uint()
    code = nvml_library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code != 0:
        return tell({"error": f"nvmlDeviceGetCount_v2 answered {code}", "done": True})
    tell({"count": count.value})
    for index in range(count.value):
        tell({"gpu": _nvml_gpu(nvml_library, index, tell)})
    return tell({"done": True})


def _nvml_gpu(nvml_library: ctypes.CDLL, index: int, tell: Callable[[Record], None]) -> Record:
    """One GPU. The index is only how it was found in this pass; whatever is said of it goes by its names."""
    handle = ctypes.c_void_p()
    gpu: Record = {"errors": {}}

    def ask(field: str, function: str, *arguments: Any) -> bool:
        tell({"asking": "{} of GPU {}".format(function, gpu.get("uuid") or f"at place {index}")})
        try:
            code = getattr(nvml_library, function)(*arguments)
        except AttributeError:
            code = 13  # FUNCTION_NOT_FOUND, as pynvml calls a library older than the question
        if code != 0:
            gpu["errors"][field] = code
        return code == 0

    if not ask("handle", "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)):
        return gpu
    for field, function in TEXTS.items():
        text = ctypes.create_string_buffer(96)  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, the longest of the three
        gpu[field] = text.value.decode() if ask(field, function, handle, text, ctypes.c_uint(96)) else None
    place = PciInfo()
    asked = ask("bus_id", "nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(place))
    gpu["bus_id"] = place.bus_id.decode() if asked else None
    for field, function in NUMBERS.items():
        number = ctypes.c_uint()
        gpu[field] = number.value if ask(field, function, handle, ctypes.byref(number)) else None
    low, high = ctypes.c_uint(), ctypes.c_uint()
    limits = "nvmlDeviceGetPowerManagementLimitConstraints"
    told = ask("min_mw", limits, handle, ctypes.byref(low), ctypes.byref(high))
    gpu["min_mw"] = low.value if told else None
    rows = [ctypes.c_uint() for _ in range(4)]  # corrected, uncorrected, pending, failure
    told = ask("remapped", "nvmlDeviceGetRemappedRows", handle, *(ctypes.byref(number) for number in rows))
    gpu["remap_pending"], gpu["remap_failure"] = (rows[2].value, rows[3].value) if told else (None, None)
    reasons = ctypes.c_ulonglong()
    # The second name is that of drivers before 535, which gives the same bits.
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        told = ask("event_reasons", function, handle, ctypes.byref(reasons))
        if told:
            gpu["errors"].pop("event_reasons", None)
        if told or gpu["errors"]["event_reasons"] != 13:
            break
    gpu["event_reasons"] = reasons.value if told else None
    return gpu


if __name__ == "__main__":
    json.dump(read(json.loads(REQUEST)), sys.stdout)  # type: ignore[name-defined]  # noqa: F821 (set by the sender)
    print()
