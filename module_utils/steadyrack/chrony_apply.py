# SPDX-License-Identifier: BSD-2-Clause
"""chronyd as wanted, in one pass: files, units, and what the running daemon really does.

Nothing here steps a clock that somebody relies on: before the daemon may be started anew, later starts are told to
keep their samples and to slew (``time_settle``), unless the clock was never set and no job runs.
"""

from __future__ import annotations

import glob
import ipaddress
import os
import time
from typing import Any, Mapping, Sequence

from . import chrony_config, chrony_runtime, chronyc, service_config, time_settle
from .chrony_config import Config, Paths
from .errors import AccessError, DeadlineError, InputError, NotAppliedError, StateFileError, ToolError
from .files import read_bytes, sha256
from .run import run
from .service_plan import PENDING_DIRECTORY, Runner

SETTLE_UNIT = "steadyrack-time-settle.service"
# A resolver that has nobody to ask gives up after 5 s and 2 tries a server (resolv.conf manual), seconds.
RESOLVE_TIMEOUT_S = 12.0
VERSION_TIMEOUT_S = 10.0
UNIT_TIMEOUT_S = 60.0
# A clock further off than this against the controller's is wrong, seconds: apt refuses an index from the future, and
# certificates are not valid yet. Below it whatever chronyd will correct by itself does no harm to an installation.
CLOCK_WRONG_S = 3600.0
SOURCE_WORDS = ("server", "pool", "peer", "refclock")

DROP_IN = """\
# Written by steadyrack, role time_sync.
[Unit]
# Ends the time of stepping once the clock has settled.
Wants={settle}

[Service]
# Not there after a boot. Later: the administrator's own options, and -r -R (keep the samples, do not step).
EnvironmentFile=-/{environment}
"""

SETTLE = """\
# Written by steadyrack, role time_sync. Started with chronyd, each time.
[Unit]
Description=End of the time in which the clock may be stepped
After={unit}.service
ConditionFileIsExecutable=/usr/bin/steadyrack

[Service]
Type=exec
ExecStart=/usr/bin/steadyrack time settle
Restart=on-failure
RestartSec=5
"""


def apply(
    values: Mapping[str, Any],
    check_mode: bool = False,
    pending_directory: str = PENDING_DIRECTORY,
    runner: Runner = run,
    paths: Paths | None = None,
) -> dict[str, Any]:
    """Compare and, unless in check mode, put right. The result is what the module returns."""
    config, paths = chrony_config.config_of(values), paths or Paths()
    rivals = [str(name) for name in values.get("rivals") or []]
    version = installed_version(runner)
    refuse_link(paths.sourcedir)
    for folder in (paths.logdir, os.path.dirname(paths.driftfile), paths.dumpdir):
        refuse_no_directory(folder, paths.group)
    before = _text(paths.conf)
    params = wishes(config, paths, version, rivals, before)
    old_sources = _text(f"{paths.sourcedir}/steadyrack.sources")
    sources_change = old_sources != chrony_config.sources_text(config)
    foreign = foreign_sources(before, paths)
    warnings = unresolved(config, runner) if sources_change else []
    if not check_mode and version is not None:
        hold_if_relied_on(paths, runner)
    result = service_config.apply(params, check_mode, pending_directory, runner)
    result.update(warnings=warnings, version=None if version is None else "{}.{}".format(*version))
    stopped = [action for action in result["actions"] if action.startswith(("stop ", "mask "))]
    result["put_out_of_action"] = [*stopped, *foreign]
    if result["packages_missing"]:
        if not check_mode:
            result["actions"] += clock_before_installing(values, paths, result)
            result["changed"] = bool(result["actions"])
        return result
    daemon = next(unit for unit in result["units"] if unit["name"] == f"{paths.unit}.service")
    if check_mode and any(action.startswith("file ") for action in result["actions"]):
        return result  # what the daemon does now follows from files that would change first
    if daemon["active"] == "active" and not daemon["skipped_by_condition"]:
        _settle_runtime(config, version, result, check_mode, runner)
    if not check_mode and daemon["active"] == "active":
        _start_settling(config, paths, version, result, runner)
    return result


