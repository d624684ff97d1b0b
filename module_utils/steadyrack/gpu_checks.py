# SPDX-License-Identifier: BSD-2-Clause
"""The GPUs' part of the node's checks: count, caps, persistence, MIG and link width as rows, then their health.

Three witnesses for the count: the policy, the PCI bus and NVML. What one of them cannot tell is
unknown; where they disagree the row says so.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, Mapping, NamedTuple, Sequence

from . import (
    gpu_baseline,
    gpu_health,
    gpu_mig,
    gpu_policy,
    gpu_roles,
    gpu_spare_checks,
    gpu_writers,
    nvml,
    pcie,
    verdict,
)
from .errors import StateFileError
from .gpu_baseline import Baseline
from .gpu_health import subject
from .gpu_policy import Policy, Wish

Record = Dict[str, Any]
Row = Dict[str, Any]

# NVML answered, and its answer is that no GPU can be used.
_NO_USE = ("no_library", "no_driver", "driver_mismatch", "no_devices", "timeout")

_CAP_HINTS = {
    "drift": "another writer set it: look for nvidia-smi -pl in units, cron and job scripts",
    "lost_state": "the cap went with a reboot or driver reload: is steadyrack-gpu.service enabled and persistence on?",
    "capped_elsewhere": "the BMC or the VBIOS caps lower: look at the BMC's power and thermal policy",
    "not_applied": "the driver accepted the cap and did not apply it: look at the kernel log, then reset the GPU",
    "missing": "no GPU here has that name: look at the slot, or correct the inventory after a swap",
}
_GPU_HINTS = gpu_health.STATE_HINTS


def checks(root: str = "/") -> list[Row]:
    """The rows of this host's GPUs. Never raises for the policy: one that cannot be used is a row ``unknown``."""
    host = socket.gethostname()
    try:
        policy = gpu_policy.load(os.path.join(root, gpu_policy.POLICY_PATH.lstrip("/")))
    except StateFileError as error:
        return [
            verdict.check_row(
                "gpu.power_cap", host, verdict.UNKNOWN, "unknown", source="policy",
                reason=error.sentence(), hint=error.next_step,
            )
        ]  # fmt: skip
    pci = pcie.read_gpus(root)
    node = nvml.read_node(root, [device["bus_id"] for device in pci])
    known = Found(
        roles=roles_of(policy, root, host),
        baseline=gpu_baseline.keep(root, node["gpus"]),
        nvme=tuple(pcie.read_nvme(root)),
    )
    return [*rows(policy, node, pci, host, known), gpu_writers.row(root, host)]


class Found(NamedTuple):
    """What a pass knows beside its reading."""

    failures: Mapping[str, str] = {}
    """What a setter just answered, by UUID."""
    roles: gpu_roles.Roles | None = None
    """None: the policy keeps no roles."""
    baseline: Baseline | None = None
    """What counters are held against; None: rises are not judged."""
    nvme: Sequence[Record] = ()


def roles_of(policy: Policy | None, root: str, host: str) -> gpu_roles.Roles | None:
    """The roles as they were written down; StateFileError for those of a newer agent."""
    return None if policy is None or policy.spares is None else gpu_roles.Roles(policy, root, host)


def rows(
    policy: Policy | None, node: Record, pci: Sequence[Record], host: str, known: Found | None = None
) -> list[Row]:
    """Every row about GPUs, and about the NVMe controllers given, from one reading."""
    wanted, known = policy or Policy(), known or Found()
    found = setting_rows(wanted, node, pci, host, known)
    return found + _excused(wanted, node["gpus"], gpu_health.rows(wanted, node, pci, known.baseline, known.nvme))


