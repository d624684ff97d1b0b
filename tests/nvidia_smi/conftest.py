"""Hosts with NVIDIA's own nvidia-smi on the emulator: a throw-away container of each Debian release, gone afterwards.

The containers are made from the demo rack's node images and belong to no rack. systemd is not started in them: the
emulator's boot unit runs one command, which is run here, and NVIDIA's programs ask for no service.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pynvml
import pytest

from lab import images, mirror
from lab.engine import podman, podman_env
from lab.say import run

NAME = "steadyrack-smi"
OWNER = "steadyrack.smi.owner"
LIFE_S = 1800  # a container that nobody removes (SIGKILL) ends by itself, and is removed with that
COMPONENTS = "main contrib non-free non-free-firmware"
PYNVML = "/usr/lib/python3/dist-packages/pynvml.py"

READ = """
import json, pynvml as n
n.nvmlInit()
def gpu(h):
    pci, limits = n.nvmlDeviceGetPciInfo(h), n.nvmlDeviceGetPowerManagementLimitConstraints(h)
    return {
        "bus_id": pci.busId, "uuid": n.nvmlDeviceGetUUID(h), "serial": n.nvmlDeviceGetSerial(h),
        "name": n.nvmlDeviceGetName(h), "vbios": n.nvmlDeviceGetVbiosVersion(h),
        "inforom": n.nvmlDeviceGetInforomImageVersion(h), "part_number": n.nvmlDeviceGetBoardPartNumber(h),
        "persistence": bool(n.nvmlDeviceGetPersistenceMode(h)), "compute_mode": n.nvmlDeviceGetComputeMode(h),
        "temperature_c": n.nvmlDeviceGetTemperature(h, 0), "draw_w": n.nvmlDeviceGetPowerUsage(h) / 1000,
        "requested_w": n.nvmlDeviceGetPowerManagementLimit(h) / 1000,
        "enforced_w": n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
        "default_w": n.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000,
        "min_w": limits[0] / 1000, "max_w": limits[1] / 1000,
        "width": n.nvmlDeviceGetCurrPcieLinkWidth(h), "width_max": n.nvmlDeviceGetMaxPcieLinkWidth(h),
        "gen": n.nvmlDeviceGetCurrPcieLinkGeneration(h), "gen_max": n.nvmlDeviceGetMaxPcieLinkGeneration(h),
    }
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "gpus": [gpu(h) for h in handles]}))
"""
"""Runs in the container: every GPU as the unmodified pynvml sees it."""


class SmiHost:
    """One container with four emulated A100 and Debian's nvidia-smi."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.suite, self.folder = suite, folder
        self.name = f"{NAME}-{suite}-{os.getpid()}"

    def make(self) -> None:
        profile = self.folder / f"{self.suite}.conf"
        profile.write_text(f"PROFILE=a100x4\nHOST={NAME}-{self.suite}\n")
        podman(
            "run", "-d", "--rm", "--pull=never", "--name", self.name, "--hostname", f"{NAME}-{self.suite}",
            "--label", f"{OWNER}={os.getpid()}",
            "--cap-add", "SYS_ADMIN",  # the emulator binds its PCI tree over /sys/bus/pci
            "--volume", f"{profile}:/etc/nvml-emulator.conf:ro", "--volume", f"{pynvml.__file__}:{PYNVML}:ro",
            images.node_name(self.suite), "sleep", str(LIFE_S),
        )  # fmt: skip
        self.sh("nvml-emulator boot")
        self._write_sources()
        self.apt("update")
        self.apt("install", "nvidia-smi")

    def _write_sources(self) -> None:
        """The machine's own mirror with non-free; where that is no Debian's, what mmdebstrap chose for the image."""
        lines = mirror.lines(self.suite, COMPONENTS)
        if lines:
            podman("exec", "-i", self.name, "tee", "/etc/apt/sources.list", stdin="\n".join(lines) + "\n")
        else:
            self.sh(f"sed -i 's/ main$/ {COMPONENTS}/' /etc/apt/sources.list")

    def run(self, *words: str, user: str = "root", env: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """A command, whatever its exit status; what it printed is in `stdout`, errors in `stderr`."""
        flags = [f"--env={pair}" for pair in env]
        argv = ["podman", "exec", "--user", user, *flags, self.name, *words]
        return run(argv, check=False, env=podman_env(), timeout_s=120)

    def sh(self, text: str) -> str:
        """A command of the shell that must end well; what it printed."""
        done = self.run("sh", "-ec", text)
        assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
        return done.stdout

    def apt(self, *words: str) -> None:
        argv = ["apt-get", "-qy", "--no-install-recommends", *words]
        done = self.run(*argv, env=("DEBIAN_FRONTEND=noninteractive",))
        assert done.returncode == 0, f"{' '.join(argv)}: {(done.stdout + done.stderr)[-3000:]}"

    def smi(self, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        return self.run("nvidia-smi", *words, user=user)

    def emulator(self, *words: str) -> None:
        self.sh(f"nvml-emulator {' '.join(words)}")

    def nvml(self) -> dict[str, Any]:
        """`driver` and `gpus` as pynvml reads them now."""
        done = self.run("python3", "-c", READ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def remove(self) -> None:
        podman("rm", "-f", "-t", "0", "-i", self.name, check=False)


def _sweep() -> None:
    """Remove containers of runs that are no more; those of a run beside this one stay."""
    form = f'{{{{.Names}}}} {{{{index .Labels "{OWNER}"}}}}'
    for line in podman("ps", "-a", "--filter", f"label={OWNER}", "--format", form).splitlines():
        name, owner = line.split()
        if not Path(f"/proc/{owner}").exists():
            podman("rm", "-f", "-t", "0", "-i", name, check=False)


@pytest.fixture(scope="session")
def smi_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SmiHost]]:
    """A host of each release, made side by side; removed at the end, also when making one of them fails."""
    images.settle()
    _sweep()
    folder = tmp_path_factory.mktemp("smi")
    hosts = {suite: SmiHost(suite, folder) for suite in images.SUITES}
    try:
        with ThreadPoolExecutor() as pool:
            for job in [pool.submit(host.make) for host in hosts.values()]:
                job.result()
        yield hosts
    finally:
        for host in hosts.values():
            host.remove()


@pytest.fixture(params=images.SUITES)
def host(smi_hosts: dict[str, SmiHost], request: pytest.FixtureRequest) -> Iterator[SmiHost]:
    """One of the hosts, with healthy cards at their defaults and persistence off."""
    found = smi_hosts[request.param]
    yield found
    found.emulator("clear-faults")
    assert found.smi("-pm", "0").returncode == 0


@pytest.fixture
def kept(host: SmiHost) -> SmiHost:
    """The host with persistence on: what is set stays set between two clients."""
    assert host.smi("-pm", "1").returncode == 0
    return host
