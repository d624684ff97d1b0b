# SPDX-License-Identifier: BSD-2-Clause
"""What the kernel log says of GPUs: Xid errors and cards that fell off the bus, and what each asks for.

Read from the journal rather than from NVML's events: those begin with the registration of a client, which then
holds the driver against a reset; the log has what happened before, and tells of cards that fell without an Xid.
A log that cannot be read is an error here, never "no Xid".
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Iterable, Mapping, NamedTuple

from . import pcie
from .errors import DeadlineError, SteadyrackError
from .run import Completed, run

# What an Xid asks for. `check`: a person looks, the card stays; `unknown`: not in the table.
IGNORE, APP, CHECK, RESET, REBOOT, UNKNOWN = "ignore", "app", "check", "reset", "reboot", "unknown"
ACTIONS = (IGNORE, APP, CHECK, RESET, REBOOT)
TAKES_OVER = (RESET, REBOOT)
"""Until the card has been reset, or the host started anew, nothing runs on it: the spare takes its place."""

# The "Resolution Bucket (Immediate Action)" of NVIDIA's Xid catalogue for A100 and newer
# (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): RESTART_APP is `app`, RESET_GPU `reset`, RESTART_BM
# `reboot`, CHECK_MECHANICALS and WORKFLOW_NVLINK_ERR `check`. WORKFLOW_XID_48 begins with a reset. 45 follows others.
_CATALOGUE: dict[str, tuple[int, ...]] = {
    IGNORE: (14, 37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 137),
    APP: (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94),
    CHECK: (54, 74, 78),
    RESET: (46, 48, 62, 64, 95, 109, 119, 120, 140, 158),
    REBOOT: (79,),
}
# Of newer architectures only, from the same catalogue.
_HOPPER: dict[str, tuple[int, ...]] = {
    IGNORE: (141, 157),
    APP: (*range(96, 106),),
    RESET: (110, 136, 143, 156),
}
# Blackwell's own link codes (144 to 150) want their registers decoded: a person looks.
_BLACKWELL: dict[str, tuple[int, ...]] = {
    IGNORE: (160, 161),
    APP: (*range(126, 136), 139),
    CHECK: (*range(144, 151), 155, 159),
    RESET: (110, 143, 156),
}
# Volta and older retire pages instead of remapping rows ("Xid errors" r515, common Xids): 63 and 64 are counted by
# the driver, 48 and 79 end the card's service until a reset.
_OLDER: dict[str, tuple[int, ...]] = {
    IGNORE: (43, 44, 45, 63),
    APP: (8, 13, 31, 32, 68, 69),
    CHECK: (64, 74),
    RESET: (48, 62),
    REBOOT: (79,),
}
# nvmlDeviceArchitecture_t of nvml.h: 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
AMPERE, HOPPER, BLACKWELL = 7, 9, 10

# Xid 154 names the action itself, from driver 565 on; these are its words.
_RECOVERY = (("node reboot", REBOOT), ("drain and reset", RESET), ("gpu reset", RESET), ("drain p2p", CHECK),
             ("none", IGNORE))  # fmt: skip
RECOVERY_CHANGED = 154
CONTAINED = 94
"""The memory error stayed within one application: the card goes on, after that application has been started anew."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-f:.]+)\): (\d+)\b,?\s*(.*)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:PCI:)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)\b", re.IGNORECASE)
_FALLEN = re.compile(r"fallen off the bus", re.IGNORECASE)
# The driver's sentence about a card lost at probe goes over three rows.
_ROWS = 4

# Whose word counts: the kernel's, and root's (a log forwarded to this journal); any user may write to the journal.
_KERNEL = "kernel"
MATCHES = ("_TRANSPORT=kernel", "+", "_UID=0", "SYSLOG_IDENTIFIER=kernel", "SYSLOG_IDENTIFIER=NVRM")
# A journal of this boot is searched in milliseconds; one on a sick disk must not hold up a take-over.
READ_S = 10.0


class Event(NamedTuple):
    """One thing the kernel said of one GPU. ``code`` is None for a fall from the bus told without an Xid."""

    bus_id: str  # sysfs form
    code: int | None
    text: str


class Log(NamedTuple):
    """Events since a place in the log, and the place up to which it was read."""

    events: list[Event]
    cursor: str | None
    trouble: str | None = None


# --- what to do ----------------------------------------------------------------------------------


