"""Words for the person at the terminal, and the one way this tool runs other programs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_STARTED = time.monotonic()


class RackError(Exception):
    """Something a person must act on: what was wrong, what was found, what to do next."""

    def __init__(self, problem: str, found: str = "", next_step: str = "") -> None:
        super().__init__(problem)
        self.problem, self.found, self.next_step = problem, found.strip(), next_step

    def __str__(self) -> str:
        lines = [self.problem]
        if self.found:
            lines.append("  found: " + self.found.replace("\n", "\n         "))
        if self.next_step:
            lines.append("  do:    " + self.next_step)
        return "\n".join(lines)


def step(text: str) -> None:
    """One line of progress, with the seconds since the command began."""
    # With its end in one piece: stages of `./rack test` print beside one another.
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}\n", end="", flush=True)


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float | None = 600,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end with its output caught, in the C locale.

    Raises RackError with the command and the end of its output when it fails and `check` is set.
    """
    words = [str(word) for word in argv]
    full_env = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    try:
        done = subprocess.run(
            words,
            check=False,
            text=True,
            input=stdin,
            capture_output=True,
            env=full_env,
            timeout=timeout_s,
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else None,
        )
    except FileNotFoundError as exc:
        raise RackError(f"{words[0]} is not installed", str(exc), "run ./rack setup") from exc
    except subprocess.TimeoutExpired as exc:
        raise RackError(f"no answer within {timeout_s:.0f} s: {shlex.join(words)}") from exc
    if check and done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise RackError(f"exit code {done.returncode}: {shlex.join(words)[:400]}", tail)
    return done


def number(text: str, what: str) -> float:
    """A word of the command line as a number, or the error that says what it should have been."""
    try:
        return float(text)
    except ValueError:
        raise RackError(f"{what} is a number", f"given: {text!r}") from None


def die(error: RackError) -> int:
    """Print the error the way every command ends when it cannot go on."""
    print(f"rack: {error}", file=sys.stderr)
    return 1
