"""An emulated host below a directory, for the emulator's own tests: state changed in this process, pynvml in its own.

Not installed on hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
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


SERVER = (
    PRELUDE
    + """
import traceback

for line in sys.stdin:
    request = json.loads(line)
    (out_read, out_write), (error_read, error_write) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(out_write, 1), os.dup2(error_write, 2)
        os.close(out_read), os.close(error_read)
        os.environ.update(request["environment"])
        code = 0
        try:
            exec(request["code"])
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    os.close(out_write), os.close(error_write)
    with open(out_read) as out, open(error_read) as error:
        answer = {"out": out.read(), "error": error.read()}
    answer["code"] = os.waitpid(pid, 0)[1]
    show(answer)
"""
)
"""Forks a client for each request: a process of its own that has not to import the binding again (50 ms each time)."""


@cache
def server() -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(LIBRARY.parent),
        "PYTHONPATH": str(Path(pynvml.__file__).parent),
    }
    command = [sys.executable, "-S", "-c", SERVER]
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


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
        request = {
            "environment": {"NVML_EMULATOR_ROOT": str(self.root)},
            "code": f"p.nvmlInit()\n{code}" if init else code,
        }
        process = server()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert answer["code"] == 0, answer["error"]
        return json.loads(answer["out"].splitlines()[-1])

    def read(self, function: str, index: int = 0, *arguments: Any) -> Any:
        """One function of one GPU; {"error": code} when it fails."""
        words = "".join(f", {argument!r}" for argument in arguments)
        return self.ask(f"show(call({function!r}, gpu({index}){words}))")

    def tree(self, name: str) -> Path:
        return self.root / "run/nvml-emulator/tree" / name
