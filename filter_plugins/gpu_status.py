# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a rack as one table, for playbooks/status.yml: what a person wants to see at 3 a.m.

Each host's answer is that of module gpu_info. What was not read is ``?``; who did not answer has a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

HEADS = ("host", "slot", "gpu", "role", "cap W", "enforced", "draw W", "temp C", "link", "health")
# Letters of a UUID that tell cards of one rack apart.
UUID_LETTERS = 12


def gpu_status(hostvars: Mapping[str, Any], hosts: Iterable[str], result: str) -> list[str]:
    """The lines to print. ``result`` names the registered answer of gpu_info."""
    names = [str(host) for host in hosts]
    cells: list[list[str]] = []
    findings: list[str] = []
    for host in names:
        answer = _answer(hostvars[host], result)
        if isinstance(answer, str):
            cells.append([host, *["?"] * 8, answer])
            findings.append(f"! {host}: {answer}")
            continue
        cells += _host_cells(host, answer)
        findings += [_finding(host, row) for row in answer["checks"] if _matters(row)]
    lines = _table(cells) if cells else ["no host with GPUs in this inventory"]
    well = sum(row[-1] == "ok" for row in cells)
    total = f"{well} of {len(cells)} lines are well"
    return [*lines, "", *findings, *([""] if findings else []), total]


def _answer(variables: Mapping[str, Any], result: str) -> dict[str, Any] | str:
    """What gpu_info said, or why it said nothing."""
    found = variables.get(result)
    if not isinstance(found, Mapping):
        return "not asked"
    if found.get("unreachable"):
        return "UNREACHABLE"
    if not isinstance(found.get("gpu_info"), Mapping):
        return "NO ANSWER: " + " ".join(str(found.get("msg") or "no reason given").split())[:80]
    return dict(found["gpu_info"])


def _host_cells(host: str, answer: Mapping[str, Any]) -> list[list[str]]:
    """A line for each GPU: those that NVML lists, and those that only the bus or the roles still know."""
    if not answer["gpus"]:
        node = answer["node"]
        return [[host, *["?"] * 8, f"NVML {node['state']}: {node['reason']}"]]
    lines = [_gpu_cells(host, gpu, answer) for gpu in answer["gpus"]]
    there = {gpu["uuid"] for gpu in answer["gpus"]} | {_known(gpu, answer)[0] for gpu in answer["gpus"]}
    for uuid, role in sorted(answer["roles"].items(), key=lambda pair: str(pair[1]["bus_id"])):
        if uuid not in there:
            lines.append([host, role["bus_id"], uuid[:UUID_LETTERS], _loud(role["role"]), *["?"] * 5, "GONE"])
    return sorted(lines, key=lambda line: line[1])


def _known(gpu: Mapping[str, Any], answer: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """UUID and role of a GPU; one that has lost its name is known by its slot."""
    roles = answer["roles"]
    if gpu["uuid"] in roles:
        return gpu["uuid"], roles[gpu["uuid"]]
    return next(((uuid, one) for uuid, one in roles.items() if one["bus_id"] == gpu["bus_id"]), (gpu["uuid"], {}))


def _gpu_cells(host: str, gpu: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    uuid, role = _known(gpu, answer)
    power = gpu["power"]
    lanes = next((device["link"]["width"] for device in answer["pci"] if device["bus_id"] == gpu["bus_id"]), None)
    rows = [row for row in answer["checks"] if row["subject"] in (uuid, gpu["bus_id"])]
    return [
        host, gpu["bus_id"] or "?", (uuid or "?")[:UUID_LETTERS], _loud(role.get("role") or "-"),
        *(_plain(power[key]) for key in ("requested_w", "enforced_w", "draw_w")), _plain(gpu["temperature_c"]),
        "?" if lanes is None else f"x{lanes}",
        gpu["state"].upper() if gpu["state"] != "ok" else _health(rows),
    ]  # fmt: skip


def _health(rows: list[Mapping[str, Any]]) -> str:
    """The worst of a GPU's rows, with their words."""
    for verdict, form in (("fail", "FAIL: {}"), ("unknown", "unknown: {}")):
        states = [str(row["state"] or row["id"]) for row in rows if row["verdict"] == verdict]
        if states:
            return form.format(", ".join(dict.fromkeys(states)))
    warned = [str(row["state"]) for row in rows if row["severity"] == "warning"]
    return "warning: " + ", ".join(dict.fromkeys(warned)) if warned else "ok"


def _matters(row: Mapping[str, Any]) -> bool:
    return row["verdict"] in ("fail", "unknown") or row["severity"] == "warning"


def _finding(host: str, row: Mapping[str, Any]) -> str:
    mark = {"fail": "!", "unknown": "?"}.get(row["verdict"], "~")
    text = f"{mark} {host} {row['id']} {row['subject']}: {row['reason'] or row['state']}"
    return text + (f". Next: {row['hint']}" if row["hint"] else "")


def _loud(role: str) -> str:
    return role.upper() if role in ("failed", "unaccepted") else role


def _plain(value: Any) -> str:
    if value is None:
        return "?"
    return f"{round(value, 1):g}" if isinstance(value, float) else str(value)


def _table(rows: list[list[str]]) -> list[str]:
    lines = [list(HEADS), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEADS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"gpu_status": gpu_status}
