# SPDX-License-Identifier: Apache-2.0
"""What playbooks/report.yml hands to the drawing: a host and its log, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def time_report_hosts(
    hostvars: Mapping[str, Any], hosts: Iterable[str], relays: Iterable[str], result: str
) -> list[dict[str, Any]]:
    """One entry for each of ``hosts``; ``result`` names the registered answer of time_log_info."""
    known = {str(name) for name in relays or ()}
    return [_entry(str(host), hostvars[host], str(host) in known, result) for host in hosts]


def _entry(host: str, variables: Mapping[str, Any], relay: bool, result: str) -> dict[str, Any]:
    answer = _get(variables, result)
    entry = {
        "host": host,
        "relay": relay,
        "site": _get(variables, "rack_site"),
        "alarm_ms": _number(_get(variables, "time_sync_alarm_ms")),
        "warn_ms": _number(_get(variables, "time_sync_warn_ms")),
        "site_alarm_ms": _number(_get(variables, "time_sync_site_skew_alarm_ms")),
    }
    reason = _missing(answer)
    return {**entry, "reason": reason} if reason else {**entry, "log": answer}


def _missing(answer: Any) -> str | None:
    """Why an answer is none, in a few words; None when it is one."""
    if not isinstance(answer, Mapping):
        return "not asked (it failed or was unreachable earlier in this run)"
    if answer.get("unreachable"):
        return f"unreachable ({_short(answer.get('msg'))})"
    if "points" not in answer:
        return f"could not be read ({_short(answer.get('msg') or answer.get('module_stderr') or 'no reason given')})"
    return None


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 160 else line[:159] + "…"


def _get(variables: Mapping[str, Any], name: str) -> Any:
    """The value, None where there is none or its template fails: one host's mistake must not hide the others."""
    try:
        return variables.get(name)
    except Exception:  # whatever a failing template raises
        return None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number > 0 else None


class FilterModule:
    """Ansible's entry."""

    def filters(self) -> dict[str, Any]:
        return {"time_report_hosts": time_report_hosts}
