# SPDX-License-Identifier: BSD-2-Clause
"""New rules on trial: loaded with a clock running against them, kept only when somebody comes back and says so.

Before the rules are loaded a systemd timer is armed that brings back the table as it was. The timer lives in
PID 1, so it fires whatever happens to Ansible, to its connection or to this process. It counts monotonic time:
a clock that is set meanwhile does not matter. What makes the rules last (the file that is loaded at boot) is
written only after the confirmation, so that a power cycle is a way back, too.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from . import nft
from .errors import InputError, NotAppliedError, SteadyrackError, ToolError
from .files import atomic_write, dump_json, load_json, make_directory, read_bytes
from .nft import Runner, Table
from .run import run

# Below /run: a reboot forgets the trial together with the rules on trial.
TRIAL_DIRECTORY = "/run/steadyrack/firewall"
ROLLBACK_UNIT = "steadyrack-firewall-rollback"
SYSTEMD_TIMEOUT_S = 30.0
# A rollback may take this long after its timer has run out (nft's own deadline, with room), seconds. A marker that is
# older belongs to no trial: something was killed, and what is loaded is judged like anything else.
OVERDUE_S = 30.0
# A confirmation that broke off halfway and could not take the rules back itself has a timer try again, seconds.
RETRY_S = 10
# The marker goes last: whoever waits for the rollback looks at it. What could not be loaded is left to be looked at.
# Without a file there is nothing to go back to: then somebody else was here, and no table is deleted for that.
_ROLLBACK = (
    'if [ ! -e "$1" ]; then echo "no trial is left to take back"; '
    'elif nft -f "$1"; then rm -f "$1"; echo "not confirmed: the rules of before are loaded again"; '
    'else nft delete table "$3" "$4"; echo "not confirmed, and the rules of before do not load: no table"; fi; '
    'rm -f "$2"'
)


def marker_path(directory: str) -> str:
    return os.path.join(directory, "trial.json")


def previous_path(directory: str) -> str:
    return os.path.join(directory, "previous.nft")


def pending(directory: str = TRIAL_DIRECTORY) -> dict[str, Any] | None:
    """The trial that nobody has confirmed yet, None when there is none."""
    return load_json(marker_path(directory))


def running(directory: str = TRIAL_DIRECTORY) -> dict[str, Any] | None:
    """The trial whose time is not over yet; None for a marker that was left behind, or that cannot be read."""
    try:
        trial = pending(directory)
    except SteadyrackError:
        return None
    since, timeout = (None if trial is None else trial.get(key) for key in ("armed_at", "timeout_s"))
    if not isinstance(since, (int, float)) or not isinstance(timeout, (int, float)):
        return None
    return trial if 0 <= time.monotonic() - since <= timeout + OVERDUE_S else None


def start(
    table: Table,
    text: str,
    timeout_s: int,
    connection: str | None,
    *,
    directory: str = TRIAL_DIRECTORY,
    runner: Runner = run,
) -> None:
    """Arm the way back, then load. A trial that nobody has confirmed is taken back first, while its timer still runs.

    Its timer cannot serve the new one, and without a timer its rules must never be live.
    """
    if timeout_s <= 0:
        raise InputError(
            "confirm timeout", f"{timeout_s} s", "more than 0 s", "correct rack_firewall_confirm_timeout_s"
        )
    target = nft.wanted(table, text, runner)
    nft.check(nft.replacement(table, text), runner)
    make_directory(directory)
    nothing = "nothing was loaded"
    if pending(directory) is not None:
        _end_older(table, directory, runner)
        nothing += ", and the rules of an older trial, which nobody had confirmed, were taken back"
    disarm(runner)  # one that is left without its marker must not fire under this trial
    _keep_previous(table, directory, runner)
    # The clock that systemd's timers run by: it never steps.
    times = {"armed_at": round(time.monotonic(), 3), "timeout_s": timeout_s}
    marker = {"version": 1, "connection": connection, "target": target, **times}
    atomic_write(marker_path(directory), dump_json(marker), 0o600)
    try:
        arm(table, timeout_s, directory, runner)
    except SteadyrackError as error:
        # It may have been armed all the same, as after a deadline.
        with contextlib.suppress(SteadyrackError):
            disarm(runner)
        forget(directory)
        raise ToolError(
            "systemd-run", str(error.seen), "a timer that takes the rules back", f"systemctl status; {nothing}"
        ) from error
    try:
        nft.load(table, text, runner)
        if nft.live(table, runner) != target:
            raise NotAppliedError(
                f"table {table}", "other rules than were loaded", "the rules as given", "nft list ruleset"
            )
    except SteadyrackError:
        roll_back(table, directory, runner)
        raise


def _end_older(table: Table, directory: str, runner: Runner) -> None:
    """Take an unconfirmed trial back; its timer is stopped only after that."""
    if roll_back(table, directory, runner):
        return
    disarm(runner)  # its rollback may be under way, and ends by taking the marker away
    if read_bytes(previous_path(directory)) is None:
        forget(directory)
    elif pending(directory) is not None:
        arm(table, RETRY_S, directory, runner)
        raise NotAppliedError(
            f"table {table}", f"an older trial is unconfirmed, and {previous_path(directory)} does not load",
            "the rules of before it", f"in {RETRY_S} s a timer tries again or deletes the table; then run this again",
        )  # fmt: skip


def _keep_previous(table: Table, directory: str, runner: Runner) -> None:
    """The script that brings the present table back, counters included; one that nft would refuse is not kept."""
    done = runner(["nft", "list", "table", table.family, table.name], nft.NFT_TIMEOUT_S)
    before = done.out if done.rc == 0 else ""
    script = nft.replacement(table, before) if before else nft.removal(table)
    try:
        nft.check(script, runner)
    except InputError:
        script = nft.removal(table)  # no rules of ours lock nobody out
    atomic_write(previous_path(directory), script.encode("utf-8"), 0o600)


def arm(table: Table, timeout_s: int, directory: str, runner: Runner = run) -> None:
    """A transient timer that loads the previous table after ``timeout_s`` seconds."""
    argv = [
        "systemd-run", "--quiet", "--collect", f"--unit={ROLLBACK_UNIT}", f"--on-active={timeout_s}s",
        "--timer-property=AccuracySec=100ms", "--description=Unconfirmed firewall rules of steadyrack are taken back",
        "--", "/bin/sh", "-c", _ROLLBACK, "sh", previous_path(directory), marker_path(directory),
        table.family, table.name,
    ]  # fmt: skip
    done = runner(argv, SYSTEMD_TIMEOUT_S)
    if done.rc != 0:
        raise ToolError("systemd-run", done.said, "a timer that takes the rules back", "systemctl status")


def disarm(runner: Runner = run, wait_s: float = SYSTEMD_TIMEOUT_S) -> None:
    """No timer and no rollback under way any more. One that has begun is let finish: its marker goes last."""
    runner(["systemctl", "stop", "--", f"{ROLLBACK_UNIT}.timer"], SYSTEMD_TIMEOUT_S)
    give_up = time.monotonic() + wait_s
    while _running(runner) and time.monotonic() < give_up:
        time.sleep(0.05)


def _running(runner: Runner) -> bool:
    shown = runner(["systemctl", "show", "--property=ActiveState", "--", f"{ROLLBACK_UNIT}.service"], SYSTEMD_TIMEOUT_S)
    return shown.out.strip() in ("ActiveState=activating", "ActiveState=active", "ActiveState=deactivating")


def roll_back(table: Table, directory: str = TRIAL_DIRECTORY, runner: Runner = run) -> bool:
    """Go back now rather than when the timer fires; when that fails (False) the timer is left to try it again."""
    done = runner(["nft", "-f", previous_path(directory)], nft.NFT_TIMEOUT_S)
    if done.rc != 0:
        return False
    disarm(runner)
    forget(directory)
    return True


def confirm(
    table: Table,
    text: str,
    kept: str,
    timeout_s: int,
    connection: str | None,
    *,
    directory: str = TRIAL_DIRECTORY,
    runner: Runner = run,
) -> None:
    """Keep the rules on trial, if they are still there and this came by another connection than they did.

    ``text``: those rules. ``kept``: the file from which the table comes back at boot, still the old one.
    """
    trial = pending(directory)
    if trial is None:
        raise _ran_out(table, text, kept, timeout_s, runner)
    if connection is None and trial.get("connection") is not None:
        # Not known is not new. A trial that came by no connection (a play on the host itself) cut none either.
        raise NotAppliedError(
            f"table {table}", f"a confirmation by no known connection of rules that came over {trial['connection']}",
            "a new SSH connection", "confirm from where the trial was begun; SSH_CONNECTION must reach the module",
        )  # fmt: skip
    if connection is not None and connection == trial.get("connection"):
        raise NotAppliedError(
            f"table {table}", f"a confirmation over the connection that loaded them ({connection})",
            "a new connection", "an open connection outlives rules that cut SSH; reset it first",
        )  # fmt: skip
    if _would_load(table, text, runner) != trial.get("target"):
        raise NotAppliedError(
            f"table {table}", "a trial of other rules, begun by another run after this one's",
            "the trial that this run began", "let that run end, then run the play again",
        )  # fmt: skip
    # Before the timer is stopped: whatever is wrong here, it still takes the rules back.
    _must_be_live(table, trial, "; the timer takes the rules back", runner)
    try:
        disarm(runner)
        left = pending(directory)
        if left is not None:
            _must_be_live(table, trial, "", runner)
    except SteadyrackError as error:
        raise NotAppliedError(
            f"table {table}",
            f"a confirmation that broke off ({error.sentence()}). {_taken_back(table, directory, runner)}",
            "confirmed rules", f"journalctl -u {ROLLBACK_UNIT}; run the play again",
        ) from error  # fmt: skip
    if left is None:  # the timer was faster
        raise _ran_out(table, text, kept, timeout_s, runner)


def _must_be_live(table: Table, trial: dict[str, Any], then: str, runner: Runner) -> None:
    if nft.live(table, runner) != trial.get("target"):
        raise NotAppliedError(
            f"table {table}", f"other rules than those on trial{then}", "the rules on trial",
            "who else changes this table? run the play again",
        )  # fmt: skip


def _taken_back(table: Table, directory: str, runner: Runner) -> str:
    """After the timer was stopped: go back now, else have a timer do it; what came of it, in words."""
    with contextlib.suppress(SteadyrackError):
        if roll_back(table, directory, runner):
            return "The rules of before are loaded again."
    try:
        arm(table, RETRY_S, directory, runner)
    except SteadyrackError as error:
        # Also where the old timer could not be stopped and still has the name: then it does it.
        return f"Nothing is known to take them back ({error.sentence()}): nft -f {previous_path(directory)}."
    return f"A timer takes the rules back in {RETRY_S} s."


def _ran_out(table: Table, text: str, kept: str, timeout_s: int, runner: Runner) -> NotAppliedError:
    """Nobody confirmed in time: what happened, and what is loaded now, as read back from the kernel."""
    live, before = nft.live(table, runner), read_bytes(kept)
    advice = "correct rack_firewall_extra_rules or raise rack_firewall_confirm_timeout_s, then run this again"
    look = f"nft list table {table}; journalctl -u {ROLLBACK_UNIT}; run the play again"
    if before is None:
        back = "no table is loaded, as before any confirmed rules" if live is None else None
    else:
        same = live is not None and live == _would_load(table, before.decode("utf-8", "replace"), runner)
        back = f"the old rules are back (read back: those of {kept})" if same else None
    if back is None:
        advice = look
        if live is None:
            back = f"the old rules of {kept} are not back: no table is loaded"
        elif live == _would_load(table, text, runner):
            back = "the new rules are live all the same, and no trial of them runs"
        else:
            back = f"other rules than the new ones and those of {kept} are live, such as an edit of before the trial"
    return NotAppliedError(
        f"table {table}", f"new rules were loaded and not confirmed within {timeout_s} s; {back}",
        "rules that are confirmed over a new connection", advice,
    )  # fmt: skip


def _would_load(table: Table, text: str, runner: Runner) -> str | None:
    """The table that a text makes, None for one that nft refuses."""
    try:
        return nft.wanted(table, text, runner)
    except InputError:
        return None


def forget(directory: str = TRIAL_DIRECTORY) -> None:
    """The trial is over."""
    for path in (marker_path(directory), previous_path(directory)):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def ssh_connection(pid: int | None = None, root: str = "/") -> str | None:
    """The SSH connection this process came by, None for none: SSH_CONNECTION, or an ancestor's (sudo takes it away)."""
    at = os.getpid() if pid is None else pid
    for _step in range(32):
        environment = read_bytes(os.path.join(root, "proc", str(at), "environ")) or b""
        for entry in environment.split(b"\0"):
            if entry.startswith(b"SSH_CONNECTION="):
                return entry.split(b"=", 1)[1].decode("utf-8", "replace")
        status = (read_bytes(os.path.join(root, "proc", str(at), "stat")) or b"").decode("utf-8", "replace")
        words = status.rpartition(")")[2].split()
        if len(words) < 2 or int(words[1]) < 1:
            return None
        at = int(words[1])
    return None
