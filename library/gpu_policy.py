#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_policy
short_description: Keep power cap, persistence and MIG layout of a host's GPUs as declared
description:
  - Writes the policy file that the steadyrack agent keeps true between runs, and brings the GPUs to it.
  - Every GPU is checked against its own limits before one of them, or the file, is changed. When a cap does
    not fit, the module fails with one message that lists every such GPU.
  - Persistence is set before caps, caps before compute modes, and MIG after them. An instance with a process on it is
    never taken away, and no GPU is reset on purpose. What waits for jobs or for a reset is a warning and a row that
    fails, not an error. NVML itself resets an idle Ampere GPU when it can change the MIG mode at once; caps are then
    set again.
  - After a change everything is read back by a new NVML client, and the module fails when a GPU does not stand as
    asked for. Rows are in C(checks) in both cases.
  - With C(spares) in the policy each GPU has a role, and this does what the agent does between runs
    (docs/spare.md). A run never undoes a take-over. A spare is closed before caps change, caps fall before others
    rise, and a GPU is opened last, when its cap has been read back; then the list for jobs names it.
  - A GPU that is lost, hangs or is missing is reported, with a warning, and the others are set.
  - In check mode nothing is written. Where the agent's NVML binding or the driver is not there yet, the
    intended policy is shown and the GPUs' state is called unknown.