def action(event: Event, architecture: int | None, overrides: Mapping[int, str] | None = None) -> str:
    """What this event asks for on a card of this architecture (NVML's number; None: the newest table that has it)."""
    if event.code is None:
        return REBOOT
    if overrides and event.code in overrides:
        return overrides[event.code]
    if event.code == RECOVERY_CHANGED:
        words = event.text.lower().rpartition(" to ")[2]
        return next((found for word, found in _RECOVERY if word in words), UNKNOWN)
    return table(architecture).get(event.code, UNKNOWN)


def table(architecture: int | None) -> dict[int, str]:
    """Code -> action."""
    if architecture is not None and architecture < AMPERE:
        parts = [_OLDER]
    else:
        parts = [_CATALOGUE]
        if architecture is None or architecture >= BLACKWELL:
            parts.append(_BLACKWELL)
        if architecture is None or architecture == HOPPER:
            parts.append(_HOPPER)
    return {code: word for part in parts for word, codes in part.items() for code in codes}


# --- reading the log -----------------------------------------------------------------------------


def parse(lines: Iterable[str]) -> list[Event]:
    """The events in lines of the kernel log, each once, in their order."""
    found: list[Event] = []
    waiting: list[Any] = []  # address named by the driver, and for how many rows it may still be meant
    for line in lines:
        xid = _XID.search(line)
        if xid is not None:
            if pcie.is_bus_id(xid.group(1)):
                found.append(Event(pcie.bus_id(xid.group(1)), int(xid.group(2)), xid.group(3).strip()))
            continue
        if "NVRM" not in line:
            continue
        named = _ADDRESS.search(line.partition("NVRM:")[2]) if re.search(r"GPU", line) else None
        if named is not None:
            waiting = [pcie.bus_id(named.group(1)), _ROWS]
        if waiting and _FALLEN.search(line):
            found.append(Event(waiting[0], None, "has fallen off the bus"))
            waiting = []
        elif waiting:
            waiting[1] -= 1
            waiting = waiting if waiting[1] > 0 else []
    return list(dict.fromkeys(found))


def message(row: Mapping[str, Any]) -> str:
    """The line of a journal entry as the kernel log has it; empty for one that nobody need believe.

    What a user writes to /dev/kmsg as ``NVRM: …`` journald splits into identifier and rest.
    """
    if row.get("_TRANSPORT") != _KERNEL and row.get("_UID") != "0":
        return ""
    text = row.get("MESSAGE")
    if isinstance(text, list):  # bytes that are no UTF-8; a field that was given twice is a list, too
        text = bytes(text).decode("utf-8", "replace") if all(map(_is_byte, text)) else None
    if not isinstance(text, str):
        return ""
    return f"NVRM: {text}" if row.get("SYSLOG_IDENTIFIER") == "NVRM" and "NVRM:" not in text else text


def _is_byte(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= 255


def read(cursor: str | None, since: float | None, runner: Callable[..., Completed] = run) -> Log:
    """What this boot's log says after ``cursor``, or since a moment (s since 1970) where that place is no more.

    With neither: nothing but the place at which the log now ends: what lies before is for NVML to judge.
    """
    command = ["journalctl", "--boot", "--output=json", "--no-pager", "--quiet"]
    if cursor is not None:
        log = _read([*command, f"--after-cursor={cursor}", *MATCHES], cursor, runner)
        if log.trouble is None or since is None:
            return log
    if since is not None:
        # Whole seconds would be rounded up past what was said meanwhile.
        return _read([*command, f"--since=@{since:.6f}", *MATCHES], None, runner)
    return _read([*command, "--lines=1", *MATCHES], None, runner)._replace(events=[])


def _read(command: list[str], cursor: str | None, runner: Callable[..., Completed]) -> Log:
    try:
        done = runner(command, READ_S)
    except DeadlineError as error:
        return Log([], cursor, error.sentence())
    except SteadyrackError as error:
        return Log([], cursor, error.sentence())
    if done.rc != 0:
        return Log([], cursor, f"journalctl ended with {done.rc}: {done.said}")
    lines: list[str] = []
    for row in done.out.splitlines():
        found = entry(row)
        cursor = found.get("__CURSOR", cursor)
        lines += message(found).splitlines()
    return Log(parse(lines), cursor)


def entry(row: str) -> dict[str, Any]:
    """One row of journalctl's JSON; {} for half a row, which a crash may leave."""
    try:
        value = json.loads(row)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
