# SPDX-License-Identifier: BSD-2-Clause
"""time.config: chronyd's files are those that the role time_sync wrote, and no others lie beside them.

The role leaves the digest of each file in its note. An edit need not have reached the daemon yet: it will at the
next start, which may be a boot at night.
"""

from __future__ import annotations

import os
from typing import Any, Mapping

from . import verdict
from .errors import SteadyrackError
from .files import read_bytes, sha256

# What else the role writes, its note aside: while one of them stands the role has not been taken off this host.
TRACES = ("etc/chrony/steadyrack.d/steadyrack.sources", "etc/systemd/system/steadyrack-time-settle.service")
HINT = "site.yml --check --diff shows the edit, a run without the flags repairs it"


def rows(subject: str, files: Mapping[str, str] | None, root: str = "/") -> list[dict[str, Any]]:
    """The one row of a host. ``files``: path -> sha256, as noted; None: a note of before, which says nothing."""
    if not files:
        return []
    row: dict[str, Any] = {
        "expected": "as the role wrote it",
        "measured": f"{len(files)} files",
        "source": ", ".join(files),
    }
    try:
        troubles = [f"{path} {what}" for path, digest in files.items() if (what := _differs(root, path, digest))]
        troubles += [f"{path} is not ours" for path in _strangers(root, files)]
        troubles += [f"{path} is a link" for path in _links(root, files)]
    except SteadyrackError as error:
        reason = error.sentence()
        return [verdict.check_row("time.config", subject, verdict.UNKNOWN, reason=reason, hint=error.next_step, **row)]
    if not troubles:
        return [verdict.check_row("time.config", subject, verdict.PASS, "ours", **row)]
    return [
        verdict.check_row("time.config", subject, verdict.FAIL, "edited", reason="; ".join(troubles), hint=HINT, **row)
    ]


def without_note(subject: str, note: str, root: str = "/") -> list[dict[str, Any]]:
    """The row of a host whose note is gone while the role's other files stand; none where nothing of it is left."""
    left = [f"/{path}" for path in TRACES if os.path.lexists(os.path.join(root, path))]
    if not left:
        return []
    reason = f"/{note} is gone, and {', '.join(left)} still stands: nobody judges this clock"
    return [
        verdict.check_row(
            "time.config", subject, verdict.FAIL, "missing", expected="as the role wrote it", measured="no note",
            source=f"/{note}", reason=reason, hint="run the role time_sync; to give it up, remove its files, too",
        )
    ]  # fmt: skip


def _differs(root: str, path: str, digest: str) -> str | None:
    content = read_bytes(os.path.join(root, path.lstrip("/")))
    if content is None:
        return "is gone"
    return None if sha256(content) == digest else "was edited"


def _links(root: str, files: Mapping[str, str]) -> list[str]:
    """Files and directories of ours in whose place a link stands: chronyd's unit may not see where it leads."""
    ours = sorted({*files, *(os.path.dirname(path) for path in files)})
    return [path for path in ours if os.path.islink(os.path.join(root, path.lstrip("/")))]


def _strangers(root: str, files: Mapping[str, str]) -> list[str]:
    """Other files of sources in the directory of ours: chronyd reads every one of them."""
    found = []
    for folder in {os.path.dirname(path) for path in files if path.endswith(".sources")}:
        try:
            names = sorted(os.listdir(os.path.join(root, folder.lstrip("/"))))
        except OSError:
            continue  # gone, which the file's own row tells
        found += [path for name in names if name.endswith(".sources") and (path := f"{folder}/{name}") not in files]
    return found
