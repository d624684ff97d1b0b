# SPDX-License-Identifier: BSD-2-Clause
"""One service as data: its packages, directories, files and units, compared and put right in one pass.

The order makes an interruption harmless. Everything is compared first; every new file is shown to its
validator before any file is replaced; a marker "this unit still has to be restarted" is on disk before
the first file changes and goes away only after the restart is seen to have worked. Whoever runs next
finds the marker and finishes the job, even though every file is then already right.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from typing import Any, Iterator, Sequence

from . import service_report, units
from .errors import AccessError, InputError, NotAppliedError, StateFileError, ToolError
from .files import atomic_write, group_id, owner_id
from .run import run
from .service_plan import (
    PENDING_DIRECTORY,
    FilePlan,
    Plan,
    Runner,
    UnitPlan,
    clear_pending,
    compare,
    expected_verbs,
    mark_pending,
    plan_directory,
    plan_file,
)
from .service_report import redacted
from .service_wish import STOPPED, UnitWish, wishes
from .units import UnitState

__all__ = ["PENDING_DIRECTORY", "apply", "redacted"]

# A validator parses one file; a reload command asks a running daemon. Both answer at once or hang, seconds.
VALIDATE_TIMEOUT_S = 20.0
UNIT_TIMEOUT_S = 90.0


def apply(
    params: dict[str, Any],
    check_mode: bool = False,
    pending_directory: str = PENDING_DIRECTORY,
    runner: Runner = run,
    timeout_s: float = UNIT_TIMEOUT_S,
) -> dict[str, Any]:
    """Compare and, unless in check mode, put right. The result is what the module returns."""
    wish = wishes(params)
    plan = compare(wish, check_mode, pending_directory, runner)
    result: dict[str, Any] = {
        "changed": False,
        "diff": [],
        "packages_missing": plan.packages_missing,
        "content_needed": plan.content_needed,
        "actions": [],
        "not_validated": [],
        "units": [],
        "checks": [],
    }
    if plan.content_needed or (plan.packages_missing and not check_mode):
        return result  # the caller's turn; nothing has been changed
    done = plan.units
    after = {entry.wish.name: entry.seen for entry in plan.units}
    if not check_mode and (plan.changes or plan.owed or any(entry.verbs for entry in plan.units)):
        result["not_validated"] = _carry_out(plan, pending_directory, runner)
        done, after = _units_to_wish(plan, pending_directory, runner, timeout_s)
    result["diff"] = service_report.diff(plan, done)
    result["actions"] = service_report.actions(plan, done)
    result["changed"] = bool(result["actions"])
    result["units"] = [service_report.unit_report(after[entry.wish.name], expected_verbs(entry)) for entry in done]
    result["checks"] = service_report.unit_rows(done, after, check_mode, runner)
    return result


def _carry_out(plan: Plan, pending_directory: str, runner: Runner) -> list[str]:
    """Directories, markers, files, in this order; returns the paths whose validator is not installed."""
    for entry in plan.directories:
        _make_directory(entry)
    not_validated = [entry.wish.path for entry in plan.files if not _valid(entry, runner)]
    because = [entry.wish.path for entry in plan.files]
    for unit, action in plan.owed.items():
        mark_pending(unit, action, because, pending_directory)
    for entry in plan.files:
        _put_file(entry)
    return not_validated


def _make_directory(plan: FilePlan) -> None:
    path, wish = plan.wish.path, plan.wish
    with _explained(path):
        if plan.seen.kind == "absent":
            os.makedirs(path, mode=0o755, exist_ok=True)
        os.chown(path, owner_id(wish.owner), group_id(wish.group))
        os.chmod(path, wish.mode)
    left = plan_directory(wish)
    if left:
        raise NotAppliedError(path, "still differs in " + ", ".join(left.what), "as set", "look at its file system")


def _put_file(plan: FilePlan) -> None:
    """Write, correct or remove one file, and read it back."""
    path, wish, seen = plan.wish.path, plan.wish, plan.seen
    with _explained(path):
        if wish.absent:
            os.unlink(path)
        elif set(plan.what) & {"content", "new"}:
            # An owner that nobody asked for stays what it was.
            owner = wish.owner if wish.owner is not None or seen.kind != "file" else str(seen.uid)
            group = wish.group if wish.group is not None or seen.kind != "file" else str(seen.gid)
            atomic_write(path, wish.content, wish.mode, owner, group)
        else:
            os.chown(path, owner_id(wish.owner), group_id(wish.group))
            os.chmod(path, wish.mode)
    left = plan_file(wish)
    if left:
        raise NotAppliedError(path, "still differs in " + ", ".join(left.what), "as written", "who else writes it?")


def _valid(plan: FilePlan, runner: Runner) -> bool:
    """Show the new content to its validator, in a hidden file beside the old one: there a confined daemon may read.

    False when the validator is not installed; a refusal is an error and nothing has been replaced.
    """
    wish = plan.wish
    if wish.absent or wish.validate is None or not set(plan.what) & {"content", "new"}:
        return True
    directory = os.path.dirname(wish.path)
    with _explained(wish.path):
        descriptor, temporary = tempfile.mkstemp(
            dir=directory, prefix=f".{os.path.basename(wish.path)}.", suffix=".tmp"
        )
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(wish.content)
        argv = [word.replace("%s", temporary) for word in shlex.split(wish.validate)]
        done = runner(argv, VALIDATE_TIMEOUT_S)
    finally:
        os.unlink(temporary)
    if done.missing:
        return False
    if done.rc != 0:
        said = "(hidden)" if wish.secret else done.said.replace(temporary, wish.path)
        raise InputError(
            wish.path,
            f"refused by {argv[0]}: {said}",
            "a file it accepts",
            "correct the role's inputs; no file was replaced",
        )
    return True


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Plain OSErrors as ours."""
    try:
        yield
    except PermissionError as error:
        raise AccessError(path, error.strerror, "writable", "run it as root") from None
    except OSError as error:
        raise StateFileError(path, error.strerror, "a written file", "look at the disk (full? read-only?)") from error