def refuse_link(path: str) -> None:
    """Where a link leads, others may write, or chronyd not look: its unit has a /tmp of its own."""
    if os.path.islink(path):
        seen = f"a link to {os.readlink(path)}"
        raise StateFileError(
            path, seen, "a directory or nothing", f"rm {path}, then run this again; nothing was changed"
        )


def refuse_no_directory(path: str, owner: str) -> None:
    """chronyd does not start where something else stands in the place of a directory that it writes to, and systemd's
    words (``Failed to set up mount namespacing``) do not say so."""
    if os.path.isdir(path) or not os.path.lexists(path):
        return  # not there: the package, systemd or chronyd itself makes it
    seen = "a file" if os.path.isfile(path) else "no directory"
    if os.path.islink(path):
        seen = f"a link to {os.readlink(path)}, which is {seen if os.path.exists(path) else 'not there'}"
    away = f"mv {path} {path}.away && install -d -o {owner} -g {owner} -m 0750 {path}"
    raise StateFileError(
        path, seen, f"a directory owned by {owner}: chronyd would not start",
        f"{away}, then run this again; nothing was changed",
    )  # fmt: skip


def clock_before_installing(values: Mapping[str, Any], paths: Paths, result: dict[str, Any]) -> list[str]:
    """A clock that is hours off is named before the first download fails by it, and set where that is allowed.

    ``controller_epoch`` in the values is the controller's clock when it made the call, ``set_clock`` the consent:
    True sets the clock, False goes on, None (nobody said) is InputError.
    """
    theirs = values.get("controller_epoch")
    if theirs is None:
        return []
    off_s = time.time() - float(theirs)
    if abs(off_s) < CLOCK_WRONG_S:
        return []
    seen = f"{abs(off_s) / 3600:.1f} h {'ahead of' if off_s > 0 else 'behind'} the controller's"
    if values.get("set_clock") is None:
        raise InputError(
            "clock wrong", seen, f"within {CLOCK_WRONG_S / 3600:g} h, or nothing can be downloaded and verified",
            "if the controller is right: run again with -e time_sync_set_clock=true, else set either by hand",
        )  # fmt: skip
    if not values["set_clock"]:
        result["warnings"].append(f"clock wrong: {seen}; downloads may be refused (time_sync_set_clock is false)")
        return []
    jobs = time_settle.gpu_processes(paths.root)
    if jobs is None or jobs:
        who = "unknown whether a job runs" if jobs is None else f"process {jobs[0]} uses a GPU"
        raise InputError("clock wrong", f"{seen}, and {who}", "no job", "drain this node, then run it again")
    try:
        time.clock_settime(time.CLOCK_REALTIME, float(theirs))
    except PermissionError as error:
        raise AccessError("the clock", error.strerror, "CAP_SYS_TIME", "set it on the machine itself") from None
    return [f"set the clock: it was {seen}"]


def installed_version(runner: Runner) -> tuple[int, int] | None:
    """(major, minor) of the chronyd on this host, None when there is none."""
    done = runner(["chronyd", "--version"], VERSION_TIMEOUT_S)
    return None if done.missing else chrony_config.version_of(done.out or done.err)


