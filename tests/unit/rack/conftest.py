"""The tool behind ./rack is imported the way it runs: as the package `lab` below tests/rack."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "rack"))
