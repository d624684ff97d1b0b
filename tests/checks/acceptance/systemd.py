"""Units in three words that mean the same on every release: missing, stopped, running (and why it is stopped)."""

from __future__ import annotations

from collections.abc import Mapping

MISSING, STOPPED, RUNNING = "missing", "stopped", "running"


def state(unit: Mapping[str, str]) -> str:
    """From `systemctl show`, whose answer for a unit that does not exist is a state, not an exit status (C79)."""
    if unit.get("LoadState") in (None, "", "not-found"):
        return MISSING
    return RUNNING if unit.get("ActiveState") in ("active", "reloading", "activating") else STOPPED


def masked(unit: Mapping[str, str]) -> bool:
    return unit.get("LoadState") == "masked"


def enabled(unit: Mapping[str, str]) -> bool:
    return unit.get("UnitFileState") in ("enabled", "enabled-runtime", "alias")


def told(unit: Mapping[str, str]) -> str:
    """What systemd says, for people: `loaded, enabled, inactive (dead), result exit-code`."""
    if state(unit) == MISSING:
        return MISSING
    words = [unit.get("UnitFileState") or "no install state", f"{unit.get('ActiveState')} ({unit.get('SubState')})"]
    if unit.get("LoadState") != "loaded":
        words.insert(0, str(unit.get("LoadState")))
    if unit.get("Result", "success") != "success":
        words.append(f"result {unit['Result']}")
    if unit.get("NeedDaemonReload") == "yes":
        words.append("changed on disk since systemd read it")
    return ", ".join(words)
