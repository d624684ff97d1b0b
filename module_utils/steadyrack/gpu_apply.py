# SPDX-License-Identifier: BSD-2-Clause
"""Bring the GPUs to their policy: read, check all, set what differs, let go, read back.

Order: persistence before caps, because a cap is lost when the last user of a GPU ends with
persistence off. A GPU that is not to be used is closed before a cap of it changes, caps fall before
others rise; then MIG, and the caps again where the change of its mode reset the GPU. A GPU is opened
last, when its cap has been read back: see gpu_roles.py, which keeps who is active and who stands by.
The reading after a change is done by a new child, so that a cap which only held as long as we did is
seen. A GPU that is lost or hangs is reported and the others are done. One lock for the agent and for
Ansible.

Who owns persistence: the nvidia-persistenced daemon where its unit is installed; it is started if
need be and then only looked at. NVML's own setter is for nodes without that unit: used beside the
daemon, it would make two owners of one switch.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Dict, Sequence, Tuple

from . import files, gpu_baseline, gpu_checks, gpu_mig, gpu_policy, gpu_roles, nvml, pcie, verdict
from .errors import SteadyrackError
from .gpu_policy import Policy, Wish
from .run import Completed, run

LOCK_PATH = "/run/steadyrack/gpu_policy.lock"
PREVIOUS_PATH = "/var/lib/steadyrack/gpu_policy_previous.json"
PREVIOUS_VERSION = 1
PERSISTENCED = "nvidia-persistenced.service"
# The daemon reports ready before it has switched every GPU; seconds to wait for NVML to agree.
PERSISTENCE_GRACE_S = 5.0
PERSISTENCE_LOOK_S = 0.5

Record = Dict[str, Any]
Pair = Tuple[Record, Wish]


class Outcome:
    """What was found, what was changed, and how it stands now."""

    def __init__(self, before: Record, pci: Sequence[Record]) -> None:
        self.before = before
        self.after = before
        self.pci = pci
        # {uuid, bus_id, setting, before, after, cause}: made, or in check mode intended.
        self.changes: list[Record] = []
        # What a setter answered, by UUID.
        self.failures: dict[str, str] = {}
        # What a step towards the MIG layout answered, by UUID.
        self.mig_failures: dict[str, str] = {}
        self.notes: list[str] = []
        self.rows: list[Record] = []
        self.roles: gpu_roles.Roles | None = None
        # Path -> (there, wanted), of the list for jobs: written, or in check mode to be written.
        self.files: Record = {}

    @property
    def changed(self) -> bool:
        """True when something was, or in check mode would be, set."""
        return bool(self.changes or self.files or self.events)

    @property
    def events(self) -> list[Record]:
        """What happened to the roles of GPUs; see gpu_spare.py."""
        return [] if self.roles is None else self.roles.events

    def wish(self, policy: Policy, gpu: Record) -> Wish:
        """What the policy wants of a GPU in its role."""
        return gpu_policy.resolve(policy, gpu, None if self.roles is None else self.roles.role(gpu))

    def broken(self) -> list[Record]:
        """The rows that say a setting is not as asked for, on a GPU that is there to be set."""
        ours = ("gpu.power_cap", "gpu.persistence", "gpu.compute_mode")
        return [
            row
            for row in verdict.failed(self.rows)
            if (row["id"] in ours and row["state"] != "missing") or gpu_mig.is_broken(row)
        ]


def apply(
    policy: Policy,
    root: str = "/",
    host: str = "localhost",
    *,
    check: bool = False,
    strict: bool = True,
    ready: Callable[[Outcome], None] | None = None,
    reload: Callable[[], Policy | None] | None = None,
    runner: Callable[..., Completed] = run,
    **deadlines: Any,
) -> Outcome:
    """Bring every GPU to the policy, or with ``check`` only say what would be set.

    ``ready`` is called with what was found once nothing can be refused any more, and before anything
    is set; it may still refuse by raising.

    ``reload``: gives the policy as it is once the lock is ours: whoever held it may have written another.

    ``strict``: InputError, before anything is set, when a card cannot do what is wanted of it. Without it
    that card is left alone and told as a row that fails: after a reboot one card that was swapped must not
    leave all the others without their caps. A node on which
    NVML is not usable gives an outcome without changes whose ``before["state"]`` says why.
    """
    pci = pcie.read_gpus(root)
    with contextlib.ExitStack() as stack:
        if not check:
            # A look needs no lock: it may run as anybody, and beside a run that sets.
            stack.enter_context(files.locked(files.below(root, LOCK_PATH)))
            policy = (reload() if reload is not None else None) or policy
        session = stack.enter_context(nvml.Session(root, **deadlines))
        outcome = _look(policy, (root, host), session, pci, runner)
        gpu_mig.look(session, outcome.before["gpus"], policy)
        pairs = [(gpu, outcome.wish(policy, gpu)) for gpu in outcome.before["gpus"]]
        if strict:
            gpu_policy.refuse(pairs)
            gpu_mig.refuse(pairs)
        outcome.notes = [f"{gpu_policy.label(gpu)}: {wish.note}" for gpu, wish in pairs if wish.note]
        outcome.changes = [_told_by_role(change, outcome.events) for change in wanted_changes(pairs)]
        outcome.changes += gpu_mig.wanted_changes(pairs)
        if outcome.roles is not None:
            outcome.files = outcome.roles.wanted_files(outcome.before)
        if ready is not None:
            ready(outcome)
        if not check:
            _carry_out(session, outcome, policy, runner)
    if check:
        baseline = gpu_baseline.look(root, outcome.after["gpus"])
    else:
        # From a card's first minutes on, and after every boot: what rises later is measured from here.
        baseline = gpu_baseline.keep(root, outcome.after["gpus"], repair=False)
        outcome.notes += [] if baseline.trouble is None else [baseline.trouble]
    known = gpu_checks.Found(outcome.failures, outcome.roles, baseline)
    outcome.rows = gpu_checks.setting_rows(policy, outcome.after, pci, host, known)
    return outcome


def _told_by_role(change: Record, events: Sequence[Record]) -> Record:
    """A change that follows from what has just happened to the GPU's role is nobody's doing."""
    return dict(change, cause="role") if any(event["uuid"] == change["uuid"] for event in events) else change


def _look(
    policy: Policy,
    place: tuple[str, str],
    session: nvml.Session,
    pci: Sequence[Record],
    runner: Callable[..., Completed],
) -> Outcome:
    """What is there, and the roles that follow from it. ``place``: root and host name."""
    if policy.spares is None:
        return Outcome(session.read([device["bus_id"] for device in pci]), pci)
    roles = gpu_roles.Roles(policy, *place)
    outcome = Outcome(roles.decide(session, pci, runner), pci)
    outcome.roles = roles
    return outcome


def _carry_out(session: nvml.Session, outcome: Outcome, policy: Policy, runner: Callable[..., Completed]) -> None:
    """Roles, cards and list, in the order that holds at every step; see gpu_roles.py."""
    addresses = [device["bus_id"] for device in outcome.pci]
    trouble = _written_down(session.root, outcome)
    if trouble is not None:
        # A full or read-only disk: nothing may open or rise, for that could not be undone; what closes and falls may.
        outcome.changes = [change for change in outcome.changes if _is_safe(change)]
    if outcome.changes:
        opening = [change for change in outcome.changes if opens(change)]
        _set_all(session, outcome, [change for change in outcome.changes if not opens(change)], policy, runner)
        if any(change["setting"] == "mig" for change in outcome.changes):
            _apply_mig(session, outcome, policy, runner)
        session.drop()
        outcome.after = session.read(addresses)
        if opening:
            _open_all(session, outcome, opening, policy)
            session.drop()
            outcome.after = session.read(addresses)
        gpu_mig.look(session, outcome.after["gpus"], policy)
        gpu_mig.note_failures(outcome.after["gpus"], outcome.mig_failures)
    if trouble is not None:
        raise trouble
    if outcome.roles is not None:
        outcome.roles.finish(outcome.after, lambda gpu: outcome.wish(policy, gpu))


def _written_down(root: str, outcome: Outcome) -> SteadyrackError | None:
    """Write the roles, and what each GPU had before; what kept it from being written."""
    try:
        if outcome.roles is not None:
            outcome.roles.begin(outcome.before)
        if outcome.changes:
            remember(files.below(root, PREVIOUS_PATH), outcome.before["gpus"], outcome.changes)
    except SteadyrackError as error:
        return error
    return None


def _is_safe(change: Record) -> bool:
    """Whether it lets nobody draw more: persistence, which keeps caps, a GPU closed, a cap that falls."""
    return change["setting"] == "persistence" or _falls(change)


def _falls(change: Record) -> bool:
    """A GPU that is closed, or a cap that is lowered."""
    if change["setting"] == "compute_mode":
        return not opens(change)
    return bool(change["setting"] == "power_cap_w" and change["after"] < change["before"])


def opens(change: Record) -> bool:
    """Whether this lets jobs onto a GPU."""
    return change["setting"] == "compute_mode" and change["after"] != "prohibited"


def _open_all(session: nvml.Session, outcome: Outcome, opening: Sequence[Record], policy: Policy) -> None:
    """Open the GPUs whose caps are in force; another one stays closed, and that is said."""
    now = gpu_roles.by_uuid(outcome.after)
    for change in opening:
        uuid = change["uuid"]
        gpu = now.get(uuid)
        if gpu is None or not gpu_roles.capped(gpu, outcome.wish(policy, gpu)):
            limit = "unknown" if gpu is None else gpu["power"]["enforced_w"]
            outcome.failures[uuid] = f"not opened: its enforced limit is {limit} W, more than its cap"
            continue
        try:
            session.set_compute_mode(uuid, change["after"])
        except SteadyrackError as error:
            outcome.failures[uuid] = error.sentence()


def wanted_changes(pairs: Sequence[Pair]) -> list[Record]:
    """What has to be set, in the order in which it is set, each with the value before and why it differs."""
    changes = []
    for gpu, wish in pairs:
        known = None not in (wish.persistence, gpu["persistence"])
        if _settable(gpu) and known and gpu["persistence"] != wish.persistence:
            # Off is what every GPU is after a boot, so off is lost, and only an unwanted on is somebody's doing.
            cause = "lost_state" if wish.persistence else "drift"
            changes.append(_change(gpu, "persistence", gpu["persistence"], wish.persistence, cause))
    modes = [_mode_change(gpu, wish) for gpu, wish in pairs if _mode_differs(gpu, wish)]
    caps = []
    for gpu, wish in pairs:
        cause = gpu_policy.cap_state(gpu, wish)
        if _settable(gpu) and wish.cap_mw is not None and cause in ("drift", "lost_state", "not_applied"):
            caps.append(_change(gpu, "power_cap_w", gpu["power"]["requested_w"], wish.cap_mw / 1000, cause))
    # What falls makes room for what rises.
    caps.sort(key=lambda change: bool(change["after"] > change["before"]))
    return [
        *changes,
        *(change for change in modes if not opens(change)),
        *caps,
        *(change for change in modes if opens(change)),
    ]


def _mode_differs(gpu: Record, wish: Wish) -> bool:
    known = None not in (wish.compute_mode, gpu["compute_mode"])
    return _settable(gpu) and known and gpu["compute_mode"] != wish.compute_mode


def _mode_change(gpu: Record, wish: Wish) -> Record:
    """After a boot every GPU is in `default`: that is lost state, all else is somebody's doing."""
    cause = "lost_state" if gpu["compute_mode"] == "default" else "drift"
    return _change(gpu, "compute_mode", gpu["compute_mode"], wish.compute_mode, cause)


