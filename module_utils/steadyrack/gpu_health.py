# SPDX-License-Identifier: BSD-2-Clause
"""Whether each card itself is well: memory, temperatures, what holds it back, InfoROM, what the driver asks for.

One row for each card and question, from one reading, and the links' rows from gpu_links. A card that does not answer
has one row, ``gpu.health``, with its state: everything else about it would only say so again. A value that the card
or its driver does not have is not judged; one that should be there and is not is unknown.
"""

from __future__ import annotations

from typing import Any, Dict, Sequence

from . import gpu_baseline, gpu_links, nvml_fields, verdict
from .gpu_baseline import Baseline
from .gpu_policy import Policy

# Pages retired, on cards before Ampere: from the first NVIDIA's DCGM warns, at the second the card has used up what it
# can retire (DCGM, dcgm_gpu_hardware_limits.h: DCGM_LIMIT_MAX_RETIRED_PAGES_SOFT_LIMIT and _RETIRED_PAGES).
RETIRED_WARN, RETIRED_FAIL = 15, 60
# Corrected errors are what ECC is for. No source gives a rate (DCGM calls its own a dummy); these are the counts at
# which Azure takes a card out (azurehpc-health-checks), applied to the rise since the baseline.
CORRECTED_WARN, CORRECTED_SRAM_WARN = 20_000_000, 10_000
# nvmlDeviceGpuRecoveryAction_t, field 230.
RECOVERY = {
    1: "gpu_reset", 2: "node_reboot", 3: "drain_p2p", 4: "drain_and_reset", 5: "recover_imex_domain", 6: "bus_reset",
    7: "system_reboot",
}  # fmt: skip

STATE_HINTS = {
    "lost": "the GPU fell off the bus: power the host off and on, then reseat the card; it may still draw power",
    "reset_required": "drain the host and reset the GPU",
    "timeout": "a call hangs in the driver: look for state D and Xid lines in the kernel log",
    "unreachable": "look at the kernel log",
}
REPLACE = "take the card out of service and replace it; the field diagnostic comes before a return"
COOLING = (
    "check fans, filters, blanking panels and inlet air; until then a lower cap (gpu_policy_power_cap_w) or fewer "
    "active cards keep it cooler"
)
BRAKE = "the chassis pulls the power brake: look at the power supplies, their feeds and the card's cable"
PEAK = "a fast power peak, or a reason that the driver does not name: look again"
ACCEPT = "once it is dealt with, accept the counts: steadyrack gpu accept-baseline {}"

Record = Dict[str, Any]
Row = Dict[str, Any]


def rows(
    policy: Policy, node: Record, pci: Sequence[Record], baseline: Baseline | None = None, nvme: Sequence[Record] = ()
) -> list[Row]:
    """The rows of every card, and of the NVMe controllers' links. ``baseline`` None: rises are not judged."""
    found = []
    for gpu in node["gpus"]:
        found.append(health_row(gpu))
        if gpu["state"] == "ok":
            found.extend(card_rows(gpu, baseline))
            found.extend(gpu_links.rows(policy, gpu, pci, baseline))
    return found + [gpu_links.nvme_row(policy, device) for device in nvme]


def card_rows(gpu: Record, baseline: Baseline | None) -> list[Row]:
    """Everything about one card that answers, its links aside."""
    return [
        remapped_row(gpu, baseline),
        retired_row(gpu),
        uncorrected_row(gpu, baseline),
        corrected_row(gpu, baseline),
        sram_row(gpu),
        throttle_row(gpu),
        temperature_row(gpu),
        inforom_row(gpu),
        recovery_row(gpu),
    ]


def row(name: str, gpu: Record, judged: str, state: str, **more: Any) -> Row:
    """One row about a card by NVML."""
    return verdict.check_row(name, subject(gpu), judged, state, source="nvml", **more)


def subject(gpu: Record) -> str:
    """The UUID, else the slot: a lost GPU may have only that."""
    return str(gpu["uuid"] or gpu["bus_id"] or "unnamed GPU")


def why_unread(gpu: Record, *fields: str) -> Record:
    """Verdict, state and reason for fields without a value: not judged when the card or driver has no such thing."""
    errors = {name: gpu["errors"][name] for name in fields if name in gpu["errors"]}
    said = ", ".join("{}: {}".format(name, error["name"]) for name, error in errors.items())
    if errors and all(error["code"] in nvml_fields.ABSENT for error in errors.values()):
        return {"judged": verdict.NOT_JUDGED, "state": "not_supported", "reason": f"this card or driver has no {said}"}
    return {"judged": verdict.UNKNOWN, "state": "unknown", "reason": "not read: " + (said or ", ".join(fields))}


