# SPDX-License-Identifier: BSD-2-Clause
"""Roles and caps of the GPUs for Prometheus, written by each pass; draw and temperature are a GPU exporter's to tell.

A value that is not known has no line: 0 would read as perfect.
"""

from __future__ import annotations

import time
from typing import Any, Dict

from . import gpu_apply, gpu_policy, gpu_spare
from .time_metrics import Lines, directory
from .time_metrics import write as put

FILE = "steadyrack_gpu.prom"

Record = Dict[str, Any]


def write(root: str, outcome: gpu_apply.Outcome, textfile: str | None = None) -> None:
    """Replace the file in node_exporter's directory; OSError where that cannot be."""
    put(directory(root, textfile), render(outcome, time.time()), FILE)


def render(outcome: gpu_apply.Outcome, now: float) -> str:
    """The whole file, from one pass at ``now`` (epoch s)."""
    lines = Lines()
    lines.add("steadyrack_gpu_pass_timestamp_seconds", "When the GPUs were last brought to their policy.",
              [({}, round(now, 3))])  # fmt: skip
    lines.add("steadyrack_gpu_nvml_usable", "1 when NVML answers on this host.", [({}, _ok(outcome.after["state"]))])
    cards = [({"uuid": gpu["uuid"] or "", "slot": gpu["bus_id"] or ""}, gpu) for gpu in outcome.after["gpus"]]
    lines.add("steadyrack_gpu_answers", "1 when the GPU answers.", [(name, _ok(gpu["state"])) for name, gpu in cards])
    for key in ("requested", "enforced"):
        lines.add(f"steadyrack_gpu_power_limit_{key}_watts", f"The power limit that is {key}.",
                  [(name, gpu["power"][f"{key}_w"]) for name, gpu in cards])  # fmt: skip
    failed = [row for row in outcome.rows if row["verdict"] == "fail"]
    counts: dict[str, int] = {}
    for row in failed:
        counts[row["id"]] = counts.get(row["id"], 0) + 1
    lines.add("steadyrack_gpu_failed_checks", "Rows of a check that fail.",
              [({"check": name}, number) for name, number in sorted(counts.items())])  # fmt: skip
    if outcome.roles is not None and outcome.roles.state is not None:
        _roles(lines, outcome.roles.state, outcome.roles.spares, outcome.roles.policy.gpu_count)
    return lines.text()


def _roles(lines: Lines, state: Record, spares: gpu_policy.Spares, gpu_count: int | None) -> None:
    """Who is what, and how many may be active."""
    may = gpu_spare.allowed(spares, gpu_count, gpu_spare.known(state))
    lines.add("steadyrack_gpu_allowed", "GPUs that may be active.", [({}, may)])
    for role in gpu_spare.ROLES:
        number = len(gpu_spare.of_role(state, role))
        lines.add(f"steadyrack_gpus_{role}", f"GPUs in role {role}.", [({}, number)])
    lines.add("steadyrack_gpu_role", "1 for the role that a GPU has.",
              [({"uuid": uuid, "slot": one["bus_id"], "role": one["role"]}, 1)
               for uuid, one in sorted(state["gpus"].items())])  # fmt: skip


def _ok(state: str) -> int:
    return int(state == "ok")
