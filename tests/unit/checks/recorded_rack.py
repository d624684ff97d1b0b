"""Run the real check files, by pytest as a rack's run does, on evidence that was recorded from the demo rack."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
EVIDENCE = Path(__file__).parent / "evidence"
RACK = {
    "rack_site": "demo",
    "rack_name": "demo-a1",
    "rack_networks": ["10.213.1.0/24"],
    "rack_gpus": [
        {"model": "NVIDIA A100 80GB PCIe", "count": 4, "power_max_w": 300, "power_min_w": 150, "link_width": 16}
    ],
}
VARIABLES = {
    "relay-a1": {
        **RACK,
        "ansible_host": "10.213.1.21",
        "time_sync_upstreams": [f"10.213.0.{number}" for number in range(11, 15)],
    },
    "gpu-a1": {**RACK, "ansible_host": "10.213.1.31"},
}
GROUPS = {"relay-a1": "relays", "gpu-a1": "gpu_nodes"}
# Of a node alone at its site, whose relays the inventory therefore has to name.
FAR_RELAYS = {"time_sync_relays": ["10.213.1.21"], "package_mirror_relays": ["10.213.1.21"]}


def good_evidence(base: str) -> dict[str, Any]:
    """As recorded; the agent's files are those of this checkout, which has gone on since the recording."""
    evidence = json.loads((EVIDENCE / f"{base}.json").read_text())
    for part in sorted(EVIDENCE.glob(f"{base}.*.json")):  # what was recorded apart, for one role
        for section, entries in json.loads(part.read_text()).items():
            evidence[section].update(entries)
    package, programs = "/usr/lib/steadyrack/steadyrack", "/usr/lib/steadyrack"
    files = ROOT / "roles" / "node_agent" / "files"
    pynvml = importlib.util.find_spec("pynvml")
    assert pynvml is not None
    assert pynvml.origin is not None
    sources = {f"{programs}/agent.py": files / "agent.py", f"{programs}/pynvml.py": Path(pynvml.origin)}
    modules = {f"{package}/{path.name}": path for path in (ROOT / "module_utils" / "steadyrack").glob("*.py")}
    evidence["files"][f"{package}/*.py"] = {name: _file(path, "0644") for name, path in modules.items()}
    evidence["files"][f"{programs}/*.py"] = {name: _file(path, "0644") for name, path in sources.items()}
    evidence["files"]["/usr/bin/steadyrack"] = {"/usr/bin/steadyrack": _file(files / "steadyrack", "0755")}
    for folder in ("/etc/chrony", "/etc/chrony/steadyrack.d"):
        evidence["files"][folder] = {}  # asked for since: a directory is told of only where a link stands for it
    for gpu in evidence.get("nvml", {}).get("gpus", []):
        gpu.update(remap_pending=0, remap_failure=0, event_reasons=1)  # asked for since: well, and idle
    # As recorded of the unit in the demo rack, after the rest.
    evidence["units"]["steadyrack-time-watch.service"] = {
        "Type": "notify", "MainPID": "730", "Result": "success",
        "ExecStart": "{ path=/usr/bin/steadyrack ; argv[]=/usr/bin/steadyrack time watch --interval 10 ; }",
        "Id": "steadyrack-time-watch.service", "LoadState": "loaded", "ActiveState": "active", "SubState": "running",
        "UnitFileState": "enabled", "NeedDaemonReload": "no", "ConditionResult": "yes",
    }  # fmt: skip
    if GROUPS[base] == "gpu_nodes":
        _with_roles(evidence)
    return evidence


def _with_roles(evidence: dict[str, Any]) -> None:
    """What is asked for since: who may open a GPU, who is told of it, and who follows the kernel log."""
    for gpu in evidence["nvml"]["gpus"]:
        gpu.update(compute_mode=0, min_mw=150000)
    evidence["session"] = {"CUDA_VISIBLE_DEVICES": ",".join(gpu["uuid"] for gpu in evidence["nvml"]["gpus"])}
    evidence["units"]["steadyrack-gpu-watch.service"] = {
        **evidence["units"]["steadyrack-time-watch.service"], "Id": "steadyrack-gpu-watch.service", "Type": "simple",
        "ExecStart": "{ path=/usr/bin/steadyrack ; argv[]=/usr/bin/steadyrack gpu watch ; }",
    }  # fmt: skip


def _file(path: Path, mode: str) -> dict[str, Any]:
    return {"mode": mode, "uid": 0, "mtime": 0.0, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


@dataclass
class Outcome:
    """What one run of pytest on the checks left."""

    code: int
    output: str
    report: dict[str, Any]

    def rows(self, host: str, check: str | None = None) -> list[dict[str, Any]]:
        return [row for row in self.report["checks"] if row["host"] == host and check in (None, row["id"])]

    def bad(self, host: str) -> list[dict[str, Any]]:
        return [row for row in self.rows(host) if row["verdict"] in ("fail", "unknown")]


@dataclass
class Rack:
    """An inventory and a folder of evidence, to be filled and then run."""

    folder: Path
    checks: Path = ROOT / "tests" / "checks"
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=lambda: {"relays": {}, "gpu_nodes": {}})

    def add(
        self,
        name: str,
        base: str,
        break_it: Callable[[dict[str, Any]], object] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        site: str | None = None,
    ) -> None:
        """A host like `base` whose evidence `break_it` has changed. None of it when `break_it` returns False.

        A variation is a site of its own, unless `site` puts it beside others: what one host has wrong must not
        be seen in a host that has nothing to do with it.
        """
        evidence = good_evidence(base)
        keep = break_it(evidence) if break_it else None
        self.folder.mkdir(exist_ok=True)
        if keep is not False:
            (self.folder / f"{name}.json").write_text(json.dumps(evidence))
        own = copy.deepcopy(VARIABLES[base])
        if name != base:
            own.update(rack_site=site or name, **(FAR_RELAYS if GROUPS[base] == "gpu_nodes" else {}))
        self.hosts[name] = {**own, **(variables or {})}
        self.groups.setdefault(group or GROUPS[base], {})[name] = {}

    def run(self, *options: str, hosts: str = "ansible://all") -> Outcome:
        inventory, report = self.folder / "inventory.yml", self.folder / "report.json"
        children = {group: {"hosts": members} for group, members in self.groups.items()}
        inventory.write_text(json.dumps({"all": {"hosts": self.hosts, "children": children}}))
        command = [
            sys.executable,
            "-m",
            "pytest",
            str(self.checks),
            "-q",
            f"--ansible-inventory={inventory}",
            f"--hosts={hosts}",
            f"--evidence={self.folder}",
            f"--report={report}",
            *options,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=120)
        found = json.loads(report.read_text()) if report.exists() else {}
        return Outcome(done.returncode, done.stdout + done.stderr, found)
