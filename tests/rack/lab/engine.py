"""The container engine as it is on this machine: looked at, never asked of the user.

One generated containers.conf, named by CONTAINERS_CONF, holds every quirk; nothing else in the tree knows them.
Supported: rootful podman 4 or 5, crun or runc, cgroup v2 or a hybrid layout. A rootless engine cannot give the
containers fixed addresses that this machine reaches over SSH, and Docker neither runs systemd unprivileged nor
knows `--network name:ip=`, so both are refused with a sentence instead of failing half-way.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
from functools import cache
from pathlib import Path

from lab.paths import STATE
from lab.say import RackError, run

CONF = STATE / "containers.conf"
MINIMUM = (4, 0)


def podman_env() -> dict[str, str]:
    """The environment every podman call runs in; writes the configuration on first use."""
    if not CONF.exists():
        _write_conf(_runtimes()[0])
    return {"CONTAINERS_CONF": str(CONF)}


def podman(*words: str | Path, check: bool = True, timeout_s: float = 300, stdin: str | None = None) -> str:
    """Run podman and give back what it printed."""
    require_engine()
    return run(["podman", *words], check=check, env=podman_env(), timeout_s=timeout_s, stdin=stdin).stdout.strip()


@cache
def require_engine() -> None:
    """Raise RackError, naming what is supported, unless rootful podman >= 4 is at hand."""
    if os.geteuid() != 0:
        raise RackError(
            "the demo rack needs root",
            f"running as uid {os.geteuid()}; a rootless engine cannot give containers addresses that SSH reaches",
            "run it as root (sudo ./rack ...), or on a throw-away virtual machine",
        )
    if shutil.which("podman") is None:
        found = "Docker is here, podman is not" if shutil.which("docker") else "podman is not installed"
        raise RackError(
            "the demo rack needs podman 4 or newer", found, "./rack setup (Debian, Ubuntu), or install podman"
        )
    text = run(["podman", "--version"]).stdout
    match = re.search(r"(\d+)\.(\d+)", text)
    if not match or (int(match[1]), int(match[2])) < MINIMUM:
        raise RackError("the demo rack needs podman 4 or newer", text)


def cgroup_v2() -> bool:
    """True where the unified hierarchy is the only one."""
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


def _runtimes() -> list[str]:
    """OCI runtimes in the order to try: crun is faster, but boots systemd only on a pure cgroup v2 layout."""
    order = ["crun", "runc"] if cgroup_v2() else ["runc", "crun"]
    present = [name for name in order if shutil.which(name)]
    if not present:
        raise RackError("no OCI runtime", "neither crun nor runc is installed", "./rack setup")
    return present


def _hard_limit(which: int, wanted: int) -> int:
    """`wanted`, or this process's hard limit where that is lower: without CAP_SYS_RESOURCE a higher one is refused."""
    hard = resource.getrlimit(which)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _write_conf(runtime: str) -> None:
    # 16384 is plenty for a host of the demo; more was refused by runc here although the hard limit allowed it.
    nofile, nproc = _hard_limit(resource.RLIMIT_NOFILE, 16384), _hard_limit(resource.RLIMIT_NPROC, 16384)
    systemd = Path("/run/systemd/system").is_dir() and cgroup_v2()
    CONF.parent.mkdir(parents=True, exist_ok=True)
    text = (
        "# Written by ./rack from what this machine is. Delete it after an upgrade of podman or the kernel.\n"
        "[containers]\n"
        f'default_ulimits = ["nofile={nofile}:{nofile}", "nproc={nproc}:{nproc}"]\n'
        "pids_limit = 0\n"
        'log_driver = "k8s-file"\n'
        "[engine]\n"
        f'runtime = "{runtime}"\n'
        f'cgroup_manager = "{"systemd" if systemd else "cgroupfs"}"\n'
        'events_logger = "file"\n'
    )
    temporary = CONF.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.rename(CONF)


def settle_runtime(image: str) -> str:
    """Choose the first runtime that really starts a container of `image`; return its name.

    Looking beats a table: which of the two works depends on kernel, cgroup layout and podman together.
    """
    failures = []
    for runtime in _runtimes():
        _write_conf(runtime)
        words = ["podman", "run", "--rm", "--pull=never", "--network=none", image, "/bin/true"]
        done = run(words, check=False, env=podman_env(), timeout_s=60)
        if done.returncode == 0:
            return runtime
        failures.append(f"{runtime}: {done.stderr.strip()[-300:]}")
    CONF.unlink(missing_ok=True)
    raise RackError("podman cannot start a container here", "\n".join(failures), "try `podman run` by hand as root")
