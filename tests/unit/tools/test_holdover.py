"""tests/tools/holdover.py, and that docs/holdover.md has its table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def holdover() -> ModuleType:
    spec = importlib.util.spec_from_file_location("holdover", REPOSITORY / "tests/tools/holdover.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_residual_frequency_times_time(holdover: ModuleType) -> None:
    assert holdover.error_ms(3600, 1.0, 0) == pytest.approx(3.6)
    assert holdover.error_ms(3600, -1.0, 0) == pytest.approx(3.6)
    assert holdover.seconds_until(30, 10, 0) == pytest.approx(3000)


def test_wander_alone_grows_with_the_power_of_three_halves(holdover: ModuleType) -> None:
    one, four = (holdover.error_ms(seconds, 0, 1e-9) for seconds in (10000, 40000))
    assert four == pytest.approx(8 * one)
    assert holdover.error_ms(holdover.seconds_until(30, 1.7), 1.7) == pytest.approx(30)


def test_a_perfect_clock_and_no_limit(holdover: ModuleType) -> None:
    assert holdover.seconds_until(30, 0, 0) == float("inf")
    assert holdover.seconds_until(0, 1) == 0


@pytest.mark.parametrize(("seconds", "text"), [(13, "13 s"), (383, "6 min"), (16920, "4.7 h"), (302400, "3.5 d")])
def test_spans_in_words(seconds: float, text: str, holdover: ModuleType) -> None:
    assert holdover.span(seconds) == text


def test_the_document_has_this_table(holdover: ModuleType) -> None:
    assert "\n".join(holdover.table()) in (REPOSITORY / "docs/holdover.md").read_text()