def setting_rows(
    policy: Policy | None, node: Record, pci: Sequence[Record], host: str, known: Found | None = None
) -> list[Row]:
    """The rows about what the policy sets or counts."""
    wanted, known = policy or Policy(), known or Found()
    found = [count_row(wanted, node, pci, host, known.baseline)]
    for gpu in node["gpus"]:
        wish = gpu_policy.resolve(wanted, gpu, None if known.roles is None else known.roles.role(gpu))
        failure = known.failures.get(gpu["uuid"] or "")
        found.append(cap_row(gpu, wish, failure))
        found.append(persistence_row(gpu, wish))
        if gpu["state"] == "ok" or wish.mig is not None:
            found.append(gpu_mig.row(gpu, wish))
        # A card that does not answer is said once, with its cap.
        if wish.compute_mode is not None and gpu["state"] == "ok":
            found.append(gpu_spare_checks.mode_row(gpu, wish, failure))
    if known.roles is not None:
        found.extend(gpu_spare_checks.rows(known.roles, node))
    if node["state"] == "ok":
        missing = gpu_policy.unmatched(wanted, node["gpus"])
        found.extend(_missing_row(rule) for rule in missing if rule.mig is None)
        found.extend(gpu_mig.missing_row(rule) for rule in missing if rule.mig)
    else:
        found.extend(_unread_row(node, device) for device in pci if wanted.power_cap)
        found.extend(gpu_mig.unread_row(node, device) for device in pci if wanted.mig)
    found.extend(width_row(wanted, node["gpus"], device) for device in pci)
    return _excused(wanted, node["gpus"], found)


def _excused(policy: Policy, gpus: Sequence[Record], found: Sequence[Row]) -> list[Row]:
    """The rows, those of a card known to be missing not judged: gpu.count tells of it, and until when (C48)."""
    holding = {entry.bus_id: entry for entry in policy.known_missing if entry.holds()}
    names = {slot: entry for slot, entry in holding.items() if not _answers(gpus, slot)}
    for gpu in gpus:
        if gpu["bus_id"] in names:
            names[subject(gpu)] = names[gpu["bus_id"]]
    return [
        dict(row, verdict=verdict.NOT_JUDGED, state="known_missing", severity=verdict.INFO,
             reason=str(names[row["subject"]]), hint=None)
        if row["subject"] in names and row["verdict"] in (verdict.UNKNOWN, verdict.FAIL) else row
        for row in found
    ]  # fmt: skip


def _answers(gpus: Sequence[Record], slot: str) -> bool:
    """Whether NVML has a well GPU in that slot."""
    return any(gpu["bus_id"] == slot and gpu["state"] == "ok" for gpu in gpus)


# --- how many ----------------------------------------------------------------------------------


def count_row(policy: Policy, node: Record, pci: Sequence[Record], host: str, baseline: Baseline | None = None) -> Row:
    """Declared, on the bus and answering NVML: all three must agree."""
    fallen = [device["bus_id"] for device in pci if device["on_bus"] is False]
    there = len(pci) - len(fallen)
    answering = None if node["state"] not in ("ok", "no_devices") else sum(gpu["state"] == "ok" for gpu in node["gpus"])
    expected = policy.gpu_count if policy.gpu_count is not None else len(pci)
    state, judged = _count_state(node["state"], expected, there, answering)
    gone = {entry.bus_id for entry in policy.known_missing if entry.holds()}
    gone = {slot for slot in gone if not _answers(node["gpus"], slot)}
    if state in ("short", "disagree") and gone and _silent(node["gpus"], expected, baseline) <= gone:
        # With the cards that are known to be out left out of every count, nothing else may be missing.
        left = sum(device["on_bus"] is not False and device["bus_id"] not in gone for device in pci)
        if _count_state(node["state"], expected - len(gone), left, answering)[0] == "ok":
            state, judged = "known_missing", verdict.PASS
    seen = "declared {}, on the PCI bus {}, answering NVML {}".format(
        "nothing" if policy.gpu_count is None else policy.gpu_count,
        there,
        "unknown" if answering is None else answering,
    )
    troubles = [f"{address} fallen off the bus" for address in fallen] + _troubles(node)
    troubles += _declared_missing(policy, node["gpus"])
    return verdict.check_row(
        "gpu.count", host, judged, state, severity=verdict.WARNING if state == "known_missing" else None,
        expected=expected, measured=answering, unit="GPUs", source="policy, pci, nvml",
        reason="; ".join([seen, *troubles]), hint=None if judged == verdict.PASS else _count_hint(node, fallen),
    )  # fmt: skip


def _count_state(node_state: str, expected: int, there: int, answering: int | None) -> list[str]:
    """State and verdict of the count."""
    if expected == 0 and there == 0 and not answering:
        return ["none", verdict.NOT_JUDGED]
    if there < expected:
        return ["short", verdict.FAIL]
    if node_state in _NO_USE:
        return [node_state, verdict.FAIL]
    if answering is None:
        return [node_state, verdict.UNKNOWN]
    if answering < expected:
        return ["short", verdict.FAIL]
    if answering != there:
        return ["disagree", verdict.FAIL]
    return ["surplus", verdict.FAIL] if answering > expected else ["ok", verdict.PASS]


