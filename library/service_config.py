#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: service_config
short_description: Keep the files and units of one service as given, in one call
description:
  - Compares packages, directories, files and systemd units of one service with what is given and
    puts right only what differs. A role renders its files on the controller and hands them over as
    data, so that a run that changes nothing costs one command on the host.
  - Every new file is shown to its I(validate) command before any file is replaced. Files are replaced
    by rename, so that a reader sees the old file or the new one.
  - A unit whose files change is restarted. The duty to do so is written down before the first file
    changes, so that a run that follows an interrupted one still restarts it.
  - Two cases are handed back to the caller with nothing changed. Packages that are missing are named in
    I(packages_missing) (install them, then call again); files given by I(sha256) alone that differ are
    named in I(content_needed) (call again with their content). In check mode missing packages are
    reported as changes to come, and the comparison goes on as if they were there.
version_added: "0.1.0"
author: steadyrack contributors
attributes:
  check_mode: {support: full, description: Compares for real and changes nothing. The validate commands do not run.}
  diff_mode: {support: full, description: One entry for each file, directory and unit.}
options:
  packages:
    description: Names of Debian packages that must be installed.
    type: list
    elements: str
    default: []
  directories:
    description: Directories that must exist. Missing parents are made with mode 0755.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Absolute path., type: path, required: true}
      mode: {description: "Quoted octal, with its leading zero.", type: str, default: "0755"}
      owner: {description: Name or number; left as it is when not given., type: str}
      group: {description: Name or number; left as it is when not given., type: str}
      purge:
        description: Patterns of file names. What matches in this directory and is not among I(files) is removed.
        type: list
        elements: str
        default: []
      on_change:
        description: What removing a file by I(purge) asks of the units.
        type: str
        choices: [restart, reload, none]
        default: restart
  files:
    description: Files that must be as given.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Absolute path. A symbolic link there is replaced by the file., type: path, required: true}
      content: {description: The whole text of the file., type: str}
      sha256: {description: "Digest of the wanted file, when its content is only to be sent if it differs.", type: str}
      mode: {description: "Quoted octal, with its leading zero.", type: str, default: "0644"}
      owner: {description: Name or number; left as it is when not given., type: str}
      group: {description: Name or number; left as it is when not given., type: str}
      state: {description: Whether the file is there at all., type: str, choices: [present, absent], default: present}
      on_change:
        description: What a change of content asks of the units with I(state=started).
        type: str
        choices: [restart, reload, none]
        default: restart
      validate:
        description:
          - A command that accepts or refuses the new file, C(%s) stands for its name. No shell.
          - When it is not installed the file is written all the same and named in I(not_validated).
        type: str
      no_diff: {description: The content is secret. It appears in no diff and no message., type: bool, default: false}
  units:
    description: Units of the service, in the order in which they are started.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: The unit. C(.service) may be left out., type: str, required: true}
      enabled: {description: Started at boot., type: bool}
      state:
        description: C(absent_ok_masked) stops, disables and masks the unit where it exists; absent is as good.
        type: str
        choices: [started, stopped, absent_ok_masked]
      masked:
        description: Cannot be started. Only an existing unit is masked. I(state=started) implies false.
        type: bool
      restart: {description: "Restart it when a file with I(on_change=restart) changed.", type: bool, default: true}
      reload_command:
        description: Makes the running unit read files with I(on_change=reload). Without it the unit is restarted.
        type: list
        elements: str
        default: []
  timeout_s:
    description: Seconds a unit may take to start or stop.
    type: int
    default: 90
  pending_directory:
    description: Where the duty to restart a unit is kept until it is done.
    type: path
    default: /var/lib/steadyrack/pending
"""

EXAMPLES = r"""
- name: Keep the time service as given
  service_config:
    packages: [chrony]
    directories:
      - {path: /etc/chrony/steadyrack.d, purge: ["*.sources"], on_change: reload}
    files:
      - path: /etc/chrony/chrony.conf
        content: "{{ lookup('ansible.builtin.template', 'chrony.conf.j2') }}"
        validate: chronyd -p -f %s
      - path: /etc/chrony/steadyrack.d/steadyrack.sources
        content: "{{ lookup('ansible.builtin.template', 'steadyrack.sources.j2') }}"
        on_change: reload
    units:
      - {name: chrony, state: started, enabled: true, reload_command: [chronyc, reload, sources]}
      - {name: systemd-timesyncd, state: absent_ok_masked}
  register: time_sync_result
