# SPDX-License-Identifier: BSD-2-Clause
"""One service as data: its packages, directories, files and units, compared and put right in one pass.

The order makes an interruption harmless. Everything is compared first; every new file is shown to its
validator before any file is replaced; a marker "this unit still has to be restarted" is on disk before
the first file changes and goes away only after the restart is seen to have worked. Whoever runs next
finds the marker and finishes the job, even though every file is then already right.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shlex
import stat
import tempfile
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from . import units, verdict
from .errors import AccessError, InputError, NotAppliedError, StateFileError, ToolError
from .files import atomic_write, dump_json, group_id, load_json, owner_id, read_bytes, sha256
from .run import Completed, run
from .units import UnitState

Runner = Callable[..., Completed]

PENDING_DIRECTORY = "/var/lib/steadyrack/pending"
RESTART, RELOAD, NONE = "restart", "reload", "none"
# The stronger action first: a restart reads everything that a reload would read.
ACTIONS = (RESTART, RELOAD)
STARTED, STOPPED, ABSENT_OK_MASKED = "started", "stopped", "absent_ok_masked"
# A quoted octal mode. Unquoted YAML 0644 arrives as 420, which is another mode: refused.
MODE_FORM = re.compile(r"0[0-7]{3,4}")
# dpkg answers from its database in milliseconds; a lock or a dying disk takes longer, seconds.
DPKG_TIMEOUT_S = 10.0
VALIDATE_TIMEOUT_S = 20.0
UNIT_TIMEOUT_S = 90.0


# --- what is wanted ------------------------------------------------------------------------------


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
    if state == ABSENT_OK_MASKED:
        state, masked = STOPPED, True
    enabled = entry.get("enabled")
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


# --- what is there -------------------------------------------------------------------------------


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


# --- markers of unfinished work --------------------------------------------------------------------


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


# --- what to do with the units ---------------------------------------------------------------------


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
    # A masked unit cannot be enabled or disabled, and is neither.
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


# --- the pass ----------------------------------------------------------------------------------------


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


def apply(
    params: dict[str, Any],
    check_mode: bool = False,
    pending_directory: str = PENDING_DIRECTORY,
    runner: Runner = run,
    timeout_s: float = UNIT_TIMEOUT_S,
) -> dict[str, Any]:
    """Compare and, unless in check mode, put right. The result is what the module returns."""
    wish = wishes(params)
    plan = compare(wish, check_mode, pending_directory, runner)
    result: dict[str, Any] = {
        "changed": False,
        "diff": [],
        "packages_missing": plan.packages_missing,
        "content_needed": plan.content_needed,
        "actions": [],
        "not_validated": [],
        "units": [],
        "checks": [],
    }
    if plan.content_needed or (plan.packages_missing and not check_mode):
        return result  # the caller's turn; nothing has been changed
    done = plan.units
    after = {entry.wish.name: entry.seen for entry in plan.units}
    if not check_mode and (plan.changes or plan.owed or any(entry.verbs for entry in plan.units)):
        result["not_validated"] = _carry_out(plan, pending_directory, runner)
        done, after = _units_to_wish(plan, pending_directory, runner, timeout_s)
    result["diff"] = _diff(plan, done)
    result["actions"] = _actions(plan, done)
    result["changed"] = bool(result["actions"])
    result["units"] = [unit_report(after[entry.wish.name], expected_verbs(entry)) for entry in done]
    result["checks"] = unit_rows(done, after, check_mode, runner)
    return result


def _carry_out(plan: Plan, pending_directory: str, runner: Runner) -> list[str]:
    """Directories, markers, files, in this order; returns the paths whose validator is not installed."""
    for entry in plan.directories:
        _make_directory(entry)
    not_validated = [entry.wish.path for entry in plan.files if not _valid(entry, runner)]
    because = [entry.wish.path for entry in plan.files]
    for unit, action in plan.owed.items():
        mark_pending(unit, action, because, pending_directory)
    for entry in plan.files:
        _put_file(entry)
    return not_validated


def _make_directory(plan: FilePlan) -> None:
    path, wish = plan.wish.path, plan.wish
    with _explained(path):
        if plan.seen.kind == "absent":
            os.makedirs(path, mode=0o755, exist_ok=True)
        os.chown(path, owner_id(wish.owner), group_id(wish.group))
        os.chmod(path, wish.mode)
    left = plan_directory(wish)
    if left:
        raise NotAppliedError(path, "still differs in " + ", ".join(left.what), "as set", "look at its file system")


def _put_file(plan: FilePlan) -> None:
    """Write, correct or remove one file, and read it back."""
    path, wish, seen = plan.wish.path, plan.wish, plan.seen
    with _explained(path):
        if wish.absent:
            os.unlink(path)
        elif set(plan.what) & {"content", "new"}:
            # An owner that nobody asked for stays what it was.
            owner = wish.owner if wish.owner is not None or seen.kind != "file" else str(seen.uid)
            group = wish.group if wish.group is not None or seen.kind != "file" else str(seen.gid)
            atomic_write(path, wish.content, wish.mode, owner, group)
        else:
            os.chown(path, owner_id(wish.owner), group_id(wish.group))
            os.chmod(path, wish.mode)
    left = plan_file(wish)
    if left:
        raise NotAppliedError(path, "still differs in " + ", ".join(left.what), "as written", "who else writes it?")


def _valid(plan: FilePlan, runner: Runner) -> bool:
    """Show the new content to its validator, in a hidden file beside the old one: there a confined daemon may read.

    False when the validator is not installed; a refusal is an error and nothing has been replaced.
    """
    wish = plan.wish
    if wish.absent or wish.validate is None or not set(plan.what) & {"content", "new"}:
        return True
    directory = os.path.dirname(wish.path)
    with _explained(wish.path):
        descriptor, temporary = tempfile.mkstemp(
            dir=directory, prefix=f".{os.path.basename(wish.path)}.", suffix=".tmp"
        )
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(wish.content)
        argv = [word.replace("%s", temporary) for word in shlex.split(wish.validate)]
        done = runner(argv, VALIDATE_TIMEOUT_S)
    finally:
        os.unlink(temporary)
    if done.missing:
        return False
    if done.rc != 0:
        said = "(hidden)" if wish.secret else done.said.replace(temporary, wish.path)
        raise InputError(
            wish.path,
            f"refused by {argv[0]}: {said}",
            "a file it accepts",
            "correct the role's inputs; no file was replaced",
        )
    return True


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Plain OSErrors as ours."""
    try:
        yield
    except PermissionError as error:
        raise AccessError(path, error.strerror, "writable", "run it as root") from None
    except OSError as error:
        raise StateFileError(path, error.strerror, "a written file", "look at the disk (full? read-only?)") from error


