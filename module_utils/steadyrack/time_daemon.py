# SPDX-License-Identifier: BSD-2-Clause
"""time.daemon: chronyd runs and will run after a boot, and no second service keeps the clock.

Of two keepers of one clock the last one started wins, and both pull: a rival is as bad as no chronyd.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from . import units, verdict
from .errors import SteadyrackError
from .run import Completed, run

# The keepers of a clock that distributions ship, where the role's note does not list them.
RIVALS = ("systemd-timesyncd.service", "ntp.service", "ntpd.service", "ntpsec.service", "openntpd.service")


def daemon_rows(
    subject: str, unit: str, rivals: Sequence[str], runner: Callable[..., Completed] = run
) -> list[dict[str, Any]]:
    """One row for the daemon's unit, and one for each rival that runs or would at the next boot."""
    name = units.full_name(unit)
    try:
        seen = units.show_units([name, *rivals], runner)
        first = _daemon_row(name, seen[name], runner)
    except SteadyrackError as error:
        return [
            verdict.check_row(
                "time.daemon", name, verdict.UNKNOWN, source="systemd", reason=error.sentence(), hint=error.next_step
            )
        ]
    return [first, *(_rival_row(rival, seen[rival]) for rival in rivals if _competes(seen[rival], seen[name]))]


def _daemon_row(name: str, seen: units.UnitState, runner: Callable[..., Completed]) -> dict[str, Any]:
    row: dict[str, Any] = {"expected": "running, enabled", "source": "systemd"}
    row["measured"] = f"{seen.active}, {seen.file_state or 'no unit file'}" if seen.exists else "missing"
    if seen.skipped:
        reason = (
            f"{name} does not run here: {units.failed_condition(name, runner)}; the clock is not this host's to keep"
        )
        return verdict.check_row("time.daemon", name, verdict.NOT_JUDGED, "skipped", reason=reason, **row)
    hint = f"run the role time_sync; systemctl status {name}; journalctl -u {name}"
    if not seen.exists:
        state, reason = "missing", "there is no such unit: the daemon is not installed"
    elif seen.masked:
        state, reason = "masked", "it is masked: it cannot be started" + (", and still runs" if seen.up else "")
    elif not seen.up:
        state, reason = "stopped", f"it is {seen.active}: nothing keeps this clock"
    elif not seen.enabled:
        state, reason = "disabled", "it runs, and would not after the next boot"
    else:
        return verdict.check_row("time.daemon", name, verdict.PASS, "running", **row)
    return verdict.check_row("time.daemon", name, verdict.FAIL, state, reason=reason, hint=hint, **row)


def _competes(rival: units.UnitState, ours: units.UnitState) -> bool:
    """It runs, or would at the next boot. Another name of our own unit is no rival."""
    if not rival.exists or rival.id == ours.id:
        return False
    return rival.up or rival.active in ("activating", "reloading") or (rival.enabled and not rival.masked)


def _rival_row(name: str, seen: units.UnitState) -> dict[str, Any]:
    running = seen.up or seen.active in ("activating", "reloading")
    reason = "a second service keeps this clock" if running else "a second keeper of the clock starts at the next boot"
    return verdict.check_row(
        "time.daemon", units.full_name(name), verdict.FAIL, "running" if running else "stopped",
        expected="masked or absent", measured=f"{seen.active}, {seen.file_state or 'no unit file'}", source="systemd",
        reason=reason, hint=f"systemctl mask --now {name}; or run the role time_sync. Who installed it?",
    )  # fmt: skip
