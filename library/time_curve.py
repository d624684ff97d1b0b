#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: time_curve
short_description: Draw the offset curves of many hosts, on the controller
description:
  - Writes time.html (one file, nothing from elsewhere) and time.png from what C(time_log_info) returned.
  - Runs on the controller, in the interpreter of Ansible itself, where matplotlib is. Without matplotlib the
    page is written all the same, and a warning says why there is no picture.
  - The same data give the same bytes. In check mode nothing is written.
version_added: "0.1.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Writes nothing.}
options:
  hosts:
    description:
      - One entry a host - C(host), C(site), C(relay), C(alarm_ms), C(warn_ms), C(site_alarm_ms), and either C(log),
        the answer of C(time_log_info), or C(reason), why there is none.
    type: list
    elements: dict
    required: true
  folder: {description: Where to write; must exist., type: path, required: true}
  inventory: {description: For the title., type: str, required: true}
  end: {description: "Where the window ends, epoch seconds.", type: int, required: true}
  hours: {description: How long the window is., type: float, default: 24}
"""

EXAMPLES = r"""
- name: Draw
  time_curve:
    hosts: "{{ hostvars | time_report_hosts(ansible_play_hosts_all, groups.relays, 'report_log') }}"
    folder: reports/demo
    inventory: demo
    end: "{{ '%s' | strftime }}"
  delegate_to: localhost
  run_once: true
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
"""

RETURN = r"""
page: {description: Path of the page., type: str, returned: always}
picture: {description: Path of the picture; null without matplotlib., type: str, returned: always}
headline: {description: What somebody has to know who reads no further., type: list, elements: str, returned: always}
no_data: {description: Hosts of which nothing is known., type: list, elements: str, returned: always}
"""

import contextlib
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack.errors import SteadyrackError
from ansible.module_utils.steadyrack.files import atomic_write
from ansible.module_utils.steadyrack_report import model, page, picture


def main():
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "list", "elements": "dict", "required": True},
            "folder": {"type": "path", "required": True},
            "inventory": {"type": "str", "required": True},
            "end": {"type": "int", "required": True},
            "hours": {"type": "float", "default": 24},
        },
        supports_check_mode=True,
    )
    given = module.params
    report = model.build(given["inventory"], given["hosts"], given["end"], given["hours"])
    paths = [os.path.join(given["folder"], name) for name in ("time.html", "time.png")]
    found = {
        "changed": False,
        "page": paths[0],
        "picture": paths[1],
        "headline": model.headline(report),
        "no_data": [host.name for host in report.hosts if host.reason],
    }
    try:
        image = picture.png(report)
    except ImportError as error:
        image, found["picture"] = None, None
        module.warn(f"no time.png: {error}. Next: python -m pip install --require-hashes -r requirements.txt")
    if not module.check_mode:
        try:
            atomic_write(paths[0], page.page(report).encode("utf-8", "replace"))
            if image is not None:
                atomic_write(paths[1], image)
            else:
                # Yesterday's picture beside today's page would be believed.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(paths[1])
        except SteadyrackError as error:
            module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(**found)


if __name__ == "__main__":
    main()