def _units_to_wish(
    plan: Plan, pending_directory: str, runner: Runner, timeout_s: float
) -> tuple[list[UnitPlan], dict[str, UnitState]]:
    """Carry out the verbs, wait until the units stand, and read them back."""
    names = [entry.wish.name for entry in plan.units]
    if not names and not plan.daemon_reload:
        return [], {}
    if plan.daemon_reload:
        _systemctl(["daemon-reload"], [], runner, timeout_s)
    for verb in ("unmask", "stop", "disable", "mask", "enable"):
        # By the real name: systemd refuses to mask an alias.
        chosen = [
            entry.seen.id if entry.seen.exists else entry.wish.name for entry in plan.units if verb in entry.verbs
        ]
        if chosen:
            _systemctl([verb], sorted(set(chosen)), runner, timeout_s)
    for entry in plan.units:
        for verb in entry.verbs:
            if verb in ("start", "restart"):
                _systemctl([verb], [entry.wish.name], runner, timeout_s)
            elif verb == "reload":
                _reload(entry.wish, runner)
    acted = any(entry.verbs for entry in plan.units) or plan.daemon_reload
    after = units.settle(names, timeout_s, runner) if acted else {entry.wish.name: entry.seen for entry in plan.units}
    done = []
    for entry in plan.units:
        state = after[entry.wish.name]
        _read_back(entry.wish, state, runner)
        clear_pending(entry.wish.name, pending_directory)
        done.append(_what_came_of(entry, state))
    return done, after


