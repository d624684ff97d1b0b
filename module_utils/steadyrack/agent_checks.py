# SPDX-License-Identifier: BSD-2-Clause
"""Whether the agent itself keeps watch: its units, as rows ``agent.units``.

``enabled`` is not ``active``: a boot unit that did not run at this boot is a failure, whatever
is enabled for the next one.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict

from . import units, verdict
from .errors import DeadlineError, SteadyrackError
from .files import load_json
from .run import Completed, run

BOOT_UNIT = "steadyrack-gpu.service"
TIMER = "steadyrack-gpu.timer"
VERIFY_UNIT = "steadyrack-gpu-verify.service"
WATCH_UNIT = "steadyrack-time-watch.service"
GPU_WATCH_UNIT = "steadyrack-gpu-watch.service"
_WITHOUT = {
    WATCH_UNIT: "a clock that goes wrong would ring no alarm",
    GPU_WATCH_UNIT: "a GPU that fails is seen by the timer only",
}
NOTE_PATH = "etc/steadyrack/node_agent.json"
UNIT_DIRECTORY = "usr/lib/systemd/system"
_PROPERTIES = "Id,LoadState,ActiveState,UnitFileState,Result"

Row = Dict[str, Any]


def keeps_gpus(root: str = "/") -> bool:
    """Whether role node_agent was told that this host has GPUs to keep. Where it left no word: yes, to be judged."""
    try:
        note = load_json(os.path.join(root, NOTE_PATH)) or {}
    except SteadyrackError:
        return True
    return note.get("gpus") is not False


def checks(root: str = "/", runner: Callable[..., Completed] = run) -> list[Row]:
    """One row for each unit of ours. Never raises: a systemd that does not answer is a row ``unknown``."""
    gpus = keeps_gpus(root)
    names = [BOOT_UNIT, TIMER, VERIFY_UNIT, GPU_WATCH_UNIT] if gpus else []
    try:
        shown = runner(["systemctl", "show", f"--property={_PROPERTIES}", *names, WATCH_UNIT])
        booted = runner(["systemctl", "show", "--property=UserspaceTimestampMonotonic"])
    except DeadlineError as error:
        return [_row(names[0] if names else WATCH_UNIT, verdict.UNKNOWN, "unknown", error.sentence())]
    found = parse_show(shown.out)
    if shown.rc != 0 or not found:
        reason = "systemd does not answer: " + shown.said
        return [_row(names[0] if names else WATCH_UNIT, verdict.UNKNOWN, "unknown", reason)]
    for name, unit in found.items():
        if units.masked_on_disk(name, root):
            unit.update(LoadState="masked")  # made by hand, and not known to systemd yet
    rows = [watch_row(WATCH_UNIT, found.get(WATCH_UNIT, {}))]
    if not gpus:
        return rows
    boot_time = boot_time_s(booted.out)
    installed = _modified(os.path.join(root, UNIT_DIRECTORY, BOOT_UNIT))
    return [
        boot_row(found.get(BOOT_UNIT, {}), boot_time, installed),
        timer_row(found.get(TIMER, {})),
        verify_row(found.get(VERIFY_UNIT, {})),
        watch_row(GPU_WATCH_UNIT, found.get(GPU_WATCH_UNIT, {})),
        *rows,
    ]


def parse_show(text: str) -> dict[str, dict[str, str]]:
    """``systemctl show`` of several units: blocks of ``key=value`` with empty lines between, by Id."""
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.split("\n\n")]
    return {block["Id"]: block for block in blocks if "Id" in block}


def boot_time_s(text: str) -> float | None:
    """When systemd started user space, in seconds since the epoch; right in a container too."""
    _key, _equals, microseconds = text.strip().partition("=")
    if not microseconds.isdigit():
        return None
    return time.time() - (time.monotonic() - int(microseconds) / 1e6)


def boot_row(unit: dict[str, str], boot_time: float | None, installed: float | None) -> Row:
    """The unit that brings caps back at boot must be enabled, and must have run at this boot."""
    trouble = _not_there(unit) or _not_enabled(unit)
    if trouble:
        return _row(BOOT_UNIT, verdict.FAIL, trouble, f"it is {trouble}: caps would not come back at the next boot")
    state = unit.get("ActiveState", "")
    if state == "active":
        return _row(BOOT_UNIT, verdict.PASS, "active", None)
    if state == "activating":
        return _row(BOOT_UNIT, verdict.UNKNOWN, "activating", "it is still waiting for the GPUs")
    if state == "failed":
        return _row(BOOT_UNIT, verdict.FAIL, "failed", "its last run failed ({})".format(unit.get("Result")))
    if None not in (boot_time, installed) and float(installed or 0) > float(boot_time or 0):
        return _row(
            BOOT_UNIT, verdict.NOT_JUDGED, "not_due", "it was installed after this boot; the timer does its work"
        )
    return _row(BOOT_UNIT, verdict.FAIL, "not_run", "it is enabled, and did not run at this boot")


def timer_row(unit: dict[str, str]) -> Row:
    """The timer must run now and after the next boot."""
    trouble = _not_there(unit) or _not_enabled(unit)
    if trouble is None and unit.get("ActiveState") != "active":
        trouble = unit.get("ActiveState") or "inactive"
    if trouble:
        return _row(TIMER, verdict.FAIL, trouble, f"it is {trouble}: a lost cap would not be seen")
    return _row(TIMER, verdict.PASS, "active", None)


def watch_row(name: str, unit: dict[str, str]) -> Row:
    """A watch must run now and after the next boot: nobody else rings, or acts at once."""
    trouble = _not_there(unit) or _not_enabled(unit)
    state = unit.get("ActiveState") or "inactive"
    if trouble is None and state == "activating":
        return _row(name, verdict.UNKNOWN, state, "it is starting")
    if trouble is None and state != "active":
        trouble = state
    if trouble:
        return _row(name, verdict.FAIL, trouble, f"it is {trouble}: {_WITHOUT[name]}")
    return _row(name, verdict.PASS, "active", None)


def verify_row(unit: dict[str, str]) -> Row:
    """The timer's last look; a failure there is about the GPUs, whose own rows say what."""
    trouble = _not_there(unit)
    if trouble:
        return _row(VERIFY_UNIT, verdict.FAIL, trouble, f"it is {trouble}: the timer has nothing to start")
    if unit.get("ActiveState") == "failed":
        return _row(VERIFY_UNIT, verdict.FAIL, "failed", "its last run failed ({})".format(unit.get("Result")))
    return _row(VERIFY_UNIT, verdict.PASS, unit.get("ActiveState") or "inactive", None)


def _not_there(unit: dict[str, str]) -> str | None:
    load = unit.get("LoadState")
    return None if load == "loaded" else ("masked" if load == "masked" else "missing")


def _not_enabled(unit: dict[str, str]) -> str | None:
    state = unit.get("UnitFileState") or "disabled"
    return None if state in ("enabled", "enabled-runtime", "static", "alias") else state


def _modified(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _row(unit: str, judged: str, state: str, reason: str | None) -> Row:
    hint = None if reason is None else f"systemctl status {unit}; journalctl -u {unit} -b"
    return verdict.check_row(
        "agent.units",
        unit,
        judged,
        state,
        expected="active",
        measured=state,
        source="systemd",
        reason=reason,
        hint=hint,
    )