def _settable(gpu: Record) -> bool:
    """A GPU that answers and has a name to be set by."""
    return gpu["state"] == "ok" and gpu["uuid"] is not None


def _change(gpu: Record, setting: str, before: Any, after: Any, cause: str) -> Record:
    return {
        "uuid": gpu["uuid"], "bus_id": gpu["bus_id"], "setting": setting,
        "before": before, "after": after, "cause": cause,
    }  # fmt: skip


def _apply_mig(session: nvml.Session, outcome: Outcome, policy: Policy, runner: Callable[..., Completed]) -> None:
    """Bring each GPU to its MIG layout. A change of mode may have reset a GPU: what it was told is then set again."""
    reset = False
    for gpu in outcome.before["gpus"]:
        try:
            reset = gpu_mig.bring(session, gpu, outcome.wish(policy, gpu)) or reset
        except SteadyrackError as error:
            outcome.mig_failures[str(gpu["uuid"])] = error.sentence()
            reset = True  # the mode may have changed before the step that failed
    if reset:
        again = Outcome(session.read([device["bus_id"] for device in outcome.pci]), outcome.pci)
        again.changes = wanted_changes([(gpu, outcome.wish(policy, gpu)) for gpu in again.before["gpus"]])
        _set_all(session, again, [change for change in again.changes if not opens(change)], policy, runner)
        outcome.failures.update(again.failures)


