"""A node's tools as small executables in front of PATH: systemctl, dpkg-query, chronyc and validators.

This machine has no systemd as PID 1, so what the modules say to systemctl is answered by a program that
keeps its units in a JSON file and writes down every call. The real thing is tried in the demo rack.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

SYSTEMCTL = """\
import json, sys
state_file, log_file = {state!r}, {log!r}
args = sys.argv[1:]
open(log_file, "a").write(json.dumps(["systemctl", *args]) + "\\n")
units = json.load(open(state_file))
verb, names = args[0], [a for a in args[1:] if not a.startswith("-")]

def real(name):
    return units.get(name, {{}}).get("alias", name)

def show(name):
    unit = units.get(real(name))
    if unit is None or unit.get("missing"):
        unit = {{"load": "not-found", "active": "inactive", "sub": "dead", "file_state": ""}}
    masked = unit.get("file_state") == "masked"
    stamp = "100" if unit.get("asked") else "0"
    return {{
        "Id": real(name), "Names": name, "LoadState": "masked" if masked else unit.get("load", "loaded"),
        "ActiveState": unit.get("active", "inactive"), "SubState": unit.get("sub", "dead"),
        "UnitFileState": unit.get("file_state", "disabled"), "Type": unit.get("type", "forking"),
        "RemainAfterExit": unit.get("remain", "no"), "Result": unit.get("result", "success"),
        "ConditionResult": "no" if unit.get("condition") or not unit.get("asked") else "yes",
        "ConditionTimestampMonotonic": stamp, "NeedDaemonReload": "yes" if unit.get("stale") else "no",
        "ExecMainStartTimestampMonotonic": stamp if unit.get("ran") else "0",
        "ExecMainExitTimestampMonotonic": stamp if unit.get("ran") else "0",
    }}

if verb == "show":
    wanted = next(a for a in args if a.startswith("--property=")).split("=", 1)[1].split(",")
    print("\\n\\n".join("\\n".join(f"{{k}}={{v}}" for k, v in show(n).items() if k in wanted) for n in names))
    sys.exit(0)
if verb == "status":
    unit = units.get(real(names[0]), {{}})
    if unit.get("condition"):
        print("  Condition: start condition failed\\n             └─ " + unit["condition"] + " was not met")
    print("the last words of " + names[0])
    sys.exit(3)
if verb == "daemon-reload":
    for unit in units.values():
        unit.pop("stale", None); unit.pop("missing", None)
for name in names:
    if real(name) not in units:
        print("Unit " + name + " not found.", file=sys.stderr); sys.exit(5)
    unit = units[real(name)]
    if verb in ("start", "restart"):
        unit["asked"] = True
        if unit.get("file_state") == "masked":
            print("Unit " + name + " is masked.", file=sys.stderr); sys.exit(1)
        if unit.get("fails"):
            unit["active"] = "failed"; json.dump(units, open(state_file, "w"))
            print("Job for " + name + " failed.", file=sys.stderr); sys.exit(1)
        if not unit.get("condition"):
            unit["active"] = "failed" if unit.get("dies") else "active"
            unit["restarts"] = unit.get("restarts", 0) + 1
            if unit.get("type") == "oneshot" and unit.get("remain", "no") == "no":
                unit.update(active="inactive", ran=True)
    elif verb == "stop": unit["active"] = "inactive"
    elif verb in ("enable", "disable"): unit["file_state"] = verb + "d"
    elif verb == "mask":
        if "alias" in units.get(name, {{}}):
            print("Failed to mask unit: File already exists", file=sys.stderr); sys.exit(1)
        if not unit.get("unmaskable"): unit["file_state"] = "masked"
    elif verb == "unmask": unit["file_state"] = "disabled"
json.dump(units, open(state_file, "w"))
"""


class FakeNode:
    """The tools, what they answer, and what they were asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        self.state = root / "units.json"
        self.log = root / "calls"
        self.set_units({})
        self.python_program("systemctl", SYSTEMCTL.format(state=str(self.state), log=str(self.log)), "-IS")
        self.installed()

    def program(self, name: str, text: str) -> None:
        """An executable of that name in front of PATH."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def python_program(self, name: str, source: str, *flags: str) -> None:
        """The same, in Python. Not by a line of #!, which ends a path at its first blank: a checkout may have one."""
        text = self.bin / f"{name}.py"
        text.write_text(source)
        self.program(name, f'#!/bin/sh\nexec {shlex.join([sys.executable, *flags, str(text)])} "$@"\n')

    def answers(self, name: str, out: str = "", rc: int = 0, err: str = "") -> None:
        """An executable that notes its call and says one thing."""
        (self.bin / f"{name}.out").write_text(out)
        (self.bin / f"{name}.err").write_text(err)
        note = f'printf "[\\"{name} %s\\"]\\n" "$*" >> {shlex.quote(str(self.log))}'
        folder = shlex.quote(str(self.bin))
        body = f"cat {folder}/{name}.out; cat {folder}/{name}.err >&2; exit {rc}"
        self.program(name, f"#!/bin/sh\n{note}\n{body}\n")

    def installed(self, **packages: str) -> None:
        """dpkg-query with these packages and their three status words."""
        cases = "".join(f"{name}) printf '{name}\\t{status}\\n';;" for name, status in packages.items())
        unknown = "*) rc=1; echo no packages found matching $name >&2;;"
        loop = f"for name; do case $name in {cases} {unknown} esac; done"
        self.program("dpkg-query", f"#!/bin/sh\nshift 3\nrc=0\n{loop}\nexit $rc\n")

    def set_units(self, units: dict[str, dict[str, Any]]) -> None:
        self.state.write_text(json.dumps(units))

    def unit(self, name: str) -> dict[str, Any]:
        return json.loads(self.state.read_text())[name]

    def change_unit(self, name: str, **values: Any) -> None:
        units = json.loads(self.state.read_text())
        units.setdefault(name, {}).update(values)
        self.set_units(units)

    def calls(self) -> list[str]:
        """Everything asked since the last look, as command lines."""
        if not self.log.exists():
            return []
        lines = [" ".join(json.loads(line)) for line in self.log.read_text().splitlines()]
        self.log.unlink()
        return lines

    def deeds(self) -> list[str]:
        """The calls that would change something."""
        return [call for call in self.calls() if not call.startswith(("systemctl show", "systemctl status"))]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node whose tools come first in PATH."""
    fake = FakeNode(tmp_path)
    monkeypatch.setenv("PATH", f"{fake.bin}{os.pathsep}{os.environ['PATH']}")
    return fake


def run_module(
    module: Any, params: dict[str, Any], capsys: pytest.CaptureFixture[str], check: bool = False
) -> dict[str, Any]:
    """A module's main() as Ansible would call it; its JSON answer."""
    from ansible.module_utils.testing import patch_module_args

    capsys.readouterr()
    with patch_module_args({**params, "_ansible_check_mode": check, "_ansible_diff": True}), pytest.raises(SystemExit):
        module.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return answer
