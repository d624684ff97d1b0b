#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: chrony_info
short_description: Read what chronyd says of this host's clock, and judge it
description:
  - Reads C(chronyc -c) tracking, sources, sourcestats and activity, and systemd's word on the daemon and its rivals.
    Changes nothing, runs in check mode.
  - A daemon that does not answer is a state (C(down)), not an error; its offset is then null, never zero.
  - What to expect comes from the options, or else from the note that the role time_sync left on the host.
version_added: "0.1.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Only reads.}
options:
  mode:
    description: What this host is. A relay that follows nobody is reported as its local fallback.
    type: str
    choices: [relay, client]
  expected_sources:
    description: The only sources that may be there, as configured. Taken from the note when not given.
    type: list
    elements: str
  alarm_ms:
    description: The clock fails when it may be off by more than this many milliseconds.
    type: float
  warn_ms:
    description: Above this many milliseconds it passes with severity warning.
    type: float
  wait_s:
    description:
      - Wait up to this many seconds until the clock follows a source and its error is measured.
        Fail with the reason when it follows none by then.
      - 0 does not wait. Where systemd may not start the daemon on this host there is nothing to wait for.
    type: int
    default: 0
  statistics:
    description: Ask for sourcestats and activity, too. The gate does without.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Look at the clock
  chrony_info:
  register: clock

- name: Wait for the clock, half a minute at most
  chrony_info:
    wait_s: 30
"""

RETURN = r"""
state:
  description: "C(down), C(unreadable), C(unsynchronised), C(islanded), C(stale) or C(synchronised)."
  type: str
  returned: always
offset_s:
  description: Offset of the system clock, + = ahead; null when it follows nobody.
  type: float
  returned: always
bound_s: {description: "The most it can be wrong; null when it follows nobody.", type: float, returned: always}
tracking: {description: "Columns of chronyc tracking; null when the daemon is down.", type: dict, returned: always}
sources: {description: Columns of chronyc sources., type: list, elements: dict, returned: always}
sourcestats: {description: Columns of chronyc sourcestats., type: list, elements: dict, returned: always}
activity: {description: "Columns of chronyc activity; null when the daemon is down.", type: dict, returned: always}
policy: {description: "What was expected: the note, with the options over it.", type: dict, returned: always}
may_start: {description: Whether a job may start as far as this clock goes., type: bool, returned: always}
gate_line: {description: The same in one line with the reason., type: str, returned: always}
waited_s: {description: Seconds until the clock was synchronised., type: float, returned: always}
checks: {description: "Rows C(time.*).", type: list, elements: dict, returned: always}
"""

import socket
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack import chronyc, time_checks, time_gate
from ansible.module_utils.steadyrack.errors import SteadyrackError

# How often the daemon is asked while waiting, seconds: iburst gives a first answer after about four.
LOOK_S = 1.0
DEFAULT_UNIT = "chrony"


def policy_of(params):
    """What to expect: the options over the note on the host over nothing expected."""
    note = time_checks.load_policy()
    if note is None:
        alarm_ms, sources = params["alarm_ms"] or 30.0, params["expected_sources"]
        warn_ms = params["warn_ms"] or alarm_ms * time_checks.WARN_SHARE
        return time_checks.TimePolicy(params["mode"] or "client", sources, alarm_ms, warn_ms, DEFAULT_UNIT)
    given = {"mode": params["mode"], "sources": params["expected_sources"]}
    given.update({"alarm_ms": params["alarm_ms"], "warn_ms": params["warn_ms"]})
    return note._replace(**{key: value for key, value in given.items() if value is not None})


def wait_for_clock(policy, wait_s):
    """Seconds waited until the clock follows a source and knows its own error, its state at the end, the last look.

    A clock that follows a source and is still unsure at the end of the wait is synchronised all the same.
    """
    began = time.monotonic()
    while True:
        clock = chronyc.look()
        state = chronyc.state_of(clock)
        waited_s = round(time.monotonic() - began, 1)
        if chronyc.settled(clock, state) or waited_s >= wait_s:
            return waited_s, state, clock
        if clock.down and time_checks.unmet_condition(policy.unit):
            return waited_s, "skipped", clock
        time.sleep(LOOK_S)


def told(clock, statistics):
    """Everything the daemon tells, as plain data."""
    found = {"state": chronyc.state_of(clock), "offset_s": None, "bound_s": None, "tracking": None, "activity": None}
    found["sources"] = [dict(source._asdict(), reachable=source.reachable) for source in clock.sources]
    found["sourcestats"] = []
    if clock.tracking is not None:
        found.update(
            tracking=clock.tracking._asdict(), offset_s=clock.tracking.offset_s, bound_s=clock.tracking.bound_s
        )
        if statistics:
            found["sourcestats"] = [row._asdict() for row in chronyc.parse_sourcestats(chronyc.ask("sourcestats"))]
            found["activity"] = chronyc.parse_activity(chronyc.ask("activity"))._asdict()
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["relay", "client"]},
            "expected_sources": {"type": "list", "elements": "str"},
            "alarm_ms": {"type": "float"},
            "warn_ms": {"type": "float"},
            "wait_s": {"type": "int", "default": 0},
            "statistics": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    try:
        policy = policy_of(module.params)
        waited_s, state, clock = wait_for_clock(policy, module.params["wait_s"])
        host = socket.gethostname()
        rows = time_checks.judge(policy, host, clock=clock)
        decision = time_gate.decide(host, rows)
        found = dict(told(clock, module.params["statistics"]), policy=policy._asdict(), waited_s=waited_s, checks=rows)
        found.update(may_start=decision.may_start, gate_line=decision.line)
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    if module.params["wait_s"] and state not in (chronyc.SYNCHRONISED, "skipped"):
        row = rows[0]
        module.fail_json(
            msg=f"the clock is {state} after {waited_s:g} s: {row['reason']}. Next: {row['hint']}",
            **found,
        )
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