"""

RETURN = r"""
packages_missing: {description: Packages to install before calling again., type: list, elements: str, returned: always}
content_needed: {description: Files whose content to send in another call., type: list, elements: str, returned: always}
actions: {description: "What was changed, or would be, one line each.", type: list, elements: str, returned: always}
not_validated:
  description: Files that were written without their validate command, which is not installed.
  type: list
  elements: str
  returned: always
units:
  description: Each unit after the call.
  returned: always
  type: list
  elements: dict
  contains:
    name: {description: Full name., type: str}
    exists: {description: Whether systemd knows it., type: bool}
    state: {description: "C(running), C(stopped) or C(missing).", type: str}
    active: {description: ActiveState., type: str}
    sub: {description: SubState., type: str}
    file_state: {description: UnitFileState., type: str}
    skipped_by_condition: {description: Its own condition keeps it from starting on this host., type: bool}
    actions: {description: What was done to it., type: list}
checks:
  description: Rows C(service.unit), one for each unit that is to run.
  type: list
  elements: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.steadyrack.errors import SteadyrackError
from ansible.module_utils.steadyrack.service_config import PENDING_DIRECTORY, apply, redacted

ON_CHANGE = {"type": "str", "choices": ["restart", "reload", "none"], "default": "restart"}
OWNERS = {"owner": {"type": "str"}, "group": {"type": "str"}}
DIRECTORY = {
    "path": {"type": "path", "required": True},
    "mode": {"type": "str", "default": "0755"},
    "purge": {"type": "list", "elements": "str", "default": []},
    "on_change": ON_CHANGE,
    **OWNERS,
}
FILE = {
    "path": {"type": "path", "required": True},
    "content": {"type": "str"},
    "sha256": {"type": "str"},
    "mode": {"type": "str", "default": "0644"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "on_change": ON_CHANGE,
    "validate": {"type": "str"},
    "no_diff": {"type": "bool", "default": False},
    **OWNERS,
}
UNIT = {
    "name": {"type": "str", "required": True},
    "enabled": {"type": "bool"},
    "state": {"type": "str", "choices": ["started", "stopped", "absent_ok_masked"]},
    "masked": {"type": "bool"},
    "restart": {"type": "bool", "default": True},
    "reload_command": {"type": "list", "elements": "str", "default": []},
}


class DiscreetModule(AnsibleModule):
    """Neither logs on the host nor sends back what is in a file: some contents are secret.

    no_log on ``content`` would not do: it masks a text wherever it occurs, diffs of harmless files included,
    and the log holds it in another spelling (newlines escaped), which is not recognised.
    """

    def _log_invocation(self):
        full, self.params = self.params, redacted(self.params)
        try:
            super()._log_invocation()
        finally:
            self.params = full

    def _return_formatted(self, kwargs):
        kwargs.setdefault("invocation", {"module_args": redacted(self.params)})
        return super()._return_formatted(kwargs)


def listed(options=None):
    """A list of dictionaries, or of strings."""
    if options is None:
        return {"type": "list", "elements": "str", "default": []}
    return {"type": "list", "elements": "dict", "default": [], "options": options}


def main():
    module = DiscreetModule(
        argument_spec={
            "packages": listed(),
            "directories": listed(DIRECTORY),
            "files": listed(FILE),
            "units": listed(UNIT),
            "timeout_s": {"type": "int", "default": 90},
            "pending_directory": {"type": "path", "default": PENDING_DIRECTORY},
        },
        supports_check_mode=True,
    )
    try:
        result = apply(
            module.params,
            check_mode=module.check_mode,
            pending_directory=module.params["pending_directory"],
            timeout_s=module.params["timeout_s"],
        )
    except SteadyrackError as error:
        module.fail_json(msg=str(error), error=error.as_dict())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
