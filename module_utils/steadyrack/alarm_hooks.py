# SPDX-License-Identifier: BSD-2-Clause
"""Alarms handed to the executables of /etc/steadyrack/alarm.d/, without ever waiting for one.

Each event goes to every hook, one at a time to each: a receiver that hangs does not keep the others waiting. A hook
that fails gets it again after a while, until it takes it or a newer event of the same alarm has taken its place.
:meth:`Hooks.tick` only looks and starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
from typing import Any, Callable, NamedTuple, Sequence

DIRECTORY = "etc/steadyrack/alarm.d"
# A hook that has not ended by then is ended, seconds.
TIMEOUT_S = 15.0
# Waits before the second, third, ... try, seconds; the last one is repeated.
BACKOFF_S = (10.0, 30.0, 60.0, 300.0, 900.0)
# A hook that failed for this long keeps the newest events only, of each alarm one: at most this many.
MOST_WAITING = 200
# As run-parts has it, less what editors and package managers leave behind.
NAME_FORM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
LEFTOVERS = ("~", ".bak", ".tmp", ".swp", ".rpmsave", ".rpmnew", ".rpmorig", ".dpkg-old", ".dpkg-new", ".dpkg-dist")
# How often a hook that runs is looked at, seconds.
LOOK_S = 0.2
# Of what a failing hook says, this many characters are repeated.
SHOWN_CHARACTERS = 300
# The end of what it says is kept, the rest is read and thrown away: a full pipe would stop the hook, bytes.
KEPT_BYTES = 65536
MOST_READS = 256
# The manager's socket is not for hooks: a READY or STOPPING of theirs would be taken for ours.
NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "JOURNAL_STREAM")

Say = Callable[[str, str], None]  # level, text


class Delivery(NamedTuple):
    """One event for one hook."""

    hook: str  # file name
    event: dict[str, Any]
    number: int  # events are delivered in this order
    tries: int = 0
    due: float = 0.0  # monotonic s

    @property
    def alarm(self) -> tuple[str, Any, Any, Any]:
        """What a newer event takes the place of; one with an ``occurrence`` is news by itself, and none replaces it."""
        return (self.hook, self.event.get("id"), self.event.get("subject"), self.event.get("occurrence"))


class _Running(NamedTuple):
    delivery: Delivery
    process: subprocess.Popen[bytes]
    ends: float  # monotonic s
    said: bytearray  # the end of its standard error so far


class Hooks:
    """Deliveries that wait, and those that run: of each hook one at most."""

    def __init__(self, root: str, say: Say, owner: int = 0, waiting: Sequence[dict[str, Any]] = ()) -> None:
        self._directory = os.path.join(root, DIRECTORY)
        self._say = say
        self._owner = owner
        self._running: dict[str, _Running] = {}  # by hook
        self._refused: dict[str, str] = {}
        self._number = 0
        self._waiting: list[Delivery] = []
        for entry in waiting:
            if isinstance(entry, dict) and isinstance(entry.get("hook"), str) and isinstance(entry.get("event"), dict):
                self._add(entry["hook"], entry["event"])
        # Hooks that could be run once: an event that comes while one may not be run waits for it.
        self._known = {one.hook for one in self._waiting}
        self.names()

    # --- what is to be delivered ---

    def put(self, event: dict[str, Any]) -> None:
        """An event for every hook that is there now, also for one that may not be run at this moment."""
        names = self.names()
        self._known = {name for name in self._known if not self._gone(name)}
        for name in sorted({*names, *self._known}):
            self._add(name, event)

    def _add(self, hook: str, event: dict[str, Any]) -> None:
        self._number += 1
        new = Delivery(hook, event, self._number)
        self._waiting = [one for one in self._waiting if one.alarm != new.alarm] + [new]
        self._waiting = self._waiting[-MOST_WAITING:]

    def undelivered(self) -> list[dict[str, Any]]:
        """For the state file: what a new process would have to deliver."""
        running = [one.delivery for one in self._running.values()]
        return [{"hook": one.hook, "event": one.event} for one in [*running, *self._waiting]]

    def wait_s(self, now: float) -> float | None:
        """After how many seconds :meth:`tick` has something to do; None: not before the next event."""
        if self._running:
            return LOOK_S
        due = min((one.due for one in self._waiting), default=None)
        return None if due is None else max(0.0, due - now)

    # --- the directory ---

    def names(self) -> list[str]:
        """The hooks that may run, in name order. One that may not is said once."""
        try:
            found = sorted(os.listdir(self._directory))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._refuse(self._directory, f"cannot be read: {error.strerror}")
            return []
        trouble = self._trouble(self._directory, stat.S_ISDIR)
        if trouble:
            self._refuse(self._directory, trouble)
            return []
        self._refused.pop(self._directory, None)
        usable = [name for name in found if self._may_run(name)]
        self._known.update(usable)
        return usable

    def _gone(self, name: str) -> bool:
        """Whether the file is not there any more. A directory that cannot be read or trusted does not tell."""
        if not NAME_FORM.fullmatch(name) or name.endswith(LEFTOVERS):
            return True
        try:
            found = os.listdir(self._directory)
        except OSError:
            return False
        return name not in found and self._trouble(self._directory, stat.S_ISDIR) is None

    def _may_run(self, name: str) -> bool:
        path = os.path.join(self._directory, name)
        if not NAME_FORM.fullmatch(name) or name.endswith(LEFTOVERS) or not os.access(path, os.X_OK):
            return False
        trouble = self._trouble(path, stat.S_ISREG)
        if trouble:
            self._refuse(path, trouble)
            return False
        self._refused.pop(path, None)
        return True

    def _trouble(self, path: str, kind: Callable[[int], bool]) -> str | None:
        """Why this must not be run as root."""
        try:
            seen = os.lstat(path)
        except OSError as error:
            return f"cannot be looked at: {error.strerror}"
        if not kind(seen.st_mode):
            return "is not a plain file (a link may lead to a file that others can write)"
        if seen.st_uid != self._owner:
            return f"belongs to uid {seen.st_uid}, not to root"
        if seen.st_mode & 0o022:
            return f"can be written by others than root (mode {stat.S_IMODE(seen.st_mode):04o})"
        return None

    def _refuse(self, path: str, why: str) -> None:
        if self._refused.get(path) != why:
            self._refused[path] = why
            self._say("error", f"alarm hook {path} {why}: not run, its events wait. Next: chown root, chmod 0755")

    # --- running ---

    def tick(self, now: float) -> bool:
        """Look after the hooks that run and start those that have something to do; True when a delivery has ended."""
        ended = False
        for running in list(self._running.values()):
            ended = self._look_after(running, now) or ended
        ready: dict[str, Delivery] = {}
        for one in sorted(self._waiting, key=lambda delivery: delivery.number):
            if one.due <= now and one.hook not in self._running:
                ready.setdefault(one.hook, one)
        names = self.names() if ready else []
        for name in sorted(ready):
            self._waiting.remove(ready[name])
            if name in names:
                self._start(ready[name], now)
                ended = ended or name not in self._running
            elif self._gone(name):
                self._say(
                    "warning",
                    f"alarm hook {name} is gone from /{DIRECTORY}: it was not told of {told(ready[name].event)}",
                )
                ended = True
            else:
                self._hold(ready[name], now)
        return ended

    def _hold(self, delivery: Delivery, now: float) -> None:
        """A hook that may not be run now, or a directory that cannot be looked into: soon it may be as before."""
        path = os.path.join(self._directory, delivery.hook)
        if not os.path.isdir(self._directory):
            self._refuse(self._directory, "is not there")
        elif not {path, self._directory} & set(self._refused):
            self._refuse(path, "is not executable")  # said here only: without events it is a note or an example
        self._waiting.append(delivery._replace(due=now + BACKOFF_S[0]))

    def _start(self, delivery: Delivery, now: float) -> None:
        path = os.path.join(self._directory, delivery.hook)
        try:
            process = subprocess.Popen(
                [path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env=environment(delivery.event), cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._failed(delivery, f"cannot be started: {error.strerror}", now)
            return
        self._running[delivery.hook] = _Running(delivery, process, now + TIMEOUT_S, bytearray())
        assert process.stdin is not None
        assert process.stderr is not None
        os.set_blocking(process.stderr.fileno(), False)
        # Some thousand bytes at most: less than a pipe holds, so this does not wait for the hook to read.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(delivery.event, ensure_ascii=False).encode("utf-8") + b"\n")
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()

    def _look_after(self, running: _Running, now: float) -> bool:
        status = running.process.poll()
        self._listen(running)
        if status is None and now < running.ends:
            return False
        del self._running[running.delivery.hook]
        if status is None:
            self._kill(running.process)
            self._failed(running.delivery, f"no end within {TIMEOUT_S:g} s", now)
            return True
        said = self._last_words(running)
        if status == 0:
            if running.delivery.tries:
                self._say("notice", f"alarm hook {running.delivery.hook} has taken {told(running.delivery.event)} now")
            return True
        how = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
        self._failed(running.delivery, how + (f": {said}" if said else ""), now)
        return True

    def _failed(self, delivery: Delivery, why: str, now: float) -> None:
        if any(one.alarm == delivery.alarm for one in self._waiting):
            self._say("warning", f"alarm hook {delivery.hook}: {why}; a newer event of the same alarm follows")
            return
        wait_s = BACKOFF_S[min(delivery.tries, len(BACKOFF_S) - 1)]
        # Said at first, and each time the wait grows: not a line for every try of a night.
        if delivery.tries < len(BACKOFF_S):
            self._say("error", f"alarm hook {delivery.hook}: {why}; tried again in {wait_s:g} s")
        self._waiting.append(delivery._replace(tries=delivery.tries + 1, due=now + wait_s))

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """The hook and its process group; who has left that ends with our unit.

        One that hangs in the kernel is left behind, never waited for.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        if process.stderr is not None:
            process.stderr.close()

    @staticmethod
    def _listen(running: _Running) -> None:
        """Take what it printed as its error, without waiting for more: not longer than a look may last."""
        assert running.process.stderr is not None
        for _ in range(MOST_READS):
            try:
                text = os.read(running.process.stderr.fileno(), KEPT_BYTES)
            except BlockingIOError:
                return
            if not text:
                return
            running.said.extend(text)
            del running.said[:-KEPT_BYTES]

    @staticmethod
    def _last_words(running: _Running) -> str:
        """The end of it. A grandchild may hold the pipe for long: it is closed all the same."""
        assert running.process.stderr is not None
        running.process.stderr.close()
        return " ".join(running.said.decode("utf-8", "replace").split())[-SHOWN_CHARACTERS:]

    def stop(self) -> None:
        """End what runs; its deliveries stay undelivered."""
        for running in self._running.values():
            self._kill(running.process)


def environment(event: dict[str, Any]) -> dict[str, str]:
    """A hook's environment: ours, and the event in words."""
    env = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    words = {
        "EVENT": event.get("event"), "CHECK": event.get("id"), "SUBJECT": event.get("subject"),
        "SEVERITY": event.get("severity"), "STATE": event.get("state"), "REASON": event.get("reason"),
        "HOST": event.get("host"), "SITE": event.get("site"), "AT": event.get("at"), "TEXT": event.get("text"),
    }  # fmt: skip
    env.update({f"STEADYRACK_{key}": _plain(value) for key, value in words.items()})
    return env


def told(event: dict[str, Any]) -> str:
    """An event in a few words."""
    return "{} {} {}".format(event.get("id"), event.get("subject"), event.get("event"))


def _plain(value: Any) -> str:
    """Text without control characters, which would end it or its line."""
    return "" if value is None else re.sub(r"[\x00-\x1f\x7f]+", " ", str(value))