version_added: "0.1.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Compares with the real GPUs.}
  diff_mode: {support: full, description: The policy file and each GPU's settings.}
options:
  policy:
    description:
      - The policy, version 1. C(power_cap), C(link_width), C(link_gen) and C(nvlink_links) are lists of rules; of the
        rules that match a GPU the most specific wins, in the order C(uuid), C(serial), C(bus_id), C(model), C(all).
      - C(nvme_link_width), C(peer_to_peer) and C(known_missing) (bus_id, until, reason) are what the checks expect.
      - C(spares) has C(count), C(gpus) (each named by C(uuid), C(serial) or C(bus_id)), C(power_cap_w) of those that
        are not active (null is their lowest) and C(environment) (whether /etc/environment has the list for jobs).
        C(compute_mode) is that of active GPUs. C(xid_actions) maps Xid codes to ignore, app, check, reset or reboot.
      - C(mig) is such a list as well, with C(devices), a mapping of MIG profile to number of instances; an empty one
        is MIG off, and C(mig=false) is MIG off everywhere. GPUs without a rule are left as they are; MIG on there
        is reported.
      - GPUs have no index here, because it changes when one is lost, drained or added.
    type: dict
    required: true
  policy_path:
    description: Where the agent looks for it.
    type: path
    default: /etc/steadyrack/gpu_policy.json
  apply:
    description: Also set the GPUs. C(false) writes the file alone, as for an image that is built without GPUs.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Cap every GPU at 250 W, one at 83 per cent of its default
  gpu_policy:
    policy:
      version: 1
      persistence_mode: true
      gpu_count: 4
      power_cap:
        - {match: {all: true}, power_cap_w: 250}
        - {match: {uuid: GPU-11111111-2222-3333-4444-555555555555}, power_cap_percent: 83}
      link_width:
        - {match: {all: true}, link_width: 16}
      mig:
        - {match: {bus_id: "0000:ca:00.0"}, devices: {3g.40gb: 1, 1g.10gb: 3}}
  register: gpu_policy_result
"""

RETURN = r"""
state: {description: State of NVML on this host; see gpu_info., type: str, returned: always}
policy_changed: {description: The file was, or would be, written., type: bool, returned: always}
gpus:
  description: Each GPU with its settings before and after. In check mode after is what would be set.
  returned: always
  type: list
  elements: dict
  contains:
    uuid: {description: The GPU's name., type: str}
    bus_id: {description: Its slot., type: str}
    state: {description: "ok, lost, reset_required, timeout or unreachable.", type: str}
    role: {description: "active, spare, draining, failed or unaccepted; null without spares in the policy.", type: str}
    wanted_power_cap_w: {description: The cap wanted of it in W., type: float}
    before: {description: "power_cap_w, persistence, compute_mode, and mig where declared.", type: dict}
    after: {description: The same afterwards., type: dict}
    note: {description: How the wish was fitted to the card., type: str}
    failure: {description: What a setter answered., type: str}
changes: {description: "Settings made or intended, with their cause.", type: list, elements: dict, returned: always}
events: {description: What happened to the roles of GPUs., type: list, elements: dict, returned: always}
files: {description: "Paths of the list for jobs, where they differed.", type: list, elements: str, returned: always}
previous_path: {description: File on the host with the values before., type: str, returned: always}
checks: {description: "Rows as from gpu_info, after the change.", type: list, elements: dict, returned: always}
"""

import os
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack import files, gpu_apply, gpu_policy, gpu_tell
from ansible.module_utils.steadyrack.errors import SteadyrackError, ToolError

# Where the file systems of the host begin; tests put a tree of their own here.
ROOT = "/"


def bring(policy, path, content, apply_it, check_mode):
    """Write the file and set the GPUs, after everything that can be refused has been."""

    def ready(outcome=None):
        if check_mode:
            return
        if outcome is not None and outcome.before["state"] != "ok":
            node = outcome.before
            raise ToolError("NVML on this host", f"{node['state']} ({node['reason']})", "ok", node["next_step"])
        if files.read_bytes(path) != content:
            files.make_directory(os.path.dirname(path))
            files.atomic_write(path, content, 0o644)

    if not apply_it:
        ready()
        return None
    return gpu_apply.apply(policy, ROOT, socket.gethostname(), check=check_mode, ready=ready)


def result(outcome, policy, check_mode, path, contents):
    """What the module returns; ``contents``: the file before and after."""
    old, content = contents
    diff = [{"before_header": path, "after_header": path, "before": (old or b"").decode("utf-8", "replace"),
             "after": content.decode("utf-8")}]  # fmt: skip
    found = {"changed": old != content, "policy_changed": old != content, "state": "not_read", "gpus": [],
             "changes": [], "checks": [], "events": [], "files": [], "diff": diff,
             "previous_path": gpu_apply.PREVIOUS_PATH}  # fmt: skip
    if outcome is not None:
        entries = gpu_apply.report(outcome, policy, check_mode)
        found.update(
            changed=found["changed"] or outcome.changed, state=outcome.before["state"], gpus=entries,
            changes=outcome.changes, checks=outcome.rows, events=outcome.events, files=sorted(outcome.files),
        )  # fmt: skip
        diff.extend({"before_header": name, "after_header": name, "before": shown(there), "after": shown(wanted)}
                    for name, (there, wanted) in outcome.files.items())  # fmt: skip
        diff.append({"before_header": "GPU settings", "after_header": "GPU settings",
                     "before": gpu_apply.as_lines(entries, "before"),
                     "after": gpu_apply.as_lines(entries, "after")})  # fmt: skip
    return found


def shown(text):
    """A file's text for a diff; bytes that are no UTF-8 travel as surrogates, which Ansible cannot print."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def tell(module):
    """Hooks are told at once; what keeps them from it is a warning, and the agent's next pass does it."""
    try:
        gpu_tell.deliver(ROOT, lambda level, text: module.warn(text) if level != "notice" else None, os.geteuid())
    except SteadyrackError as error:
        module.warn(f"hooks were not told: {error.sentence()}")


def main():
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "dict", "required": True},
            "policy_path": {"type": "path", "default": gpu_policy.POLICY_PATH},
            "apply": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    path = files.below(ROOT, module.params["policy_path"])
    try:
        policy = gpu_policy.parse(module.params["policy"])
        content = files.dump_json(module.params["policy"])
        old = files.read_bytes(path)
        outcome = bring(policy, path, content, module.params["apply"], module.check_mode)
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    found = result(outcome, policy, module.check_mode, path, (old, content))
    if outcome is not None:
        for line in gpu_apply.warnings(outcome):
            module.warn(line)
        if outcome.events and not module.check_mode:
            tell(module)
        broken = [] if module.check_mode else outcome.broken()
        if broken:
            said = "; ".join(f"{row['id']} {row['subject']}: {row['state']} ({row['reason']})" for row in broken)
            module.fail_json(msg=f"GPU settings do not stand as asked for: {said}", **found)
    module.exit_json(**found)


if __name__ == "__main__":
    main()
