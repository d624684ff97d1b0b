"""Where things are. Everything this tool makes lies under .rack/ in the checkout, or in podman's own storage."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LAB = ROOT / "tests" / "rack"
STATE = ROOT / ".rack"
"""Ignored by git: virtual environments, keys of the demo rack, logs, results."""
NVML = STATE / "nvml"
"""The emulator as built for the image, so that unit tests on this machine load the same file."""
