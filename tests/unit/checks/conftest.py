"""Fixtures for the tests of tests/checks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2] / "checks")]

from recorded_rack import Rack  # noqa: E402


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A rack without hosts yet."""
    return Rack(tmp_path / "rack")


def pytest_configure(config: pytest.Config) -> None:
    """The markers of tests/checks, for tests that import one of its files."""
    for marker in ("groups", "check"):
        config.addinivalue_line("markers", f"{marker}(*names): of tests/checks")