def _silent(gpus: Sequence[Record], expected: int, baseline: Baseline | None) -> set[str]:
    """The slots of cards that were seen before and do not answer now, where the host's slots are known at all.

    A card that is off the bus leaves no trace there: without its slot a wrong entry would excuse it.
    """
    slots = set() if baseline is None else baseline.slots()
    return {slot for slot in slots if not _answers(gpus, slot)} if len(slots) == expected else set()


def _declared_missing(policy: Policy, gpus: Sequence[Record]) -> list[str]:
    """What is declared missing, and where that is no longer true."""
    said = []
    for entry in policy.known_missing:
        if _answers(gpus, entry.bus_id):
            said.append(f"{entry}: a GPU answers there again, remove the entry")
        else:
            said.append(str(entry) if entry.holds() else f"{entry}: expired")
    return said


def _troubles(node: Record) -> list[str]:
    """What keeps NVML, or single GPUs, from answering."""
    if node["state"] != "ok":
        return [str(node["reason"])]
    sick = [gpu for gpu in node["gpus"] if gpu["state"] != "ok"]
    return ["{} {}".format(gpu_policy.label(gpu), gpu["state"]) for gpu in sick]


def _count_hint(node: Record, fallen: Sequence[str]) -> str:
    if node["state"] != "ok":
        return str(node["next_step"])
    if fallen:
        return _GPU_HINTS["lost"]
    sick = [gpu["state"] for gpu in node["gpus"] if gpu["state"] != "ok"]
    return _GPU_HINTS.get(sick[0] if sick else "", "compare `steadyrack status` with lspci and the inventory")


# --- power cap and persistence -----------------------------------------------------------------


def cap_row(gpu: Record, wish: Wish, failure: str | None = None) -> Row:
    """One GPU's cap against the policy; ``failure`` is what the setter answered a moment ago."""
    state = gpu_policy.cap_state(gpu, wish)
    if failure is not None and state not in ("ok", "capped_elsewhere"):
        return _cap_row(gpu, wish, "not_settable", verdict.FAIL, failure, None)
    if gpu["state"] != "ok":
        return _cap_row(gpu, wish, state, verdict.UNKNOWN, _gpu_reason(gpu), _GPU_HINTS.get(state))
    if state == "refused":
        return _cap_row(gpu, wish, state, verdict.FAIL, wish.problem, "correct the cap or the model in the inventory")
    if state == "not_declared":
        return _cap_row(gpu, wish, state, verdict.NOT_JUDGED, "no cap is declared for this GPU", None)
    if state == "not_settable":
        return _cap_row(gpu, wish, state, verdict.UNKNOWN, wish.obstacle, "give this card a rule it can follow")
    if state == "unknown":
        return _cap_row(gpu, wish, state, verdict.UNKNOWN, _unread(gpu, "power."), None)
    good = state in ("ok", "capped_elsewhere")
    return _cap_row(gpu, wish, state, verdict.PASS if good else verdict.FAIL, _limits(gpu, wish), _CAP_HINTS.get(state))


def _cap_row(gpu: Record, wish: Wish, state: str, judged: str, *why: str | None) -> Row:
    """``why``: reason and hint."""
    severity = verdict.WARNING if state == "capped_elsewhere" else None
    severity = verdict.CRITICAL if gpu["state"] != "ok" else severity
    return verdict.check_row(
        "gpu.power_cap", subject(gpu), judged, state, severity=severity,
        expected=None if wish.cap_mw is None else wish.cap_mw / 1000, measured=gpu["power"]["enforced_w"], unit="W",
        source="nvml", reason=why[0], hint=why[1],
    )  # fmt: skip


def _limits(gpu: Record, wish: Wish) -> str:
    """All limits in one line, since which of them differ is the finding."""
    power = gpu["power"]
    text = "requested {} W, enforced {} W, default {} W".format(
        *(_plain(power[key]) for key in ("requested_w", "enforced_w", "default_w"))
    )
    return text if wish.note is None else f"{text}; {wish.note}"


