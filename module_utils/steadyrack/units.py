# SPDX-License-Identifier: BSD-2-Clause
"""systemd units: one look at many of them, and what a unit's state means.

``systemctl show`` answers for every unit in one call and with exit status 0 whether they exist or not
(``is-active`` and ``is-enabled`` change their exit status with the release). A unit whose own condition
keeps it from starting is a case of its own: systemd reports the start as done, and nothing runs.
"""

from __future__ import annotations

import os
import re
import time
from typing import Callable, NamedTuple, Sequence

from .errors import InputError, ToolError
from .run import Completed, run

Runner = Callable[..., Completed]

PROPERTIES = (
    "Id", "Names", "LoadState", "ActiveState", "SubState", "UnitFileState", "Type", "RemainAfterExit",
    "ConditionResult", "ConditionTimestampMonotonic", "NeedDaemonReload", "Result",
    "ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic",
)  # fmt: skip
SUFFIXES = (".service", ".socket", ".timer", ".target", ".path", ".mount", ".automount", ".slice", ".swap")
# What may stand in a unit's name (systemd.unit(5)); it becomes a file name of ours too.
NAME_FORM = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
# UnitFileState words for which there is nothing left to enable: by its own links, by another unit, or never.
ENABLED_WORDS = ("enabled", "static", "alias", "indirect", "generated", "transient")
MASKED_WORDS = ("masked", "masked-runtime")
# Where a unit is masked, the first that has its name counts (systemd.unit(5)).
MASK_FOLDERS = ("/etc/systemd/system", "/run/systemd/system")
# How often a unit that is on its way is looked at, seconds.
LOOK_S = 0.2
# Type=simple counts as started before its program has done anything: it must still run this much later, seconds.
SETTLE_S = 0.5
# `systemctl show` reads what PID 1 holds in memory; a manager that needs this long hangs, seconds.
SHOW_TIMEOUT_S = 10.0


class UnitState(NamedTuple):
    """One unit as systemd has it. Words are systemd's own."""

    name: str  # as asked for
    id: str  # its real name: another one when asked by an alias
    load: str  # loaded, not-found, masked, error, bad-setting
    active: str  # active, inactive, failed, activating, deactivating, reloading
    sub: str
    file_state: str  # enabled, disabled, static, masked, ...; empty when there is no unit file
    type: str
    remains: bool
    condition_failed: bool  # the last start was skipped because of a Condition
    result: str
    ran: bool  # its program has been started and has ended since boot
    stale: bool  # its file is newer than what the manager has loaded

    @property
    def exists(self) -> bool:
        """False when systemd knows no file for it. A masked name counts as existing."""
        return self.load != "not-found"

    @property
    def masked(self) -> bool:
        return self.load == "masked" or self.file_state in MASKED_WORDS

    @property
    def enabled(self) -> bool:
        return self.file_state in ENABLED_WORDS

    @property
    def skipped(self) -> bool:
        """Not running because its own condition was not met when it was last started."""
        return self.exists and self.active == "inactive" and self.condition_failed

    @property
    def up(self) -> bool:
        """Running; for a one-shot that does not remain: has done its work since boot."""
        if self.active in ("active", "reloading"):
            return True
        one_shot = self.type == "oneshot" and not self.remains
        return one_shot and self.active == "inactive" and self.ran and self.result == "success"


def full_name(name: str) -> str:
    """``chrony`` is ``chrony.service``; anything that cannot be a unit's name is InputError."""
    if not NAME_FORM.fullmatch(name) or name in (".", ".."):
        raise InputError(f"unit {name!r}", "not a unit name", "a name such as chrony.service", "correct the name")
    return name if name.endswith(SUFFIXES) else name + ".service"


def masked_on_disk(name: str, root: str = "/") -> bool:
    """Whether a unit's file says that it is masked: a link to nothing, or an empty file.

    Made by hand, without a daemon-reload, systemd takes no notice of it until the next boot: what ``systemctl show``
    tells is what PID 1 remembers, NeedDaemonReload included.
    """
    for folder in MASK_FOLDERS:
        path = os.path.join(root, folder.lstrip("/"), name)
        if os.path.lexists(path):
            return os.path.realpath(path) == os.devnull or (os.path.isfile(path) and os.path.getsize(path) == 0)
    return False


