"""The agent on a host is the one of this checkout, whole, and its units do their work."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from acceptance import systemd
from acceptance.nodes import ROOT, Node, UnsetError
from acceptance.rows import NOT_JUDGED, Row, judged, row

pytestmark = pytest.mark.groups("gpu_nodes", "relays")
Record = Callable[[Iterable[Row]], None]

PACKAGE, PROGRAMS = "/usr/lib/steadyrack/steadyrack", "/usr/lib/steadyrack"
LAUNCHER = "/usr/bin/steadyrack"
UNIT_FOLDER = "/usr/lib/systemd/system"
BOOTED = ["systemctl", "show", "--timestamp=unix", "--property=UserspaceTimestamp"]
BOOT, VERIFY, TIMER = "steadyrack-gpu.service", "steadyrack-gpu-verify.service", "steadyrack-gpu.timer"
WATCH, GPU_WATCH = "steadyrack-time-watch.service", "steadyrack-gpu-watch.service"


def reads(node: Node) -> dict[str, Any]:
    """What must be read from a node for these checks."""
    files = (f"{PACKAGE}/*.py", f"{PROGRAMS}/*.py", LAUNCHER, f"{UNIT_FOLDER}/{BOOT}")
    return {
        "files": {name: {} for name in files},
        "units": [*([BOOT, VERIFY, TIMER, GPU_WATCH] if _keeps_gpus(node) else []), WATCH],
        "commands": {"boot time": {"argv": BOOTED}},
    }


def _keeps_gpus(node: Node) -> bool:
    """A relay has no GPU units."""
    return "gpu_nodes" in node.groups


def wanted_files() -> dict[str, str]:
    """Path on the node → digest of the file that belongs there, from this checkout and this Python's nvidia-ml-py."""
    files = ROOT / "roles" / "node_agent" / "files"
    package = {f"{PACKAGE}/{path.name}": path for path in (ROOT / "module_utils" / "steadyrack").glob("*.py")}
    sources = {**package, f"{PROGRAMS}/agent.py": files / "agent.py", LAUNCHER: files / "steadyrack"}
    sources[f"{PROGRAMS}/pynvml.py"] = _pynvml()
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sources.items()}


def _pynvml() -> Path:
    found = importlib.util.find_spec("pynvml")
    if found is None or found.origin is None:
        raise UnsetError("this Python has no pynvml (nvidia-ml-py) to compare the node's with")
    return Path(found.origin)


@pytest.mark.check("agent.files")
def test_the_agent_on_the_node_is_that_of_this_checkout(node: Node, record: Record) -> None:
    wanted = wanted_files()
    seen = {**node.files(f"{PACKAGE}/*.py"), **node.files(f"{PROGRAMS}/*.py"), **node.files(LAUNCHER)}
    missing = sorted(set(wanted) - set(seen))
    extra = sorted(set(seen) - set(wanted))
    other = sorted(name for name in set(wanted) & set(seen) if seen[name].get("sha256") != wanted[name])
    troubles = [
        f"{word}: {', '.join(names)}"
        for word, names in (("missing", missing), ("not of this version", other), ("not ours", extra))
        if names
    ]
    same = len(wanted) - len(missing) - len(other)
    hint = "run the role node_agent"
    found = [
        judged(
            "agent.files",
            PROGRAMS,
            not troubles,
            expected=len(wanted),
            measured=same,
            unit="files",
            source="sha256",
            reason="; ".join(troubles) or None,
            hint=hint,
        )
    ]
    found += [_runnable_row(name, seen[name], hint) for name in (LAUNCHER,) if name in seen]
    record(found)


def _runnable_row(name: str, file: dict[str, Any], hint: str) -> Row:
    """The command is root's alone to change: it runs as root at boot."""
    good = file.get("mode") == "0755" and file.get("uid") == 0
    return judged(
        "agent.files",
        name,
        good,
        expected="0755 of uid 0",
        measured=f"{file.get('mode')} of uid {file.get('uid')}",
        source="stat",
        hint=hint,
    )


@pytest.mark.check("agent.units")
def test_the_agents_units_are_enabled_and_did_well(node: Node, record: Record) -> None:
    watch = node.unit(WATCH)
    rows = [_unit_row(WATCH, watch, _runs_on(watch) and _runs(watch, "time watch"), "enabled, active")]
    if _keeps_gpus(node):
        boot, verify, timer, follower = (node.unit(name) for name in (BOOT, VERIFY, TIMER, GPU_WATCH))
        rows += [
            _boot_row(node, boot),
            _unit_row(VERIFY, verify, _fares_well(verify), "last result success"),
            _unit_row(TIMER, timer, _runs_on(timer), "enabled, active"),
            _unit_row(GPU_WATCH, follower, _runs_on(follower) and _runs(follower, "gpu watch"), "enabled, active"),
        ]
    record(rows)


def _runs_on(unit: dict[str, str]) -> bool:
    """Running now and after the next boot, as its file on disk says."""
    return systemd.enabled(unit) and systemd.state(unit) == systemd.RUNNING and systemd.read_anew(unit)


def _runs(unit: dict[str, str], words: str) -> bool:
    """It starts our command with these words."""
    return f"argv[]={LAUNCHER} {words}" in unit.get("ExecStart", "")


def _boot_row(node: Node, unit: dict[str, str]) -> Row:
    """Enabled is not yet active (C43): a unit that was there at boot must have run. One installed since is not due."""
    good = systemd.enabled(unit) and _fares_well(unit)
    if good and unit.get("ActiveState") != "active":
        (file,) = node.files(f"{UNIT_FOLDER}/{BOOT}").values()
        booted = float(node.command("boot time").partition("=@")[2])
        if file["mtime"] > booted:
            why = "not due: it was installed after this boot; the timer does its work until then"
            return row("agent.units", BOOT, NOT_JUDGED, state="not_due", source="systemd", reason=why)
        good = False
    return _unit_row(BOOT, unit, good, "enabled, ran at this boot, last result success")


def _fares_well(unit: dict[str, str]) -> bool:
    """There, not masked, as on disk, made to apply caps, and not failed when it last ran."""
    return (
        unit.get("LoadState") == "loaded"
        and systemd.read_anew(unit)
        and unit.get("ActiveState") != "failed"
        and unit.get("Result") == "success"
        and _runs(unit, "gpu apply")
    )


def _unit_row(name: str, unit: dict[str, str], good: bool, expected: str) -> Row:
    return judged(
        "agent.units",
        name,
        good,
        expected=expected,
        measured=systemd.told(unit),
        state=systemd.state(unit),
        source="systemd",
        hint=f"systemctl status {name}; journalctl -u {name}; run the role node_agent",
    )
