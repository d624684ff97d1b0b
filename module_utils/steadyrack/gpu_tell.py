# SPDX-License-Identifier: BSD-2-Clause
"""What happened to GPUs, handed to the hooks of /etc/steadyrack/alarm.d: chat, and schedulers with a list of their own.

Events wait in the file of the roles, written in the same moment as what they tell of; a hook that fails gets them
again at the next pass. So each is told at least once, also when the pass that made it was killed.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any, Callable, Dict, Sequence

from . import alarm_hooks, files, gpu_apply, gpu_spare, verdict
from .errors import BusyError

# How long a pass stays for its hooks, seconds; one of them has 15.
STAY_S = 20.0
CHECK = "gpu.spare"
TELL_LOCK_PATH = "/run/steadyrack/gpu_tell.lock"
_CRITICAL = ("failed", "takeover", "no_spare")

Event = Dict[str, Any]


def deliver(root: str, say: Callable[[str, str], None], owner: int = 0) -> int:
    """Tell the hooks what they have not been told; how many deliveries are left comes back.

    One at a time: what another pass writes down meanwhile is told by the one that is telling already.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.locked(files.below(root, TELL_LOCK_PATH), wait_s=0.0))
        except BusyError:
            return len(_undelivered(root))
        left = _tell(root, say, owner)
        while _load(root)["untold"]:
            left = _tell(root, say, owner)
    return left


def _tell(root: str, say: Callable[[str, str], None], owner: int) -> int:
    state = _load(root)
    if not (state["untold"] or state["waiting"]):
        return 0
    hooks = alarm_hooks.Hooks(root, say, owner, state["waiting"])
    for entry in state["untold"]:
        hooks.put(event_of(entry))
    _keep(root, hooks.undelivered(), state["untold"])
    give_up = time.monotonic() + STAY_S
    # What waits for another try is left to the next pass: this one must not keep a take-over waiting.
    while (wait_s := hooks.wait_s(time.monotonic())) is not None and wait_s <= alarm_hooks.LOOK_S:
        if time.monotonic() >= give_up:
            break
        time.sleep(wait_s)
        hooks.tick(time.monotonic())
    hooks.stop()
    left = hooks.undelivered()
    _keep(root, left, [])
    return len(left)


def _load(root: str) -> gpu_spare.State:
    state, _trouble = gpu_spare.load(files.below(root, gpu_spare.STATE_PATH))
    return gpu_spare.empty() if state is None else state


def _undelivered(root: str) -> list[Event]:
    state = _load(root)
    return [*state["untold"], *state["waiting"]]


def _keep(root: str, waiting: list[Event], told: Sequence[Event]) -> None:
    """Write down what is still to be delivered, and that ``told`` events are with the hooks now."""
    with files.locked(files.below(root, gpu_apply.LOCK_PATH)):
        path = files.below(root, gpu_spare.STATE_PATH)
        state, _trouble = gpu_spare.load(path)
        if state is not None:
            state.update(waiting=waiting, untold=[entry for entry in state["untold"] if entry not in told])
            files.atomic_write(path, files.dump_json(state), 0o644)


def event_of(entry: Event) -> Event:
    """An event of the roles in the form of an alarm; see docs/alarms.md."""
    host = socket.gethostname()
    severity = verdict.CRITICAL if entry["event"] in _CRITICAL else verdict.WARNING
    where = f" {entry['bus_id']}" if entry.get("bus_id") else ""
    return {
        "event": entry["event"], "id": CHECK, "subject": entry["uuid"], "severity": severity, "state": entry["event"],
        "reason": entry["text"], "host": host, "site": "", "at": entry["at"],
        "instead_of": entry.get("instead_of"), "occurrence": f"{entry['at']} {entry['event']}",
        "text": f"{host}: GPU {entry['uuid']}{where}: {entry['text']}",
    }  # fmt: skip
