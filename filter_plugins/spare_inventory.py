# SPDX-License-Identifier: Apache-2.0
"""What an inventory may say of spares, compute mode and Xids; used by rack_inventory.py before a host is contacted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

NAMES = ("uuid", "serial", "bus_id")
ACTIONS = ("ignore", "app", "check", "reset", "reboot")
FORMS = {
    "uuid": (
        re.compile(r"(?i)GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        "the form GPU-12345678-1234-1234-1234-123456789abc",
    ),
    "serial": (re.compile(r"\d{6,20}"), "the number on the board, in quotes"),
    "bus_id": (
        re.compile(r"(?i)([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
        "the form 0000:31:00.0, as in /sys/bus/pci/devices",
    ),
}
# As the role's filter takes it from text (int); more digits are no number of GPUs.
WHOLE = re.compile(r"[0-9]{1,4}")
AN_INDEX = "name it by UUID (nvidia-smi -L): an index changes when a card drops out"


class Finding(NamedTuple):
    """One thing that is wrong with a host's inputs."""

    what: str
    seen: str
    wanted: str
    step: str = "correct it"


def spare_count(value: Any) -> int | None:
    """A whole number, as text too, for so it arrives from -e; None for anything else. True is no number."""
    if isinstance(value, str) and WHOLE.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def from_command_line(value: Any) -> Any:
    """A number given by -e arrives as text, and the role takes it as a number; anything else stays what it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def spare_findings(variables: Mapping[str, Any], total: int, spans: list[tuple[float, float]]) -> Iterator[Finding]:
    """Everything wrong with the inputs about spares of a host with ``total`` GPUs; ``spans``: caps by model (W)."""
    given = variables.get("gpu_policy_spares", 0)
    count = spare_count(given)
    if count is None or count < 0:
        yield Finding("gpu_policy_spares", repr(given), "a whole number from 0")
        count = 0
    elif count and total and count >= total:
        yield Finding("gpu_policy_spares", f"{count} of {total} GPUs", f"at most {total - 1}, so that one works")
    named = variables.get("gpu_policy_spare_gpus") or []
    if not isinstance(named, (list, tuple)):
        yield Finding("gpu_policy_spare_gpus", repr(named), "a list")
        named = []
    yield from _named(named, count)
    cap = from_command_line(variables.get("gpu_policy_spare_power_cap_w"))
    for low, high in spans:
        if isinstance(cap, (int, float)) and not low <= cap <= high:
            yield Finding("gpu_policy_spare_power_cap_w", f"{cap:g} W", f"{low:g} to {high:g} W, or empty")
    actions = variables.get("gpu_policy_xid_actions")
    for code, word in actions.items() if isinstance(actions, Mapping) else ():
        if not str(code).isdigit():
            yield Finding(f"gpu_policy_xid_actions.{code}", "no Xid code", "a number, such as 74")
        if word not in ACTIONS:
            yield Finding(f"gpu_policy_xid_actions.{code}", repr(word), "one of " + ", ".join(ACTIONS))


def _named(named: Any, count: int) -> Iterator[Finding]:
    seen: set[tuple[str, str]] = set()
    for place, entry in enumerate(named):
        where = f"gpu_policy_spare_gpus[{place}]"
        given = {key: value for key, value in entry.items() if value is not None} if isinstance(entry, Mapping) else {}
        if len(given) != 1 or next(iter(given)) not in NAMES:
            yield Finding(where, repr(entry), "exactly one of " + ", ".join(NAMES), AN_INDEX)
            continue
        ((key, value),) = given.items()
        form, wanted = FORMS[str(key)]
        if not form.fullmatch(str(value)):
            yield Finding(f"{where}.{key}", repr(value), wanted, AN_INDEX)
        name = (str(key), str(value).lower())
        if name in seen:
            yield Finding(where, f"{value} once more", "each GPU once")
        seen.add(name)
    if len(named) > count:
        yield Finding("gpu_policy_spare_gpus", f"{len(named)} GPUs", f"at most {count}, as gpu_policy_spares says")


class FilterModule:
    """Ansible's entry: nothing here is a filter of its own."""

    def filters(self) -> dict[str, Any]:
        return {}