def show_units(names: Sequence[str], runner: Runner = run) -> dict[str, UnitState]:
    """Every named unit in one call; a unit that does not exist is an answer, not an error."""
    if not names:
        return {}
    wanted = [full_name(name) for name in names]
    argv = ["systemctl", "show", "--property=" + ",".join(PROPERTIES), "--", *wanted]
    done = runner(argv, SHOW_TIMEOUT_S)
    if done.rc != 0:
        raise ToolError(
            "systemctl show", done.said, "the state of " + ", ".join(wanted),
            "this host needs a running systemd (PID 1); check with: systemctl is-system-running",
        )  # fmt: skip
    blocks = [_properties(block) for block in done.out.strip().split("\n\n")]
    if len(blocks) != len(wanted):
        raise ToolError("systemctl show", f"{len(blocks)} answers", f"{len(wanted)}", "run it by hand")
    return {name: _state(full, block) for name, full, block in zip(names, wanted, blocks)}


def _properties(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


def _state(name: str, properties: dict[str, str]) -> UnitState:
    def value(key: str) -> str:
        return properties.get(key, "")

    def happened(key: str) -> bool:
        return value(key) not in ("", "0")

    if not value("LoadState"):
        raise ToolError("systemctl show " + name, "no LoadState", "the unit's properties", "run it by hand")
    return UnitState(
        name=name,
        id=value("Id") or name,
        load=value("LoadState"),
        active=value("ActiveState"),
        sub=value("SubState"),
        file_state="masked" if masked_on_disk(value("Id") or name) else value("UnitFileState"),
        type=value("Type"),
        remains=value("RemainAfterExit") == "yes",
        # ConditionResult is also "no" before the first start; only a timestamp says that it was asked.
        condition_failed=value("ConditionResult") == "no" and happened("ConditionTimestampMonotonic"),
        result=value("Result"),
        ran=happened("ExecMainStartTimestampMonotonic") and happened("ExecMainExitTimestampMonotonic"),
        stale=value("NeedDaemonReload") == "yes",
    )


def failed_condition(name: str, runner: Runner = run) -> str:
    """Which condition was not met, as in ``ConditionCapability=CAP_SYS_TIME was not met``.

    Only the text of ``systemctl status`` tells; where it does not, the answer stays general.
    """
    done = runner(["systemctl", "status", "--no-pager", "--full", "--lines=0", "--", full_name(name)], SHOW_TIMEOUT_S)
    met = [match.group(1) for match in re.finditer(r"(Condition\S+.* was not met)", done.out)]
    return "; ".join(met) if met else "one of its start conditions was not met"


def why_down(name: str, runner: Runner = run) -> str:
    """The last words of a unit that does not run, for an error message."""
    done = runner(["systemctl", "status", "--no-pager", "--full", "--lines=5", "--", full_name(name)], SHOW_TIMEOUT_S)
    return done.said


def settle(names: Sequence[str], timeout_s: float, runner: Runner = run) -> dict[str, UnitState]:
    """The units' states once none is on its way any more, at most ``timeout_s`` seconds from now."""
    give_up = time.monotonic() + timeout_s
    seen = show_units(names, runner)
    if any(unit.type in ("simple", "exec", "idle") for unit in seen.values()):
        time.sleep(SETTLE_S)
        seen = show_units(names, runner)
    while _moving(list(seen.values())) and time.monotonic() < give_up:
        time.sleep(LOOK_S)
        seen = show_units(names, runner)
    return seen


def _moving(states: list[UnitState]) -> bool:
    """True when a unit is between two states; waiting to be restarted by systemd counts as failed, not as moving."""
    return any(unit.active in ("activating", "deactivating") and unit.sub != "auto-restart" for unit in states)


def first_word(state: UnitState | None) -> str:
    """``missing``, ``running`` or ``stopped``, on every release."""
    if state is None or not state.exists:
        return "missing"
    return "running" if state.up else "stopped"
