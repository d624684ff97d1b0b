"""The emulated driver's state files, for Python: the same files, locks and rules as src/state.h describes for C."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path
from typing import Iterator

LIFECYCLE = (
    "power_limit_mw", "compute_mode", "ecc_volatile_corrected", "ecc_volatile_uncorrected",
    "ecc_volatile_corrected_sram", "ecc_volatile_uncorrected_sram", "app_clock_graphics", "app_clock_mem",
    "locked_clock_graphics_min", "locked_clock_graphics_max", "locked_clock_mem_min", "locked_clock_mem_max",
)  # fmt: skip
"""What a GPU forgets when its last client leaves with persistence mode off."""

_GPU_KEY = re.compile(r"gpu\.(\d+|\*)\.(.+)")


def root() -> Path:
    """Where the host's file system begins; another place only in tests."""
    return Path(os.environ.get("NVML_EMULATOR_ROOT") or "/")


def identity_path() -> Path:
    return root() / "var/lib/nvml-emulator/identity"


def run_dir() -> Path:
    return root() / "run/nvml-emulator"


def volatile_path() -> Path:
    return run_dir() / "volatile"


def clients_path() -> Path:
    return run_dir() / "clients"


def parse(text: str) -> dict[str, str]:
    """`key=value` lines; comments and anything else are skipped. A later line wins."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return dict(pairs)


def read(path: Path) -> dict[str, str]:
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return {}


@contextlib.contextmanager
def update(path: Path) -> Iterator[dict[str, str]]:
    """Read-modify-write under the lock that the library takes too; an unchanged file is left alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        before = read(path)
        values = dict(before)
        yield values
        if values != before or not path.exists():
            temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            temporary.write_text("".join(f"{key}={values[key]}\n" for key in sorted(values)))
            temporary.chmod(0o644)
            temporary.rename(path)
    finally:
        os.close(fd)


def split_key(key: str) -> tuple[str | None, str]:
    """`gpu.3.lost` -> ("3", "lost"); `fault.nvmlInit` -> (None, "fault.nvmlInit")."""
    match = _GPU_KEY.fullmatch(key)
    return (match.group(1), match.group(2)) if match else (None, key)


class View:
    """What the host's state says now."""

    def __init__(self) -> None:
        self.identity = read(identity_path())
        self.volatile = read(volatile_path())

    def get(self, key: str) -> str | None:
        return self.volatile.get(key, self.identity.get(key))

    def gpu(self, gpu: int, key: str) -> str | None:
        for name in (f"gpu.{gpu}.{key}", f"gpu.*.{key}"):
            value = self.get(name)
            if value is not None:
                return value
        return None

    def gpu_int(self, gpu: int, key: str, default: int = 0) -> int:
        value = self.gpu(gpu, key)
        return int(value, 0) if value else default

    @property
    def count(self) -> int:
        return int(self.get("gpu_count") or 0)

    @property
    def driver_loaded(self) -> bool:
        return (self.get("driver_loaded") or "1") != "0"

    @property
    def module_version(self) -> str:
        return self.get("module_version") or self.get("driver_version") or "unknown"

    def flag(self, gpu: int, key: str) -> bool:
        return self.gpu_int(gpu, key) != 0


def epoch() -> str:
    """The library's count of "nobody was connected", as text; see src/state.h."""
    try:
        return clients_path().read_text().strip() or "0"
    except FileNotFoundError:
        return "0"


def set_lifecycle(values: dict[str, str], gpu: int, key: str, value: str | None) -> None:
    """Change one lifecycle value (or persistence mode) in the volatile file's values, as the library would."""
    persistent = values.get(f"gpu.{gpu}.persistence_mode", "0") != "0"
    if not persistent and values.get(f"gpu.{gpu}.epoch") != epoch():
        for stale in LIFECYCLE:
            values.pop(f"gpu.{gpu}.{stale}", None)
    if value is None:
        values.pop(f"gpu.{gpu}.{key}", None)
    else:
        values[f"gpu.{gpu}.{key}"] = value
    values[f"gpu.{gpu}.epoch"] = epoch()


def clients_connected() -> bool:
    """True while some process is an NVML client.

    Asking is connecting: whoever comes when nobody is there raises the epoch, exactly as the library does. A look that
    held the lock without raising it could hide from a client that starts meanwhile that nobody had been there.
    """
    try:
        fd = os.open(clients_path(), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(fd, f"{int(epoch()) + 1}\n".encode(), 0)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