def _what_came_of(plan: UnitPlan, after: UnitState) -> UnitPlan:
    """A start that the unit's own condition swallowed has changed nothing, whatever systemd answered."""
    if after.skipped:
        return plan._replace(verbs=tuple(verb for verb in plan.verbs if verb not in ("start", "restart")))
    return plan._replace(seen=plan.seen._replace(condition_failed=False))


def _systemctl(verb: Sequence[str], names: Sequence[str], runner: Runner, timeout_s: float) -> None:
    argv = ["systemctl", *verb, *(["--", *names] if names else [])]
    done = runner(argv, timeout_s)
    if done.rc != 0:
        last = "; ".join(units.why_down(name, runner) for name in names) if verb[0] in ("start", "restart") else ""
        raise ToolError(
            " ".join(argv), f"exit status {done.rc}: {done.said}" + (f" [{last}]" if last else ""), "success",
            "journalctl -b -u " + " -u ".join(names) if names else "systemctl --failed",
        )  # fmt: skip


def _reload(wish: UnitWish, runner: Runner) -> None:
    done = runner(list(wish.reload_command), VALIDATE_TIMEOUT_S)
    if done.rc != 0:
        raise ToolError(
            " ".join(wish.reload_command),
            f"exit status {done.rc}: {done.said}",
            "success",
            f"systemctl status {wish.name}",
        )


def _read_back(wish: UnitWish, state: UnitState, runner: Runner) -> None:
    """What systemd says now, against the wish."""
    look = f"systemctl status {wish.name}; journalctl -b -u {wish.name}"
    if wish.started and not state.up and not state.skipped:
        seen = f"{state.active} ({state.sub}): {units.why_down(wish.name, runner)}"
        raise NotAppliedError(f"unit {wish.name}", seen, "active", look)
    if wish.state == STOPPED and state.active not in ("inactive", "failed"):
        raise NotAppliedError(f"unit {wish.name}", state.active, "stopped", look)
    if wish.masked and state.exists and not state.masked:
        raise NotAppliedError(f"unit {wish.name}", state.file_state or state.load, "masked", look)
    if wish.enabled and not state.enabled:
        raise NotAppliedError(f"unit {wish.name}", state.file_state or state.load, "enabled", look)


# --- what is told ------------------------------------------------------------------------------------


def unit_report(state: UnitState, verbs: Sequence[str]) -> dict[str, Any]:
    """One unit as the module returns it."""
    return {
        "name": state.name if state.name.endswith(units.SUFFIXES) else units.full_name(state.name),
        "exists": state.exists,
        "state": units.first_word(state),
        "active": state.active,
        "sub": state.sub,
        "file_state": state.file_state,
        "skipped_by_condition": state.skipped,
        "actions": list(verbs),
    }


def unit_rows(
    plans: Sequence[UnitPlan], after: dict[str, UnitState], check_mode: bool, runner: Runner = run
) -> list[dict[str, Any]]:
    """One row service.unit for each unit that is to run."""
    rows = []
    for plan in plans:
        if plan.wish.started:
            rows.append(_unit_row(plan, after[plan.wish.name], check_mode, runner))
    return rows


def _unit_row(plan: UnitPlan, state: UnitState, check_mode: bool, runner: Runner) -> dict[str, Any]:
    row = {
        "expected": "running",
        "measured": units.first_word(state),
        "source": "systemctl show",
        "state": state.active,
    }
    if state.skipped:
        reason = units.failed_condition(plan.wish.name, runner)
        return verdict.check_row("service.unit", plan.wish.name, verdict.NOT_JUDGED, reason=reason, **row)
    if state.up:
        return verdict.check_row("service.unit", plan.wish.name, verdict.PASS, **row)
    reason = "check mode: it would be started" if check_mode else "it does not run"
    return verdict.check_row(
        "service.unit", plan.wish.name, verdict.FAIL, reason=reason, hint=f"systemctl status {plan.wish.name}", **row
    )


