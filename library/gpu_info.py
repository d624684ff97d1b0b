#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Read the GPUs of a host through NVML and the PCI bus
description:
  - Reads every GPU's identity, power limits, links, temperatures, ECC, remapped rows and MIG mode in one
    pass, and judges count, power cap, persistence and links against the host's policy file, and the cards' health.
  - Reads in a child process with a deadline on every call. A GPU that is lost or hangs appears with that
    state and the others are read.
  - A value that the driver does not give is null, with the driver's error under C(errors). It is never 0.
  - A host without driver, library or GPUs is no failure of the module; C(node.state) says so.
version_added: "0.1.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Reads only.}
  diff_mode: {support: none, description: Changes nothing.}
options:
  policy_path:
    description: The policy to judge against. Without the file nothing that needs it is judged.
    type: path
    default: /etc/steadyrack/gpu_policy.json
"""

EXAMPLES = r"""
- name: Read the GPUs
  gpu_info:
  register: gpus

- name: Name every GPU that is not well
  ansible.builtin.debug:
    msg: "{{ gpus.gpu_info.gpus | rejectattr('state', 'equalto', 'ok') | map(attribute='bus_id') }}"
"""

RETURN = r"""
gpu_info:
  description: What was read.
  returned: always
  type: dict
  contains:
    node:
      description: >-
        State of NVML on this host (ok, no_binding, no_library, no_driver, driver_mismatch, no_permission,
        no_devices, timeout, error) with reason, next_step and versions of driver, kernel module and library.
      type: dict
    gpus:
      description: >-
        One record for each GPU, in bus order. State is ok, lost, reset_required, timeout or unreachable.
        Power in W, temperature in degrees Celsius. Where MIG is on mig_layout has the profiles of the card and its
        instances with the ids that jobs are given and the processes on them.
      type: list
      elements: dict
    pci:
      description: The same GPUs as the PCI bus shows them, with the way up to the root port.
      type: list
      elements: dict
    roles:
      description: >-
        By UUID, the role that the agent has given each GPU (active, spare, draining, failed, unaccepted) with bus_id,
        since and reason. Empty where the policy keeps none.
      type: dict
    listed:
      description: UUIDs that jobs are given; null where there is no list.
      type: list
      elements: str
    checks:
      description: >-
        Rows C(gpu.*), C(pcie.*) and C(nvlink.links); docs/checks.md has each of them. Rises of error counts are judged
        against the baseline that the agent keeps on the host; this module does not write it.
      type: list
      elements: dict
"""

import os
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack import gpu_baseline, gpu_checks, gpu_policy, nvml, pcie
from ansible.module_utils.steadyrack.errors import SteadyrackError

# Where the file systems of the host begin; tests put a tree of their own here.
ROOT = "/"


def read(policy_path):
    """One reading of the host, judged against the policy in that file."""
    policy = gpu_policy.load(os.path.join(ROOT, policy_path.lstrip("/")))
    pci = pcie.read_gpus(ROOT)
    record = nvml.read_node(ROOT, [device["bus_id"] for device in pci])
    host = socket.gethostname()
    roles = gpu_checks.roles_of(policy, ROOT, host)
    known = gpu_checks.Found(
        roles=roles, baseline=gpu_baseline.look(ROOT, record["gpus"]), nvme=tuple(pcie.read_nvme(ROOT))
    )
    rows = gpu_checks.rows(policy, record, pci, host, known)
    node = {key: value for key, value in record.items() if key != "gpus"}
    found = {"node": node, "gpus": record["gpus"], "pci": pci, "checks": rows, "roles": {}, "listed": None}
    if roles is not None:
        found.update(roles=(roles.state or {"gpus": {}})["gpus"], listed=roles.listed)
    return found


def main():
    module = AnsibleModule(
        argument_spec={"policy_path": {"type": "path", "default": gpu_policy.POLICY_PATH}},
        supports_check_mode=True,
    )
    try:
        found = read(module.params["policy_path"])
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(changed=False, gpu_info=found)


if __name__ == "__main__":
    main()
