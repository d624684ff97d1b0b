# SPDX-License-Identifier: BSD-2-Clause
"""The links of each card: PCIe generation under load, replays, what peers' traffic meets, NVLink; and of NVMe disks.

Width is judged always, elsewhere (gpu_checks, pcie). The generation is judged only while the card is at work: an idle
one lowers it, and flaps (C59, C62).
"""

from __future__ import annotations

from typing import Any, Dict, Sequence

from . import gpu_baseline, gpu_policy, nvml_fields, pcie, verdict
from .gpu_baseline import Baseline
from .gpu_policy import Policy

# At work: performance state 0 in every sample, and kernels for nvml_fields.BUSY_PERCENT of the time or this much
# through the link. Ours; an idle card shows 0 of both.
BUSY_KIB_S = 100 * 1024
# More replays a minute than NVIDIA allows for (DCGM, dcgm_gpu_hardware_limits.h: DCGM_LIMIT_MAX_PCIREPLAY_RATE); it
# warns there and does not fail, and so do we.
REPLAYS_PER_MINUTE = 8
# A rate over less time says nothing, seconds.
RATE_FROM_S = 600

Record = Dict[str, Any]
Row = Dict[str, Any]


def rows(policy: Policy, gpu: Record, pci: Sequence[Record], baseline: Baseline | None) -> list[Row]:
    """The rows of one card that answers. ``pci``: every GPU on the bus, since peers share bridges."""
    device = next((device for device in pci if device["bus_id"] == gpu["bus_id"]), None)
    found = [replay_row(gpu, baseline), nvlink_row(policy, gpu)]
    if device is not None and device["on_bus"] is not False:
        found[:0] = [generation_row(policy, gpu, device), acs_row(policy, device, pci)]
    return found


# --- rises, for the other rows too -------------------------------------------------------------


def rise(gpu: Record, baseline: Baseline | None, name: str) -> Record | None:
    """How much a counter rose since its base, None where that cannot be told.

    ``by``, ``base``, ``at``, ``seconds`` since then, ``text`` in words, ``note``: counted anew in this pass.
    """
    value = gpu_baseline.value_of(gpu, name)
    counter = None if baseline is None or baseline.trouble else baseline.counter(gpu["uuid"], name)
    if value is None or counter is None or baseline is None:
        return None
    by = value - counter["base"]
    seconds = gpu_baseline.seconds_between(counter["at"], verdict.utc_now())
    note = baseline.notes.get(gpu["uuid"], "")
    text = "{} more than the {} of {}".format(by, counter["base"], counter["at"])
    if seconds >= RATE_FROM_S:
        text += f" ({by * 86400 / seconds:.3g} a day)"
    return {
        "by": by, "base": counter["base"], "at": counter["at"], "seconds": seconds, "text": text,
        "note": note if name in note else None,
    }  # fmt: skip


def no_rise(baseline: Baseline | None) -> Record:
    """Verdict, state and reason where a rise cannot be told."""
    if baseline is not None and baseline.trouble:
        return {"judged": verdict.UNKNOWN, "state": "baseline_damaged", "reason": baseline.trouble,
                "hint": "`steadyrack check`, as root, sets it aside and begins a new one"}  # fmt: skip
    if baseline is not None and baseline.unkept:
        return {"judged": verdict.NOT_JUDGED, "state": "no_baseline",
                "reason": f"no baseline of this card could be kept: {baseline.unkept}"}  # fmt: skip
    return {"judged": verdict.NOT_JUDGED, "state": "no_baseline",
            "reason": "no baseline is kept for this card yet; `steadyrack check`, as root, begins it"}  # fmt: skip


# --- PCIe --------------------------------------------------------------------------------------


def generation_row(policy: Policy, gpu: Record, device: Record) -> Row:
    """The generation that the link of a card at work has, in every sample of the pass."""
    rule = gpu_policy.best_rule(policy.link_gen, gpu)
    declared = None if rule is None else rule.link_gen
    samples = gpu["load_samples"]
    found = _generation(samples, declared, device["link"])
    seen = [sample["gen"] for sample in samples]
    said = "generations {} at {} % load".format(
        ", ".join(map(_plain, seen)) or "none", ", ".join(_plain(_percent(sample)) for sample in samples) or "unknown"
    )
    return verdict.check_row(
        "pcie.generation", gpu["bus_id"], found["judged"], found["state"], severity=found.get("severity"),
        expected=declared, measured=", ".join(map(_plain, seen)) or None, source="nvml, sysfs",
        reason="; ".join(filter(None, (found.get("reason"), said))), hint=found.get("hint"),
    )  # fmt: skip


