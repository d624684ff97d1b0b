# SPDX-License-Identifier: BSD-2-Clause
"""What a pass over a service tells: actions, diffs, units and rows. No file's secret content gets past here."""

from __future__ import annotations

import os
from typing import Any, Sequence

from . import units, verdict
from .service_plan import FilePlan, Plan, Runner, Seen, UnitPlan, expected_verbs
from .service_wish import DirectoryWish
from .units import UnitState


def unit_report(state: UnitState, verbs: Sequence[str]) -> dict[str, Any]:
    """One unit as the module returns it."""
    return {
        "name": state.name if state.name.endswith(units.SUFFIXES) else units.full_name(state.name),
        "exists": state.exists,
        "state": units.first_word(state),
        "active": state.active,
        "sub": state.sub,
        "file_state": state.file_state,
        "skipped_by_condition": state.skipped,
        "actions": list(verbs),
    }


def unit_rows(
    plans: Sequence[UnitPlan], after: dict[str, UnitState], check_mode: bool, runner: Runner
) -> list[dict[str, Any]]:
    """One row service.unit for each unit that is to run."""
    rows = []
    for plan in plans:
        if plan.wish.started:
            rows.append(_unit_row(plan, after[plan.wish.name], check_mode, runner))
    return rows


def _unit_row(plan: UnitPlan, state: UnitState, check_mode: bool, runner: Runner) -> dict[str, Any]:
    row = {
        "expected": "running",
        "measured": units.first_word(state),
        "source": "systemctl show",
        "state": state.active,
    }
    if state.skipped:
        reason = units.failed_condition(plan.wish.name, runner)
        return verdict.check_row("service.unit", plan.wish.name, verdict.NOT_JUDGED, reason=reason, **row)
    if state.up:
        return verdict.check_row("service.unit", plan.wish.name, verdict.PASS, **row)
    reason = "check mode: it would be started" if check_mode else "it does not run"
    return verdict.check_row(
        "service.unit", plan.wish.name, verdict.FAIL, reason=reason, hint=f"systemctl status {plan.wish.name}", **row
    )


def actions(plan: Plan, done: Sequence[UnitPlan]) -> list[str]:
    """What was (check mode: would be) changed, one line each."""
    lines = [f"install package {name}" for name in plan.packages_missing]
    lines += [f"directory {entry.wish.path}: {', '.join(entry.what)}" for entry in plan.directories]
    lines += [f"file {entry.wish.path}: {', '.join(entry.what)}" for entry in plan.files]
    lines += ["systemctl daemon-reload"] if plan.daemon_reload else []
    for entry in done:
        lines += [f"{verb} {entry.wish.name}" for verb in expected_verbs(entry)]
    return lines


def diff(plan: Plan, done: Sequence[UnitPlan]) -> list[dict[str, str]]:
    """One before/after for each thing that differs, in the form that Ansible prints."""
    diffs = []
    if plan.packages_missing:
        listed = "".join(f"{name}\n" for name in plan.packages_missing)
        diffs.append(_entry("packages", "packages", "", listed))
    diffs += [_path_diff(entry, "/") for entry in plan.directories]
    diffs += [_path_diff(entry, "") for entry in plan.files]
    for entry in done:
        verbs = expected_verbs(entry)
        if verbs:
            before = f"{entry.seen.load}, {entry.seen.active}, {entry.seen.file_state or 'no unit file'}\n"
            diffs.append(_entry(f"unit {entry.wish.name}", f"unit {entry.wish.name}", before, f"{', '.join(verbs)}\n"))
    return diffs


def _path_diff(plan: FilePlan, slash: str) -> dict[str, str]:
    path = plan.wish.path + slash
    before, after = f"{path} ({_describe(plan.seen)})", f"{path} ({_describe_wish(plan)})"
    if slash or not set(plan.what) & {"content", "new", "absent"}:
        # Only kind, mode or owner: the text is the description itself.
        return _entry(path, path, _describe(plan.seen) + "\n", _describe_wish(plan) + "\n")
    new = None if plan.wish.absent else plan.wish.content
    if plan.wish.secret:
        return _entry(before, after, _hidden("old", plan.seen.content), _hidden("new", new))
    return _entry(before, after, _shown(plan.seen.content), _shown(new))


def _entry(before_header: str, after_header: str, before: str, after: str) -> dict[str, str]:
    return {"before_header": before_header, "after_header": after_header, "before": before, "after": after}


def _describe(seen: Seen) -> str:
    return "absent" if seen.kind == "absent" else f"{seen.kind}, mode {seen.mode:04o}, owner {seen.uid}:{seen.gid}"


def _describe_wish(plan: FilePlan) -> str:
    wish, seen = plan.wish, plan.seen
    if getattr(wish, "absent", False):
        return "absent"
    kind = "directory" if isinstance(wish, DirectoryWish) else "file"
    if seen.kind == "absent" and wish.owner is None and wish.group is None:
        return f"{kind}, mode {wish.mode:04o}"
    # Whom nobody named stays the owner; of a new file that is whoever writes it.
    user, group = (seen.uid, seen.gid) if seen.kind != "absent" else (os.geteuid(), os.getegid())
    owner = user if wish.owner is None else wish.owner
    return f"{kind}, mode {wish.mode:04o}, owner {owner}:{group if wish.group is None else wish.group}"


def _shown(content: bytes | None) -> str:
    """Text for a diff; of binary content only the size."""
    if content is None:
        return ""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return f"(binary, {len(content)} bytes)\n"


def _hidden(which: str, content: bytes | None) -> str:
    """That there is a content, and its size. No digest: that of a short secret tells it."""
    return "" if content is None else f"({which} content hidden, {len(content)} bytes)\n"


def redacted(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters without any file's content: what may be repeated in a result or a log.

    They may not have been validated yet, so whatever is not of the expected shape is left out whole.
    """
    files = params.get("files")
    return {**params, "files": [_redacted_file(entry) for entry in files] if isinstance(files, list) else "(left out)"}


def _redacted_file(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return "(left out)"
    return {key: "(left out)" if key == "content" and value is not None else value for key, value in entry.items()}
