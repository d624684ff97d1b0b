"""A node with four emulated A100 for the tests of GPU code; see gpu_node.py."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_node import LIBRARY, GpuNode


@pytest.fixture(scope="session")
def gpu_templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A pristine node of a profile, made once for all tests."""
    made: dict[str, Path] = {}

    def template(profile: str) -> Path:
        if not LIBRARY.exists():
            pytest.skip("NVML emulator not built: run ./rack images")
        if profile not in made:
            made[profile] = tmp_path_factory.mktemp(profile)
            GpuNode(made[profile]).make(profile)
        return made[profile]

    return template


@pytest.fixture
def make_gpu_node(gpu_templates: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., GpuNode]]:
    """Make nodes of a profile below this test's directory."""
    nodes: list[GpuNode] = []

    def make(profile: str = "a100x4") -> GpuNode:
        root = tmp_path / f"node{len(nodes)}"
        shutil.copytree(gpu_templates(profile), root, symlinks=True)
        nodes.append(GpuNode(root))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()


@pytest.fixture
def gpu_node(make_gpu_node: Callable[..., GpuNode]) -> GpuNode:
    """A node with four healthy A100 80GB PCIe."""
    return make_gpu_node()
