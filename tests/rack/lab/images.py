"""Images of the demo hosts, made from the machine's own Debian mirror: no image registry is ever asked.

Two layers. The base is mmdebstrap's (slow, keyed by its recipe), the top adds what makes it a rack host (fast,
keyed by the files in tests/rack/image and tests/rack/nvml). Both live in podman's storage under names that carry
the hash, so a second clone finds them, a changed recipe makes a new one and an interrupted build leaves nothing
that could be taken for a finished one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shlex import quote

from lab import mirror
from lab.engine import cgroup_v2, podman, podman_env, settle_runtime
from lab.paths import LAB, NVML, STATE
from lab.say import RackError, run, step

SUITES = ("bookworm", "trixie")
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "systemd-timesyncd",
    "dbus",
    "python3",
    "python3-apt",
    "openssh-server",
    "iproute2",
    "procps",
    "kmod",
    "ca-certificates",
)
"""A freshly installed server and no more: chrony, squid and whatever else a role wants must come through the relay.
timesyncd is here because it is there on real hosts and must be put out of action."""
DPKG = (
    "force-unsafe-io",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
)
BUILDER_PACKAGES = ("gcc", "libc6-dev")
"""NVIDIA's nvml.h is taken out of Debian's non-free package by nvml/fetch-header.sh; it is never shipped."""
PREFIX = "localhost/steadyrack"


def digest_of(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:12]


LEFTOVERS = {"__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache"}
"""A linter run would otherwise make every image, and with it every host of a rack, anew."""


def tree(folder: Path) -> list[str | bytes]:
    """Names, modes and contents of the files below `folder`, in a stable order, without what tools leave there."""
    parts: list[str | bytes] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not LEFTOVERS & set(p.parts)):
        parts += [str(path.relative_to(folder)), oct(path.stat().st_mode & 0o111), path.read_bytes()]
    return parts


# Each name is computed once a process: an edit while a build runs must not make it look for another image.
@cache
def base_name(suite: str) -> str:
    return f"{PREFIX}-base:{suite}-{digest_of([suite, *PACKAGES, *DPKG, *mirror.lines(suite)])}"


@cache
def native_hash() -> str:
    scripts = [(LAB / "nvml" / name).read_bytes() for name in ("build.sh", "fetch-header.sh")]
    return digest_of(["bookworm", *BUILDER_PACKAGES, *scripts, *tree(LAB / "nvml" / "src"), *tree(LAB / "clock")])


@cache
def node_name(suite: str) -> str:
    parts = [base_name(suite), native_hash(), *tree(LAB / "nvml"), *tree(LAB / "image")]
    return f"{PREFIX}-node:{suite}-{digest_of(parts)}"


@cache
def outside_name(suite: str) -> str:
    trees = [*tree(LAB / "image"), *tree(LAB / "outside"), *tree(LAB / "clock")]
    return f"{PREFIX}-outside:{suite}-{digest_of([base_name(suite), *trees])}"


def exists(image: str) -> bool:
    return run(["podman", "image", "exists", image], check=False, env=podman_env()).returncode == 0


def build_all(suites: Iterable[str] = SUITES) -> None:
    """Make every image that is missing; the slow parts side by side."""
    suites = tuple(suites)
    wanted_base = [suite for suite in suites if not exists(node_name(suite)) and not exists(base_name(suite))]
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(_build_base, suite) for suite in wanted_base]
        jobs.append(pool.submit(build_native))
        for job in jobs:
            job.result()
    for suite in suites:
        if not exists(node_name(suite)):
            _build_node(suite)
    if not exists(outside_name("bookworm")):
        _build_outside("bookworm")


def mmdebstrap(suite: str, target: Path, words: list[str], components: str = "main") -> None:
    run(
        ["mmdebstrap", "--mode=root", "--quiet", *words, suite, target, *mirror.lines(suite, components)], timeout_s=900
    )


def _build_base(suite: str) -> None:
    image = base_name(suite)
    step(f"image: Debian {suite} from this machine's mirror (about half a minute)")
    with workdir() as folder:
        tar = folder / "base.tar"
        options = [f"--dpkgopt={line}" for line in DPKG]
        # Host keys and the machine id belong to a host, not to an image.
        hook = 'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id && : > "$1"/etc/machine-id'
        mmdebstrap(
            suite,
            tar,
            ["--variant=minbase", f"--include={','.join(PACKAGES)}", *options, f"--customize-hook={hook}"],
        )
        podman("import", "--quiet", tar, image)
    step(f"image: {suite} base is there")


def build_native(force: bool = False) -> None:
    """Compile the NVML emulator and the bendable clock in a Debian 12 chroot; keep the results in .rack/nvml.

    One build serves both suites (glibc is compatible upwards) and the unit tests on this machine.
    """
    stamp = NVML / "built"
    if not force and stamp.exists() and stamp.read_text() == native_hash():
        return
    step("image: compiling the NVML emulator (NVIDIA's header comes from Debian non-free)")
    with workdir() as folder:
        out = folder / "out"
        out.mkdir()
        build = (
            "mkdir /root/out && sh /root/nvml/fetch-header.sh /root/include"
            " && sh /root/nvml/build.sh /root/include /root/out"
            " && gcc -Wall -Wextra -Werror -O2 -shared -fPIC -o /root/out/libbentclock.so /root/clock/bentclock.c -ldl"
        )
        hooks = [
            f"--customize-hook=copy-in {quote(str(LAB / 'nvml'))} {quote(str(LAB / 'clock'))} /root",
            f'--customize-hook=chroot "$1" sh -c "{build}"',
            f"--customize-hook=sync-out /root/out {quote(str(out))}",
        ]
        words = ["--variant=apt", "--format=null", f"--include={','.join(BUILDER_PACKAGES)}", *hooks]
        mmdebstrap("bookworm", Path("/dev/null"), words)
        for name in ("libnvidia-ml.so.1", "libbentclock.so"):
            if not (out / name).exists():
                raise RackError(f"{name} was not built", ", ".join(sorted(p.name for p in out.iterdir())))
        NVML.mkdir(parents=True, exist_ok=True)
        for path in out.iterdir():
            temporary = NVML / f".{path.name}.{os.getpid()}"
            shutil.copy2(path, temporary)
            temporary.rename(NVML / path.name)
        stamp.write_text(native_hash())
    step("image: the NVML emulator is there")


def _build_node(suite: str) -> None:
    step(f"image: rack host on {suite}")
    with workdir() as folder:
        run(["cp", "-a", LAB / "image", folder / "tree"])
        run(["sh", LAB / "nvml" / "install.sh", folder / "tree", NVML])
        library = folder / "tree" / "usr" / "lib" / "demo-rack" / "libbentclock.so"  # for `./rack fault skew`
        library.parent.mkdir(parents=True)
        shutil.copy2(NVML / library.name, library)
        _layer(
            node_name(suite),
            base_name(suite),
            folder,
            "ldconfig && systemctl enable ssh.service steadyrack-demo-boot-id.service",
        )


def _build_outside(suite: str) -> None:
    step("image: the world outside (four upstream time servers, a webhook)")
    with workdir() as folder:
        run(["cp", "-a", LAB / "image", folder / "tree"])
        run(["cp", "-a", f"{LAB / 'outside'}/.", folder / "tree"])
        shutil.copy2(NVML / "libbentclock.so", folder / "tree" / "usr" / "lib" / "upstream-clocks")
        _layer(
            outside_name(suite),
            base_name(suite),
            folder,
            "apt-get -q update && apt-get install -qy --no-install-recommends chrony nftables && apt-get clean"
            " && rm -rf /var/lib/apt/lists/* && systemctl mask chrony.service"
            " && systemctl enable ssh.service steadyrack-demo-boot-id.service upstream-clocks.service webhook.service",
        )


def _layer(image: str, base: str, folder: Path, command: str) -> None:
    """`image` = `base` + the files in folder/tree + what `command` does."""
    (folder / "Containerfile").write_text(f"FROM {base}\nCOPY tree/ /\nRUN {command}\n")
    words = ["--quiet", "--pull=never", "--network=host", "--tag", image]
    podman("build", *words, folder, timeout_s=600)


def settle(suites: Iterable[str] = SUITES) -> None:
    """Images and a runtime that starts them: everything a rack needs before its first container."""
    suites = tuple(suites)
    build_all(suites)
    runtime = settle_runtime(node_name(suites[0]))
    step(f"engine: {podman('--version')}, {runtime}, {'cgroup v2' if cgroup_v2() else 'hybrid cgroups'}")


def purge() -> None:
    """Remove every image this tool has made, of this and of older recipes."""
    for line in podman("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines():
        if line.startswith(PREFIX + "-"):
            podman("rmi", "--force", line, check=False)


@contextmanager
def workdir() -> Iterator[Path]:
    """A temporary folder under .rack/, gone afterwards; leftovers of a killed run are swept when one is made."""
    parent = STATE / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob("build-*"):
        owner = old.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(old, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f"build-{os.getpid()}-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