def _set_all(
    session: nvml.Session, outcome: Outcome, ours: Sequence[Record], policy: Policy, runner: Callable[..., Completed]
) -> None:
    """Make the changes but those of MIG; what one GPU answers does not stop the others."""
    ours = [change for change in ours if change["setting"] != "mig"]
    if any(change["setting"] == "persistence" for change in ours):
        owner = persistence_owner(runner, start=policy.persistence_mode is True)
        if owner == "daemon":
            outcome.notes.append(f"persistence is kept by {PERSISTENCED}")
            if _await_daemon(session, outcome, policy) and _restart_daemon(runner, policy):
                outcome.notes.append(f"{PERSISTENCED} ran and had let go of a GPU; it was restarted")
                _await_daemon(session, outcome, policy)
            ours = [change for change in ours if change["setting"] != "persistence"]
    stuck: str | None = None
    for change in ours:
        if stuck is not None and change["setting"] == "power_cap_w" and not _falls(change):
            outcome.failures[change["uuid"]] = f"not raised: {stuck} could not be lowered or closed first"
            continue
        try:
            if change["setting"] == "persistence":
                session.set_persistence(change["uuid"], change["after"])
            elif change["setting"] == "compute_mode":
                session.set_compute_mode(change["uuid"], change["after"])
            else:
                session.set_power_limit(change["uuid"], gpu_policy.milliwatts(change["after"]) or 0)
        except SteadyrackError as error:
            outcome.failures[change["uuid"]] = error.sentence()
            # One that is lost by now is counted at its last cap in the plan, as a failed one is.
            stuck = str(change["uuid"]) if _falls(change) and not _is_lost(error) else stuck


