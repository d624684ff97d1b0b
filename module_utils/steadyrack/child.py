# SPDX-License-Identifier: BSD-2-Clause
"""A child process for calls that may never return, spoken to in lines of JSON.

A driver call can hang in the kernel for ever, and then not even SIGKILL ends it. So such calls are
made in a forked child: the parent waits for each line with a deadline and, when it passes, kills
the child without waiting for its end. A child that cannot be killed is left behind and named.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict

# How long a killed child may take to disappear before it counts as unkillable (state D), seconds.
# An ordinary process goes within milliseconds; a busy machine may need a little more.
REAP_GRACE_S = 1.0

Message = Dict[str, Any]


class ChildSilentError(Exception):
    """The child said nothing within the deadline; it has been killed or left behind."""


class ChildGoneError(Exception):
    """The child ended without finishing its answer; ``how`` says by which signal or status."""

    def __init__(self, how: str) -> None:
        self.how = how
        super().__init__(how)


class Channel:
    """Lines of JSON over two pipe ends; the same on both sides."""

    def __init__(self, read_end: int, write_end: int) -> None:
        self.read_end = read_end
        self.write_end = write_end
        self._rest = b""

    def send(self, message: Message) -> None:
        """Write one message whole."""
        data = json.dumps(message).encode("utf-8") + b"\n"
        while data:
            data = data[os.write(self.write_end, data) :]

    def receive(self, deadline_s: float | None = None) -> Message:
        """The next message; EOFError when the other side has gone, ChildSilentError after the deadline."""
        give_up = None if deadline_s is None else time.monotonic() + deadline_s
        while b"\n" not in self._rest:
            if give_up is not None and not _readable(self.read_end, give_up - time.monotonic()):
                raise ChildSilentError()
            data = os.read(self.read_end, 65536)
            if not data:
                raise EOFError
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        message: Message = json.loads(line.decode("utf-8"))
        return message

    def close(self) -> None:
        """Close both ends; the other side then reads end of file."""
        os.close(self.read_end)
        os.close(self.write_end)


def _readable(descriptor: int, within_s: float) -> bool:
    """True when there is something to read. poll, because select refuses descriptors above 1023."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, within_s) * 1000))


class Child:
    """One forked child running ``serve(channel)``.

    It holds none of the parent's open files: an unkillable child that kept them would keep our lock
    taken and, through standard output, an SSH session open for ever.
    """

    def __init__(self, serve: Callable[[Channel], None]) -> None:
        down_read, down_write = os.pipe()
        up_read, up_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(serve, down_read, up_write)
        os.close(down_read)
        os.close(up_write)
        self._channel = Channel(up_read, down_write)
        self.ended = False

    def send(self, message: Message) -> None:
        """Ask the child something; ChildGoneError if it no longer listens."""
        try:
            self._channel.send(message)
        except BrokenPipeError:
            raise ChildGoneError(self._how_it_ended()) from None

    def receive(self, deadline_s: float) -> Message:
        """Its next message. On ChildSilentError or ChildGoneError the child is no longer usable."""
        try:
            return self._channel.receive(deadline_s)
        except EOFError:
            raise ChildGoneError(self._how_it_ended()) from None

    def stop(self) -> bool:
        """End the child, never waiting longer than the grace. False: it cannot be killed."""
        if self.ended:
            return True
        self._channel.close()
        self.ended = True
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        return reaped(self.pid)

    def _how_it_ended(self) -> str:
        """The status of a child that closed its pipe, as words."""
        status = wait_status(self.pid, REAP_GRACE_S)
        if status is None:
            return "it closed its pipe but still runs"
        self._channel.close()
        self.ended = True
        if os.WIFSIGNALED(status):
            return f"it was killed by signal {os.WTERMSIG(status)}"
        return f"it ended with status {os.WEXITSTATUS(status)}"


def wait_status(pid: int, grace_s: float) -> int | None:
    """The wait status of child ``pid`` if it ends within the grace, else None. Never blocks."""
    give_up = time.monotonic() + grace_s
    while True:
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if done:
            return status
        if time.monotonic() >= give_up:
            return None
        time.sleep(0.002)


def reaped(pid: int, grace_s: float = REAP_GRACE_S) -> bool:
    """True when child ``pid`` has ended and been collected within the grace."""
    return wait_status(pid, grace_s) is not None


def _run_child(serve: Callable[[Channel], None], read_end: int, write_end: int) -> None:
    """What the fork runs; never returns, never runs the parent's exit handlers."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        channel = Channel(*_only_these(read_end, write_end))
        # The parent let go: nothing left to do.
        with contextlib.suppress(EOFError, BrokenPipeError):
            serve(channel)
        status = 0
    finally:
        os._exit(status)


def _only_these(read_end: int, write_end: int) -> list[int]:
    """Close every inherited descriptor but the two pipe ends; standard ones go to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    # Move the pipe ends out of the way first, so that they survive whatever numbers they had.
    high = max(read_end, write_end, nothing, 2) + 1
    for source, target in ((nothing, high), (read_end, high + 1), (write_end, high + 2)):
        os.dup2(source, target)
    for number in (0, 1, 2):
        os.dup2(high, number)
    os.dup2(high + 1, 3)
    os.dup2(high + 2, 4)
    os.closerange(5, max(high + 3, _limit()))
    return [3, 4]


def _limit() -> int:
    """One more than the highest descriptor now open, from /proc; a safe guess where that is missing."""
    try:
        return max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    except OSError:
        return 4096
