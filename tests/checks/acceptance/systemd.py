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
    """By what is loaded, or by a file that systemd has yet to read."""
    return unit.get("LoadState") == "masked" or unit.get("ShadowMasks") == "yes"


def enabled(unit: Mapping[str, str]) -> bool:
    """It would start at the next boot, for which the files count and not what systemd remembers of them."""
    words = ("enabled", "enabled-runtime", "alias")
    return unit.get("UnitFileState") in words and unit.get("Wanted") != "no" and not masked(unit)


def read_anew(unit: Mapping[str, str]) -> bool:
    """What is loaded is what lies on the disk."""
    return unit.get("NeedDaemonReload") != "yes" and not unit.get("Shadow")


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
    if unit.get("Shadow"):
        what = "masked" if unit.get("ShadowMasks") == "yes" else "replaced"
        words.append(f"{what} on disk by {unit['Shadow']}, not read yet")
    if unit.get("Wanted") == "no":
        words.append("no target has a link to it any more")
    return ", ".join(words)
