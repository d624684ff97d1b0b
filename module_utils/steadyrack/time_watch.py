# SPDX-License-Identifier: BSD-2-Clause
"""The watch over a host's clock: a look every few seconds, alarms to the journal, to hooks and to Prometheus.

Nothing that it writes may stop it: a full disk is said once and the alarm rings all the same. Time between looks
is that of a clock that never steps; the wall clock is what is being judged.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from datetime import datetime, timezone
from typing import Any, Callable

from . import (
    alarm_hooks,
    alarms,
    chronyc,
    firewall_checks,
    time_checks,
    time_config,
    time_daemon,
    time_egress,
    time_metrics,
    verdict,
)
from .errors import SteadyrackError
from .files import make_directory
from .run import Completed, run

# systemd and nft are asked every so many looks: what they tell does not change by itself.
SLOW_LOOKS = 2
# With an alarm standing the state file is kept fresh, for the ages in it, seconds.
SAVE_S = 600.0
# Texts in an event are no longer than this, characters.
LONGEST = 1000
PRIORITY = {"alert": 1, "error": 3, "warning": 4, "notice": 5, "info": 6}


class Watch:
    """One look after another. Everything from outside is handed in, so that a test may hand in its own."""

    def __init__(
        self,
        root: str = "/",
        *,
        textfile: str | None = None,
        runner: Callable[..., Completed] = run,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        out: Callable[[str], None] | None = None,
        hook_owner: int = 0,
    ) -> None:
        self._root, self._textfile, self._runner = root, textfile, runner
        self._monotonic, self._wall = monotonic, wall
        self._out = out or _print
        self._host = socket.gethostname()
        self._site: str | None = None
        self._looks = 0
        self._troubles: dict[str, str] = {}
        self._saved_at = monotonic()
        self._unsaved = False
        self._metrics_path: str | None = None
        self._egress = time_egress.load_record(root)
        self._rules = firewall_checks.Wanted()
        left: dict[str, Any] = {}
        try:
            self._alarms, left = alarms.load(root, monotonic())
        except SteadyrackError as error:
            self._alarms = alarms.Alarms()
            self.say("error", f"the alarms of the run before are lost: {error.sentence()}")
        waiting = left.get("undelivered")
        self._hooks = alarm_hooks.Hooks(root, self.say, hook_owner, waiting if isinstance(waiting, list) else ())

    # --- words ---

    def say(self, level: str, text: str) -> None:
        """One line to the journal with its priority when systemd runs us, else plain."""
        line = " ".join(text.split())
        self._out(f"<{PRIORITY[level]}>{line}" if os.environ.get("JOURNAL_STREAM") else line)

    def _trouble(self, what: str, error: str | None) -> None:
        """Say what goes wrong when it begins and when it ends, not at every look in between."""
        before = self._troubles.get(what)
        if error is None:
            if before is not None:
                del self._troubles[what]
                self.say("notice", f"{what}: works again")
        elif error != before:
            self._troubles[what] = error
            self.say("error", f"{what}: {error}")

    # --- a look ---

    def look(self) -> list[dict[str, Any]]:
        """Look once, say and hand on what has changed; the events come back."""
        at = self._wall()
        slow = self._looks % SLOW_LOOKS == 0
        policy, clock, rows = self._rows(at, slow)
        self._looks += 1
        events = [self._dressed(event) for event in self._alarms.update(rows, self._monotonic(), at)]
        for event in events:
            self.say(_level(event), event["text"])
            self._hooks.put(event)
        self._unsaved = self._unsaved or bool(events)
        self._write_metrics(time_metrics.render(policy, clock, self._alarms.standing(), self._egress, at))
        self._save()
        return events

    def _rows(
        self, at: float, slow: bool
    ) -> tuple[time_checks.TimePolicy | None, chronyc.Clock | None, list[dict[str, Any]]]:
        try:
            policy = time_checks.load_policy(self._root)
        except SteadyrackError as error:
            reason, hint = error.sentence(), error.next_step
            row = verdict.check_row("time.synchronised", self._host, verdict.UNKNOWN, reason=reason, hint=hint)
            return None, None, [row]
        if policy is None:
            left = time_config.without_note(self._host, time_checks.POLICY_PATH, self._root)
            if left:  # somebody took the note: whatever stood stands, and nobody looks after it
                return None, None, [time_checks.not_declared(self._host), *left]
            # Nobody's business here any more: whatever stood ends.
            ids = {"time.synchronised", *(one.id for one in self._alarms.standing())}
            reason = "the role time_sync has not run on this host"
            return None, None, [
                verdict.check_row(name, self._host, verdict.NOT_JUDGED, alarms.GIVEN_UP, reason=reason)
                for name in sorted(ids)
            ]  # fmt: skip
        self._site = policy.site
        clock = chronyc.look(self._runner)
        rows = time_checks.clock_rows(policy, self._host, clock, self._runner, at)
        if slow:
            rows += time_daemon.daemon_rows(self._host, policy.unit, policy.rivals, self._runner)
            rows += time_config.rows(self._host, policy.files, self._root)
            rows += self._egress_rows(at)
            rows += self._firewall_rows()
            rows += self._given_up(rows)
        return policy, clock, rows

    def _firewall_rows(self) -> list[dict[str, Any]]:
        rows = firewall_checks.checks(self._root, self._runner, self._rules)
        # A leak that was counted is time.egress's to tell: it ends when it ends, this row's count never does.
        return [dict(row, severity=verdict.INFO) if row["state"] == "leak" else row for row in rows]

    def _given_up(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows for alarms of checks that nobody makes any more, such as time.skew without another site: they end."""
        made = {row["id"] for row in rows}
        left = sorted({one.id for one in self._alarms.standing()} - made)
        reason = "not checked on this host any more"
        return [
            verdict.check_row(name, self._host, verdict.NOT_JUDGED, alarms.GIVEN_UP, reason=reason) for name in left
        ]

    def _egress_rows(self, at: float) -> list[dict[str, Any]]:
        before = self._egress
        found, after = time_egress.rows(self._host, self._root, at, before, self._runner)
        if after is None:
            return found
        self._egress = after
        if after != before:
            try:
                make_directory(os.path.join(self._root, os.path.dirname(time_egress.RECORD_PATH)))
                time_egress.save_record(after, self._root)
                self._trouble(time_egress.RECORD_PATH, None)
            except SteadyrackError as error:
                self._trouble(time_egress.RECORD_PATH, error.sentence())
        # The first look ever: what was counted before it is nobody's news.
        return found if before is not None else [time_egress.egress_row(self._host, after, at)]

    def _dressed(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event as hooks get it: with the host, times that people read, and one sentence."""
        event = {key: value[:LONGEST] if isinstance(value, str) else value for key, value in event.items()}
        event.update(version=1, host=self._host, site=self._site, at=_stamp(event["at"]), since=_stamp(event["since"]))
        event["text"] = sentence(event)
        return event

    # --- what is kept ---

    def _write_metrics(self, text: str) -> None:
        try:
            folder = time_metrics.directory(self._root, self._textfile)
            time_metrics.write(folder, text)
        except OSError as error:
            self._trouble("metrics", f"{error.filename or self._textfile}: {error.strerror}")
            return
        self._trouble("metrics", None)
        if self._metrics_path not in (None, folder):
            # The exporter has been installed since: the file in the old place would be read as if it lived.
            _remove(os.path.join(str(self._metrics_path), time_metrics.FILE))
        self._metrics_path = folder

    def _save(self) -> None:
        now = self._monotonic()
        if not self._unsaved and not (self._alarms.standing() and now - self._saved_at >= SAVE_S):
            return
        try:
            make_directory(os.path.join(self._root, os.path.dirname(alarms.STATE_PATH)))
            alarms.save(self._root, self._alarms, now, self._hooks.undelivered())
        except SteadyrackError as error:
            self._trouble(alarms.STATE_PATH, error.sentence())
            self._unsaved = True
            return
        self._trouble(alarms.STATE_PATH, None)
        self._unsaved, self._saved_at = False, now

    # --- hooks ---

    def tick(self) -> float | None:
        """Look after the hooks; after how many seconds to do so again, None: not before the next look."""
        if self._hooks.tick(self._monotonic()):
            self._unsaved = True
            self._save()
        return self._hooks.wait_s(self._monotonic())

    # --- for ever ---

    def serve(self, interval_s: float, stop: threading.Event) -> None:
        """Look until told to stop. The watchdog is fed after a look that came to its end, and by nothing else."""
        notify("READY=1")
        due = self._monotonic()
        while not stop.is_set():
            if self._monotonic() >= due:
                self.look()
                notify("WATCHDOG=1\nSTATUS=" + self._status())
                due = max(due + interval_s, self._monotonic())
            again_s = self.tick()
            left_s = max(0.0, due - self._monotonic())
            stop.wait(left_s if again_s is None else min(left_s, again_s))
        notify("STOPPING=1")
        self._hooks.stop()
        self._unsaved = True
        self._save()

    def _status(self) -> str:
        standing = self._alarms.standing()
        return "all well" if not standing else "alarms: " + ", ".join(sorted({one.id for one in standing}))


# --- words -------------------------------------------------------------------------------------


def sentence(event: dict[str, Any]) -> str:
    """One line for a person who is woken by it."""
    what = "{}: {} {}".format(event["host"], event["id"], event["subject"])
    reason = event.get("reason") or event.get("state") or "no reason given"
    kind = event["event"]
    if kind == alarms.CLEARED:
        return f"ended after {span(event['lasted_s'])}: {what} (was: {reason})"
    word = "ALARM" if event["severity"] == verdict.CRITICAL else "warning"
    hint = f". Next: {event['hint']}" if event.get("hint") else ""
    if kind == alarms.REMINDER:
        return f"{word}, for {span(event['lasted_s'])} now: {what}: {reason}{hint}"
    if kind == alarms.LOWERED:
        return f"better, now a {word}: {what}: {reason}"
    if kind == alarms.FLAPPING:
        quiet = span(alarms.FLAP_CLEAR_S)
        return f"{word}, flapping: {what} comes and goes; it stays raised until {quiet} are quiet: {reason}{hint}"
    return f"{word}: {what}: {reason}{hint}"


def span(seconds: float) -> str:
    """A span of time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _level(event: dict[str, Any]) -> str:
    if event["event"] == alarms.CLEARED:
        return "notice"
    return "alert" if event["severity"] == verdict.CRITICAL else "warning"


def _stamp(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print(line: str) -> None:
    print(line, flush=True)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


# --- systemd -----------------------------------------------------------------------------------


def notify(state: str) -> None:
    """sd_notify(3) by hand: a datagram to the manager that started us; nothing where there is none."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.settimeout(1.0)
        try:
            sender.sendto(state.encode("utf-8"), address.replace("@", "\0", 1) if address[0] == "@" else address)
        except OSError:
            return  # a manager that restarts; where it did miss something, its watchdog restarts us


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
