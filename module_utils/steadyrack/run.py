# SPDX-License-Identifier: BSD-2-Clause
"""Run a program: no shell, C locale, a deadline, and an answer that tells failure from absence.

Everything here that starts a program goes through :func:`run`, so tests put a small executable of
the same name in front of PATH and see what the node would see.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import NamedTuple, Sequence

from .errors import DeadlineError, ToolError

# System tools live in sbin, which is missing from PATH in some non-login shells (sudo, cron).
SYSTEM_PATHS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Long enough for a unit whose start waits for its readiness, short enough that a hang is seen.
DEFAULT_TIMEOUT_S = 30.0
# After SIGKILL a process goes at once unless it sits in the kernel (state D); then we leave it, seconds.
REAP_GRACE_S = 1.0
# What of a tool's output is worth showing in an error, in characters (the end of it: that is where the cause is).
SHOWN_CHARACTERS = 600


class Completed(NamedTuple):
    """What a program said. ``missing`` means it does not exist; ``rc`` is then 127, as a shell has it."""

    argv: list[str]
    rc: int
    out: str
    err: str
    missing: bool = False

    @property
    def said(self) -> str:
        """The end of what it printed, stderr before stdout, for an error message."""
        text = (self.err.strip() or self.out.strip()) or "nothing"
        return text if len(text) <= SHOWN_CHARACTERS else "… " + text[-SHOWN_CHARACTERS:]


def environment() -> dict[str, str]:
    """The caller's environment with the C locale, so that output is matched in one language, and full PATH."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    known = [entry for entry in env.get("PATH", "").split(os.pathsep) if entry]
    env["PATH"] = os.pathsep.join(known + [entry for entry in SYSTEM_PATHS if entry not in known])
    env.update({"LC_ALL": "C", "LANG": "C", "LANGUAGE": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""})
    return env


def run(argv: Sequence[str], timeout_s: float = DEFAULT_TIMEOUT_S, stdin: str | None = None) -> Completed:
    """Run ``argv`` to its end. A missing program is an answer; one that passes the deadline is DeadlineError.

    The program gets its own process group, so that a deadline ends its children too. Undecodable
    bytes are replaced: an odd byte in a name must not hide the rest of the output.
    """
    command = [str(word) for word in argv]
    env = environment()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError:
        return Completed(command, 127, "", f"{command[0]}: not found", missing=True)
    except PermissionError as error:
        return Completed(command, 126, "", f"{command[0]}: {error.strerror}")
    except OSError as error:  # no process or memory left (EAGAIN, ENOMEM), or no program at all (ENOEXEC)
        seen = f"cannot be started: {error.strerror}"
        raise ToolError(" ".join(command), seen, "a process", "ps -ef; dmesg; is a limit of tasks reached?") from error
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        raise DeadlineError(
            " ".join(command), f"no answer within {timeout_s:g} s", "an answer", "run it by hand and see where it waits"
        ) from None
    return Completed(command, process.returncode, out, err)


def must_run(argv: Sequence[str], wanted: str, next_step: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Completed:
    """Run ``argv`` where anything but success is an error; ``wanted`` and ``next_step`` go into it."""
    done = run(argv, timeout_s)
    if done.rc != 0:
        seen = done.err if done.missing else f"exit status {done.rc}, it said: {done.said}"
        raise ToolError(" ".join(done.argv), seen, wanted, next_step)
    return done


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the group; a member that even SIGKILL does not end is left behind, never waited for."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    try:
        process.communicate(timeout=REAP_GRACE_S)
    except subprocess.TimeoutExpired:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
