# SPDX-License-Identifier: BSD-2-Clause
"""What speaks against a GPU: NVML, the PCI bus and the kernel log, put together for gpu_spare.py to decide on.

Out of service is a card that is lost or gone, that does not answer, that wants a reset, whose remapping of memory
rows failed, that had an uncorrectable error in memory, or of which the log has an Xid that ends its service. What an
application did to itself is none of these. Whatever might pass is looked at twice before it counts.
"""

from __future__ import annotations

import time
from typing import Any, Container, Dict, Mapping, Sequence

from . import gpu_policy, gpu_xid, nvml, verdict
from .gpu_policy import Policy
from .gpu_spare import ACTIVE, DRAINING, FAILED, SPARE, UNACCEPTED, XIDS, Seen, Sight, State, of_role

CONFIRM_S = 1.0
"""Between the two looks: a driver that is reloaded has an odd moment, and a take-over is to be done within 5 s."""

# Field 230, GET_GPU_RECOVERY_ACTION, of nvml.h (notes in docs/checks.md): what the driver asks for before the card may
# be used again. 0 is none, 3 (drain of peer-to-peer traffic) leaves the card usable. Absent before driver 565.
_OUT_OF_SERVICE = {
    1: "the driver asks for a reset of the GPU", 2: "the driver asks for a reboot of the host",
    4: "the driver asks for a drain and a reset", 6: "the driver asks for a reset of the bus",
    7: "the driver asks for a reboot of the host",
}  # fmt: skip
CLOSED_BY_US = (FAILED, UNACCEPTED)
# A contained memory error and the rise of its counter belong together when they are this close, seconds.
_TOGETHER_S = 600.0

# States of an NVML record that a second look may find gone; the others are the driver's own verdict.
_PASSING = ("timeout", "unreachable")

Record = Dict[str, Any]


def look(session: nvml.Session, addresses: Sequence[str], pci: Sequence[Record], state: State | None) -> Record:
    """NVML's record of the node; a second one where a GPU in service looks out of it for a reason that may pass."""
    node = session.read(addresses)
    if state is None or node["state"] != "ok" or not _doubtful(node, pci, state):
        return node
    session.drop()
    session.hung.clear()  # who hung is asked again, and is given less time: it has had its first contact
    session.first_contact_s = min(session.first_contact_s, session.call_s)
    time.sleep(CONFIRM_S)
    return session.read(addresses)


def _doubtful(node: Record, pci: Sequence[Record], state: State) -> bool:
    """Whether a GPU in service is missing, or fails in a way that may pass."""
    found = sight(Policy(), node, pci, state, [])
    passing = {gpu["uuid"] for gpu in node["gpus"] if gpu["state"] in _PASSING}
    slots = {gpu["bus_id"] for gpu in node["gpus"] if gpu["state"] in _PASSING}
    serving = {uuid: state["gpus"][uuid] for uuid in of_role(state, ACTIVE, SPARE, DRAINING)}
    return any(uuid in found.gone or uuid in passing or gpu["bus_id"] in slots for uuid, gpu in serving.items())


def sight(
    policy: Policy, node: Record, pci: Sequence[Record], state: State | None, events: Sequence[gpu_xid.Event]
) -> Sight:
    """Every GPU with what speaks against it. A card that tells no UUID any more is the one known in its slot."""
    gpus = state["gpus"] if state is not None else {}
    named = {gpu["uuid"] for gpu in node["gpus"]}
    fallen = {device["bus_id"] for device in pci if device["on_bus"] is False}
    seen = []
    for gpu in node["gpus"]:
        uuid = gpu["uuid"] or in_slot(gpus, gpu["bus_id"], named)
        if uuid is None:
            continue
        known = gpus.get(uuid, {})
        architecture = gpu["architecture"] if gpu["architecture"] is not None else known.get("architecture")
        ends = _ending([event for event in events if event.bus_id == gpu["bus_id"]], architecture, policy)
        failure = _failure(gpu, known, gpu["bus_id"] in fallen) or ends
        seen.append(
            Seen(
                uuid, gpu["bus_id"], gpu["serial"], gpu["name"], architecture, failure, gpu["processes"],
                gpu["compute_mode"], gpu["ecc"]["uncorrected_aggregate"], _cut(gpu, policy),
            )
        )  # fmt: skip
    names = {one.uuid for one in seen}
    gone = {}
    for uuid, known in gpus.items():
        if uuid not in names:
            own = [event for event in events if event.bus_id == known["bus_id"]]
            gone[uuid] = _ending(own, known["architecture"], policy) or _away(known["bus_id"] in fallen)
    return Sight(seen, gone)