# --- does it answer ----------------------------------------------------------------------------


def health_row(gpu: Record) -> Row:
    """Whether the card answers at all; the one row of a card that does not (gpud#604)."""
    if gpu["state"] == "ok":
        return row("gpu.health", gpu, verdict.PASS, "ok")
    error = gpu["error"] or {}
    return row(
        "gpu.health", gpu, verdict.UNKNOWN, gpu["state"], severity=verdict.CRITICAL,
        reason="the GPU is {}: {} at {}; nothing else about it can be told".format(
            gpu["state"], error.get("name"), error.get("call")),
        hint=STATE_HINTS.get(gpu["state"]),
    )  # fmt: skip


# --- memory ------------------------------------------------------------------------------------


def remapped_row(gpu: Record, baseline: Baseline | None) -> Row:
    """Rows of memory replaced by spare ones: a failed remapping ends a card's service, with or without a Xid (C63)."""
    found = gpu["remapped_rows"]
    if found is None:
        return row("gpu.remapped_rows", gpu, **why_unread(gpu, "remapped_rows"))
    counts = "{} for uncorrectable, {} for correctable errors".format(found["uncorrected"], found["corrected"])
    measured = found["uncorrected"] + found["corrected"]
    if found["failure"]:
        return row(
            "gpu.remapped_rows", gpu, verdict.FAIL, "failure", measured=measured, unit="rows",
            reason=f"a row could not be remapped ({counts}): memory errors reach the jobs", hint=REPLACE,
        )  # fmt: skip
    if found["pending"]:
        return row(
            "gpu.remapped_rows", gpu, verdict.PASS, "pending", severity=verdict.WARNING, measured=measured,
            unit="rows", reason=f"a remapping waits for a reset ({counts})",
            hint="reset the GPU at the next drain",
        )  # fmt: skip
    rise = gpu_links.rise(gpu, baseline, "remapped_rows.uncorrected")
    risen = rise is not None and rise["by"] > 0
    return row(
        "gpu.remapped_rows", gpu, verdict.PASS, "rising" if risen else "ok",
        severity=verdict.WARNING if risen else None, measured=measured, unit="rows",
        reason=f"{counts}; {rise['text']}" if rise is not None and risen else counts,
        hint="the spare rows did their work; " + ACCEPT.format(subject(gpu)) if risen else None,
    )  # fmt: skip


def retired_row(gpu: Record) -> Row:
    """Pages of memory taken out of use, on cards that do not remap rows."""
    found = gpu["retired_pages"]
    if found is None:
        return row("gpu.retired_pages", gpu, **why_unread(gpu, "retired_pages"))
    total = found["single"] + found["double"]
    fields = {"measured": total, "unit": "pages", "expected": RETIRED_FAIL}
    counts = "{} for double bit, {} for single bit errors".format(found["double"], found["single"])
    if total >= RETIRED_FAIL:
        return row("gpu.retired_pages", gpu, verdict.FAIL, "exhausted", reason=counts, hint=REPLACE, **fields)
    if found["pending"]:
        return row("gpu.retired_pages", gpu, verdict.PASS, "pending", severity=verdict.WARNING, reason=counts,
                   hint="reload the driver or reboot at the next drain", **fields)  # fmt: skip
    high = total >= RETIRED_WARN
    return row("gpu.retired_pages", gpu, verdict.PASS, "high" if high else "ok",
               severity=verdict.WARNING if high else None, reason=counts,
               hint="plan its replacement" if high else None, **fields)  # fmt: skip


