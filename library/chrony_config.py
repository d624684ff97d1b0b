#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: chrony_config
short_description: Keep chronyd as given - its files, its unit, and what the running daemon really does
description:
  - Writes chrony.conf, one file of sources in a directory of our own, and the keys, as the installed release of
    chrony understands them; every file is shown to C(chronyd -p) before it replaces the old one.
  - Compares the running daemon as well. A source that C(chronyc add) brought in, one that a reload lost, and a
    network that is served without being named are put right by C(chronyc), without a restart.
  - A change of sources, of I(client_networks) or of orphan mode is taken over by the running daemon. All other
    changes restart it; it then keeps its samples and does not step, unless the clock was never set and no job runs.
  - Other keepers of the clock (I(rivals)) are stopped, disabled and masked where they exist.
  - A missing package is named in I(packages_missing), with nothing changed; install it, then call again.
version_added: "0.2.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Compares for real and changes nothing. The validate commands do not run.}
  diff_mode: {support: full, description: "One entry for each file, directory and unit, and one for the daemon."}
options:
  mode:
    description: A relay asks servers outside and serves the rack; a client asks its relays and nobody else.
    type: str
    choices: [relay, client]
    required: true
  site: {description: Name of the site., type: str, default: ""}
  sources:
    description: The servers that are asked. Each is asked by iburst.
    type: list
    elements: dict
    required: true
    suboptions:
      address: {description: Name or address., type: str, required: true}
      operator: {description: Who runs it., type: str}
      nts: {description: "Authenticated by NTS (RFC 8915). On all sources or on none.", type: bool, default: false}
      offset_s: {description: "A known asymmetry of the way to it, subtracted, seconds.", type: float, default: 0.0}
  peers:
    description: Relay. Addresses of the other relays of the site, asked as servers.
    type: list
    elements: str
    default: []
  other_sites:
    description: Relay. Address of another site's relay -> its site. Looked at, never followed.
    type: dict
    default: {}
  client_networks:
    description: Relay. Networks that may ask, in CIDR form.
    type: list
    elements: str
    default: []
  keys:
    description: Symmetric keys.
    type: list
    elements: dict
    default: []
    suboptions:
      id: {description: Number of the key., type: int, required: true}
      type: {description: "AES128, AES256, SHA256, SHA384 or SHA512.", type: str, default: SHA256}
      key: {description: "The secret, as chrony.keys(5) has it (HEX:...).", type: str, required: true}
  key_id: {description: Client. The key with which every relay is asked., type: int}
  upstream_poll:
    description: Shortest and longest polling interval towards sources outside, log2 of seconds.
    type: list
    elements: int
    default: [6, 8]
  relay_poll:
    description: The same towards relays.
    type: list
    elements: int
    default: [4, 4]
  upstream_max_delay_s:
    description: Relay. Answers that took longer are left out, seconds.
    type: float
    default: 0.2
  max_distance_s: {description: Relay. A source this far away is not followed., type: float, default: 0.5}
  max_clock_error_ppm: {description: How fast the clock drifts without a source., type: float, default: 5.0}
  max_slew_ppm: {description: Ceiling for bending the clock., type: float, default: 500.0}
  orphan_distance_s:
    description: Relay. How uncertain the clock becomes before the site goes by itself; 0 is never.
    type: float
    default: 0.1
  ratelimit: {description: Relay. Answer clients that ask too often only now and then., type: bool, default: true}
  hwtimestamp: {description: Let network hardware that can stamp packets do so., type: bool, default: true}
  alarm_ms: {description: For the node's own checks. Wrong above this., type: float, default: 30.0}
  warn_ms: {description: For the node's own checks. Mentioned above this., type: float, default: 10.0}
  site_skew_alarm_ms: {description: "For the node's own checks, between sites.", type: float, default: 100.0}
  min_upstreams: {description: For the node's own checks. Fewer cannot outvote a liar., type: int, default: 3}
  rivals:
    description: Units that must not run beside chronyd.
    type: list
    elements: str
    default: []
  controller_epoch:
    description: The controller's clock, seconds since 1970. Against it a clock is called wrong before an installation.
    type: float
  set_clock:
    description:
      - A clock hours off stands in the way of an installation. C(true) sets it to I(controller_epoch) unless a job
        runs, C(false) goes on, not given fails with nothing changed.
    type: bool
  pending_directory:
    description: Where the duty to restart or reload is kept until it is done.
    type: path
    default: /var/lib/steadyrack/pending
"""

EXAMPLES = r"""
- name: Follow the relays of the site and nobody else
  chrony_config:
    mode: client
    sources:
      - {address: 10.0.1.21}
      - {address: 10.0.1.22}
"""

RETURN = r"""
version: {description: Release of chronyd; null when it is not installed., type: str, returned: always}
packages_missing: {description: Packages to install before calling again., type: list, elements: str, returned: always}
actions: {description: "What was changed, or would be, one line each.", type: list, elements: str, returned: always}
put_out_of_action:
  description: Sources that were configured here before and are asked no more, as C(path - line).
  type: list
  elements: str
  returned: always
units: {description: Each unit after the call., type: list, elements: dict, returned: always}
checks: {description: Rows C(service.unit)., type: list, elements: dict, returned: always}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack.chrony_apply import apply
from ansible.module_utils.steadyrack.errors import SteadyrackError
from ansible.module_utils.steadyrack.service_plan import PENDING_DIRECTORY

SOURCE = {
    "address": {"type": "str", "required": True},
    "operator": {"type": "str"},
    "nts": {"type": "bool", "default": False},
    "offset_s": {"type": "float", "default": 0.0},
}
KEY = {
    "id": {"type": "int", "required": True},
    "type": {"type": "str", "default": "SHA256"},
    "key": {"type": "str", "required": True, "no_log": True},
}


def main():
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["relay", "client"], "required": True},
            "site": {"type": "str", "default": ""},
            "sources": {"type": "list", "elements": "dict", "options": SOURCE, "required": True},
            "peers": {"type": "list", "elements": "str", "default": []},
            "other_sites": {"type": "dict", "default": {}},
            "client_networks": {"type": "list", "elements": "str", "default": []},
            "keys": {"type": "list", "elements": "dict", "options": KEY, "default": [], "no_log": False},
            "key_id": {"type": "int", "no_log": False},
            "upstream_poll": {"type": "list", "elements": "int", "default": [6, 8]},
            "relay_poll": {"type": "list", "elements": "int", "default": [4, 4]},
            "upstream_max_delay_s": {"type": "float", "default": 0.2},
            "max_distance_s": {"type": "float", "default": 0.5},
            "max_clock_error_ppm": {"type": "float", "default": 5.0},
            "max_slew_ppm": {"type": "float", "default": 500.0},
            "orphan_distance_s": {"type": "float", "default": 0.1},
            "ratelimit": {"type": "bool", "default": True},
            "hwtimestamp": {"type": "bool", "default": True},
            "alarm_ms": {"type": "float", "default": 30.0},
            "warn_ms": {"type": "float", "default": 10.0},
            "site_skew_alarm_ms": {"type": "float", "default": 100.0},
            "min_upstreams": {"type": "int", "default": 3},
            "rivals": {"type": "list", "elements": "str", "default": []},
            "controller_epoch": {"type": "float"},
            "set_clock": {"type": "bool"},
            "pending_directory": {"type": "path", "default": PENDING_DIRECTORY},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(module.params, module.check_mode, module.params["pending_directory"])
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
