# SPDX-License-Identifier: BSD-2-Clause
"""Files that are whole or absent: atomic writes, and a lock where two writers can meet."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import hashlib
import json
import os
import pwd
import stat
import tempfile
import time
from typing import Any, Iterator

from .errors import AccessError, BusyError, InputError, StateFileError

# How long a writer waits for another one, and how often it looks, in seconds. One pass over the
# GPUs of a node is bounded by nvml's deadlines, well below this.
LOCK_WAIT_S = 60.0
LOCK_LOOK_S = 0.05
NULL_DEVICE = os.makedev(1, 3)


def below(root: str, path: str) -> str:
    """An absolute path of the host, under the directory where its file systems begin ("/", or a tree of a test)."""
    return os.path.join(root, path.lstrip("/"))


def sha256(content: bytes) -> str:
    """The hex digest by which the controller and the node compare a file."""
    return hashlib.sha256(content).hexdigest()


def read_bytes(path: str) -> bytes | None:
    """The whole file, or None when there is none. No other failure is taken for absence.

    A pipe that nobody writes to must not be waited for, nor a device read for ever: only regular files are read,
    and /dev/null, to which systemd links what is masked.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            seen = os.fstat(descriptor)
            if not stat.S_ISREG(seen.st_mode) and (not stat.S_ISCHR(seen.st_mode) or seen.st_rdev != NULL_DEVICE):
                raise StateFileError(path, "not a regular file", "a readable file", "look at what stands in its place")
            with open(descriptor, "rb", closefd=False) as handle:
                return handle.read()
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise AccessError(path, f"not readable by uid {os.geteuid()}", "readable", "run it as root") from None
    except OSError as error:
        raise StateFileError(path, error.strerror, "a readable file", "look at the file and its disk") from error


def read_text(path: str) -> str | None:
    """Text of a small file without its last newline, None when absent (sysfs, /proc)."""
    content = read_bytes(path)
    return None if content is None else content.decode("utf-8", "replace").rstrip("\n")


def load_json(path: str) -> dict[str, Any] | None:
    """The JSON object in a file, None when absent; half a file or another shape is StateFileError."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        value = json.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise StateFileError(path, f"not JSON ({error})", "a whole JSON object", "write it again") from None
    if not isinstance(value, dict):
        raise StateFileError(path, type(value).__name__, "a JSON object", "write it again")
    return value


def dump_json(value: Any) -> bytes:
    """JSON that diffs well: sorted keys, two spaces, a newline at the end, any Unicode as it is."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def owner_id(name: str | None) -> int:
    """The uid of a user's name or number; -1 (leave as it is) for None."""
    return _number(name, "user", lambda known: pwd.getpwnam(known).pw_uid)


def group_id(name: str | None) -> int:
    """The gid of a group's name or number; -1 (leave as it is) for None."""
    return _number(name, "group", lambda known: grp.getgrnam(known).gr_gid)


def _number(name: str | None, kind: str, look_up: Any) -> int:
    if name is None:
        return -1
    if str(name).isdigit():
        return int(name)
    try:
        return int(look_up(name))
    except KeyError:
        raise InputError(
            f"{kind} {name}", f"no such {kind} on this host", "an existing one",
            "install the package that makes it, or name another",
        ) from None  # fmt: skip


def atomic_write(
    path: str, content: bytes, mode: int = 0o644, owner: str | None = None, group: str | None = None
) -> None:
    """Replace ``path`` by ``content`` so that every reader sees the old file or the new one, whole.

    A temporary beside it (hidden, ending in .tmp, so that directories read by suffix ignore it) gets
    content, mode and owner, is synced, renamed, and the directory is synced. A symbolic link at
    ``path`` is replaced, not followed. The directory must exist.
    """
    uid, gid = owner_id(owner), group_id(group)
    directory = os.path.dirname(os.path.abspath(path))
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=f".{os.path.basename(path)}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            if uid != -1 or gid != -1:
                os.fchown(handle.fileno(), uid, gid)
            # After chown, which clears set-id bits.
            os.fchmod(handle.fileno(), mode)
            os.fsync(handle.fileno())
        os.rename(temporary, path)
        temporary = None
        sync_directory(directory)
    except FileNotFoundError:
        raise StateFileError(path, f"no directory {directory}", "the directory", "create it first") from None
    except PermissionError as error:
        raise AccessError(path, error.strerror, "a writable file", "run it as root") from None
    except OSError as error:
        raise StateFileError(path, error.strerror, "a written file", "look at the disk (full? read-only?)") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def set_aside(path: str) -> None:
    """Give a damaged file another name, for whoever wants to know what was in it."""
    try:
        os.replace(path, path + ".unreadable")
    except OSError as error:
        raise StateFileError(path, error.strerror, "the damaged file set aside", "look at the disk") from None


def make_directory(path: str) -> None:
    """Make a directory and its parents; what is in the way is a typed error."""
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except PermissionError as error:
        raise AccessError(path, error.strerror, "a directory", "run it as root") from None
    except OSError as error:
        raise StateFileError(
            path, error.strerror, "a directory", "look at what stands in its place, and at the disk"
        ) from None


def sync_directory(directory: str) -> None:
    """Make a rename in ``directory`` survive a power cut; file systems that cannot are left alone."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Hold the lock file ``path`` (created with its directory) for the time of a ``with`` block.

    flock, so the kernel lets go when the holder dies. The holder's pid is written into the file, for
    the message of whoever waits in vain: BusyError after ``wait_s`` seconds.
    """
    make_directory(os.path.dirname(os.path.abspath(path)))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        raise AccessError(path, f"cannot be opened by uid {os.geteuid()}", "the lock", "run it as root") from None
    except OSError as error:
        raise StateFileError(path, error.strerror, "the lock", "look at the disk (full? read-only?)") from None
    try:
        _take(descriptor, path, wait_s)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: str, wait_s: float) -> None:
    """Take the lock or raise BusyError once ``wait_s`` seconds have passed."""
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise BusyError(
                    path, f"held by process {holder} for {wait_s:g} s", "the lock",
                    f"let that process end (ps -p {holder}), then run this again",
                ) from None  # fmt: skip
            time.sleep(LOCK_LOOK_S)
