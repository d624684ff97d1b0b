#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: nft_table
short_description: Keep one nftables table of our own as given, tried before it is kept
description:
  - Compares the live table with what the given rules would load (both listed by the host's own nft, the wanted one in
    an empty network namespace), and the service around it (package, files, units) as M(service_config) does. A run
    that changes nothing is one call. Values of counters are no difference, and survive a change of the rules.
  - Rules that differ are not loaded by I(step=apply); it answers I(trial_needed). I(step=trial) arms a systemd timer
    that brings back the old table, then loads the new one in one transaction. I(step=confirm), which must come over
    another SSH connection, stops the timer and writes the files by which the table comes back at boot. Without it the
    old table is back after I(confirm_timeout_s) seconds, or after a reboot.
  - No other table is touched. Where firewalld or ufw runs, I(open_for) is opened in it, too, by its own command.
version_added: "0.2.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Compares for real and changes nothing.}
  diff_mode: {support: full, description: The table as nft lists it; each file and unit.}
options:
  step: {description: What to do., type: str, choices: [apply, trial, confirm], default: apply}
  family: {description: Family of the table., type: str, default: inet}
  table: {description: Name of the table. All of it is ours., type: str, required: true}
  rules: {description: "A file for nft -f: the table, empty counters, flush, the rules.", type: str, required: true}
  path: {description: Where the file is kept for the boot., type: path, required: true}
  confirm_timeout_s: {description: Seconds until unconfirmed rules are taken back., type: int, default: 60}
  open_for:
    description: Networks for which UDP 123 is opened in firewalld or ufw, where one of them runs.
    type: list
    elements: str
    default: []
  trial_directory: {description: Where an unconfirmed trial is noted., type: path, default: /run/steadyrack/firewall}
  pending_directory: {description: As in M(service_config)., type: path, default: /var/lib/steadyrack/pending}
  packages: {description: As in M(service_config)., type: list, elements: str, default: []}
  directories: {description: As in M(service_config)., type: list, elements: dict, default: []}
  files: {description: As in M(service_config)., type: list, elements: dict, default: []}
  units: {description: As in M(service_config)., type: list, elements: dict, default: []}
"""

EXAMPLES = r"""
- name: Keep the table as given
  nft_table:
    table: steadyrack_ntp
    path: /etc/steadyrack/firewall/ntp.nft
    rules: "{{ lookup('ansible.builtin.template', 'ntp.nft.j2') }}"
    packages: [nftables]
    units: [{name: steadyrack-firewall, state: started, enabled: true}]
  register: rack_firewall_result
"""

RETURN = r"""
packages_missing: {description: Packages to install before calling again., type: list, elements: str, returned: always}
trial_needed: {description: The live rules differ; call again with step trial., type: bool, returned: always}
actions: {description: "What was changed, or would be, one line each.", type: list, elements: str, returned: always}
counters: {description: Packets by name of counter., type: dict, returned: when the table is there}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack.errors import SteadyrackError
from ansible.module_utils.steadyrack.nft_service import Wish, carry_out
from ansible.module_utils.steadyrack.nft_trial import TRIAL_DIRECTORY, ssh_connection
from ansible.module_utils.steadyrack.service_config import PENDING_DIRECTORY


def main():
    words = {"type": "list", "elements": "str", "default": []}
    entries = {"type": "list", "elements": "dict", "default": []}
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": ["apply", "trial", "confirm"], "default": "apply"},
            "family": {"type": "str", "default": "inet"},
            "table": {"type": "str", "required": True},
            "rules": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "confirm_timeout_s": {"type": "int", "default": 60},
            "open_for": words,
            "trial_directory": {"type": "path", "default": TRIAL_DIRECTORY},
            "pending_directory": {"type": "path", "default": PENDING_DIRECTORY},
            "packages": words,
            "directories": entries,
            "files": entries,
            "units": entries,
        },
        supports_check_mode=True,
    )
    try:
        result = carry_out(Wish.from_params(module.params), module.check_mode, ssh_connection())
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
