# SPDX-License-Identifier: BSD-2-Clause
"""What is wanted of one service: its packages, directories, files and units, read from plain data and checked."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple, Sequence

from . import units
from .errors import InputError
from .files import sha256

RESTART, RELOAD, NONE = "restart", "reload", "none"
STARTED, STOPPED, ABSENT_OK_MASKED = "started", "stopped", "absent_ok_masked"
# A quoted octal mode. Unquoted YAML 0644 arrives as 420, which is another mode: refused.
MODE_FORM = re.compile(r"0[0-7]{3,4}")


class FileWish(NamedTuple):
    path: str
    content: bytes | None  # None: absent, or compared by digest only
    sha256: str | None
    mode: int
    owner: str | None
    group: str | None
    absent: bool
    on_change: str
    validate: str | None
    secret: bool


class DirectoryWish(NamedTuple):
    path: str
    mode: int
    owner: str | None
    group: str | None
    purge: tuple[str, ...]  # patterns of file names that may only be ours
    on_change: str


class UnitWish(NamedTuple):
    name: str
    enabled: bool | None
    state: str | None
    masked: bool | None
    restart: bool
    reload_command: tuple[str, ...]

    @property
    def started(self) -> bool:
        return self.state == STARTED


class Wishes(NamedTuple):
    packages: list[str]
    directories: list[DirectoryWish]
    files: list[FileWish]
    units: list[UnitWish]


def wishes(params: dict[str, Any]) -> Wishes:
    """The module's parameters as wishes; contradictions and bad values are InputError, before anything is read."""
    wish = Wishes(
        list(params.get("packages") or []),
        [_directory_wish(entry) for entry in params.get("directories") or []],
        [_file_wish(entry) for entry in params.get("files") or []],
        [_unit_wish(entry) for entry in params.get("units") or []],
    )
    _refuse_twice("path", [entry.path for entry in wish.files] + [entry.path for entry in wish.directories])
    _refuse_twice("unit", [units.full_name(entry.name) for entry in wish.units])
    return wish


def _refuse_twice(kind: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{kind} {name}", "named twice", "named once", "merge the two entries")


def _file_wish(entry: dict[str, Any]) -> FileWish:
    path = _absolute(entry["path"])
    absent = entry.get("state") == "absent"
    content, digest = entry.get("content"), entry.get("sha256")
    if absent and (content is not None or digest is not None):
        raise InputError(path, "state absent with content", "one of the two", "leave out content and sha256")
    if not absent and content is None and digest is None:
        raise InputError(path, "neither content nor sha256", "one of them", "give the file's content")
    data = None if content is None else content.encode("utf-8")
    if data is not None and digest is not None and sha256(data) != digest.lower():
        raise InputError(path, f"content with sha256 {sha256(data)}", f"sha256 {digest}", "give one of the two")
    validate = entry.get("validate")
    if validate is not None and "%s" not in validate:
        raise InputError(path, f"validate {validate!r}", "%s where the file's name goes", "add %s")
    return FileWish(
        path,
        data,
        None if digest is None else digest.lower(),
        _mode(path, entry.get("mode") or "0644"),
        entry.get("owner"),
        entry.get("group"),
        absent,
        entry.get("on_change") or RESTART,
        validate,
        bool(entry.get("no_diff")),
    )


def _directory_wish(entry: dict[str, Any]) -> DirectoryWish:
    path = _absolute(entry["path"])
    return DirectoryWish(
        path,
        _mode(path, entry.get("mode") or "0755"),
        entry.get("owner"),
        entry.get("group"),
        tuple(entry.get("purge") or ()),
        entry.get("on_change") or RESTART,
    )


def _unit_wish(entry: dict[str, Any]) -> UnitWish:
    name, state, masked = units.full_name(entry["name"]), entry.get("state"), entry.get("masked")
    enabled = entry.get("enabled")
    if state == ABSENT_OK_MASKED:
        # Disabled as well: that takes away the links of its other names, by which it could still be started.
        state, masked, enabled = STOPPED, True, False
    if masked and (state == STARTED or enabled):
        raise InputError(f"unit {name}", "masked, yet started or enabled", "one of the two", "correct the entry")
    if state == STARTED and masked is None:
        masked = False  # a masked unit cannot start; the mask is the drift
    restart = entry.get("restart")
    command = tuple(entry.get("reload_command") or ())
    return UnitWish(name, enabled, state, masked, True if restart is None else bool(restart), command)


def _absolute(path: str) -> str:
    if not os.path.isabs(path):
        raise InputError(f"path {path!r}", "a relative path", "an absolute one", "begin it with /")
    return os.path.normpath(path)


def _mode(path: str, text: str) -> int:
    if not MODE_FORM.fullmatch(str(text)):
        raise InputError(f"{path}: mode {text!r}", "not a quoted octal mode", "such as '0644'", "quote it, with the 0")
    return int(str(text), 8)
