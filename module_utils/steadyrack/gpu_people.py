# SPDX-License-Identifier: BSD-2-Clause
"""What people ask of the roles: who has which, give a GPU up for a spare, take one back. The pass does the rest."""

from __future__ import annotations

import socket
from typing import Any, Callable, Dict

from . import files, gpu_apply, gpu_policy, gpu_roles, gpu_sight, gpu_spare, nvml, pcie
from .errors import InputError, StateFileError, ToolError
from .gpu_policy import Policy
from .gpu_spare import Seen, State

Record = Dict[str, Any]

BY_HAND = "given up by hand"


def policy_with_roles(root: str) -> Policy:
    """The node's policy; InputError where it keeps no roles."""
    path = files.below(root, gpu_policy.POLICY_PATH)
    policy = gpu_policy.load(path)
    if policy is None or policy.spares is None:
        seen = "no policy" if policy is None else "a policy without spares"
        raise InputError(path, seen, "a policy that keeps roles", "run role gpu_policy")
    return policy


def promote(root: str, name: str, instead_of: str, even_if_busy: bool = False) -> str:
    """Declare ``instead_of`` failed, so that the spare ``name`` (empty: the next one) takes its place.

    The UUID that was given up comes back; the roles are written, the cards not yet touched.
    """
    policy = policy_with_roles(root)
    with files.locked(files.below(root, gpu_apply.LOCK_PATH)):
        roles, seen = _present(policy, root)
        state = _known(roles)
        loser = gpu_spare.find(state, instead_of)
        ready = [uuid for uuid in gpu_spare.of_role(state, gpu_spare.SPARE) if uuid in seen and not seen[uuid].failure]
        if not ready:
            raise InputError(f"GPU {instead_of}", "no spare is ready", "a spare to take its place",
                             "see `steadyrack spare status`")  # fmt: skip
        if name and gpu_spare.find(state, name) not in ready:
            raise InputError(f"GPU {name}", "not a spare that is ready", " or ".join(ready),
                             "see `steadyrack spare status`")  # fmt: skip
        state = gpu_spare.give_up(state, loser, seen.get(loser), BY_HAND, even_if_busy)
        if name:
            state["preferred"] = gpu_spare.find(state, name)
        _write(root, state)
    return loser


def take_back(root: str, name: str) -> str:
    """Return a failed GPU to service, or accept a new one; its UUID comes back."""
    return _change(root, name, gpu_spare.take_back)


def forget(root: str, name: str) -> str:
    """Strike off a GPU that has left the host; its UUID comes back."""
    return _change(root, name, gpu_spare.forget)


def _change(root: str, name: str, change: Callable[[State, str, Seen | None], State]) -> str:
    policy = policy_with_roles(root)
    with files.locked(files.below(root, gpu_apply.LOCK_PATH)):
        roles, seen = _present(policy, root)
        state = _known(roles)
        uuid = gpu_spare.find(state, name)
        _write(root, change(state, uuid, seen.get(uuid)))
    return uuid


def _present(policy: Policy, root: str) -> tuple[gpu_roles.Roles, dict[str, Seen]]:
    """The roles as written down, and what NVML says of each GPU now."""
    roles = gpu_roles.Roles(policy, root, socket.gethostname())
    pci = pcie.read_gpus(root)
    node = nvml.read_node(root, [device["bus_id"] for device in pci])
    if node["state"] != "ok":
        raise ToolError("NVML on this host", f"{node['state']} ({node['reason']})", "ok", node["next_step"])
    found = gpu_sight.sight(policy, node, pci, roles.state, [])
    return roles, {one.uuid: one for one in found.seen}


def _known(roles: gpu_roles.Roles) -> State:
    if roles.state is None:
        seen = roles.trouble or "there are none yet"
        raise StateFileError(roles.path, seen, "the roles of the GPUs", "steadyrack gpu apply")
    return roles.state


def _write(root: str, state: State) -> None:
    files.atomic_write(files.below(root, gpu_spare.STATE_PATH), files.dump_json(state), 0o644)
