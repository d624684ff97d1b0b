# SPDX-License-Identifier: BSD-2-Clause
"""What of a service is not as wanted: a look at packages, directories, files and units, and what follows from it.

Nothing here changes the service. The markers of unfinished work are here because they are part of the
look: a unit to which an interrupted run still owes a restart is not as wanted, though every file is right.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import stat
from typing import Any, Callable, NamedTuple, Sequence

from . import units, verdict
from .errors import AccessError, InputError, StateFileError, ToolError
from .files import atomic_write, dump_json, group_id, load_json, owner_id, read_bytes, sha256
from .run import Completed, run
from .service_wish import NONE, RELOAD, RESTART, STOPPED, DirectoryWish, FileWish, UnitWish, Wishes
from .units import UnitState

Runner = Callable[..., Completed]

PENDING_DIRECTORY = "/var/lib/steadyrack/pending"
# The stronger action first: a restart reads everything that a reload would read.
ACTIONS = (RESTART, RELOAD)
# dpkg answers from its database in milliseconds; a lock or a dying disk takes longer, seconds.
DPKG_TIMEOUT_S = 10.0


# --- packages ------------------------------------------------------------------------------------


def missing_packages(names: Sequence[str], runner: Runner = run) -> list[str]:
    """Those of ``names`` that dpkg does not have installed, in the order given.

    dpkg's status has three words: want, error, state. ``hold ok installed`` is installed; ``deinstall
    ok config-files`` and half-configured ones are not.
    """
    if not names:
        return []
    argv = ["dpkg-query", "--show", "--showformat", "${Package}\\t${Status}\\n", *names]
    done = runner(argv, DPKG_TIMEOUT_S)
    if done.missing:
        raise ToolError("dpkg-query", "not on this host", "a Debian-like host", "only the Debian family is supported")
    if done.rc not in (0, 1):  # 1: at least one name is unknown, the others are printed
        raise ToolError("dpkg-query", done.said, "the packages' states", "dpkg --audit")
    installed = set()
    for line in done.out.splitlines():
        name, _, status = line.partition("\t")
        if status.split()[2:3] == ["installed"]:
            installed.add(name)
    return [name for name in names if name.split(":")[0] not in installed]


# --- directories and files -----------------------------------------------------------------------


class Seen(NamedTuple):
    """What stands at a path: absent, file, directory, link or other."""

    kind: str
    content: bytes | None = None
    mode: int = 0
    uid: int = -1
    gid: int = -1


def look_at(path: str) -> Seen:
    """The path itself: a symbolic link is a link, not what it points to."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Seen("absent")
    except PermissionError:
        raise AccessError(path, "not searchable", "readable", "run it as root") from None
    mode, uid, gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    if stat.S_ISREG(status.st_mode):
        return Seen("file", read_bytes(path), mode, uid, gid)
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    return Seen(next((kind for test, kind in kinds if test(status.st_mode)), "other"), None, mode, uid, gid)


class FilePlan(NamedTuple):
    """One path that is not as wanted, and what differs."""

    wish: Any  # FileWish or DirectoryWish
    seen: Seen
    what: tuple[str, ...]  # of: content, mode, owner, absent, new

    @property
    def action(self) -> str:
        """What the unit has to do about it. A mode alone changes nothing that a running program has read."""
        return self.wish.on_change if set(self.what) & {"content", "absent", "new"} else NONE


def plan_file(wish: FileWish, lenient: bool = False) -> FilePlan | None:
    """None when the file is as wanted. ``lenient`` (check mode): owners may not exist yet."""
    seen = look_at(wish.path)
    if seen.kind in ("directory", "other"):
        raise InputError(wish.path, f"a {seen.kind}", "a file or nothing", "move it away by hand")
    if wish.absent:
        return None if seen.kind == "absent" else FilePlan(wish, seen, ("absent",))
    if seen.kind != "file":
        return FilePlan(wish, seen, ("new",))
    digest = wish.sha256 or sha256(wish.content or b"")
    what = [] if sha256(seen.content or b"") == digest else ["content"]
    what += _metadata(wish, seen, lenient)
    return FilePlan(wish, seen, tuple(what)) if what else None