def _is_lost(error: SteadyrackError) -> bool:
    return isinstance(error, nvml.NvmlError) and error.code in (nvml.GPU_IS_LOST, nvml.NOT_FOUND)


def persistence_owner(runner: Callable[..., Completed] = run, start: bool = False) -> str:
    """``daemon`` when nvidia-persistenced keeps, or can be started to keep, persistence; else ``nvml``.

    A unit that was skipped at boot because the device files came too late is enabled, yet not
    active: it is started again here, now that the GPUs answer.
    """
    shown = runner(["systemctl", "show", "--property=LoadState,ActiveState", PERSISTENCED])
    if shown.rc != 0 or "LoadState=loaded" not in shown.out:
        return "nvml"
    if "ActiveState=active" in shown.out:
        return "daemon"
    if not start:
        return "nvml"
    return "daemon" if runner(["systemctl", "start", PERSISTENCED]).rc == 0 and _is_active(runner) else "nvml"


def _is_active(runner: Callable[..., Completed]) -> bool:
    """A start that a condition skipped ends well too, so the state is asked."""
    return runner(["systemctl", "is-active", "--quiet", PERSISTENCED]).rc == 0


def _await_daemon(session: nvml.Session, outcome: Outcome, policy: Policy) -> set[str]:
    """Give the daemon its grace to switch every GPU, looking through a fresh reading each time.

    Returns the UUIDs of the GPUs that it has not switched by then.
    """
    give_up = time.monotonic() + PERSISTENCE_GRACE_S
    waiting = {change["uuid"] for change in outcome.changes if change["setting"] == "persistence"}
    while True:
        gpus = session.read()["gpus"]
        waiting -= {gpu["uuid"] for gpu in gpus if gpu["persistence"] == policy.persistence_mode}
        if not waiting or time.monotonic() >= give_up:
            return waiting
        time.sleep(PERSISTENCE_LOOK_S)


def _restart_daemon(runner: Callable[..., Completed], policy: Policy) -> bool:
    """Restart the daemon where it runs and yet a GPU's persistence is off (``nvidia-smi -pm 0`` asks it so).

    Switching the mode past it would leave two owners; what it holds meanwhile our own session keeps initialised.
    One that was told ``--no-persistence-mode`` is as its owner wants it: that is said, not undone.
    """
    if policy.persistence_mode is not True:
        return False
    shown = runner(["systemctl", "show", "--property=ExecStart", PERSISTENCED])
    if shown.rc != 0 or "--no-persistence-mode" in shown.out:
        return False
    return runner(["systemctl", "restart", PERSISTENCED]).rc == 0 and _is_active(runner)


def remember(path: str, gpus: Sequence[Record], changes: Sequence[Record]) -> None:
    """Keep what each GPU had before we set it: ``first`` (before the very first time) and ``last``.

    So that a cap can be taken back. A damaged memory is set aside under another name, not trusted.
    """
    kept = _memory(path)
    for gpu in gpus:
        if any(change["uuid"] == gpu["uuid"] for change in changes):
            value = {
                "at": verdict.utc_now(), "bus_id": gpu["bus_id"], "persistence_mode": gpu["persistence"],
                "power_cap_w": gpu["power"]["requested_w"], "power_default_w": gpu["power"]["default_w"],
                "mig": gpu_mig.text(gpu),
            }  # fmt: skip
            entry = kept.setdefault(str(gpu["uuid"]), {"first": value})
            entry["last"] = value
    files.make_directory(os.path.dirname(path))
    files.atomic_write(path, files.dump_json({"version": PREVIOUS_VERSION, "gpus": kept}), 0o644)


