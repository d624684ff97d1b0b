"""library/time_curve.py through main()."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import time_curve
from conftest_report import UNTIL, answer, unreachable
from fake_node import run_module

__all__ = ["answer", "unreachable"]
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, answer: Any, unreachable: dict[str, Any]) -> Call:
    def run(check: bool = False, **changes: Any) -> dict[str, Any]:
        hosts = [answer("gpu-a1"), answer("gpu-a2", 50000.0), unreachable]
        given = {"hosts": hosts, "folder": str(tmp_path), "inventory": "demo", "end": UNTIL, "hours": 24, **changes}
        return run_module(time_curve, given, capsys, check)

    return run


def test_page_and_picture_are_written(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told = call()
    assert (told["page"], told["picture"]) == (str(tmp_path / "time.html"), str(tmp_path / "time.png"))
    assert "no data: unreachable (no route)" in (tmp_path / "time.html").read_text()
    assert (tmp_path / "time.png").read_bytes().startswith(b"\x89PNG")
    assert told["no_data"] == ["gpu-a9"]
    assert told["headline"][:2] == [
        "1 of 3 hosts: no data from gpu-a9",
        "1 of 3 hosts: above the alarm line now: gpu-a2",
    ]


def test_check_mode_writes_nothing(call: Call, tmp_path: Path) -> None:
    assert call(check=True)["headline"]
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_there_is_a_page_a_warning_and_no_old_picture(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "time.png").write_bytes(b"yesterday")
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == "matplotlib":
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest, **named)

    # On a node warnings are part of the result; where a test before this one has loaded the controller's code, they
    # would be shown instead.
    monkeypatch.setattr("ansible.module_utils._internal.is_controller", False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    told = call()
    assert told["picture"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["time.html"]
    assert "requirements.txt" in str(told["warnings"])


def test_a_folder_that_is_not_there_is_an_error(call: Call, tmp_path: Path) -> None:
    told = call(folder=str(tmp_path / "none"))
    assert told["failed"]
    assert told["error"]["kind"] == "StateFileError"
