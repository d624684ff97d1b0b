# SPDX-License-Identifier: BSD-2-Clause
"""When the clock may be stepped: at boot, until it follows a source or a job runs; never again before the next boot.

chronyd steps in its first updates after *every* start (makestep). So once the clock has settled, two things are
done: the running daemon is told not to step any more, and a file in /run, which a boot empties, adds ``-r -R`` to
the options of every later start: keep the samples, ignore makestep. A boot finds no such file and may step.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from typing import Any, Callable, NamedTuple, Sequence

from . import chronyc, time_checks
from .errors import StateFileError, ToolError
from .files import atomic_write, load_json, make_directory, read_text
from .run import Completed, run

Runner = Callable[..., Completed]

# Read by the unit through EnvironmentFile=-; /run is empty after a boot.
ENVIRONMENT_PATH = "run/steadyrack/chrony.env"
# Opened by every process that uses CUDA and by nothing that only watches: NVML and nvidia-persistenced open
# /dev/nvidiactl and /dev/nvidiaN alone.
JOB_DEVICE = "/dev/nvidia-uvm"
# What the kernel appends to a path whose file was removed after it was opened (a driver that was loaded anew).
REMOVED = " (deleted)"
# -r: take the samples back that the daemon wrote down when it ended. -R: do not step at the start (chronyd manual).
KEEP_AND_SLEW = ("-r", "-R")
LOOK_S = 1.0


class Closed(NamedTuple):
    """How the time of stepping ended."""

    why: str
    local: str | None = None  # what orphan mode was switched on with


# --- jobs ----------------------------------------------------------------------------------------


def gpu_processes(root: str = "/") -> list[int] | None:
    """Processes that use CUDA, by number; None when /proc cannot be read as root would."""
    proc = os.path.join(root, "proc")
    try:
        numbers = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return None
    found = []
    for number in numbers:
        folder = os.path.join(proc, str(number), "fd")
        try:
            names = os.listdir(folder)
        except PermissionError:
            return None
        except OSError:
            continue  # it has ended
        if any(_target(os.path.join(folder, name)) == JOB_DEVICE for name in names):
            found.append(number)
    return found


def _target(path: str) -> str:
    try:
        seen = os.readlink(path)
    except OSError:
        return ""
    return seen[: -len(REMOVED)] if seen.endswith(REMOVED) else seen


# --- the options of later starts -------------------------------------------------------------------


def environment_text(variable: str, given: str) -> str:
    """The file's text: what the administrator gave, and our two options once.

    systemd takes the outer quotes away, and splits what is inside into words as a shell does (systemd.exec manual).
    """
    words = [word for word in _words(given, variable) if word not in KEEP_AND_SLEW]
    value = shlex.join([*words, *KEEP_AND_SLEW]).replace("\\", "\\\\").replace('"', '\\"')
    head = "# Written by steadyrack: the clock has settled; until the next boot it is only slewed."
    return f'{head}\n{variable}="{value}"\n'


def given_options(options_file: str, variable: str) -> str:
    """The value of a variable in an environment file as systemd reads it; empty when it is not set there."""
    value = ""
    for line in (read_text(options_file) or "").splitlines():
        match = re.match(rf"\s*{re.escape(variable)}\s*=\s*(.*?)\s*$", line)
        if match:
            value = match.group(1)
    return " ".join(_words(value, options_file)) if value.startswith(('"', "'")) else value


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise StateFileError(where, f"{text} ({error})", "options of chronyd", "correct the quotes") from None


def hold_steps(root: str, options_file: str, variable: str) -> bool:
    """Have every later start of chronyd keep its samples and not step. False when it was so already."""
    path = os.path.join(root, ENVIRONMENT_PATH)
    text = environment_text(variable, given_options(options_file, variable))
    try:
        with open(path, encoding="utf-8") as handle:
            if handle.read() == text:
                return False
    except OSError:
        pass
    make_directory(os.path.dirname(path))
    atomic_write(path, text.encode())
    return True


def steps_held(root: str = "/") -> bool:
    """Whether a start of chronyd would only slew."""
    return os.path.exists(os.path.join(root, ENVIRONMENT_PATH))


# --- the wait ------------------------------------------------------------------------------------


def settle(
    root: str = "/",
    runner: Runner = run,
    say: Callable[[str], None] = print,
    pause: Callable[[float], None] = time.sleep,
    looks: int | None = None,
) -> Closed | None:
    """Wait until the clock follows a source or a job runs, then end the time of stepping.

    On a relay it goes on until the clock follows a source, to switch orphan mode on where chronyd's own file
    cannot wait for that. ``looks`` limits the number of looks (tests); None comes back when they are used up.
    """
    note = load_json(os.path.join(root, time_checks.POLICY_PATH))
    if note is None:
        raise StateFileError("/" + time_checks.POLICY_PATH, "absent", "the note of role time_sync", "run the role")
    local, said, closed = note.get("local_when_synchronised"), "", False
    while looks is None or looks > 0:
        looks = None if looks is None else looks - 1
        clock = chronyc.look(runner)
        state = chronyc.state_of(clock)
        if chronyc.settled(clock, state) and clock.tracking is not None:
            close(root, note, runner)
            if local:
                _command(["local", *str(local).split()], runner)
            return Closed(f"the clock follows {clock.tracking.source}", local)
        # That later starts are held says nothing of the running daemon, which may have been told by nobody yet.
        jobs = [] if closed else gpu_processes(root)
        if jobs is None or jobs:
            close(root, note, runner)
            closed = True
            why = "it cannot be seen whether a job runs" if jobs is None else f"process {jobs[0]} uses a GPU"
            if not local:
                return Closed(f"{why}, and the clock follows nobody yet: from now on it is only slewed")
            say(f"{why}: from now on the clock is only slewed")
        seen = "its own error is not measured yet" if state == chronyc.SYNCHRONISED else state
        if seen != said:
            say(f"waiting for the clock: {seen}")
        said = seen
        pause(LOOK_S)
    return None


def close(root: str, note: dict[str, Any], runner: Runner = run) -> None:
    """No step any more before the next boot: neither by the running daemon nor by one that is started anew."""
    options_file = str(note.get("options_file") or "/etc/default/chrony")
    variable = str(note.get("options_variable") or "DAEMON_OPTS")
    # The running daemon first: what hinders the file, such as an open quote in the administrator's, hinders only later
    # starts. And the file all the same where the daemon refuses.
    try:
        # A limit of 0 updates: never (chronyc manual, makestep).
        _command(["makestep", "1", "0"], runner)
    finally:
        hold_steps(root, os.path.join(root, options_file.lstrip("/")), variable)


def _command(words: Sequence[str], runner: Runner) -> None:
    done = runner(["chronyc", *words], chronyc.CHRONYC_TIMEOUT_S)
    if done.rc != 0:
        raise ToolError("chronyc " + " ".join(words), done.out.strip() or done.said, "200 OK", "run it as root")
