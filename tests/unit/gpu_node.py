"""A node below a directory: emulated NVML library, PCI tree and /proc, and ways to run our code on it.

Our code runs in a process of its own whose loader finds the emulated library first, as on a real
node; nothing of ours is replaced. `systemctl` is a small script, for a test machine has its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(REPOSITORY / "tests/rack/nvml"))

import emulator  # noqa: E402

LIBRARY = REPOSITORY / ".rack/nvml/libnvidia-ml.so.1"
EMULATOR = REPOSITORY / "tests/rack/nvml/emulator.py"
AGENT = REPOSITORY / "roles/node_agent/files/agent.py"

# The interpreter that runs the node's side. CI names older ones here; pynvml is then found by PYTHONPATH.
NODE_PYTHON = os.environ.get("STEADYRACK_NODE_PYTHON", sys.executable)

SLOTS = ("0000:31:00.0", "0000:4b:00.0", "0000:b1:00.0", "0000:ca:00.0")

# No such unit: then NVML's own setter owns persistence.
NO_UNITS = "#!/bin/sh\necho LoadState=not-found\necho ActiveState=inactive\n"

# Stands in for Ansible calling a module: arguments in, the JSON of exit_json or fail_json out.
MODULE_RUNNER = """
import json, sys
sys.path[:0] = [{library!r}]
import ansible.module_utils
ansible.module_utils.__path__.append({module_utils!r})
from ansible.module_utils.testing import patch_module_args
import {name} as module
module.ROOT = {root!r}
with patch_module_args(json.loads(sys.argv[1])):
    module.main()
"""

CALLER = """
import importlib, json, sys
sys.path[:0] = [{module_utils!r}]
module, _, name = sys.argv[1].partition(":")
value = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]), **json.loads(sys.argv[3]))
print(json.dumps(value))
"""


class GpuNode:
    """One emulated node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.programs = root / "test-programs"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("LC_", "ANSIBLE"))},
            "LD_LIBRARY_PATH": str(LIBRARY.parent),
            "NVML_EMULATOR_ROOT": str(root),
            "NVML_EMULATOR_LIB": str(LIBRARY),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
        }

    # --- the node ---

    def make(self, profile: str) -> None:
        """A node of this profile with its driver loaded."""
        self.emulator("init", "--profile", profile, "--host", "gpu-a1")
        self.emulator("tree")
        for place, tree in (("sys/bus/pci", "pci"), ("proc/driver", "driver")):
            (self.root / place).parent.mkdir(parents=True)
            (self.root / place).symlink_to(
                os.path.relpath(self.root / "run/nvml-emulator/tree" / tree, (self.root / place).parent)
            )
        self.program("systemctl", NO_UNITS)

    def emulator(self, *words: str) -> str:
        """Run the emulator's command, in this process: it only writes files, and a test calls it often."""
        told = io.StringIO()
        with mock.patch.dict(os.environ, NVML_EMULATOR_ROOT=str(self.root)), contextlib.redirect_stdout(told):
            status = emulator.main(list(words))
        assert status == 0, f"nvml-emulator {' '.join(words)}: exit status {status}"
        return told.getvalue().strip()

    def set(self, *assignments: str) -> None:
        """Change the state of the emulated driver."""
        self.emulator("set", *assignments)

    def get(self, key: str) -> str:
        """A value in force."""
        return self.emulator("get", key)

    def uuid(self, gpu: int) -> str:
        """The UUID of a GPU by its place in the profile."""
        return self.get(f"gpu.{gpu}.uuid")

    def reboot(self) -> None:
        """Everything below /run is gone; the driver comes up again."""
        for name in ("volatile", "clients"):
            (self.root / "run/nvml-emulator" / name).unlink(missing_ok=True)
        self.emulator("boot")

    def program(self, name: str, text: str) -> None:
        """Put a small program in front of PATH."""
        self.programs.mkdir(exist_ok=True)
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def stop(self) -> None:
        """End the stand-in for nvidia-persistenced, if a test's systemctl started it."""
        pid_file = self.root / "persistenced.pid"
        if pid_file.exists():
            os.kill(int(pid_file.read_text()), signal.SIGTERM)

    # --- our code on it ---

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call `module:function` of our package with plain data; plain data comes back."""
        code = CALLER.format(module_utils=str(REPOSITORY / "module_utils"))
        command = [NODE_PYTHON, "-c", code, function, json.dumps(arguments), json.dumps(options)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def read(self, **options: Any) -> Any:
        """NVML's record of the node, with the PCI bus's addresses at hand as the product does it."""
        return self.call("steadyrack.nvml:read_node", str(self.root), list(SLOTS), **options)

    def module(self, name: str, /, user: int | None = None, **arguments: Any) -> Any:
        """Run one of our modules; what it tells Ansible comes back."""
        code = MODULE_RUNNER.format(
            library=str(REPOSITORY / "library"),
            module_utils=str(REPOSITORY / "module_utils"),
            name=name,
            root=str(self.root),
        )
        command = [sys.executable, "-c", code, json.dumps(arguments)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=60, user=user
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def steadyrack(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The command."""
        # On a node package and pynvml lie beside the command; here they are where the repository has them.
        command = [NODE_PYTHON, str(AGENT), "--root", str(self.root), *words]
        path = os.pathsep.join([str(REPOSITORY / "module_utils"), self.environment.get("PYTHONPATH", "")])
        env = {**self.environment, "PYTHONPATH": path, **environment}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    def policy(self, value: Any) -> None:
        """Put a policy file on the node."""
        path = self.root / "etc/steadyrack/gpu_policy.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))


def policy(watts: float = 250, *more: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A policy that caps every GPU, with further cap rules and keys."""
    rules = [{"match": {"all": True}, "power_cap_w": watts}, *more]
    return {
        "version": 1, "persistence_mode": True, "gpu_count": 4, "power_cap": rules,
        "link_width": [{"match": {"all": True}, "link_width": 16}], **others,
    }  # fmt: skip