def wishes(
    config: Config, paths: Paths, version: tuple[int, int] | None, rivals: Sequence[str], before: str | None
) -> dict[str, Any]:
    """What service_config is asked for."""
    conf = chrony_config.conf_text(
        config, paths, version, stamping_interfaces(paths.root) if config.hwtimestamp else ()
    )
    check = "chronyd -p -f %s"
    sources_path, sources = f"{paths.sourcedir}/steadyrack.sources", chrony_config.sources_text(config)
    written = {path: sha256(text.encode()) for path, text in ((paths.conf, conf), (sources_path, sources))}
    note = chrony_config.note_text(config, paths, version, rivals, written)
    files: list[dict[str, Any]] = [
        {"path": paths.conf, "content": conf, "validate": check,
         "on_change": chrony_config.action_for(before, conf)},
        {"path": sources_path, "content": sources, "validate": check, "on_change": "reload"},
        {"path": paths.note, "content": note, "on_change": chrony_config.note_action(_text(paths.note), note)},
        {"path": f"{paths.drop_ins}/{paths.unit}.service.d/steadyrack.conf", "on_change": "none",
         "content": DROP_IN.format(settle=SETTLE_UNIT, environment=time_settle.ENVIRONMENT_PATH)},
        {"path": f"{paths.units}/{SETTLE_UNIT}", "content": SETTLE.format(unit=paths.unit),
         "on_change": "none"},
    ]  # fmt: skip
    if config.keys:
        files.insert(0, {"path": paths.keyfile, "content": chrony_config.keys_text(config), "mode": "0640",
                         "owner": paths.owner, "group": paths.group, "on_change": "reload",
                         "no_diff": True})  # fmt: skip
    else:
        files.insert(0, {"path": paths.keyfile, "state": "absent", "on_change": "reload", "no_diff": True})
    reload_command = chrony_config.reload_command(config, version)
    return {
        "packages": [paths.package],
        "directories": [
            {"path": os.path.dirname(paths.note), "on_change": "none"},
            # The package's own: somebody may have removed it with everything in it.
            {"path": os.path.dirname(paths.conf), "on_change": "none"},
            {"path": paths.sourcedir, "purge": ["*.sources"], "on_change": "reload"},
            {"path": f"{paths.drop_ins}/{paths.unit}.service.d", "on_change": "none"},
        ],
        "files": files,
        # Of two keepers of a clock the last one started wins: the others go out of action where they exist.
        "units": [
            *({"name": name, "state": "absent_ok_masked"} for name in rivals),
            {"name": paths.unit, "state": "started", "enabled": True, "reload_command": reload_command},
        ],
    }


def stamping_interfaces(root: str = "/") -> list[str]:
    """Network interfaces whose hardware has a clock of its own, unless a PTP daemon uses it already."""
    net, found = os.path.join(root, "sys/class/net"), []
    try:
        names = sorted(os.listdir(net))
    except OSError:
        return []
    for name in names:
        try:
            clocks = os.listdir(os.path.join(net, name, "device/ptp"))
        except OSError:
            continue
        found += [name] if clocks else []
    return [] if found and _runs(root, ("ptp4l", "phc2sys", "timemaster")) else found


def _runs(root: str, names: Sequence[str]) -> bool:
    proc = os.path.join(root, "proc")
    for number in filter(str.isdigit, os.listdir(proc)):
        try:
            with open(os.path.join(proc, number, "comm"), encoding="utf-8") as handle:
                if handle.read().strip() in names:
                    return True
        except OSError:
            continue
    return False


def unresolved(config: Config, runner: Runner) -> list[str]:
    """Sources whose names this host cannot resolve, as warnings; InputError when there is none that it can."""
    addresses = [*(source.address for source in config.sources), *config.peers, *config.other_sites]
    names = [name for name in addresses if not _is_address(name)]
    bad = [name for name in names if not _resolves(name, runner)]
    own = [source.address for source in config.sources]
    if own and all(name in bad for name in own):
        raise InputError(
            "time sources",
            f"none of {', '.join(own)} resolves on this host",
            "names that its resolver knows, or addresses",
            "behind a firewall give addresses, or let DNS through; nothing was changed",
        )
    return [f"{name} does not resolve on this host: chronyd keeps trying, until then it is not asked" for name in bad]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _resolves(name: str, runner: Runner) -> bool:
    try:
        return runner(["getent", "ahosts", name], RESOLVE_TIMEOUT_S).rc == 0
    except DeadlineError:
        return False


