# SPDX-License-Identifier: BSD-2-Clause
"""Who else on this host sets power limits or compute modes of GPUs: scheduler hooks, cron, units and scripts.

A cap that drifts again and again has a writer. The files are read, nothing is run; what is in an image of its own,
in a home directory or on a shared disk is not seen, so an empty answer is no proof.
"""

from __future__ import annotations

import fnmatch
import os
import re
from typing import Iterator, NamedTuple

from . import verdict

# Where hosts keep what runs by itself or as root, and which names there. Slurm's own manual names prolog and epilog.
PLACES = (
    ("etc/crontab", "*"), ("etc/cron.d", "*"), ("etc/cron.hourly", "*"), ("etc/cron.daily", "*"),
    ("etc/cron.weekly", "*"), ("etc/cron.monthly", "*"), ("var/spool/cron/crontabs", "*"), ("var/spool/cron", "*"),
    ("etc/rc.local", "*"), ("etc/profile.d", "*.sh"), ("etc/udev/rules.d", "*.rules"),
    ("etc/systemd/system", "*.service"), ("usr/local/lib/systemd/system", "*.service"),
    ("usr/local/bin", "*"), ("usr/local/sbin", "*"), ("etc/slurm", "*"), ("etc/slurm-llnl", "*"),
    ("etc/slurm/prolog.d", "*"), ("etc/slurm/epilog.d", "*"), ("etc/docker", "*"),
)  # fmt: skip
# Scripts are small; what is larger, or has a zero byte at its beginning, is no script.
MOST_BYTES = 262144
MOST_FILES = 2000

# nvidia-smi's options that set a limit or a mode, DCGM's command, and NVML's own calls in a script.
_SETS = re.compile(
    r"nvidia-smi\b[^\n#]*?\s(?:-pl|--power-limit|-c|--compute-mode)[ =]*\S+"
    r"|dcgmi\s+config\b[^\n#]*--set\b"
    r"|nvmlDeviceSet(?:PowerManagementLimit|ComputeMode)"
)


class Writer(NamedTuple):
    """One line of one file."""

    path: str  # as on the host, with a leading slash
    line: int
    text: str


def find(root: str = "/") -> list[Writer]:
    """Every line that sets a limit or a mode, in the order of the places."""
    found: list[Writer] = []
    for number, path in enumerate(_files(root)):
        if number >= MOST_FILES:
            break
        found.extend(_lines(root, path))
    return found


def row(root: str, host: str) -> dict[str, object]:
    """A warning that names them: they may mean no harm, and they are the first to ask when a cap drifts."""
    writers = find(root)
    said = "; ".join(f"{one.path}:{one.line}: {one.text}" for one in writers[:5])
    more = f"; and {len(writers) - 5} more" if len(writers) > 5 else ""
    return verdict.check_row(
        "gpu.writers", host, verdict.PASS, "found" if writers else "none",
        severity=verdict.WARNING if writers else None, expected=0, measured=len(writers), unit="lines",
        source="files", reason=(said + more) or None,
        hint="take it out, or declare what it sets in gpu_policy: two writers undo each other" if writers else None,
    )  # fmt: skip


def _files(root: str) -> Iterator[str]:
    """Regular files of the places, each once, below ``root``."""
    seen: set[str] = set()
    for place, form in PLACES:
        path = os.path.join(root, place)
        names = [path] if os.path.isfile(path) else [os.path.join(path, name) for name in _listed(path)]
        for one in names:
            real = os.path.realpath(one)
            if real not in seen and fnmatch.fnmatch(os.path.basename(one), form) and os.path.isfile(one):
                seen.add(real)
                yield one


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _lines(root: str, path: str) -> Iterator[Writer]:
    try:
        with open(path, "rb") as handle:
            content = handle.read(MOST_BYTES + 1)
    except OSError:
        return
    if len(content) > MOST_BYTES or b"\0" in content[:1024]:
        return
    shown = "/" + os.path.relpath(path, root)
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        if not line.lstrip().startswith("#") and _SETS.search(line):
            yield Writer(shown, number, " ".join(line.split())[:120])
