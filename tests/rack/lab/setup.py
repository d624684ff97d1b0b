"""Everything a machine needs before the first rack: system packages, then a locked virtual environment.

What is missing is named before it is installed. Nothing is installed where the package manager is not apt or the
caller is not root: then the words to type are printed instead.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from lab.paths import ROOT, STATE
from lab.say import RackError, run, step

VENV = STATE / "venv"
COMMANDS = {
    "podman": "podman",
    "mmdebstrap": "mmdebstrap",
    "iptables": "iptables",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "git": "git",
}
"""Command looked for, package that brings it (Debian and Ubuntu call them the same)."""
NETAVARK = [Path("/usr/lib/podman/netavark"), Path("/usr/libexec/podman/netavark")]
VM_COMMANDS = {"qemu-system-x86_64": "qemu-system-x86", "debugfs": "e2fsprogs", "mkfs.ext4": "e2fsprogs"}


def missing_packages(commands: dict[str, str] = COMMANDS) -> list[str]:
    """Names of the packages to install, in a stable order; [] when all is there."""
    wanted = [package for command, package in commands.items() if shutil.which(command) is None]
    if commands is COMMANDS:
        if not (shutil.which("runc") or shutil.which("crun")):
            wanted.append("crun" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "runc")
        elif not Path("/sys/fs/cgroup/cgroup.controllers").exists() and not shutil.which("runc"):
            wanted.append("runc")  # crun boots systemd on cgroup v2 only
        if not any(path.exists() for path in NETAVARK):
            wanted.append("netavark")
        if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
            wanted.append("debian-archive-keyring")
        if importlib.util.find_spec("ensurepip") is None:
            wanted.append("python3-venv")
    return list(dict.fromkeys(wanted))


def install(packages: list[str], commands: dict[str, str] = COMMANDS) -> None:
    """Install Debian packages after saying which; explain instead where that is not ours to do.

    `commands` is what they were missing from (see missing_packages): looked at once more afterwards.
    """
    if not packages:
        return
    command = "apt-get install --no-install-recommends " + " ".join(packages)
    if shutil.which("apt-get") is None:
        raise RackError(
            "packages are missing and this machine has no apt",
            " ".join(packages),
            "install them with this machine's own package manager",
        )
    if os.geteuid() != 0:
        raise RackError(
            "packages are missing and only root can install them",
            " ".join(packages),
            f"as root: {command}   (the demo rack needs root anyway: sudo ./rack demo)",
        )
    step("installing system packages: " + " ".join(packages))
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    words = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
    if run([*words, "install", "-y", "--no-install-recommends", "--", *packages], check=False, env=quiet).returncode:
        run([*words, "update"], env=quiet)
        run([*words, "install", "-y", "--no-install-recommends", "--", *packages], env=quiet)
    still = [name for name in packages if name in missing_packages(commands)]
    if still:
        raise RackError(
            "installed, and still not found", " ".join(still), "look at: apt-get install " + " ".join(still)
        )


def python(dev: bool = False, venv: Path = VENV, interpreter: str = sys.executable) -> Path:
    """The Python of the locked environment; makes or refreshes it when the lock has changed.

    `dev` adds what tests and linters need. A stamp is written last, so an aborted installation is done again.
    """
    lock = ROOT / ("requirements-dev.txt" if dev else "requirements.txt")
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    stamp = venv / f"installed-{'dev' if dev else 'run'}"
    binary = venv / "bin" / "python"
    if stamp.exists() and stamp.read_text() == digest and binary.exists():
        return binary
    if not binary.exists() or run([binary, "-m", "pip", "--version"], check=False).returncode != 0:
        shutil.rmtree(venv, ignore_errors=True)
        step(f"virtual environment {venv.relative_to(ROOT)}")
        run([interpreter, "-m", "venv", venv])
    step(f"installing what {lock.name} locks (about 20 s)")
    run(
        [binary, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--require-hashes", "-r", lock],
        timeout_s=900,
    )
    _refuse_shadow(binary)
    stamp.write_text(digest)
    return binary


def _refuse_shadow(binary: Path) -> None:
    """The module `pynvml` must be nvidia-ml-py's single file; an old package of that name lacks newer calls."""
    found = run([binary, "-c", "import pynvml; print(pynvml.__file__)"]).stdout.strip()
    if not found.endswith("pynvml.py"):
        raise RackError(
            "an old package `pynvml` shadows nvidia-ml-py",
            found,
            f"{binary} -m pip uninstall pynvml, then run this again",
        )


def tool(name: str, venv: Path = VENV) -> Path:
    """A program of the locked environment."""
    return venv / "bin" / name


def environment(venv: Path = VENV) -> dict[str, str]:
    """What a program of the locked environment must see: its own bin first, and this checkout's ansible.cfg."""
    return {
        "PATH": f"{venv / 'bin'}:{os.environ.get('PATH', '')}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "VIRTUAL_ENV": str(venv),
    }


def lock() -> None:
    """Write both requirements*.txt anew from their .in files (needs the package index)."""
    binary = python(dev=False)
    run([binary, "-m", "pip", "--quiet", "install", "uv"])
    for name in ("requirements-dev", "requirements"):
        extra = ["--constraint", "requirements-dev.txt"] if name == "requirements" else []
        run(
            [
                tool("uv"),
                "pip",
                "compile",
                "--quiet",
                "--universal",
                "--generate-hashes",
                "--python-version",
                "3.11",
                "--no-emit-index-url",
                "--no-emit-find-links",
                "--custom-compile-command",
                "./rack lock",
                *extra,
                f"{name}.in",
                "--output-file",
                f"{name}.txt",
            ],
            cwd=ROOT,
            timeout_s=300,
        )


def setup(dev: bool = False) -> Path:
    """All of it; the Python of the locked environment."""
    install(missing_packages())
    return python(dev=dev)