def _generation(samples: Sequence[Record], declared: int | None, link: Record) -> Record:
    """Verdict, state, severity, reason and hint of the generation."""
    if declared is None:
        return {"judged": verdict.NOT_JUDGED, "state": "not_declared", "reason": "no link generation is declared"}
    if not samples or not all(_busy(sample) for sample in samples):
        return {"judged": verdict.NOT_JUDGED, "state": "idle", "reason": "the card is not at work, or does not tell"}
    seen = [sample["gen"] for sample in samples]
    if None in seen:
        return {"judged": verdict.UNKNOWN, "state": "unknown", "reason": "the driver does not tell the generation"}
    above = [pcie.GENERATIONS.get(hop["speed_gt"]) for hop in link["hops"][2:]]
    if max(seen) < declared:
        state, hint = _why_slow(link, declared)
        return {"judged": verdict.FAIL, "state": state, "reason": f"declared generation {declared}", "hint": hint}
    slow = [gen for gen in above if gen is not None and gen < declared]
    if slow:
        return {"judged": verdict.FAIL, "state": "upstream",
                "reason": f"a link above the slot has generation {min(slow)}",
                "hint": "check the riser, the switch and the BIOS setting of the link above the slot"}  # fmt: skip
    if min(seen) < declared:
        return {"judged": verdict.PASS, "state": "flapping", "severity": verdict.WARNING,
                "reason": "the link changes its generation under load",
                "hint": "look again during a burn-in; then suspect riser, retimer or seating"}  # fmt: skip
    return {"judged": verdict.PASS, "state": "ok"}


def _why_slow(link: Record, declared: int) -> list[str]:
    """The state of a link that is too slow under load, and what to do."""
    best = [pcie.GENERATIONS.get(hop["max_speed_gt"]) for hop in link["hops"][:2]]
    if best and best[0] is not None and best[0] < declared:
        return ["slow_device", "the card itself is slower than declared: is it the declared model?"]
    if len(best) > 1 and best[1] is not None and best[1] < declared:
        return ["slow_slot", "the slot is slower than declared: check the BIOS link speed, the riser and the slot"]
    return ["degraded", "the link trained too slow: power off, reseat the card, then suspect riser or retimer"]


def _busy(sample: Record) -> bool:
    """Whether the card is at work in this sample; what is not told is not work."""
    through = [sample[name] for name in ("tx_kib_s", "rx_kib_s") if sample[name] is not None]
    return sample["pstate"] == 0 and ((_percent(sample) or 0) >= nvml_fields.BUSY_PERCENT or sum(through) >= BUSY_KIB_S)


def _percent(sample: Record) -> int | None:
    return None if sample["utilization"] is None else sample["utilization"]["gpu_percent"]


def replay_row(gpu: Record, baseline: Baseline | None) -> Row:
    """Packets sent again over the link, by their rise, with the link's other error counters. Never a failure."""
    name = "pcie_errors.replay"
    value = gpu_baseline.value_of(gpu, name)
    fields: Record = {"measured": value, "unit": "replays", "source": "nvml"}
    if value is None:
        return _replay_unread(gpu, name)
    found = rise(gpu, baseline, name)
    if found is None:
        why = no_rise(baseline)
        return verdict.check_row("pcie.replay", gpu["bus_id"], why.pop("judged"), why.pop("state"), **fields, **why)
    others = [(key, rise(gpu, baseline, key)) for key in gpu_baseline.SINCE_LOAD if key != name]
    risen = ["{} {}".format(key.partition(".")[2], one["by"]) for key, one in others if one and one["by"] > 0]
    if found["by"] <= 0 and not risen:
        return verdict.check_row("pcie.replay", gpu["bus_id"], verdict.PASS, "ok", expected=found["base"],
                                 reason=found["note"], **fields)  # fmt: skip
    fast = found["seconds"] >= RATE_FROM_S and found["by"] * 60 / found["seconds"] > REPLAYS_PER_MINUTE
    return verdict.check_row(
        "pcie.replay", gpu["bus_id"], verdict.PASS, "high" if fast else "rising", severity=verdict.WARNING,
        expected=found["base"], reason="; ".join([found["text"], *risen]),
        hint="reseat card and riser at the next drain if it goes on; to accept it: steadyrack gpu accept-baseline "
        + str(gpu["uuid"]), **fields,
    )  # fmt: skip


def _replay_unread(gpu: Record, name: str) -> Row:
    error = gpu["errors"].get(name) or {}
    absent = error.get("code") in nvml_fields.ABSENT
    return verdict.check_row(
        "pcie.replay", gpu["bus_id"], verdict.NOT_JUDGED if absent else verdict.UNKNOWN,
        "not_supported" if absent else "unknown", source="nvml",
        reason="not read: {}: {}".format(name, error.get("name")),
    )  # fmt: skip


