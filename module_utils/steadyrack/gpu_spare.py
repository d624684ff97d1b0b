# SPDX-License-Identifier: BSD-2-Clause
"""Which GPUs jobs may use, which one stands by, and who takes whose place: decided here, touched nowhere.

A GPU has one role. ``active``: jobs may use it. ``spare``: idle at its lowest cap, to take a place. ``draining``: to
become a spare as soon as the job on it has ended, and until then not to be had for another. ``failed``: out of
service until a person returns it. ``unaccepted``: nobody has said that it belongs here (a card that was put in).

``decide`` takes the roles of the last pass and what is seen now, and gives the new ones with what happened. It never
makes more GPUs active than the policy allows, never takes one from a job while it is well, and never undoes a
take-over by itself. gpu_apply.py brings the cards there, in an order that holds the same at every step.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Mapping, NamedTuple, Sequence

from . import files, pcie, verdict
from .errors import InputError, StateFileError
from .gpu_policy import Spares

STATE_PATH = "/var/lib/steadyrack/gpu_roles.json"
VERSION = 1

ACTIVE, SPARE, DRAINING, FAILED, UNACCEPTED = "active", "spare", "draining", "failed", "unaccepted"
_LISTS = ("named", "history", "untold", "waiting", "vacant")
_ENTRY = {"role", "since", "reason", "bus_id", "serial", "name", "architecture", "uncorrected", "xids"}
ROLES = (ACTIVE, SPARE, DRAINING, FAILED, UNACCEPTED)
OPEN = (ACTIVE, DRAINING)
"""Roles of a GPU that may hold a job, whose power counts at its cap."""

HISTORY = 50
"""Events that are kept."""
XIDS = 20
"""Xids of one GPU that are kept."""

Record = Dict[str, Any]
State = Dict[str, Any]


class Seen(NamedTuple):
    """One GPU as this pass found it."""

    uuid: str
    bus_id: str
    serial: str | None = None
    name: str | None = None
    architecture: int | None = None  # NVML's number
    failure: str | None = None  # why it is out of service, a sentence; None: nothing speaks against it
    processes: int | None = None  # None: not told
    compute_mode: str | None = None
    uncorrected: int | None = None  # ECC errors in its life
    cut: bool = False  # MIG is on, or is to be: it takes no compute mode, so it cannot stand by


class Decision(NamedTuple):
    """The roles from now on, and what happened: {event, uuid, bus_id, text, …}."""

    state: State
    events: list[Record]


# --- the file ----------------------------------------------------------------------------------


def load(path: str) -> tuple[State | None, str | None]:
    """The roles of the last pass, None when there are none, and what is wrong with the file: a damaged one is no roles.

    StateFileError for a newer version: its roles are true, and only a newer agent can read them.
    """
    try:
        value = files.load_json(path)
    except StateFileError as error:
        return None, error.sentence()
    if value is None:
        return None, None
    version, gpus = value.get("version"), value.get("gpus")
    if isinstance(version, int) and version > VERSION:
        raise StateFileError(path, f"version {version}", VERSION, "bring the agent up to date with role node_agent")
    sound = version == VERSION and isinstance(gpus, dict) and all(map(_is_entry, gpus.values()))
    if not sound or any(not isinstance(value.get(key), list) for key in _LISTS):
        return None, f"{path} does not hold the roles of GPUs"
    return {**empty(), **value}, None


def _is_entry(gpu: Any) -> bool:
    """What a pass leaves of a GPU: any key of it may be asked for."""
    if not isinstance(gpu, dict) or not set(gpu) >= _ENTRY:
        return False
    return gpu["role"] in ROLES and isinstance(gpu["bus_id"], str) and isinstance(gpu["xids"], list)


def empty() -> State:
    """No GPU known.

    ``named``: the spares that the policy named, ``pending``: those of them that wait for the end of a job;
    ``vacant``: GPUs out of service in whose place none is yet; ``preferred``: the spare that a person chose for the
    next place; ``untold``, ``waiting``: events for hooks; ``cursor``, ``looked``: up to where the kernel log was
    read; ``log_trouble``: why it could not be.
    """
    return {
        "version": VERSION, "named": [], "gpus": {}, "history": [], "untold": [], "waiting": [], "vacant": [],
        "pending": [], "preferred": None, "cursor": None, "looked": None, "log_trouble": None,
    }  # fmt: skip


def remember(state: State, entry: Record) -> None:
    """Keep an event, for people and for the hooks."""
    for key in ("history", "untold"):
        state[key] = [*state[key], entry][-HISTORY:]


# --- asking the roles --------------------------------------------------------------------------


def of_role(state: State, *roles: str) -> list[str]:
    """The UUIDs in these roles, in the order of their slots."""
    found = [(gpu["bus_id"], uuid) for uuid, gpu in state["gpus"].items() if gpu["role"] in roles]
    return [uuid for _slot, uuid in sorted(found)]


def allowed(spares: Spares, gpu_count: int | None, known: int) -> int:
    """How many GPUs may be active: those that are declared, or were accepted, less the spares."""
    return max(0, (known if gpu_count is None else gpu_count) - spares.count)


def known(state: State) -> int:
    """How many GPUs belong to this host."""
    return sum(gpu["role"] != UNACCEPTED for gpu in state["gpus"].values())


def find(state: State, name: str) -> str:
    """The UUID of a GPU that a person named by UUID (its beginning will do), serial or slot; InputError."""
    match = {uuid for uuid, gpu in state["gpus"].items() if _named(uuid, gpu, name)}
    if len(match) == 1:
        return match.pop()
    there = ", ".join(f"{uuid} {gpu['bus_id']}" for uuid, gpu in sorted(state["gpus"].items()))
    seen = "no GPU of that name" if not match else f"{len(match)} GPUs begin so"
    raise InputError(f"GPU {name}", seen, "one of " + (there or "none"), "take it from `steadyrack spare status`")


def _named(uuid: str, gpu: Mapping[str, Any], name: str) -> bool:
    text = name.strip().lower()
    return bool(text) and (
        uuid.lower() == text
        or (len(text) >= 8 and uuid.lower().startswith(text))
        or text == str(gpu.get("serial") or "").lower()
        or (pcie.is_bus_id(text) and pcie.bus_id(text) == gpu["bus_id"])
    )


# --- deciding ----------------------------------------------------------------------------------


class Sight(NamedTuple):
    """What this pass found of all GPUs."""

    seen: list[Seen]
    gone: Mapping[str, str]  # UUID -> why, of known GPUs that are not there at all
    listed: Sequence[str] | None = None  # the list that jobs are given now; None: there is none


def decide(spares: Spares, gpu_count: int | None, state: State | None, sight: Sight) -> Decision:
    """The roles from what is seen.

    Deterministic: the same roles and the same sight give the same answer, so a pass that was ended half-way and
    begun again comes to where it would have come.
    """
    pass_ = _Pass(spares, gpu_count, copy.deepcopy(state) if state is not None else empty(), sight.seen)
    if state is None:
        pass_.adopt(sight.listed)
        pass_.state["named"] = [str(match) for match in spares.gpus]
    else:
        pass_.meet()
        pass_.fail(sight.gone)
        pass_.settle()
    pass_.fill()
    return Decision(pass_.state, pass_.events)


class _Pass:
    """One decision, step by step on its own copy of the roles."""

    def __init__(self, spares: Spares, gpu_count: int | None, state: State, seen: Sequence[Seen]) -> None:
        self.spares = spares
        self.gpu_count = gpu_count
        self.state = state
        self.seen = {one.uuid: one for one in seen}
        self.events: list[Record] = []
        self.at = verdict.utc_now()

    # .. small things

    @property
    def gpus(self) -> dict[str, Record]:
        found: dict[str, Record] = self.state["gpus"]
        return found

    @property
    def may(self) -> int:
        """How many may be active."""
        return allowed(self.spares, self.gpu_count, known(self.state))

    @property
    def open(self) -> int:
        """How many may hold a job."""
        return len(of_role(self.state, *OPEN))

    def tell(self, event: str, uuid: str, text: str, **more: Any) -> None:
        slot = self.gpus[uuid]["bus_id"] if uuid in self.gpus else None
        entry = {"at": self.at, "event": event, "uuid": uuid, "bus_id": slot, "text": text, **more}
        self.events.append(entry)
        remember(self.state, entry)

    def role(self, uuid: str, role: str, reason: str | None = None) -> None:
        self.gpus[uuid].update(role=role, since=self.at, reason=reason)

    def well(self, uuid: str) -> bool:
        """It is there and nothing speaks against it."""
        return uuid in self.seen and self.seen[uuid].failure is None

    def idle(self, uuid: str) -> bool:
        """No job is on it; what is not told counts as a job."""
        return uuid in self.seen and self.seen[uuid].processes == 0

    def named(self, uuid: str) -> bool:
        """The policy names it as a spare."""
        gpu = {"uuid": uuid, **self.gpus[uuid]}
        return any(match.fits(gpu) for match in self.spares.gpus)

    # .. steps

    def adopt(self, listed: Sequence[str] | None) -> None:
        """The first pass: every GPU belongs here. Spares are those named, else the idle ones in the highest slots.

        Where there is a list for jobs and no roles, these were lost: who is not in the list may be a spare, or may
        have failed, and a person says which.
        """
        for one in self.seen.values():
            self._enter(one, ACTIVE, None)
            if listed is not None and one.uuid not in listed and one.failure is None:
                self.role(one.uuid, UNACCEPTED, "the record of roles was lost, and jobs were not given this GPU")
                self.tell("unaccepted", one.uuid, f"may have failed before: the record of roles was lost; "
                                                  f"`steadyrack spare return {one.uuid}` if it is well")  # fmt: skip
            if one.failure is not None:
                self.role(one.uuid, FAILED, one.failure)
                self.tell("failed", one.uuid, f"found out of service: {one.failure}")
        healthy = of_role(self.state, ACTIVE)
        surplus = max(0, len(healthy) - self.may)
        for uuid in self._spare_order(healthy)[:surplus]:
            self._stand_by(uuid)

    def _spare_order(self, uuids: Sequence[str]) -> list[str]:
        """Who becomes a spare first: who is whole, who is named, who is idle, who is in the highest slot."""
        ordered = sorted(uuids, key=lambda uuid: str(self.gpus[uuid]["bus_id"]), reverse=True)
        return sorted(ordered, key=lambda uuid: (self.cut(uuid), not self.named(uuid), not self.idle(uuid)))

    def cut(self, uuid: str) -> bool:
        """MIG is on, or is to be: it takes no compute mode, so it cannot be closed."""
        return uuid in self.seen and self.seen[uuid].cut

    def _stand_by(self, uuid: str) -> None:
        """Make it a spare; where a job is on it, as soon as that has ended."""
        if self.cut(uuid):
            self.role(uuid, DRAINING, "MIG is on, or declared: it cannot be closed")
            self.tell("draining", uuid, "is one too many, and cannot be closed as long as it is cut by MIG")
        elif self.idle(uuid):
            self.role(uuid, SPARE)
            self.tell("spare", uuid, "is a spare from now on")
        else:
            busy = self.seen[uuid].processes if uuid in self.seen else None
            self.role(uuid, DRAINING, f"{'an unknown number of' if busy is None else busy} processes run on it")
            self.tell("draining", uuid, "becomes a spare when the job on it has ended; no other job may take it")

    def _enter(self, one: Seen, role: str, reason: str | None) -> None:
        self.gpus[one.uuid] = {
            "role": role, "since": self.at, "reason": reason, "bus_id": one.bus_id, "serial": one.serial,
            "name": one.name, "architecture": one.architecture, "uncorrected": one.uncorrected, "xids": [],
        }  # fmt: skip

    def meet(self) -> None:
        """Cards that were moved, and cards that nobody has accepted."""
        for one in self.seen.values():
            gpu = self.gpus.get(one.uuid)
            if gpu is None:
                self._enter(one, UNACCEPTED, "it was not here before")
                before = [u for u in self.gpus if u != one.uuid and self.gpus[u]["bus_id"] == one.bus_id]
                whose = f", in the slot of {before[0]}" if before else ""
                self.tell("unaccepted", one.uuid,
                          f"is new here{whose}; `steadyrack spare return {one.uuid}` accepts it")  # fmt: skip
                continue
            if gpu["bus_id"] != one.bus_id:
                text = f"moved from slot {gpu['bus_id']} to {one.bus_id}"
                gpu["bus_id"] = one.bus_id
                self.tell("moved", one.uuid, text)
            for key in ("serial", "name", "architecture", "uncorrected"):
                if gpu.get(key) is None:
                    gpu[key] = getattr(one, key)

    def fail(self, gone: Mapping[str, str]) -> None:
        """Out of service with what is broken or gone. What has failed stays so, however well it looks again."""
        for uuid in of_role(self.state, ACTIVE, SPARE, DRAINING):
            reason = gone.get(uuid) or (self.seen[uuid].failure if uuid in self.seen else None)
            if reason is not None:
                was = self.gpus[uuid]["role"]
                self.role(uuid, FAILED, reason)
                self.tell("failed", uuid, f"{was} GPU out of service: {reason}", was=was)
                if was in OPEN and self.open < self.may:
                    self.state["vacant"].append(uuid)

    def settle(self) -> None:
        """Spares whose job has ended, a policy that wants more of them, and one that names others."""
        for uuid in of_role(self.state, DRAINING):
            if self.idle(uuid) and not self.cut(uuid) and self.open > self.may:
                self.role(uuid, SPARE)
                self.tell("spare", uuid, "its job has ended: it is a spare from now on")
        active = of_role(self.state, ACTIVE)
        for uuid in self._spare_order(active)[: max(0, len(active) - self.may)]:
            self._stand_by(uuid)
        self._swap_named()

    def _swap_named(self) -> None:
        """The policy names other spares than before: they change places with those that are not named.

        Only where nothing runs on the named one: a job is not worth a change of names. The wish stays until then.
        """
        wanted = [str(match) for match in self.spares.gpus]
        if self.state["named"] == wanted:
            return
        others = [uuid for uuid in of_role(self.state, SPARE) if not self.named(uuid) and self.well(uuid)]
        waiting = []
        for uuid in of_role(self.state, ACTIVE):
            if not self.named(uuid) or not others:
                continue
            if self.idle(uuid):
                self._stand_by(uuid)
                self._open(others.pop(0), f"{uuid} is the spare that the policy names")
                continue
            waiting.append(uuid)
            if uuid not in self.state["pending"]:
                self.tell("kept", uuid, "the policy names it as a spare; it becomes one when the job on it has ended")
        self.state["pending"] = waiting
        if not waiting:
            self.state["named"] = wanted

    def fill(self) -> None:
        """Spares take free places."""
        while self.open < self.may:
            ready = [uuid for uuid in of_role(self.state, SPARE) if self.well(uuid) and not self.cut(uuid)]
            if not ready:
                break
            chosen = self.state["preferred"]
            self._open(
                min(ready, key=lambda uuid: (uuid != chosen, self.named(uuid))), f"{self.may} GPUs may be active"
            )
        for uuid in of_role(self.state, DRAINING):
            if len(of_role(self.state, ACTIVE)) < self.may:
                self.role(uuid, ACTIVE)
                self.tell("active", uuid, "stays active: its place is needed")
        lost = [event for event in self.events if event["event"] == "failed" and event.get("was") in OPEN]
        if self.open < self.may and lost:
            self.tell("no_spare", lost[-1]["uuid"],
                      f"no spare is left to take its place: {self.open} of {self.may} GPUs are active")  # fmt: skip

    def _open(self, uuid: str, why: str) -> None:
        """Make a spare active, in the place of the GPU that was lost first and has no successor."""
        self.role(uuid, ACTIVE)
        self.state["preferred"] = None
        if self.state["vacant"]:
            lost = self.state["vacant"].pop(0)
            self.tell("takeover", uuid, f"takes the place of {lost}", instead_of=lost)
        else:
            self.tell("active", uuid, why)


# --- what people ask for -----------------------------------------------------------------------


def give_up(state: State, uuid: str, one: Seen | None, reason: str, even_if_busy: bool = False) -> State:
    """Declare an active GPU failed by hand, so that a spare takes its place at the next decision.

    InputError where it is not in service, or where it is well and a job is on it.
    """
    gpu = state["gpus"][uuid]
    if gpu["role"] != ACTIVE:
        raise InputError(f"GPU {uuid}", gpu["role"], "an active GPU, whose place a spare can take",
                         "see `steadyrack spare status`")  # fmt: skip
    busy = one is not None and one.failure is None and one.processes != 0
    if busy and not even_if_busy:
        number = "an unknown number of" if one is None or one.processes is None else one.processes
        raise InputError(f"GPU {uuid}", f"well, with {number} processes on it", "no job on it",
                         "stop the job first, or add --even-if-busy")  # fmt: skip
    changed = copy.deepcopy(state)
    at = verdict.utc_now()
    changed["gpus"][uuid].update(role=FAILED, since=at, reason=reason)
    changed["vacant"].append(uuid)
    entry = {"at": at, "event": "failed", "uuid": uuid, "bus_id": gpu["bus_id"], "text": reason, "was": ACTIVE}
    remember(changed, entry)
    return changed


def take_back(state: State, uuid: str, one: Seen | None) -> State:
    """Return a failed GPU to service, or accept a new one: it becomes a spare, and active where a place is free.

    InputError where it is in service already, or is not there, or is still broken. The failed card whose slot a
    new one has taken is forgotten.
    """
    gpu = state["gpus"][uuid]
    if gpu["role"] not in (FAILED, UNACCEPTED):
        raise InputError(f"GPU {uuid}", gpu["role"], "a failed or a new GPU", "nothing has to be done")
    if one is None:
        raise InputError(f"GPU {uuid}", "it is not there", "a GPU that answers", "look at lspci and the slot")
    if one.failure is not None:
        raise InputError(f"GPU {uuid}", one.failure, "a GPU that is well", "repair or replace it first")
    changed = copy.deepcopy(state)
    at = verdict.utc_now()
    changed["gpus"][uuid].update(
        role=SPARE, since=at, reason=None, xids=[], uncorrected=one.uncorrected, bus_id=one.bus_id
    )
    for other in [u for u, g in changed["gpus"].items() if u != uuid and g["bus_id"] == one.bus_id]:
        if changed["gpus"][other]["role"] == FAILED:
            del changed["gpus"][other]
    changed["vacant"] = [lost for lost in changed["vacant"] if lost != uuid]
    text = "accepted" if gpu["role"] == UNACCEPTED else "returned to service"
    entry = {"at": at, "event": "returned", "uuid": uuid, "bus_id": one.bus_id, "text": text}
    remember(changed, entry)
    return changed


def forget(state: State, uuid: str, one: Seen | None) -> State:
    """Strike off a GPU that has left the host. InputError where it is in service, or still there."""
    gpu = state["gpus"][uuid]
    if gpu["role"] not in (FAILED, UNACCEPTED):
        raise InputError(f"GPU {uuid}", gpu["role"], "a GPU out of service", "see `steadyrack spare status`")
    if one is not None:
        raise InputError(f"GPU {uuid}", f"it is there, in slot {one.bus_id}", "a GPU that has left the host",
                         "take it out first, or return it")  # fmt: skip
    changed = copy.deepcopy(state)
    del changed["gpus"][uuid]
    changed["vacant"] = [lost for lost in changed["vacant"] if lost != uuid]
    entry = {"at": verdict.utc_now(), "event": "forgotten", "uuid": uuid, "bus_id": gpu["bus_id"],
             "text": "has left the host"}  # fmt: skip
    remember(changed, entry)
    return changed
