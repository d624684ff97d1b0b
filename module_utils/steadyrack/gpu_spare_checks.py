# SPDX-License-Identifier: BSD-2-Clause
"""Roles of GPUs as rows: who is active and who stands by, whether they are kept so, and what the kernel log says."""

from __future__ import annotations

from typing import Any, Dict

from . import files, gpu_allow, gpu_roles, gpu_spare, gpu_xid, verdict
from .gpu_policy import CLOSED, Wish, label
from .gpu_spare import ACTIVE, DRAINING, FAILED, SPARE, UNACCEPTED

Record = Dict[str, Any]
Row = Dict[str, Any]

_RETURN = "after repair or replacement: `steadyrack spare return {}`"
_FORGET = "if it has left the host for good: `steadyrack spare forget {}`"
_MODE_HINTS = {
    "open": "another writer opened it: look for nvidia-smi -c in units, cron and job scripts",
    "closed": "another writer closed it: look for nvidia-smi -c in units, cron and job scripts",
}


# --- compute mode ------------------------------------------------------------------------------


def mode_row(gpu: Record, wish: Wish, failure: str | None) -> Row:
    """Whether a GPU is open or closed to jobs, as its role wants."""
    subject = str(gpu["uuid"] or gpu["bus_id"] or "unnamed GPU")
    seen = gpu["compute_mode"]
    if seen is None:
        error = gpu["errors"].get("compute_mode") or {}
        judged, state, reason = verdict.UNKNOWN, "unknown", "not read: compute_mode: {}".format(error.get("name"))
    elif seen == wish.compute_mode:
        judged, state, reason = verdict.PASS, "ok", None
    else:
        state = "open" if wish.compute_mode == "prohibited" else "closed" if seen == "prohibited" else "drift"
        judged, reason = verdict.FAIL, failure or f"{label(gpu)} is in mode {seen}, wanted {wish.compute_mode}"
    return verdict.check_row(
        "gpu.compute_mode", subject, judged, state, expected=wish.compute_mode, measured=seen, source="nvml",
        reason=reason, hint=_MODE_HINTS.get(state),
    )  # fmt: skip


# --- roles -------------------------------------------------------------------------------------


def rows(roles: gpu_roles.Roles, node: Record) -> list[Row]:
    """Roles of all GPUs, how many are active, the list for jobs, and the kernel log."""
    if roles.state is None:
        reason = roles.trouble or "the agent has not given any yet"
        hint = "steadyrack gpu apply; journalctl -u steadyrack-gpu-verify"
        return [
            verdict.check_row(
                "gpu.spare", roles.host, verdict.UNKNOWN, "unknown", source="agent", reason=reason, hint=hint
            )
        ]
    gpus = gpu_roles.by_uuid(node)
    found = [role_row(uuid, one, gpus.get(uuid)) for uuid, one in by_slot(roles.state)]
    return [*found, active_row(roles), list_row(roles, node), *xid_rows(roles)]


def by_slot(state: gpu_spare.State) -> list[tuple[str, Record]]:
    """UUID and entry of every GPU that has a role."""
    return sorted(state["gpus"].items(), key=lambda pair: str(pair[1]["bus_id"]))


def role_row(uuid: str, one: Record, gpu: Record | None) -> Row:
    """One GPU's role. A failed one fails until a person returns it; a closed one that still computes is a warning."""
    role, judged, severity, hint = one["role"], verdict.PASS, None, None
    reason = f"{one['bus_id']}: {one['reason']}" if one["reason"] else None
    if role in (FAILED, UNACCEPTED):
        judged, hint = verdict.FAIL, (_FORGET if gpu is None else _RETURN).format(uuid)
        severity = verdict.CRITICAL if role == FAILED else verdict.WARNING
    elif role == DRAINING:
        severity, hint = verdict.WARNING, "it becomes the spare when its job has ended; end it, or wait"
    busy = None if gpu is None else gpu["processes"]
    if role in CLOSED and busy:
        reason = (f"{reason}; " if reason else "") + f"{busy} processes from before run on: closing ends none"
        severity = severity or verdict.WARNING
        hint = hint or "nvidia-smi --query-compute-apps=pid,gpu_uuid --format=csv names them; end them"
    return verdict.check_row(
        "gpu.spare", uuid, judged, role, severity=severity, measured=busy, unit="processes", source="agent, nvml",
        reason=reason, hint=hint,
    )  # fmt: skip