def _memory(path: str) -> dict[str, Record]:
    """What was kept before, by UUID."""
    try:
        value = files.load_json(path) or {}
    except SteadyrackError:
        value = {"version": None}
    gpus = value.get("gpus", {})
    if value and (value.get("version") != PREVIOUS_VERSION or not isinstance(gpus, dict)):
        files.set_aside(path)
        return {}
    return dict(gpus)


# --- what to tell ------------------------------------------------------------------------------


def report(outcome: Outcome, policy: Policy, check: bool) -> list[Record]:
    """Each GPU's settings before and after; in check mode ``after`` is what would be set."""
    now = {gpu["bus_id"]: gpu for gpu in outcome.after["gpus"]}
    entries = []
    for gpu in outcome.before["gpus"]:
        wish = outcome.wish(policy, gpu)
        before = settings(gpu, wish)
        if check:
            after = dict(
                before, **{one["setting"]: one["after"] for one in outcome.changes if one["uuid"] == gpu["uuid"]}
            )
        else:
            after = settings(now.get(gpu["bus_id"], gpu), wish)
        entries.append(
            {
                "uuid": gpu["uuid"], "bus_id": gpu["bus_id"], "name": gpu["name"], "state": gpu["state"],
                "role": None if outcome.roles is None else outcome.roles.role(gpu),
                "wanted_power_cap_w": None if wish.cap_mw is None else wish.cap_mw / 1000,
                "before": before, "after": after, "note": wish.note,
                "failure": outcome.failures.get(gpu["uuid"] or "", outcome.mig_failures.get(gpu["uuid"] or "")),
            }
        )  # fmt: skip
    return entries


def settings(gpu: Record, wish: Wish) -> Record:
    """What the policy can set of a GPU, as it is now; ``mig`` where a layout is declared."""
    found = {
        "power_cap_w": gpu["power"]["requested_w"], "persistence": gpu["persistence"],
        "compute_mode": gpu["compute_mode"],
    }  # fmt: skip
    return found if wish.mig is None else dict(found, mig=gpu_mig.text(gpu))


def as_lines(entries: Sequence[Record], which: str) -> str:
    """``before`` or ``after`` of a report as lines for a diff, one GPU a line."""
    lines = []
    for entry in entries:
        values = entry[which]
        cap = "unknown" if values["power_cap_w"] is None else "{:g} W".format(values["power_cap_w"])
        on = {True: "on", False: "off", None: "unknown"}[values["persistence"]]
        mode = values["compute_mode"] or "unknown"
        mig = ", MIG {}".format(values["mig"] or "unknown") if "mig" in values else ""
        lines.append(f"{gpu_policy.label(entry)}: power cap {cap}, persistence {on}, compute mode {mode}{mig}\n")
    return "".join(lines)


_WARNED = ("gpu.count", "gpu.power_cap", "gpu.spare", "gpu.active", "gpu.xid")


def warnings(outcome: Outcome) -> list[str]:
    """One line for everything that went on without being as it should: for a person to look at."""
    node = outcome.after
    if node["state"] != "ok":
        return [
            "NVML is {}: {}; the GPUs' state is unknown. {}".format(node["state"], node["reason"], node["next_step"])
        ]
    odd = [row for row in outcome.rows if gpu_mig.is_worth_a_line(row) or (row["id"] in _WARNED and _worth_a_line(row))]
    lines = ["{} {}: {} ({})".format(row["id"], row["subject"], row["state"], row["reason"]) for row in odd]
    return lines + [f"process {pid} hangs in the driver and cannot be ended" for pid in node["abandoned"]]


def _worth_a_line(row: Record) -> bool:
    """Findings that do not fail the run by themselves."""
    if row["id"] in ("gpu.count", "gpu.spare", "gpu.active") or row["state"] == "missing":
        return bool(row["verdict"] == verdict.FAIL or (row["id"] != "gpu.count" and row["severity"] == verdict.WARNING))
    return bool(row["verdict"] == verdict.UNKNOWN or row["severity"] == verdict.WARNING)
