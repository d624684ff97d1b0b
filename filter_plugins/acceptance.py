# SPDX-License-Identifier: Apache-2.0
"""What playbooks/acceptance.yml hands to the checks of tests/checks, and how it shows what they found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# How a host is reached; everything else that the checks may know of it begins with the name of a role or `rack_`.
CONNECTION = (
    "ansible_host", "ansible_port", "ansible_user", "ansible_connection", "ansible_ssh_common_args",
    "ansible_ssh_extra_args", "ansible_ssh_private_key_file", "ansible_private_key_file", "ansible_become",
    "ansible_become_user", "ansible_python_interpreter",
)  # fmt: skip
PREFIXES = ("rack_", "acceptance_", "gpu_policy_", "node_agent_", "package_mirror_", "time_sync_")
# A result that gpu.yml keeps as a fact of every host, not a rack fact: the plan is handed over host by host.
DERIVED = ("rack_plan",)
# Not even under those names: a report is read by more people than the inventory.
SECRET = re.compile(
    r"pass(word|phrase)?(_|$)|secret|token|credential|(^|_)psk(_|$)|_keys?$|webhook_url$|webhook_proxy$"
)

VERDICTS = ("pass", "fail", "unknown", "not_judged")
ORDER = {"fail": 0, "unknown": 1, "not_judged": 2, "pass": 3}
WIDTH = 76  # of the last column: the table fits a terminal of 140 together with the rest

Row = Mapping[str, Any]


# --- before --------------------------------------------------------------------------------------


def acceptance_paths(sources: Any) -> dict[str, str]:
    """Where things are, for the inventory `sources` of this run (ansible_inventory_sources).

    The report goes to reports/<name of the inventory>: the folder `inventory/demo`, its hosts.yml and the
    file `demo.yml` are all called `demo`; a list of hosts on the command line is `inline`.
    """
    first = str(next(iter(sources or []), "inline"))
    path = Path(first)
    name = path.parent.name if path.suffix and path.stem == "hosts" else path.name if path.is_dir() else path.stem
    folder = ROOT / "reports" / (re.sub(r"[^\w.-]", "_", name) if name and "," not in first else "inline")
    return {
        "root": str(ROOT),
        "folder": str(folder),
        "inventory": str(folder / "inventory.json"),
        "json": str(folder / "acceptance.json"),
        "xml": str(folder / "acceptance.xml"),
        "table": str(folder / "acceptance.txt"),
    }


def acceptance_inventory(
    facts: Mapping[str, Any], groups: Mapping[str, Any], plan: Mapping[str, Any]
) -> dict[str, Any]:
    """The inventory as values, without templates and secrets, for testinfra, which reads both as text.

    ``facts`` is from ``inventory_facts``, ``plan`` from ``rack_power_plan``; the plan's cap for each model is
    handed over as acceptance_plan_cap_w.
    """
    hosts = {str(host): _variables(str(host), values, plan) for host, values in facts.items()}
    children: dict[str, Any] = {
        str(group): {"hosts": {str(host): {} for host in members if str(host) in hosts}}
        for group, members in groups.items()
        if group not in ("all", "ungrouped")
    }
    return {"all": {"hosts": hosts, "children": children}}


def _variables(host: str, values: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    kept = {
        str(name): value
        for name, value in values.items()
        if value is not None
        and (name in CONNECTION or (str(name).startswith(PREFIXES) and not SECRET.search(str(name))))
    }
    # The plays become root; testinfra does where it is told to.
    if kept.get("ansible_user", "root") != "root":
        kept.setdefault("ansible_become", True)
    if host in plan["hosts"]:
        kept["acceptance_plan_cap_w"] = plan["racks"][plan["hosts"][host]]["host_cap_w"].get(host, {})
    return kept


def acceptance_facts(hostvars: Any, hosts: Any) -> dict[str, dict[str, Any]]:
    """The variables of ``hosts`` that the checks may know, evaluated by Ansible."""
    facts: dict[str, dict[str, Any]] = {}
    for host in hosts or []:
        variables = hostvars[host]
        names = [str(name) for name in variables if name in CONNECTION or str(name).startswith(PREFIXES)]
        names = [name for name in names if name not in DERIVED]
        facts[str(host)] = {}
        for name in names:
            facts[str(host)][name] = _value(variables, name)
    return facts


def _value(variables: Any, name: str) -> Any:
    """The value, or a template that says why there is none: the checks refuse those, and fall back to no default."""
    try:
        return variables[name]
    except Exception as error:  # whatever a failing template raises
        return "{{ " + f"cannot be evaluated: {str(error).splitlines()[0][:120]}" + " }}"


# --- after ---------------------------------------------------------------------------------------


def acceptance_lines(report: Mapping[str, Any], lost: Iterable[str] = ()) -> list[str]:
    """The report as lines of a table: one for each host and check id, with its worst row.

    ``lost`` are the hosts of this run that failed or could not be reached before the checks began.
    """
    rows = [*report["checks"]]
    lines = _columns([("HOST", "CHECK", "VERDICT", "ROWS", "MEASURED"), *_summary(rows)])
    lines += [f"{host}: failed or was unreachable earlier in this run" for host in sorted(lost)]
    lines += [f"not run: {one.get('check') or one.get('host')}: {one['reason']}" for one in report["not_run"]]
    lines += [f"PROBLEM {text}" for text in report["problems"]]
    counts = ", ".join(f"{report['counts'].get(word, 0)} {word}" for word in VERDICTS if report["counts"].get(word))
    return [*lines, f"rows: {counts or 'none'}"]


def _summary(rows: list[Row]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for host in dict.fromkeys(str(row["host"]) for row in rows):
        own = [row for row in rows if row["host"] == host]
        reasons = {row["reason"] for row in own}
        if len(own) > 1 and len(reasons) == 1 and {row["verdict"] for row in own} == {"unknown"}:
            found.append((host, "(all)", "unknown", str(len(own)), _short(own[0]["reason"])))
            continue
        for check in dict.fromkeys(row["id"] for row in own):
            found.append(_line(host, check, [row for row in own if row["id"] == check]))
    return found


def _line(host: str, check: str, rows: list[Row]) -> tuple[str, ...]:
    worst = min(rows, key=lambda row: (ORDER.get(row["verdict"], 1), row["severity"] != "warning"))
    verdict = "warning" if worst["verdict"] == "pass" and worst["severity"] == "warning" else str(worst["verdict"])
    if verdict != "pass":
        # One bad row speaks for itself; the others are in the report.
        return host, check, verdict, str(len(rows)), _short(f"{worst['subject']}: {_why(worst)}")
    shown = dict.fromkeys(_with_unit(row["measured"], row) for row in rows if row["measured"] is not None)
    return host, check, verdict, str(len(rows)), _short("; ".join(shown))


def _with_unit(value: Any, row: Row) -> str:
    text = ", ".join(str(one) for one in value) if isinstance(value, list) else str(value)
    return f"{text} {row['unit']}" if row["unit"] else text


def _why(row: Row) -> str:
    if row["reason"]:
        return str(row["reason"])
    return f"{_with_unit(row['measured'], row)}, expected {_with_unit(row['expected'], row)}"


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def acceptance_failures(report: Mapping[str, Any], host: str) -> list[str]:
    """Why `host` does not pass: a line for each bad row, and for what is wrong with the run itself."""
    bad = [row for row in report["checks"] if row["host"] == host and row["verdict"] in ("fail", "unknown")]
    lines = [
        f"{row['id']} {row['subject']}: {row['verdict']}, {_why(row)}"
        + (f" (expected {row['expected']}, measured {row['measured']})" if row["reason"] and row["expected"] else "")
        + (f"; next: {row['hint']}" if row["hint"] else "")
        for row in bad
    ]
    if not any(row["host"] == host for row in report["checks"]):
        lines.append("no check looked at this host; see not_run in the report")
    return lines + [f"the run: {text}" for text in report["problems"]]


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {
            "acceptance_paths": acceptance_paths,
            "acceptance_facts": acceptance_facts,
            "acceptance_inventory": acceptance_inventory,
            "acceptance_lines": acceptance_lines,
            "acceptance_failures": acceptance_failures,
        }