def active_row(roles: gpu_roles.Roles) -> Row:
    """How many GPUs are active, and how many may be."""
    state = roles.state or gpu_spare.empty()
    may = gpu_spare.allowed(roles.spares, roles.policy.gpu_count, gpu_spare.known(state))
    now = len(gpu_spare.of_role(state, ACTIVE))
    ready = len(gpu_spare.of_role(state, SPARE))
    judged, word, hint = verdict.PASS, "ok", None
    severity = None
    if now > may:
        judged, word = verdict.FAIL, "above"
    elif now < may:
        judged, word, hint = verdict.FAIL, "short", "replace the failed GPU; no spare is left"
    elif ready < roles.spares.count:
        word, severity, hint = "no_spare", verdict.WARNING, "replace the failed GPU: the next failure leaves a gap"
    return verdict.check_row(
        "gpu.active", roles.host, judged, word, severity=severity, expected=may, measured=now, unit="GPUs",
        source="agent", reason=f"{now} of {may} GPUs active, {ready} of {roles.spares.count} spares ready", hint=hint,
    )  # fmt: skip


def list_row(roles: gpu_roles.Roles, node: Record) -> Row:
    """Whether jobs are given exactly the active GPUs, in every place."""
    state = roles.state or gpu_spare.empty()
    active = gpu_spare.of_role(state, ACTIVE)
    listed = gpu_allow.read(roles.root)
    extra = [uuid for uuid in listed or [] if uuid not in active]
    missing = [uuid for uuid in active if uuid not in (listed or [])]
    text = files.read_text(roles.root.rstrip("/") + gpu_allow.ENVIRONMENT_PATH) or ""
    others = gpu_allow.others(text) if roles.spares.environment else []
    judged, word, reason, severity = verdict.PASS, "ok", None, None
    if listed is None:
        judged, word, reason = verdict.FAIL, "missing", f"{gpu_allow.LIST_PATH} is not there: jobs are told nothing"
    elif extra:
        judged, word, reason = verdict.FAIL, "extra", f"jobs are given {', '.join(extra)}"
    elif missing:
        judged, word, reason = verdict.FAIL, "short", f"jobs are not given {', '.join(missing)}"
    elif node["state"] == "ok" and roles.wanted_files(node):
        judged, word, reason = verdict.FAIL, "drift", "edited: " + ", ".join(roles.wanted_files(node))
    elif others:
        severity, word = verdict.WARNING, "overridden"
        reason = f"{gpu_allow.ENVIRONMENT_PATH} also has {'; '.join(others)}: ours, which comes later, counts"
    return verdict.check_row(
        "gpu.allow_list", roles.host, judged, word, severity=severity, expected=len(active),
        measured=None if listed is None else len(listed), unit="GPUs", source="agent", reason=reason,
        hint=None if judged == verdict.PASS else "steadyrack gpu apply",
    )  # fmt: skip


# --- the kernel log ----------------------------------------------------------------------------


def xid_rows(roles: gpu_roles.Roles) -> list[Row]:
    """The worst that the kernel said of each GPU since it was last returned to service."""
    if roles.log_trouble is not None:
        return [
            verdict.check_row(
                "gpu.xid", roles.host, verdict.UNKNOWN, "unreadable", source="journal", reason=roles.log_trouble,
                hint="without the kernel log an Xid takes effect only where NVML tells of it; journalctl -b",
            )
        ]  # fmt: skip
    state = roles.state or gpu_spare.empty()
    return [_xid_row(uuid, one) for uuid, one in by_slot(state)]


def _xid_row(uuid: str, one: Record) -> Row:
    order = (*gpu_xid.TAKES_OVER, gpu_xid.CHECK, gpu_xid.UNKNOWN, gpu_xid.APP, gpu_xid.IGNORE)
    worst = min(one["xids"], key=lambda xid: order.index(xid["action"]), default=None)
    if worst is None:
        return verdict.check_row("gpu.xid", uuid, verdict.PASS, "none", source="journal")
    judged = verdict.FAIL if worst["action"] in gpu_xid.TAKES_OVER else verdict.PASS
    severity = verdict.WARNING if worst["action"] in (gpu_xid.CHECK, gpu_xid.UNKNOWN) else None
    hints = {
        gpu_xid.RESET: _RETURN.format(uuid), gpu_xid.REBOOT: _RETURN.format(uuid),
        gpu_xid.CHECK: "look at power cables and NVLink bridge; docs.nvidia.com/deploy/xid-errors",
        gpu_xid.UNKNOWN: "look it up at docs.nvidia.com/deploy/xid-errors, then set gpu_policy_xid_actions",
    }  # fmt: skip
    said = "fell off the bus" if worst["code"] is None else f"Xid {worst['code']}"
    return verdict.check_row(
        "gpu.xid", uuid, judged, worst["action"], severity=severity, measured=worst["code"], source="journal",
        at=worst["at"], reason=f"{one['bus_id']}: {said}: {worst['text']}", hint=hints.get(worst["action"]),
    )  # fmt: skip