def persistence_row(gpu: Record, wish: Wish) -> Row:
    """Whether the driver keeps the GPU's state when its last user goes."""
    judged, state, reason, hint = _persistence_finding(gpu, wish)
    return verdict.check_row(
        "gpu.persistence", subject(gpu), judged, state,
        expected=wish.persistence, measured=gpu["persistence"], source="nvml", reason=reason, hint=hint,
    )  # fmt: skip


def _persistence_finding(gpu: Record, wish: Wish) -> list[Any]:
    """Verdict, state, reason and hint of persistence."""
    if gpu["state"] != "ok":
        return [verdict.UNKNOWN, gpu["state"], _gpu_reason(gpu), _GPU_HINTS.get(gpu["state"])]
    if wish.persistence is None:
        return [verdict.NOT_JUDGED, "not_declared", "no persistence mode is declared", None]
    if gpu["persistence"] is None:
        return [verdict.UNKNOWN, "unknown", _unread(gpu, "persistence"), None]
    if gpu["persistence"] == wish.persistence:
        return [verdict.PASS, "on" if gpu["persistence"] else "off", None, None]
    if wish.persistence:
        return [verdict.FAIL, "off", "power caps are lost when the last user of the GPU ends",
                "systemctl status nvidia-persistenced; its unit must not say --no-persistence-mode"]  # fmt: skip
    return [verdict.FAIL, "on", "persistence is declared off", "stop nvidia-persistenced, or declare it on"]


def _missing_row(rule: gpu_policy.Rule) -> Row:
    return verdict.check_row(
        "gpu.power_cap", rule.match.value, verdict.FAIL, "missing",
        expected=rule.cap_w, unit="W", source="nvml",
        reason=f"the policy caps {rule.match}, and no GPU answers to it", hint=_CAP_HINTS["missing"],
    )  # fmt: skip


def _unread_row(node: Record, device: Record) -> Row:
    return verdict.check_row(
        "gpu.power_cap", device["bus_id"], verdict.UNKNOWN, node["state"],
        unit="W", source="nvml", reason=node["reason"], hint=node["next_step"],
    )  # fmt: skip


# --- link --------------------------------------------------------------------------------------


def width_row(policy: Policy, gpus: Sequence[Record], device: Record) -> Row:
    """The link of one GPU on the bus; a fallen one has no link to judge."""
    gpu = next((gpu for gpu in gpus if gpu["bus_id"] == device["bus_id"]), None) or {"bus_id": device["bus_id"]}
    rule = gpu_policy.best_rule(policy.link_width, gpu)
    declared = rule.link_width if rule else None
    found = _width_finding(device, declared, (gpu.get("pcie") or {}).get("width"))
    return verdict.check_row(
        "pcie.width", device["bus_id"], found["verdict"], found["state"],
        expected=declared, measured=device["link"]["width"], unit="lanes", source="sysfs",
        reason=found["reason"], hint=found["hint"],
    )  # fmt: skip


def _width_finding(device: Record, declared: int | None, nvml_width: int | None) -> Record:
    link = device["link"]
    if device["on_bus"] is False:
        return {"verdict": verdict.UNKNOWN, "state": "lost", "reason": "the GPU has fallen off the bus",
                "hint": _GPU_HINTS["lost"]}  # fmt: skip
    if declared is None:
        return {"verdict": verdict.NOT_JUDGED, "state": "not_declared", "reason": "no link width is declared",
                "hint": None}  # fmt: skip
    found = pcie.judge_width(link, declared)
    at_card = link["hops"][0]["width"] if link["hops"] else None
    if found["verdict"] == verdict.PASS and None not in (at_card, nvml_width) and at_card != nvml_width:
        return {"verdict": verdict.FAIL, "state": "disagree",
                "reason": f"sysfs says x{at_card}, NVML says x{nvml_width}",
                "hint": "look with `lspci -vv` (LnkSta): one of the two witnesses is wrong"}  # fmt: skip
    return found


# --- words -------------------------------------------------------------------------------------


def _gpu_reason(gpu: Record) -> str:
    error = gpu["error"] or {}
    return "the GPU is {}: {} at {}".format(gpu["state"], error.get("name"), error.get("call"))


def _unread(gpu: Record, prefix: str) -> str:
    """Which fields below a prefix the driver did not give, with its own word for why."""
    missing = ["{}: {}".format(name, error["name"]) for name, error in gpu["errors"].items() if name.startswith(prefix)]
    return "not read: " + (", ".join(missing) or prefix.rstrip("."))


def _plain(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
