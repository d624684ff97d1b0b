# SPDX-License-Identifier: BSD-2-Clause
"""The roles of a node's GPUs through one pass: read, decided, written down, and carried into the list for jobs.

What may be killed at any moment keeps this order (gpu_apply.py sets the cards in between):

1. the new roles are written down: from here on a pass that is begun anew comes to the same end;
2. the list loses who is no longer active: it never has more GPUs than before, nor one that is not in both;
3. who is not active is closed (compute mode PROHIBITED), then capped low; only then caps rise;
4. a cap is read back before its GPU is opened, and the GPU is read back before the list has it.

So at every step the GPUs that are open and listed are some of the old ones or some of the new ones, and neither are
more than may be active. A context that is open stays open when its GPU is closed: that is said, and watched.
"""

from __future__ import annotations

import copy
import os
import time
from typing import Any, Callable, Dict, Sequence

from . import files, gpu_allow, gpu_sight, gpu_spare, gpu_xid, nvml
from .gpu_policy import TOLERANCE_MW, Policy, Spares, Wish, milliwatts
from .gpu_spare import ACTIVE, State
from .run import Completed, run

Record = Dict[str, Any]


class Roles:
    """One pass. ``state`` are the roles that hold; ``before`` those that were found, None for none."""

    def __init__(self, policy: Policy, root: str, host: str) -> None:
        self.policy = policy
        self.root = root
        self.host = host
        self.path = files.below(root, gpu_spare.STATE_PATH)
        self.before, self.trouble = gpu_spare.load(self.path)
        self.state: State | None = self.before
        self.listed = gpu_allow.read(root)
        self.events: list[Record] = []
        self.changed: list[str] = []
        """Files of the list that were written."""

    @property
    def log_trouble(self) -> str | None:
        """Why the last pass could not read the kernel log."""
        return None if self.state is None else self.state.get("log_trouble")

    @property
    def spares(self) -> Spares:
        return self.policy.spares or Spares()

    def role(self, gpu: Record) -> str | None:
        """The role of the GPU of this NVML record; None where none was given yet."""
        known = (self.state or {"gpus": {}})["gpus"]
        if gpu["uuid"] in known:
            return str(known[gpu["uuid"]]["role"])
        uuid = gpu_sight.in_slot(known, gpu["bus_id"]) if gpu["uuid"] is None else None
        return None if uuid is None else str(known[uuid]["role"])

    # --- deciding ---

    def decide(self, session: nvml.Session, pci: Sequence[Record], runner: Callable[..., Completed] = run) -> Record:
        """NVML's record of the node, and from it the roles. Where NVML is not usable they stay as they are."""
        state = copy.deepcopy(self.before)
        addresses = [device["bus_id"] for device in pci]
        node = gpu_sight.look(session, addresses, pci, state)
        if node["state"] != "ok":
            return node
        started = time.time()
        log = gpu_xid.read(state["cursor"] if state else None, state["looked"] if state else None, runner)
        if state is not None:
            gpu_sight.note(state, node, log.events, self.policy)
        found = gpu_sight.sight(self.policy, node, pci, state, log.events)
        if state is not None:
            gpu_sight.account(state, found)
        listed = self.listed if self.listed is not None or self.trouble is None else []
        decision = gpu_spare.decide(self.spares, self.policy.gpu_count, state, found._replace(listed=listed))
        self.state, self.events = decision.state, decision.events
        self.state["log_trouble"] = log.trouble
        if log.trouble is None:
            self.state.update(cursor=log.cursor, looked=started)
        return node

    # --- carrying it out ---

    def begin(self, node: Record) -> None:
        """Write the roles down, then take out of the list who is no longer active."""
        if self.state is None:
            return
        if self.trouble is not None:
            files.set_aside(self.path)
        files.make_directory(os.path.dirname(self.path))
        files.atomic_write(self.path, files.dump_json(self.state), 0o644)
        if self.listed is not None:
            active = gpu_spare.of_role(self.state, ACTIVE)
            stay = [uuid for uuid in self.listed if uuid in active]
            if stay != self.listed:
                self._write(stay, by_uuid(node))

    def finish(self, node: Record, wishes: Callable[[Record], Wish]) -> None:
        """Put into the list who is active and stands as wanted. Where NVML is not usable it stays as it is."""
        if self.state is None or node["state"] != "ok":
            return
        gpus = by_uuid(node)
        ready = [
            uuid
            for uuid in gpu_spare.of_role(self.state, ACTIVE)
            if uuid in gpus and self._may_enter(uuid, gpus[uuid], wishes(gpus[uuid]))
        ]
        self._write(ready, gpus)

    def _may_enter(self, uuid: str, gpu: Record, wish: Wish) -> bool:
        """Open, and its cap in force; who is in the list already stays there as long as it is not closed."""
        if gpu["compute_mode"] == "prohibited":
            return False
        return uuid in (self.listed or []) or (gpu["compute_mode"] is not None and capped(gpu, wish))

    def _write(self, uuids: Sequence[str], gpus: dict[str, Record]) -> None:
        self.changed += gpu_allow.write(self.root, self.host, cards(uuids, gpus), self.spares.environment)

    def wanted_files(self, node: Record) -> dict[str, Any]:
        """What the list's files would become, for check mode: path -> (there, wanted)."""
        if self.state is None:
            return {}
        active = gpu_spare.of_role(self.state, ACTIVE)
        return gpu_allow.differs(self.root, self.host, cards(active, by_uuid(node)), self.spares.environment)


def by_uuid(node: Record) -> dict[str, Record]:
    """The records of GPUs that tell who they are."""
    return {gpu["uuid"]: gpu for gpu in node["gpus"] if gpu["uuid"] is not None}


def cards(uuids: Sequence[str], gpus: dict[str, Record]) -> list[gpu_allow.Card]:
    """The GPUs of a list, with the number of their device file where it is known."""
    return [gpu_allow.Card(uuid, gpus[uuid]["minor"] if uuid in gpus else None) for uuid in uuids]


def capped(gpu: Record, wish: Wish) -> bool:
    """Whether what is enforced is at most what is wanted of it; a card without a wish may draw what it likes."""
    enforced = milliwatts(gpu["power"]["enforced_w"])
    return wish.cap_mw is None or (enforced is not None and enforced <= wish.cap_mw + TOLERANCE_MW)