def _actions(plan: Plan, done: Sequence[UnitPlan]) -> list[str]:
    """What was (check mode: would be) changed, one line each."""
    lines = [f"install package {name}" for name in plan.packages_missing]
    lines += [f"directory {entry.wish.path}: {', '.join(entry.what)}" for entry in plan.directories]
    lines += [f"file {entry.wish.path}: {', '.join(entry.what)}" for entry in plan.files]
    lines += ["systemctl daemon-reload"] if plan.daemon_reload else []
    for entry in done:
        lines += [f"{verb} {entry.wish.name}" for verb in expected_verbs(entry)]
    return lines


def _diff(plan: Plan, done: Sequence[UnitPlan]) -> list[dict[str, str]]:
    """One before/after for each thing that differs, in the form that Ansible prints."""
    diffs = []
    if plan.packages_missing:
        listed = "".join(f"{name}\n" for name in plan.packages_missing)
        diffs.append(_entry("packages", "packages", "", listed))
    diffs += [_path_diff(entry, "/") for entry in plan.directories]
    diffs += [_path_diff(entry, "") for entry in plan.files]
    for entry in done:
        verbs = expected_verbs(entry)
        if verbs:
            before = f"{entry.seen.load}, {entry.seen.active}, {entry.seen.file_state or 'no unit file'}\n"
            diffs.append(_entry(f"unit {entry.wish.name}", f"unit {entry.wish.name}", before, f"{', '.join(verbs)}\n"))
    return diffs


def _path_diff(plan: FilePlan, slash: str) -> dict[str, str]:
    path = plan.wish.path + slash
    before, after = f"{path} ({_describe(plan.seen)})", f"{path} ({_describe_wish(plan)})"
    if slash or not set(plan.what) & {"content", "new", "absent"}:
        # Only kind, mode or owner: the text is the description itself.
        return _entry(path, path, _describe(plan.seen) + "\n", _describe_wish(plan) + "\n")
    new = None if plan.wish.absent else plan.wish.content
    return _entry(before, after, _shown(plan.seen.content, plan.wish.secret), _shown(new, plan.wish.secret))


def _entry(before_header: str, after_header: str, before: str, after: str) -> dict[str, str]:
    return {"before_header": before_header, "after_header": after_header, "before": before, "after": after}


def _describe(seen: Seen) -> str:
    return "absent" if seen.kind == "absent" else f"{seen.kind}, mode {seen.mode:04o}, owner {seen.uid}:{seen.gid}"


def _describe_wish(plan: FilePlan) -> str:
    wish, seen = plan.wish, plan.seen
    if getattr(wish, "absent", False):
        return "absent"
    kind = "directory" if isinstance(wish, DirectoryWish) else "file"
    owner = wish.owner if wish.owner is not None else seen.uid if seen.kind != "absent" else "as created"
    group = wish.group if wish.group is not None else seen.gid if seen.kind != "absent" else "as created"
    return f"{kind}, mode {wish.mode:04o}, owner {owner}:{group}"


def _shown(content: bytes | None, secret: bool) -> str:
    """Text for a diff; secret or binary content is told by its size alone (the digest of a short secret tells it)."""
    if content is None:
        return ""
    if secret:
        return f"(content hidden, {len(content)} bytes)\n"
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return f"(binary, {len(content)} bytes)\n"


def redacted(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters without any file's content: what may be repeated in a result or a log."""
    clean = dict(params)
    clean["files"] = [
        {
            key: value if key != "content" or value is None else f"({len(value)} characters)"
            for key, value in entry.items()
        }
        for entry in params.get("files") or []
    ]
    return clean
