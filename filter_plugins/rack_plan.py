# SPDX-License-Identifier: Apache-2.0
"""What playbooks/plan.yml shows: the power plan of each rack as a table, and what its GPUs really draw beside it.

A draw that was not read is told as no data and counted at the most it may be, never as 0: a card at its cap, a host
that does not answer with every GPU at its maximum, for it may have booted and not have its caps yet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Ansible loads every file here by itself; this is how one finds its neighbour.
sys.path.append(str(Path(__file__).resolve().parent))
from rack_facts import Host, read_host, same_model
from rack_power import RESOLUTION_W, watts

# What NVML reports of a limit is exact; less than this is rounding.
CAP_TOLERANCE_W = 0.5


# --- the table -----------------------------------------------------------------------------------


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cards(row: Mapping[str, Any], state: str) -> str:
    cards = [card for card in row["gpus"] if card["state"] == state]
    return " + ".join(f"{card['number']} x {watts(card['w'])} ({card['said']})" for card in cards) or "-"


def _margin(allowed_w: float, drawn_w: float) -> tuple[str, ...]:
    word = "left" if drawn_w <= allowed_w + RESOLUTION_W else "over by"
    return (word, "", "", watts(abs(allowed_w - drawn_w)))


def rack_table(rack: Mapping[str, Any]) -> list[str]:
    """The plan of one rack that could be planned."""
    rows: list[tuple[str, ...]] = [("HOST", "ACTIVE x CAP", "SPARE x W", "W AT THE PLUG")]
    for row in rack["rows"]:
        rows.append((row["host"], _cards(row, "active"), _cards(row, "spare"), watts(row["w"])))
    if rack["other_w"]:
        rows.append(("rack_other_w", "", "", watts(rack["other_w"])))
    rows.append(("sum", "", "", watts(rack["sum_w"])))
    rows.append(("usable", "", "", watts(rack["usable_w"])))
    rows.append(_margin(rack["usable_w"], rack["sum_w"]))
    if rack["failing"]:
        rows.append(("fail-over", f"on {', '.join(rack['failing'])}", "", watts(rack["failover_w"])))
        rows.append(("usable then", "", "", watts(rack["moment_w"])))
        rows.append(_margin(rack["moment_w"], rack["failover_w"]))
    verdict = "fits" if rack["fits"] else "does not fit"
    return [rack["lines"][0], *_columns(rows), *rack["notes"], f"verdict: {verdict}", *rack["next"]]


# --- what is measured ----------------------------------------------------------------------------


class Reading(NamedTuple):
    """One rack or host beside its plan."""

    lines: list[str]
    findings: list[str]  # what somebody has to look at, each also a line
    plug_w: float


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 120 else line[:119] + "…"


def _missing(answer: Any) -> str | None:
    """Why the answer of gpu_info is none; None when it is one."""
    if not isinstance(answer, Mapping):
        return "not asked"
    if answer.get("unreachable"):
        return f"unreachable ({_short(answer.get('msg'))})"
    if not isinstance(answer.get("gpu_info"), Mapping):
        return f"could not be read ({_short(answer.get('msg') or answer.get('module_stderr') or 'no reason given')})"
    node = answer["gpu_info"]["node"]
    return None if node["state"] == "ok" else f"{node['state']} ({_short(node['reason'])})"


def _names(name: str, gpu: Mapping[str, Any]) -> bool:
    """Whether an override names this card. Of a bus id the domain may be written with eight digits."""
    known = [str(gpu[key]).lower() for key in ("uuid", "serial", "bus_id") if gpu[key] is not None]
    return name.lower() in known or name.lower().removeprefix("0000") in known


def _planned_cap_w(gpu: Mapping[str, Any], host: Host, row: Mapping[str, Any]) -> float | None:
    """The cap of this card in the plan; None for a model that rack_gpus does not name."""
    for entry in host.gpus:
        if gpu["name"] is None or not same_model(str(gpu["name"]), entry.model):
            continue
        own = [one.cap_of(entry) for one in host.cards if _names(one.name, gpu)]
        return own[0] if own and own[0] is not None else float(row["cap_w"][entry.model])
    return None


def _spare_w(gpu: Mapping[str, Any], host: Host, cap_w: float) -> float | None:
    """What this card is planned at as a spare; None when it is none, to the plan or on the node."""
    if gpu["compute_mode"] != "prohibited" or host.active == host.total:
        return None
    return next((entry.idles_at(cap_w) for entry in host.gpus if same_model(str(gpu["name"]), entry.model)), None)


def _gpu_findings(gpu: Mapping[str, Any], host: Host, row: Mapping[str, Any], leeway: float) -> list[str]:
    """What is wrong with one card that answers. ``leeway``: how far a draw may be above its cap, 0.05 for 5 %."""
    who = f"{host.name}: {gpu['bus_id'] or gpu['uuid']}"
    cap, draw, enforced = _planned_cap_w(gpu, host, row), gpu["power"]["draw_w"], gpu["power"]["enforced_w"]
    if cap is None:
        return [f"{who}: {gpu['name'] or 'a model not told'} is not in rack_gpus: no watts are planned for it"]
    found = []
    if enforced is not None and enforced > cap + CAP_TOLERANCE_W:
        found.append(f"{who}: its cap is {watts(enforced)} W, planned {watts(cap)} W")
    spare = _spare_w(gpu, host, cap)
    limit, said = (cap, "its cap") if spare is None else (spare, "the spare's planned draw")
    if draw is not None and draw > limit * (1 + leeway):
        found.append(f"{who}: draws {watts(draw)} W, above {said} of {watts(limit)} W")
    return found


def _unread(gpu: Mapping[str, Any], host: Host, row: Mapping[str, Any]) -> tuple[float, str]:
    """At what a card without a reading counts, and why: it cannot be capped and may draw its last cap."""
    known = [gpu["power"]["enforced_w"], _planned_cap_w(gpu, host, row)]
    cap = next((value for value in known if value is not None), _highest_w(row))
    why = gpu["state"] if gpu["state"] != "ok" else gpu["errors"].get("power.draw_w", {}).get("name", "no draw told")
    return cap, f"{host.name}: {gpu['bus_id'] or gpu['uuid']}: no data: {why}; counted at {watts(cap)} W"


def _highest_w(row: Mapping[str, Any]) -> float:
    """The highest cap of the host, for a card of which nothing is known."""
    active = [card["w"] for card in row["gpus"] if card["state"] == "active"]
    return max([*active, *row["cap_w"].values()], default=0.0)


def _host_reading(host: Host, row: Mapping[str, Any], answer: Any, leeway: float) -> Reading:
    reason = _missing(answer)
    if reason is not None:
        line = f"{host.name}: no data: {reason}; counted at its maximum, {watts(row['most_w'])} W at the plug"
        return Reading([line], [] if reason == "not asked" else [line], row["most_w"])
    total, findings, read = 0.0, [], 0
    for gpu in answer["gpu_info"]["gpus"]:
        if gpu["state"] != "ok" or gpu["power"]["draw_w"] is None:
            cap, line = _unread(gpu, host, row)
            total += cap
            findings.append(line)
            continue
        total, read = total + gpu["power"]["draw_w"], read + 1
        findings += _gpu_findings(gpu, host, row, leeway)
    absent = host.total - len(answer["gpu_info"]["gpus"])
    if absent > 0:
        total += absent * _highest_w(row)
        findings.append(
            f"{host.name}: {absent} of {host.total} GPUs not there; counted at {watts(_highest_w(row))} W each"
        )
    if total > row["gpu_w"] * (1 + leeway):
        findings.append(f"{host.name}: GPUs at {watts(total)} W, planned {watts(row['gpu_w'])} W")
    said = f"{host.name}: GPUs {watts(total)} W, {read} of {host.total} measured; planned {watts(row['gpu_w'])} W"
    return Reading([said, *findings], findings, (host.base_w + total) / host.efficiency)


def rack_reading(rack: Mapping[str, Any], facts: Mapping[str, Any], answers: Mapping[str, Any]) -> Reading:
    """What the GPUs of a rack draw, beside its plan. Draws may pass a cap by the margin, which is there for that."""
    leeway = rack["margin_percent"] / 100
    lines, findings, plug_w = [], [], float(rack["other_w"])
    for row in rack["rows"]:
        name = row["host"]
        host = read_host({**facts[name], "host": name})
        reading = _host_reading(host, row, answers.get(name), leeway)
        lines += reading.lines
        findings += reading.findings
        plug_w += reading.plug_w
    text = f"measured GPUs, all else as planned: {watts(plug_w)} W at the plug of {watts(rack['usable_w'])} W usable"
    if plug_w > rack["usable_w"] + RESOLUTION_W:
        text += f": over by {watts(plug_w - rack['usable_w'])} W"
        findings.append(text)
    return Reading([*lines, text, "BMC: not read"], findings, plug_w)


# --- the report ----------------------------------------------------------------------------------


def _shown(plan: Mapping[str, Any], facts: Mapping[str, Any], hosts: list[str]) -> list[Mapping[str, Any]]:
    """The racks in which one of ``hosts`` stands, relays included."""
    places = {(str(facts[host].get("rack_site") or ""), str(facts[host].get("rack_name") or "")) for host in hosts}
    return [rack for rack in plan["racks"] if (rack["site"], rack["rack"]) in places]


def rack_plan_report(
    plan: Mapping[str, Any], facts: Mapping[str, Any], hosts: Any, errors: Any = None, answers: Any = None
) -> dict[str, Any]:
    """``lines`` to show and ``bad``, a line for each reason to end with an error.

    ``plan`` is from ``rack_power_plan``, ``facts`` from ``inventory_facts``, ``hosts`` those of this run, ``errors``
    from ``inventory_errors``, ``answers`` what gpu_info answered by host, or None where nothing was measured.
    """
    asked = [str(host) for host in hosts or []]
    told = errors or {"inventory": [], "hosts": {}}
    bad = [*told["inventory"]]
    lines = [*told["inventory"]]
    racks = _shown(plan, facts, asked)
    if not racks:
        lines.append("no GPU node in the racks of these hosts")
    for rack in racks:
        own = [line for host in rack["hosts"] for line in told["hosts"].get(host, [])]
        lines += [""] if lines else []
        bad += own
        if rack["errors"]:
            # What the inventory check names needs no second telling.
            lines += [f"{rack['label']}: its power cannot be planned", *(own or rack["errors"])]
            bad.append(f"{rack['label']}: its power cannot be planned")
            continue
        lines += rack_table(rack) + own
        if not rack["fits"]:
            bad.append(f"{rack['label']}: {'; '.join(line for line in rack['lines'] if ': over by ' in line)}")
        if answers is not None:
            reading = rack_reading(rack, facts, answers)
            lines += reading.lines
            bad += reading.findings
    return {"lines": lines, "bad": bad}


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"rack_plan_report": rack_plan_report}