def foreign_sources(before: str | None, paths: Paths) -> list[str]:
    """Sources that the configuration found here reads, and that are asked no more. ``path: line`` each.

    Distributions, DHCP and cloud images leave theirs in directories that the packaged configuration names.
    """
    texts = {paths.conf: before or ""}
    for words in chrony_config.directives(before or ""):
        for pattern in _read_by(words):
            for path in sorted(glob.glob(pattern)):
                if path != f"{paths.sourcedir}/steadyrack.sources" and os.path.isfile(path):
                    texts[path] = _text(path) or ""
    return [
        f"{path}: {' '.join(words)}"
        for path, text in texts.items()
        for words in chrony_config.directives(text)
        if words[0].lower() in SOURCE_WORDS
    ]


def _read_by(words: Sequence[str]) -> list[str]:
    """Patterns of the files that a directive has chronyd read (chrony.conf manual)."""
    suffix = {"sourcedir": "*.sources", "confdir": "*.conf"}.get(words[0].lower())
    if suffix:
        return [os.path.join(folder, suffix) for folder in words[1:]]
    return list(words[1:2]) if words[0].lower() == "include" else []


def hold_if_relied_on(paths: Paths, runner: Runner) -> None:
    """Before anything is started anew: a clock that follows a source, or that a job runs by, is not stepped."""
    held = time_settle.steps_held(paths.root)  # then only the administrator's options may have changed
    followed = held or chronyc.state_of(chronyc.look(runner)) == chronyc.SYNCHRONISED
    jobs = [] if followed else time_settle.gpu_processes(paths.root)
    if followed or jobs is None or jobs:
        time_settle.hold_steps(paths.root, paths.options_file, paths.options_variable)


def _settle_runtime(
    config: Config, version: tuple[int, int] | None, result: dict[str, Any], check_mode: bool, runner: Runner
) -> None:
    """Whom the running daemon asks and serves; what it was found doing is added to the result."""
    networks = config.client_networks if config.relay else None
    reload_command = chrony_config.reload_command(config, version)
    wanted = chrony_config.source_options(config)

    def left() -> list[chrony_runtime.Fix]:
        return chrony_runtime.fixes(chrony_runtime.look(networks, runner), wanted, reload_command)

    todo = left()
    if not todo:
        return
    if not check_mode:
        chrony_runtime.carry_out(todo, runner)
        still = left()
        if still:
            raise NotAppliedError(
                "the running chronyd", "; ".join(fix.why for fix in still), "as configured",
                "who else commands it? chronyc sources -a",
            )  # fmt: skip
    result["actions"] += [f"chronyc {' '.join(fix.words)} ({fix.why})" for fix in todo]
    result["diff"].append(
        {
            "before_header": "running chronyd",
            "after_header": "running chronyd",
            "before": "".join(f"{fix.why}\n" for fix in todo),
            "after": "",
        }
    )
    result["changed"] = True


def _start_settling(
    config: Config, paths: Paths, version: tuple[int, int] | None, result: dict[str, Any], runner: Runner
) -> None:
    """The unit comes with a start of chronyd; where that was not started anew it is begun here."""
    gated = config.relay and config.orphan_distance_s > 0 and not chrony_config.knows(version, "local activate")
    reloaded = any(action.startswith("reload ") for action in result["actions"])
    if not time_settle.steps_held(paths.root) or (gated and reloaded):
        done = runner(["systemctl", "restart", "--no-block", SETTLE_UNIT], UNIT_TIMEOUT_S)
        if done.rc != 0:
            raise ToolError(f"systemctl restart {SETTLE_UNIT}", done.said, "started", f"systemctl status {SETTLE_UNIT}")


def _text(path: str) -> str | None:
    """A file's text, None when there is none. What is not UTF-8 is no configuration of ours."""
    content = read_bytes(path)
    return None if content is None else content.decode("utf-8", "replace")