def in_slot(gpus: Mapping[str, Any], bus_id: str | None, named: Container[str | None] = ()) -> str | None:
    """The card that is meant by a slot: of several that were there, one in service before one that failed.

    Those in ``named`` have told their UUID, from another slot or this one: they are not who is looked for.
    """
    found = [uuid for uuid, gpu in gpus.items() if gpu["bus_id"] == bus_id and uuid not in named]
    return min(found, key=lambda uuid: (gpus[uuid]["role"] == FAILED, uuid), default=None)


def _away(fallen: bool) -> str:
    return "it has fallen off the bus" if fallen else "it is neither on the PCI bus nor in the driver's list"


def _cut(gpu: Record, policy: Policy) -> bool:
    """Whether MIG is on, or is to be: such a GPU cannot be closed by compute mode, so it is no spare."""
    rule = gpu_policy.best_rule(policy.mig, gpu)
    return bool((gpu["mig"] or {}).get("current") or (rule is not None and rule.mig))


def _failure(gpu: Record, known: Mapping[str, Any], fallen: bool) -> str | None:
    """Why NVML's record of a card, or the bus, says that it is out of service."""
    if fallen:
        return _away(fallen)
    if gpu["state"] != "ok":
        error = gpu["error"] or {}
        return "NVML: {} ({} at {})".format(gpu["state"], error.get("name"), error.get("call"))
    if (gpu["remapped_rows"] or {}).get("failure"):
        return "a memory row could not be remapped: the card has to be replaced"
    if gpu["recovery_action"] in _OUT_OF_SERVICE:
        return _OUT_OF_SERVICE[gpu["recovery_action"]]
    # Whoever is out already is judged by what it is now: a counter for life never falls again.
    if known.get("role") in CLOSED_BY_US:
        return None
    before, now = known.get("uncorrected"), gpu["ecc"]["uncorrected_aggregate"]
    if before is not None and now is not None and now > before and not contained(known):
        return f"uncorrectable memory errors rose from {before} to {now}"
    return None


def contained(known: Mapping[str, Any]) -> bool:
    """Whether the kernel said of a new memory error that it stayed within one application (Xid 94), and of no other."""
    new = [xid for xid in known.get("xids", []) if not xid.get("accounted")]
    codes = {xid["code"] for xid in new}
    return gpu_xid.CONTAINED in codes and not any(xid["action"] in gpu_xid.TAKES_OVER for xid in new)


def _ending(events: Sequence[gpu_xid.Event], architecture: int | None, policy: Policy) -> str | None:
    """The event that ends the card's service, as a sentence."""
    for event in events:
        if gpu_xid.action(event, architecture, dict(policy.xid_actions)) in gpu_xid.TAKES_OVER:
            return described(event)
    return None


def described(event: gpu_xid.Event) -> str:
    """An event for people."""
    return f"the kernel: it {event.text}" if event.code is None else f"Xid {event.code}: {event.text}"


def note(state: State, node: Record, events: Sequence[gpu_xid.Event], policy: Policy) -> None:
    """Write the events down with the GPUs they are of: who is in the slot now, else who was."""
    there = {gpu["bus_id"]: gpu["uuid"] for gpu in node["gpus"] if gpu["uuid"] in state["gpus"]}
    for event in events:
        uuid = there.get(event.bus_id) or in_slot(state["gpus"], event.bus_id)
        if uuid is not None:
            gpu = state["gpus"][uuid]
            word = gpu_xid.action(event, gpu.get("architecture"), dict(policy.xid_actions))
            entry = {"code": event.code, "action": word, "at": verdict.utc_now(), "text": event.text}
            gpu["xids"] = [*gpu["xids"], entry][-XIDS:]


def account(state: State, found: Sight) -> None:
    """Keep the count of memory errors that later ones are held against.

    It falls with the card's own (another InfoROM), and a contained error's rise is taken into it. The kernel may tell
    of that error before the counter has moved, so its word holds for a while.
    """
    for one in found.seen:
        gpu = state["gpus"].get(one.uuid)
        if gpu is None or one.uncorrected is None or gpu["uncorrected"] is None:
            continue
        gpu["uncorrected"] = min(gpu["uncorrected"], one.uncorrected)
        risen = one.uncorrected > gpu["uncorrected"] and contained(gpu)
        if risen:
            gpu["uncorrected"] = one.uncorrected
        for xid in gpu["xids"]:
            if risen or verdict.age_s(xid["at"]) > _TOGETHER_S:
                xid["accounted"] = True
