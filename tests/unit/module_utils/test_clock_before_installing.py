"""A clock that is hours off before anything is downloaded: named, left, or set. The kernel's clock is never touched
here: ``clock_settime`` itself is replaced."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack.chrony_apply import Paths, clock_before_installing
from ansible.module_utils.steadyrack.errors import AccessError, InputError

BEHIND, AHEAD = 7200.0, -7200.0  # how far the controller is before this clock, seconds


class Kernel:
    """What was asked of it; it may refuse."""

    def __init__(self) -> None:
        self.set_to: list[float] = []
        self.refuses = False

    def clock_settime(self, clock: int, seconds: float) -> None:
        assert clock == time.CLOCK_REALTIME
        if self.refuses:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        self.set_to.append(seconds)


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(time, "clock_settime", kernel.clock_settime)
    return kernel


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "proc/1/fd").mkdir(parents=True)
    return Paths(root=str(tmp_path))


def look(paths: Paths, off_s: float | None, consent: bool | None = None) -> tuple[list[str], list[str]]:
    """What was done, and the warnings."""
    values = {"controller_epoch": None if off_s is None else time.time() + off_s, "set_clock": consent}
    result: dict[str, Any] = {"warnings": []}
    return clock_before_installing(values, paths, result), result["warnings"]


@pytest.mark.parametrize("off_s", [None, 0.0, 3500.0, -3500.0])
@pytest.mark.parametrize("consent", [None, True, False])
def test_a_clock_that_hinders_nothing_is_left(
    off_s: float | None, consent: bool | None, paths: Paths, kernel: Kernel
) -> None:
    assert look(paths, off_s, consent) == ([], [])
    assert kernel.set_to == []


@pytest.mark.parametrize(("off_s", "seen"), [(BEHIND, "2.0 h behind"), (AHEAD, "2.0 h ahead of")])
def test_without_a_word_of_consent_it_is_named_and_nothing_is_done(
    off_s: float, seen: str, paths: Paths, kernel: Kernel
) -> None:
    with pytest.raises(InputError) as caught:
        look(paths, off_s)
    assert caught.value.seen == f"{seen} the controller's"
    assert "time_sync_set_clock=true" in caught.value.next_step
    assert kernel.set_to == []


@pytest.mark.parametrize(("off_s", "seen"), [(BEHIND, "2.0 h behind"), (AHEAD, "2.0 h ahead of")])
def test_where_it_may_not_be_set_the_installation_goes_on_with_a_warning(
    off_s: float, seen: str, paths: Paths, kernel: Kernel
) -> None:
    done, (warning,) = look(paths, off_s, False)
    assert done == []
    assert f"{seen} the controller's; downloads may be refused" in warning
    assert kernel.set_to == []


@pytest.mark.parametrize(("off_s", "seen"), [(BEHIND, "2.0 h behind"), (AHEAD, "2.0 h ahead of")])
def test_with_consent_and_no_job_it_is_set_to_the_controllers(
    off_s: float, seen: str, paths: Paths, kernel: Kernel
) -> None:
    done, warnings = look(paths, off_s, True)
    assert (done, warnings) == ([f"set the clock: it was {seen} the controller's"], [])
    assert kernel.set_to == [pytest.approx(time.time() + off_s, abs=60)]


def test_it_is_not_set_under_a_job(paths: Paths, kernel: Kernel) -> None:
    job = Path(paths.root, "proc/77/fd")
    job.mkdir(parents=True)
    (job / "5").symlink_to("/dev/nvidia-uvm")
    with pytest.raises(InputError) as caught:
        look(paths, BEHIND, True)
    assert "process 77 uses a GPU" in caught.value.seen
    assert "drain this node" in caught.value.next_step
    assert kernel.set_to == []


def test_nor_where_nobody_can_tell_whether_a_job_runs(paths: Paths, kernel: Kernel) -> None:
    Path(paths.root, "proc/1/fd").rmdir()
    Path(paths.root, "proc/1").rmdir()
    Path(paths.root, "proc").rmdir()
    with pytest.raises(InputError) as caught:
        look(paths, AHEAD, True)
    assert "unknown whether a job runs" in caught.value.seen
    assert kernel.set_to == []


def test_a_kernel_that_refuses_is_an_error_with_a_next_step(paths: Paths, kernel: Kernel) -> None:
    """As in a container without CAP_SYS_TIME."""
    kernel.refuses = True
    with pytest.raises(AccessError) as caught:
        look(paths, BEHIND, True)
    assert (caught.value.seen, caught.value.wanted) == ("Operation not permitted", "CAP_SYS_TIME")
    assert "on the machine itself" in caught.value.next_step
