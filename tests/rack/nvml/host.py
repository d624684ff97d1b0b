"""An emulated host below a directory, for the emulator's own tests: state changed in this process, pynvml in its own.

Not installed on hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))

import pynvml

import emulator
import statefiles

REPOSITORY = HERE.parents[2]
LIBRARY = Path(os.environ.get("NVML_EMULATOR_LIB") or REPOSITORY / ".rack/nvml/libnvidia-ml.so.1")

PRELUDE = """
import json, os, sys, time
import pynvml as p

def call(function, *arguments):
    "What the binding returns, or {'error': code}."
    try:
        value = getattr(p, function)(*arguments)
    except p.NVMLError as error:
        return {"error": error.value}
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "_length_"):
        return list(value)
    if hasattr(value, "_fields_"):
        return {name: getattr(value, name) for name, *_ in value._fields_}
    return value

def gpu(index):
    return p.nvmlDeviceGetHandleByIndex(index)

def get(name, index, *arguments):
    return call("nvmlDeviceGet" + name, gpu(index), *arguments)

def put(name, index, *arguments):
    return call("nvmlDeviceSet" + name, gpu(index), *arguments)

def show(value):
    print(json.dumps(value, default=str), flush=True)
"""


class EmulatedHost:
    """State, command and NVML clients of one host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LC_")},
            "LD_LIBRARY_PATH": str(LIBRARY.parent),
            "NVML_EMULATOR_ROOT": str(root),
            "NVML_EMULATOR_LIB": str(LIBRARY),
            "PYTHONPATH": str(Path(pynvml.__file__).parent),
        }

    def command(self, *words: str) -> int:
        """nvml-emulator WORDS, in this process: NVML_EMULATOR_ROOT is set for the moment only."""
        before = os.environ.get("NVML_EMULATOR_ROOT")
        os.environ["NVML_EMULATOR_ROOT"] = str(self.root)
        try:
            return emulator.main(words)
        finally:
            if before is None:
                del os.environ["NVML_EMULATOR_ROOT"]
            else:
                os.environ["NVML_EMULATOR_ROOT"] = before

    def set(self, *assignments: str) -> None:
        assert self.command("set", *assignments) == 0

    @property
    def identity(self) -> dict[str, str]:
        return statefiles.read(self.root / "var/lib/nvml-emulator/identity")

    @property
    def volatile(self) -> dict[str, str]:
        return statefiles.read(self.root / "run/nvml-emulator/volatile")

    def client(self, code: str) -> subprocess.Popen[str]:
        """Start a process that has pynvml as `p` and runs `code`; what it shows is JSON, a line each."""
        # -S: without it a third of the time goes into looking for installed packages.
        command = [sys.executable, "-S", "-c", f"{PRELUDE}\n{code}"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)  # type: ignore[call-overload]

    def ask(self, code: str, init: bool = True) -> Any:
        """Run `code` in an NVML client; the value of its last show()."""
        process = self.client(f"p.nvmlInit()\n{code}" if init else code)
        out, error = process.communicate(timeout=30)
        assert process.returncode == 0, error
        return json.loads(out.splitlines()[-1])

    def read(self, function: str, index: int = 0, *arguments: Any) -> Any:
        """One function of one GPU; {"error": code} when it fails."""
        words = "".join(f", {argument!r}" for argument in arguments)
        return self.ask(f"show(call({function!r}, gpu({index}){words}))")

    def tree(self, name: str) -> Path:
        return self.root / "run/nvml-emulator/tree" / name