def uncorrected_row(gpu: Record, baseline: Baseline | None) -> Row:
    """Uncorrectable ECC errors of the board's life, by their rise."""
    counter = "ecc.uncorrected_aggregate"
    value = gpu_baseline.value_of(gpu, counter)
    if value is None:
        return row("gpu.ecc_uncorrected", gpu, **_ecc_unread(gpu, counter))
    rise = gpu_links.rise(gpu, baseline, counter)
    if rise is None:
        return row("gpu.ecc_uncorrected", gpu, measured=value, unit="errors", **gpu_links.no_rise(baseline))
    if rise["by"] > 0:
        return row(
            "gpu.ecc_uncorrected", gpu, verdict.FAIL, "rising", expected=rise["base"], measured=value, unit="errors",
            reason=rise["text"],
            hint="drain it, look at gpu.remapped_rows and the Xid lines, run the field diagnostic; "
            + ACCEPT.format(subject(gpu)),
        )  # fmt: skip
    known = "{} of earlier, in the baseline of {}".format(value, rise["at"]) if value else None
    return row(
        "gpu.ecc_uncorrected", gpu, verdict.PASS, "earlier" if value else "ok", expected=rise["base"],
        measured=value, unit="errors", reason="; ".join(filter(None, (known, rise["note"]))) or None,
    )  # fmt: skip


def corrected_row(gpu: Record, baseline: Baseline | None) -> Row:
    """Corrected ECC errors, by their rise: only very many say something. Never a failure."""
    counter = "ecc.corrected_aggregate"
    value = gpu_baseline.value_of(gpu, counter)
    if value is None:
        return row("gpu.ecc_corrected", gpu, **_ecc_unread(gpu, counter))
    rise, sram = gpu_links.rise(gpu, baseline, counter), gpu_links.rise(gpu, baseline, "sram.corrected")
    if rise is None:
        return row("gpu.ecc_corrected", gpu, measured=value, unit="errors", **gpu_links.no_rise(baseline))
    many = rise["by"] >= CORRECTED_WARN or (sram is not None and sram["by"] >= CORRECTED_SRAM_WARN)
    in_sram = "; of these in SRAM {}".format(sram["by"]) if sram is not None and sram["by"] > 0 else ""
    return row(
        "gpu.ecc_corrected", gpu, verdict.PASS, "high" if many else "ok", severity=verdict.WARNING if many else None,
        expected=CORRECTED_WARN, measured=rise["by"], unit="errors",
        reason=(rise["text"] + in_sram) if rise["by"] > 0 else rise["note"],
        hint="watch gpu.remapped_rows; run the field diagnostic at the next drain; " + ACCEPT.format(subject(gpu))
        if many else None,
    )  # fmt: skip


def sram_row(gpu: Record) -> Row:
    """NVIDIA's own limit for uncorrectable errors in SRAM, which no spare rows replace."""
    if gpu["sram"] is None:
        return row("gpu.ecc_sram", gpu, **_ecc_unread(gpu, "sram"))
    exceeded = gpu["sram"]["threshold_exceeded"]
    return row(
        "gpu.ecc_sram", gpu, verdict.FAIL if exceeded else verdict.PASS, "exceeded" if exceeded else "ok",
        measured=gpu["sram"]["uncorrected"], unit="errors",
        reason="the driver calls the card's limit of uncorrectable SRAM errors exceeded" if exceeded else None,
        hint=REPLACE if exceeded else None,
    )  # fmt: skip


def _ecc_unread(gpu: Record, name: str) -> Record:
    """As ``why_unread``, with ECC itself named where it is off."""
    mode = gpu["ecc"]["mode"]
    if mode is not None and not mode["current"]:
        return {"judged": verdict.NOT_JUDGED, "state": "ecc_off", "reason": "ECC is off on this card"}
    return why_unread(gpu, name)


# --- what holds it back ------------------------------------------------------------------------


def throttle_row(gpu: Record) -> Row:
    """Why the clocks are below their best, reason by reason: several stand together."""
    reasons = gpu["event_reasons"]
    if reasons is None:
        return row("gpu.throttle", gpu, **why_unread(gpu, "event_reasons"))
    said = "clocks held by " + ", ".join(reasons) if reasons else "nothing holds the clocks"
    fields = {"measured": ", ".join(reasons) or None, "reason": said}
    if "hw_power_brake" in reasons:
        return row("gpu.throttle", gpu, verdict.FAIL, "hw_power_brake", **fields, hint=BRAKE)
    if "hw_thermal" in reasons:
        return row("gpu.throttle", gpu, verdict.FAIL, "hw_thermal", **fields, hint=COOLING)
    for reason, hint in (("sw_thermal", COOLING), ("hw_slowdown", PEAK)):
        if reason in reasons:
            return row("gpu.throttle", gpu, verdict.PASS, reason, severity=verdict.WARNING, **fields, hint=hint)
    # What is left is the idle card, the cap that we set, and clocks that somebody asked for.
    known = [reason for reason in reasons if not reason.startswith("0x")]
    return row("gpu.throttle", gpu, verdict.PASS, known[0] if known else "other" if reasons else "ok", **fields)