def acs_row(policy: Policy, device: Record, pci: Sequence[Record]) -> Row:
    """Whether cards reach each other directly, or every packet goes up to the root complex first."""
    bridges = device["peers"]["bridges"]
    redirecting = [bridge["bus_id"] for bridge in bridges if bridge["redirect"]]
    unread = [bridge["bus_id"] for bridge in bridges if bridge["redirect"] is None]
    apart = _isolated_from(device, pci)
    said = []
    if redirecting:
        said.append("ACS redirects peers' traffic at " + ", ".join(redirecting))
    if apart:
        said.append("IOMMU groups part it from {} below the same switch".format(", ".join(apart)))
    if unread:
        said.append("configuration space not readable at " + ", ".join(unread))
    state = "redirected" if redirecting or apart else "unknown" if unread else "direct"
    fields: Record = {"measured": state, "source": "sysfs"}
    if policy.peer_to_peer is not True:
        said.append("peer-to-peer is not declared")
        return verdict.check_row("pcie.acs", device["bus_id"], verdict.NOT_JUDGED, "not_declared",
                                 reason="; ".join(said), **fields)  # fmt: skip
    if state == "unknown":
        return verdict.check_row("pcie.acs", device["bus_id"], verdict.UNKNOWN, state, reason="; ".join(said),
                                 hint="run it as root: others read 64 bytes of it", **fields)  # fmt: skip
    redirected = state == "redirected"
    return verdict.check_row(
        "pcie.acs", device["bus_id"], verdict.PASS, state, severity=verdict.WARNING if redirected else None,
        reason="; ".join(said) or None,
        hint="turn ACS off in the BIOS, or IOMMU isolation, unless virtual machines need it: peers are slower through "
        "the root complex, or cannot reach each other" if redirected else None, **fields,
    )  # fmt: skip


def _isolated_from(device: Record, pci: Sequence[Record]) -> list[str]:
    """Cards that share a bridge with this one and are in another IOMMU group."""
    mine = {bridge["bus_id"] for bridge in device["peers"]["bridges"]}
    group = device["peers"]["iommu_group"]
    return [
        other["bus_id"]
        for other in pci
        if None not in (group, other["peers"]["iommu_group"])
        and other["peers"]["iommu_group"] != group
        and mine & {bridge["bus_id"] for bridge in other["peers"]["bridges"]}
    ]


# --- NVLink ------------------------------------------------------------------------------------


def nvlink_row(policy: Policy, gpu: Record) -> Row:
    """As many NVLinks up as declared; a PCIe card without a bridge has all of them down (NVSentinel#1481)."""
    rule = gpu_policy.best_rule(policy.nvlink_links, gpu)
    declared = None if rule is None else rule.nvlink_links
    links = gpu["nvlink"]["links"]
    error = gpu["errors"].get("nvlink.links") or {}
    up = None if links is None else links.count("up")
    fields: Record = {"expected": declared, "measured": up, "unit": "links", "source": "nvml"}
    subject = str(gpu["uuid"] or gpu["bus_id"])
    if declared is None:
        return verdict.check_row("nvlink.links", subject, verdict.NOT_JUDGED, "not_declared",
                                 reason="no number of NVLinks is declared", **fields)  # fmt: skip
    if links is None or up is None:
        none = error.get("code") in nvml_fields.ABSENT
        if none and declared > 0:
            return verdict.check_row(
                "nvlink.links", subject, verdict.FAIL, "down", **fields,
                reason="this card or driver has no NVLink", hint="is it the declared model?",
            )  # fmt: skip
        return verdict.check_row(
            "nvlink.links", subject, verdict.NOT_JUDGED if none else verdict.UNKNOWN,
            "not_supported" if none else "unknown", reason="not read: {}".format(error.get("name")), **fields,
        )  # fmt: skip
    down = [str(place) for place, state in enumerate(links) if state != "up"]
    if up < declared:
        return verdict.check_row("nvlink.links", subject, verdict.FAIL, "down", **fields,
                                 reason="links down: " + (", ".join(down) or "none; the board has fewer"),
                                 hint="reseat the NVLink bridge; look for Xid 74 in the kernel log")  # fmt: skip
    if up > declared:
        return verdict.check_row("nvlink.links", subject, verdict.PASS, "undeclared", severity=verdict.WARNING,
                                 reason="more links are up than declared", **fields,
                                 hint="declare them (gpu_policy_nvlink_links): their loss would go unseen")  # fmt: skip
    return verdict.check_row("nvlink.links", subject, verdict.PASS, "ok", **fields)


# --- NVMe --------------------------------------------------------------------------------------


def nvme_row(policy: Policy, device: Record) -> Row:
    """The link of one NVMe controller against the declared width; undeclared, against what disk and port both can."""
    link, declared = device["link"], policy.nvme_link_width
    possible = [lanes for lanes in (link["device_max"], link["port_max"]) if lanes is not None]
    wanted = declared if declared is not None else min(possible) if possible else None
    fields: Record = {"expected": wanted, "measured": link["width"], "unit": "lanes", "source": "sysfs"}
    if device["on_bus"] is False:
        return verdict.check_row("pcie.nvme_width", device["bus_id"], verdict.UNKNOWN, "lost", **fields,
                                 reason="the disk has fallen off the bus",
                                 hint="power the host off and on, then reseat the disk")  # fmt: skip
    if wanted is None:
        return verdict.check_row("pcie.nvme_width", device["bus_id"], verdict.NOT_JUDGED, "not_declared", **fields,
                                 reason="no width is declared, and sysfs does not tell what is possible")  # fmt: skip
    found = pcie.judge_width(link, wanted)
    hint = found["hint"] and found["hint"].replace("the card", "the disk")
    return verdict.check_row("pcie.nvme_width", device["bus_id"], found["verdict"], found["state"],
                             reason=found["reason"], hint=hint, **fields)  # fmt: skip


def _plain(value: int | None) -> str:
    return "unknown" if value is None else str(value)
