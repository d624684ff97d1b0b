# SPDX-License-Identifier: BSD-2-Clause
"""Follow the kernel log and start a pass when it speaks of a GPU.

This holds no NVML client, so it is in nobody's way at a reset or a driver reload, and it decides nothing: the pass
reads the log itself, from the place where the last one stopped. What comes while a pass runs is looked at by another.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from typing import Callable, Sequence

from . import gpu_xid
from .errors import ToolError
from .run import environment

# Words of the driver's own lines: Xid, and cards that fall off the bus.
_WORDS = ("Xid", "fallen off the bus", "NVIDIA GPU")
# A line that is no UTF-8 comes as a list of numbers, in which no word is to be seen.
_BYTES = re.compile(r'"MESSAGE"\s*:\s*\[')
FOLLOW = ("journalctl", "--boot", "--follow", "--lines=0", "--output=json", "--no-pager", "--quiet", *gpu_xid.MATCHES)
# journalctl ends when journald is replaced; it is started again, not too often, seconds.
AGAIN_S = 5.0
# One fault writes several lines within a moment: one pass is for all of them, seconds.
SETTLE_S = 0.2

Say = Callable[[str, str], None]  # level, text


def speaks_of_a_gpu(line: str) -> bool:
    """Whether a row of journalctl's JSON is the driver's word on a card."""
    if not any(word in line for word in _WORDS) and not _BYTES.search(line):
        return False
    text = gpu_xid.message(gpu_xid.entry(line))
    return "NVRM" in text and any(word in text for word in _WORDS)


def follow(look: Callable[[], None], say: Say, ended: Callable[[], bool] = lambda: False) -> None:
    """Call ``look`` at the start and after each word on a GPU, until ``ended``.

    The look at the start is for what was said while nobody followed.
    """
    while not ended():
        process = start(FOLLOW)
        look()
        status = _until_it_ends(process, look, ended)
        if ended():
            return
        say("error", f"journalctl ended with {status}: Xid errors are seen by the timer only; tried again")
        time.sleep(AGAIN_S)


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """The follower; it ends with us, for systemd ends the whole unit."""
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment())
    except OSError as error:
        raise ToolError(
            command[0], f"cannot be started: {error.strerror}", "the kernel log",
            "without it Xid errors are seen by the timer only",
        ) from error  # fmt: skip


def _until_it_ends(process: subprocess.Popen[bytes], look: Callable[[], None], ended: Callable[[], bool]) -> int:
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    rest = b""
    while not ended():
        if not select.select([process.stdout], [], [], 1.0 if process.poll() is not None else None)[0]:
            continue
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        if any(speaks_of_a_gpu(line.decode("utf-8", "replace")) for line in lines):
            time.sleep(SETTLE_S)
            look()
    process.send_signal(signal.SIGTERM)
    return process.wait()