def temperature_row(gpu: Record) -> Row:
    """Core and memory against the card's own limits, or the card's margin where it tells only that (Ada and newer)."""
    core, limits = gpu["temperature_c"], gpu["thresholds"]
    if core is None:
        return row("gpu.temperature", gpu, **why_unread(gpu, "temperature_c"))
    if any(limits[name] is not None for name in ("shutdown_c", "slowdown_c", "gpu_max_c")):
        state = _heat(core, limits) or _memory_heat(gpu)
        text = "core {} (most {}, slowdown {}, shutdown {}), memory {} (most {})".format(
            *map(_plain, (core, limits["gpu_max_c"], limits["slowdown_c"], limits["shutdown_c"],
                          gpu["memory_temperature_c"], limits["memory_max_c"])))  # fmt: skip
        return _temperature(gpu, state, text, limits["gpu_max_c"])
    margin, limits = gpu["margin_c"], gpu["tlimits"]
    if margin is None:
        names = ["thresholds." + name for name in limits] + ["margin_c"]
        return row("gpu.temperature", gpu, measured=core, unit="degrees C", **why_unread(gpu, *names))
    # A margin falls as it gets hotter, and so do its limits.
    turned = {name: None if value is None else -value for name, value in limits.items()}
    text = "core {}, {} below its slowdown (acts at {}, shuts down at {})".format(
        core, margin, _plain(limits["slowdown_c"]), _plain(limits["shutdown_c"])
    )
    if all(value is None for value in limits.values()):
        turned["slowdown_c"] = 0
    return _temperature(gpu, _heat(-margin, turned) or _memory_heat(gpu), text, None)


def _heat(core: int, limits: Record) -> str | None:
    """The worst limit that the core has reached."""
    for name, state in (("shutdown_c", "shutdown"), ("slowdown_c", "slowdown"), ("gpu_max_c", "hot")):
        if limits[name] is not None and core >= limits[name]:
            return state
    return None


def _memory_heat(gpu: Record) -> str | None:
    memory, limit = gpu["memory_temperature_c"], gpu["thresholds"]["memory_max_c"]
    return "memory_hot" if None not in (memory, limit) and memory >= limit else None


def _temperature(gpu: Record, state: str | None, text: str, limit: int | None) -> Row:
    judged = verdict.FAIL if state in ("shutdown", "slowdown") else verdict.PASS
    return row(
        "gpu.temperature", gpu, judged, state or "ok", severity=verdict.WARNING if state and judged == verdict.PASS else
        None, expected=limit, measured=gpu["temperature_c"], unit="degrees C", reason=text,
        hint=COOLING if state else None,
    )  # fmt: skip


# --- what card and driver say of themselves ----------------------------------------------------


def inforom_row(gpu: Record) -> Row:
    """Whether the board's own memory of itself is whole."""
    valid = gpu["inforom"]["valid"]
    if valid is None:
        return row("gpu.inforom", gpu, **why_unread(gpu, "inforom.valid"))
    return row(
        "gpu.inforom", gpu, verdict.PASS if valid else verdict.FAIL, "ok" if valid else "corrupted",
        measured=gpu["inforom"]["image"],
        reason=None if valid else "a checksum of the InfoROM is wrong: its counts and settings are not to be believed",
        hint=None if valid else "reset the GPU once; if it stays, replace the card",
    )  # fmt: skip


def recovery_row(gpu: Record) -> Row:
    """What the driver itself asks for. Where it has the field, the field decides (C51)."""
    action = gpu["recovery_action"]
    if action is None:
        return row("gpu.recovery", gpu, **why_unread(gpu, "recovery_action"))
    if action == 0:
        return row("gpu.recovery", gpu, verdict.PASS, "none")
    if action not in RECOVERY:
        return row("gpu.recovery", gpu, verdict.PASS, "unknown_action", severity=verdict.WARNING, measured=action,
                   reason=f"the driver asks for action {action}, which is newer than this",
                   hint="nvidia-smi -q names it (GPU Recovery Action)")  # fmt: skip
    return row(
        "gpu.recovery", gpu, verdict.FAIL, RECOVERY[action], measured=action,
        reason="the driver asks for: " + RECOVERY[action].replace("_", " "),
        hint="take the GPU out of service, drain the host and do that",
    )  # fmt: skip


def _plain(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