def plan_directory(wish: DirectoryWish, lenient: bool = False) -> FilePlan | None:
    """None when the directory is as wanted."""
    seen = look_at(wish.path)
    if seen.kind == "link" and os.path.isdir(wish.path):
        status = os.stat(wish.path)  # a link to a directory serves as one
        seen = Seen("directory", None, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
    if seen.kind == "absent":
        return FilePlan(wish, seen, ("new",))
    if seen.kind != "directory":
        raise InputError(wish.path, f"a {seen.kind}", "a directory or nothing", "move it away by hand")
    what = _metadata(wish, seen, lenient)
    return FilePlan(wish, seen, tuple(what)) if what else None


def _metadata(wish: Any, seen: Seen, lenient: bool) -> list[str]:
    what = [] if seen.mode == wish.mode else ["mode"]
    try:
        uid, gid = owner_id(wish.owner), group_id(wish.group)
    except InputError:
        if not lenient:
            raise
        return [*what, "owner"]  # the package that brings the user is still to come
    if uid not in (-1, seen.uid) or gid not in (-1, seen.gid):
        what.append("owner")
    return what


def strangers(directory: DirectoryWish, ours: Sequence[str]) -> list[FileWish]:
    """Files in a directory that match its purge patterns and are not ours, as wishes for their absence."""
    if not directory.purge:
        return []
    try:
        names = sorted(os.listdir(directory.path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        raise AccessError(directory.path, "not listable", "readable", "run it as root") from None
    found = []
    for name in names:
        path = os.path.join(directory.path, name)
        if path in ours or os.path.isdir(path) or not any(fnmatch.fnmatch(name, form) for form in directory.purge):
            continue
        # Somebody else's file: its content is not ours to show.
        found.append(FileWish(path, None, None, 0o644, None, None, True, directory.on_change, None, True))
    return found


# --- markers of unfinished work ------------------------------------------------------------------


def pending_action(unit: str, directory: str) -> str | None:
    """What an interrupted run still owes to a unit. A marker that cannot be read asks for a restart."""
    path = os.path.join(directory, unit)
    try:
        marker = load_json(path)
    except StateFileError:
        return RESTART
    if marker is None:
        return None
    return RELOAD if marker.get("action") == RELOAD else RESTART


def mark_pending(unit: str, action: str, because: Sequence[str], directory: str) -> None:
    """Put the marker on disk, synced, before the first file changes."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    marker = {"version": 1, "action": action, "because": list(because), "at": verdict.utc_now()}
    atomic_write(os.path.join(directory, unit), dump_json(marker))


def clear_pending(unit: str, directory: str) -> None:
    """Forget the marker; done already is done."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, unit))


def stronger(*actions: str | None) -> str | None:
    """restart before reload before nothing."""
    return next((action for action in ACTIONS if action in actions), None)


# --- units ---------------------------------------------------------------------------------------


class UnitPlan(NamedTuple):
    """Verbs for one unit, in the order in which they are carried out."""

    wish: UnitWish
    seen: UnitState
    verbs: tuple[str, ...]  # of: unmask, stop, disable, mask, enable, start, restart, reload


def plan_unit(wish: UnitWish, seen: UnitState, action: str | None, lenient: bool) -> UnitPlan:
    """The verbs that bring one unit to its wish. Pure.

    ``action`` is what changed files or an earlier, interrupted run ask of it. ``lenient`` (check mode,
    or a unit file that this run writes): a unit that is not there yet counts as a fresh one.
    """
    if not seen.exists:
        if not (wish.started or wish.enabled):
            return UnitPlan(wish, seen, ())  # nothing to stop, disable or mask: absent is done
        if not lenient:
            raise InputError(
                f"unit {wish.name}", "no such unit on this host", "a unit to start or enable",
                "name the package or the unit file that brings it",
            )  # fmt: skip
    verbs = []
    if wish.masked is False and seen.masked:
        verbs.append("unmask")
    if wish.state == STOPPED and seen.active not in ("inactive", "failed"):
        verbs.append("stop")
    # A masked unit can be neither enabled nor disabled.
    if wish.enabled is False and seen.file_state in ("enabled", "enabled-runtime", "linked") and not seen.masked:
        verbs.append("disable")
    if wish.masked and not seen.masked:
        verbs.append("mask")
    if wish.enabled and not seen.enabled:
        verbs.append("enable")
    if wish.started:
        verbs += _running_verbs(wish, seen, action)
    return UnitPlan(wish, seen, tuple(verbs))


def _running_verbs(wish: UnitWish, seen: UnitState, action: str | None) -> list[str]:
    if not (seen.up or seen.active == "activating"):
        return ["start"]
    if action == RELOAD and wish.reload_command:
        return ["reload"]
    return ["restart"] if action else []


def asked_of(wish: UnitWish, actions: Sequence[str]) -> str | None:
    """What this run's changed files ask of a unit. Units that are not to run, or not to be restarted, ask nothing."""
    if not wish.started:
        return None
    action = stronger(*actions)
    if action == RELOAD and wish.reload_command:
        return RELOAD
    return RESTART if action and wish.restart else None


# --- all of it -----------------------------------------------------------------------------------


class Plan(NamedTuple):
    """Everything that differs, before anything is touched."""

    packages_missing: list[str]
    content_needed: list[str]
    directories: list[FilePlan]
    files: list[FilePlan]
    units: list[UnitPlan]
    owed: dict[str, str]  # unit -> restart or reload, this run's and an interrupted one's
    daemon_reload: bool

    @property
    def changes(self) -> bool:
        return bool(
            self.packages_missing
            or self.directories
            or self.files
            or self.daemon_reload
            or any(expected_verbs(entry) for entry in self.units)
        )


def expected_verbs(plan: UnitPlan) -> tuple[str, ...]:
    """The verbs that will change something: starting a unit that its own condition keeps down changes nothing."""
    return tuple(verb for verb in plan.verbs if verb != "start" or not plan.seen.skipped)


def compare(wish: Wishes, check_mode: bool, pending_directory: str, runner: Runner = run) -> Plan:
    """Look at packages, directories, files and units: one command each for packages and units."""
    missing = missing_packages(wish.packages, runner)
    lenient = check_mode
    if missing and not check_mode:
        # Owners and units may come with the packages: nothing else is looked at until they are there.
        return Plan(missing, content_needed(wish, True), [], [], [], {}, False)
    directories = [plan for entry in wish.directories if (plan := plan_directory(entry, lenient))]
    ours = [entry.path for entry in wish.files]
    wanted_files = wish.files + [stray for entry in wish.directories for stray in strangers(entry, ours)]
    files = [plan for entry in wanted_files if (plan := plan_file(entry, lenient))]
    needed = [plan.wish.path for plan in files if _lacks_content(plan)]
    if not check_mode:
        _require_parents(files, directories)
    seen = units.show_units([entry.name for entry in wish.units], runner)
    unit_files = [plan for plan in files if "/systemd/system/" in plan.wish.path]
    owed, plans = {}, []
    for entry in wish.units:
        asked = asked_of(entry, [plan.action for plan in files])
        action = stronger(asked, pending_action(entry.name, pending_directory)) if entry.started else None
        if action:
            owed[entry.name] = action
        plans.append(plan_unit(entry, _real(entry, seen, wish), action, lenient or bool(unit_files)))
    stale = bool(unit_files) or any(state.stale for state in seen.values())
    return Plan(missing, needed, directories, files, plans, owed, stale)


def content_needed(wish: Wishes, lenient: bool) -> list[str]:
    """Paths of files that were given by digest alone and differ: the caller has to send their content."""
    plans = [plan_file(entry, lenient) for entry in wish.files if entry.content is None and not entry.absent]
    return [plan.wish.path for plan in plans if plan and _lacks_content(plan)]


def _lacks_content(plan: FilePlan) -> bool:
    return plan.wish.content is None and not plan.wish.absent and bool(set(plan.what) & {"content", "new"})


def _require_parents(files: Sequence[FilePlan], directories: Sequence[FilePlan]) -> None:
    coming = [plan.wish.path for plan in directories]
    for plan in files:
        parent = os.path.dirname(plan.wish.path)
        if not plan.wish.absent and parent not in coming and not os.path.isdir(parent):
            raise InputError(plan.wish.path, f"no directory {parent}", "the directory", "add it to directories")


def _real(wish: UnitWish, seen: dict[str, UnitState], all_wishes: Wishes) -> UnitState:
    """The unit behind a name. Putting an alias out of action would put its real unit out of action too."""
    state = seen[wish.name]
    if state.id != wish.name and (wish.masked or wish.state == STOPPED):
        wanted = [entry.name for entry in all_wishes.units if entry.started or entry.enabled]
        if state.id in [seen[name].id for name in wanted]:
            raise InputError(
                f"unit {wish.name}", f"another name of {state.id}, which is to run", "two different units",
                "leave one of them out",
            )  # fmt: skip
    return state
