#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: time_log_info
short_description: The last hours of this host's clock, from chronyd's own logs
description:
  - Reads tracking.log, and measurements.log or statistics.log for the sources, and thins them out on the host
    so that some 10 kB travel; extremes are kept, a spike is never lost. Changes nothing, runs in check mode.
  - Says why when there is nothing to show (no log, nothing logged, unreadable, disk full). That is an answer,
    not a failure.
version_added: "0.1.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Only reads.}
options:
  hours: {description: How far back, type: float, default: 24}
  end:
    description:
      - Epoch seconds at which the window ends, as the caller's clock has it. This host's own clock when not given.
        Entries that are newer are counted and not returned; somebody's clock is wrong then.
    type: float
  points:
    description: The most points of the host's own curve, and of all its sources' together.
    type: int
    default: 1500
  sources: {description: "Read the sources' offsets, too. By default on a relay.", type: bool}
  directory: {description: Where the logs are. From the note of role time_sync when not given., type: str}
  alarm_ms: {description: For C(above_alarm_s). From the note when not given., type: float}
  warn_ms: {description: For C(above_warn_s). From the note when not given., type: float}
"""

EXAMPLES = r"""
- name: The last day of this clock
  time_log_info:
  register: log
"""

RETURN = r"""
state: {description: "C(ok), C(nothing) or C(unreadable).", type: str, returned: always}
reason: {description: Why there is nothing; null when there is., type: str, returned: always}
problems: {description: What else was found; one sentence each., type: list, elements: str, returned: always}
now: {description: This host's clock when it looked, epoch seconds., type: float, returned: always}
since: {description: Where the window begins; times of points count from here., type: int, returned: always}
until: {description: Where it ends., type: int, returned: always}
points:
  description: "[seconds, offset us, bound us]; + = the clock was ahead. Null offset: a gap begins."
  type: list
  elements: list
  returned: always
gaps: {description: "[from, to, why]", type: list, elements: list, returned: always}
jumps: {description: "[seconds, from us, to us]", type: list, elements: list, returned: always}
summary: {description: Figures of the whole window, before thinning., type: dict, returned: always}
upstreams:
  description: "The sources of a relay. A point is [seconds, offset us]; + = the source is ahead."
  type: list
  elements: dict
  returned: always
policy: {description: What the note of role time_sync says of this host., type: dict, returned: always}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack import chrony_curve
from ansible.module_utils.steadyrack.errors import SteadyrackError


def main():
    module = AnsibleModule(
        argument_spec={
            "hours": {"type": "float", "default": 24},
            "end": {"type": "float"},
            "points": {"type": "int", "default": 1500},
            "sources": {"type": "bool"},
            "directory": {"type": "str"},
            "alarm_ms": {"type": "float"},
            "warn_ms": {"type": "float"},
        },
        supports_check_mode=True,
    )
    try:
        found = chrony_curve.look(chrony_curve.wish(**module.params))
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
