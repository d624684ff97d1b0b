"""What a killed podman leaves behind: a network namespace, and perhaps a host in it, that no container owns.

Its address would answer beside that of the new container, and packets would go to one or the other. podman knows
nothing of it, so it is found by looking at the namespaces of this machine. Only what holds an address of our own
rack is touched, and only when podman has no container for it.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path

from lab.engine import podman
from lab.say import run, step

_CONTAINER = re.compile(r"libpod-([0-9a-f]{64})")


def sweep(addresses: Iterable[str]) -> None:
    """End hosts without a container, and remove namespaces without a host, that hold one of `addresses`."""
    wanted, known = set(addresses), set(podman("ps", "-aq", "--no-trunc").split())
    for number, (path, pids) in _namespaces().items():
        if number == Path("/proc/self/ns/net").stat().st_ino or not wanted & _addresses(path):
            continue
        owners = {match[1] for pid in pids for match in [_CONTAINER.search(_cgroup(pid))] if match}
        if owners & known or (pids and not owners):
            continue  # a container that podman knows, or processes that no podman started: not ours to end
        for pid in pids:
            step(f"ending process {pid}, left by a killed podman with {', '.join(sorted(wanted))}")
            _kill(pid)
        if path.parent == Path("/run/netns"):
            run(["umount", path], check=False)
            path.unlink(missing_ok=True)


def _namespaces() -> dict[int, tuple[Path, list[int]]]:
    """inode -> (a path to the network namespace, the processes in it)"""
    found: dict[int, tuple[Path, list[int]]] = {}
    for path in [*Path("/run/netns").glob("*"), *Path("/proc").glob("[0-9]*/ns/net")]:
        try:
            inode = path.stat().st_ino
        except OSError:
            continue  # the process has ended meanwhile
        _, pids = found.setdefault(inode, (path, []))
        if path.parts[1] == "proc":
            pids.append(int(path.parts[2]))
    return found


def _addresses(path: Path) -> set[str]:
    done = run(["nsenter", f"--net={path}", "ip", "-j", "-4", "address"], check=False)
    if done.returncode != 0:
        return set()
    return {entry["local"] for link in json.loads(done.stdout or "[]") for entry in link.get("addr_info", [])}


def _cgroup(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
