# SPDX-License-Identifier: BSD-2-Clause
"""The list of GPUs that jobs may use, and the places from which jobs and schedulers take it.

One list stands behind all of them: ``/var/lib/steadyrack/gpus.env``, for ``EnvironmentFile=`` of units, ``--env-file``
of containers and ``.`` in scripts. A job over plain SSH gets it from ``/etc/environment``, which pam_env reads for
every session, interactive or not. A GPU in no list can still be opened by a job that names it: that is what the
compute mode of gpu_apply.py is for.

Every file is whole at every moment, and the list is the last that grows: see ``gpu_roles``.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Sequence

from . import files

LIST_PATH = "/var/lib/steadyrack/gpus.env"
ENVIRONMENT_PATH = "/etc/environment"
GRES_PATH = "/var/lib/steadyrack/gres.conf"

# CUDA names UUIDs whatever the order; programs that count GPUs count them in the order of their slots then.
ORDER = "CUDA_DEVICE_ORDER=PCI_BUS_ID"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Whom CUDA shows a process, and whom the container toolkit gives a container."""
# What the toolkit reads as none; empty would be "not set" to it, and to CUDA an empty list is none.
NONE = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}

BEGIN = "# GPUs that jobs may use: kept by steadyrack, do not edit"
END = "# steadyrack: end"
_NAMES = ("CUDA_DEVICE_ORDER", *VISIBLE)
_UUID = re.compile(r"GPU-[0-9a-f-]{36}", re.IGNORECASE)


class Card(NamedTuple):
    """What a list needs to know of a GPU."""

    uuid: str
    minor: int | None  # N of /dev/nvidiaN


# --- texts -------------------------------------------------------------------------------------


def variables(uuids: Sequence[str]) -> list[str]:
    """The settings, one a line."""
    return [ORDER, *(f"{name}={','.join(uuids) if uuids else NONE[name]}" for name in VISIBLE)]


def list_text(uuids: Sequence[str]) -> str:
    """The file behind all others."""
    return "\n".join([BEGIN, *variables(uuids), ""])


def environment_text(old: str, uuids: Sequence[str]) -> str:
    """``/etc/environment`` with our lines at its end, where they count over others of the same name."""
    return "\n".join([*_foreign(old), BEGIN, *variables(uuids), END, ""])


def others(text: str) -> list[str]:
    """Settings of the same names in ``/etc/environment`` that are not ours: somebody relies on them, in vain."""
    lines = [line.strip() for line in _foreign(text)]
    return [line for line in lines if _name(line.replace("export ", "", 1)) in _NAMES]


def _foreign(text: str) -> list[str]:
    """The lines that are not ours, as they are. Between our marks only the settings are ours: a mark may be gone."""
    kept, ours = [], False
    lines = text.split("\n")
    for line in lines if lines[-1] else lines[:-1]:
        begins, ends = line.strip() == BEGIN, ours and line.strip() == END
        if not begins and not ends and not (ours and _name(line) in _NAMES):
            kept.append(line)
        ours = begins or (ours and not ends)
    return kept


def _name(line: str) -> str:
    return line.partition("=")[0].strip()


def gres_text(host: str, cards: Sequence[Card]) -> str:
    """Slurm's gres.conf for this node; slurm.conf keeps the number of GPUs that may be active.

    The files by their minor numbers, which are neither index nor order (volcano-sh/devices#29).
    """
    lines = [BEGIN.replace("jobs", "Slurm")]
    lines += [f"NodeName={host} Name=gpu File=/dev/nvidia{card.minor}" for card in cards if card.minor is not None]
    return "\n".join([*lines, ""])


def listed(text: str | None) -> list[str] | None:
    """The UUIDs in a list as ``list_text`` writes it; None when there is no such list."""
    if text is None:
        return None
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name == VISIBLE[0]:
            return _UUID.findall(value)
    return None


# --- files -------------------------------------------------------------------------------------


def read(root: str) -> list[str] | None:
    """The list in force; None when there is none yet."""
    return listed(files.read_text(files.below(root, LIST_PATH)))


def differs(root: str, host: str, cards: Sequence[Card], environment: bool) -> dict[str, tuple[str, str]]:
    """Path -> (text there, text wanted), of the places that are not as they should be; nothing is written."""
    uuids = [card.uuid for card in cards]
    there = {path: _text(root, path) for path in (LIST_PATH, GRES_PATH, ENVIRONMENT_PATH)}
    wanted = {LIST_PATH: list_text(uuids), GRES_PATH: gres_text(host, cards)}
    if environment:
        wanted[ENVIRONMENT_PATH] = environment_text(there[ENVIRONMENT_PATH], uuids)
    return {path: (there[path], text) for path, text in wanted.items() if there[path] != text}


def write(root: str, host: str, cards: Sequence[Card], environment: bool) -> list[str]:
    """Put the list into every place; the paths that changed come back. Each names the old list or the new one."""
    changed = differs(root, host, cards, environment)
    for path, (_old, text) in changed.items():
        _put(files.below(root, path), text)
    return list(changed)


def _text(root: str, path: str) -> str:
    """A file; bytes that are no UTF-8 go back as they came."""
    return (files.read_bytes(files.below(root, path)) or b"").decode("utf-8", "surrogateescape")


def _put(path: str, text: str) -> None:
    """Write a file with the mode it has (0644 for a new one)."""
    try:
        mode = os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        mode = 0o644
    files.make_directory(os.path.dirname(path))
    files.atomic_write(path, text.encode("utf-8", "surrogateescape"), mode)