def _units_to_wish(
    plan: Plan, pending_directory: str, runner: Runner, timeout_s: float
) -> tuple[list[UnitPlan], dict[str, UnitState]]:
    """Carry out the verbs, wait until the units stand, and read them back."""
    names = [entry.wish.name for entry in plan.units]
    if not names and not plan.daemon_reload:
        return [], {}
    if plan.daemon_reload:
        _systemctl(["daemon-reload"], [], runner, timeout_s)
    for verb in ("unmask", "stop", "disable", "mask", "enable"):
        # By the real name: systemd refuses to mask an alias.
        chosen = [
            entry.seen.id if entry.seen.exists else entry.wish.name for entry in plan.units if verb in entry.verbs
        ]
        if chosen:
            _systemctl([verb], sorted(set(chosen)), runner, timeout_s)
    for entry in plan.units:
        for verb in entry.verbs:
            if verb in ("start", "restart"):
                _systemctl([verb], [entry.wish.name], runner, timeout_s)
            elif verb == "reload":
                _reload(entry.wish, runner)
    acted = any(entry.verbs for entry in plan.units) or plan.daemon_reload
    after = units.settle(names, timeout_s, runner) if acted else {entry.wish.name: entry.seen for entry in plan.units}
    done = []
    for entry in plan.units:
        state = after[entry.wish.name]
        _read_back(entry.wish, state, runner)
        if entry.wish.started:
            clear_pending(entry.wish.name, pending_directory)
        done.append(_what_came_of(entry, state))
    return done, after


def _what_came_of(plan: UnitPlan, after: UnitState) -> UnitPlan:
    """A start that the unit's own condition swallowed has changed nothing, whatever systemd answered."""
    if after.skipped:
        return plan._replace(verbs=tuple(verb for verb in plan.verbs if verb not in ("start", "restart")))
    return plan._replace(seen=plan.seen._replace(condition_failed=False))


def _systemctl(verb: Sequence[str], names: Sequence[str], runner: Runner, timeout_s: float) -> None:
    argv = ["systemctl", *verb, *(["--", *names] if names else [])]
    done = runner(argv, timeout_s)
    if done.rc != 0:
        last = "; ".join(units.why_down(name, runner) for name in names) if verb[0] in ("start", "restart") else ""
        raise ToolError(
            " ".join(argv), f"exit status {done.rc}: {done.said}" + (f" [{last}]" if last else ""), "success",
            "journalctl -b -u " + " -u ".join(names) if names else "systemctl --failed",
        )  # fmt: skip


def _reload(wish: UnitWish, runner: Runner) -> None:
    done = runner(list(wish.reload_command), VALIDATE_TIMEOUT_S)
    if done.rc != 0:
        raise ToolError(
            " ".join(wish.reload_command),
            f"exit status {done.rc}: {done.said}",
            "success",
            f"systemctl status {wish.name}",
        )


def _read_back(wish: UnitWish, state: UnitState, runner: Runner) -> None:
    """What systemd says now, against the wish."""
    look = f"systemctl status {wish.name}; journalctl -b -u {wish.name}"
    if wish.started and not state.up and not state.skipped:
        seen = f"{state.active} ({state.sub}): {units.why_down(wish.name, runner)}"
        raise NotAppliedError(f"unit {wish.name}", seen, "active", look)
    if wish.state == STOPPED and state.active not in ("inactive", "failed"):
        raise NotAppliedError(f"unit {wish.name}", state.active, "stopped", look)
    if wish.masked and state.exists and not state.masked:
        raise NotAppliedError(f"unit {wish.name}", state.file_state or state.load, "masked", look)
    if wish.enabled and not state.enabled:
        raise NotAppliedError(f"unit {wish.name}", state.file_state or state.load, "enabled", look)
