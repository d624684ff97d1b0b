"""What runs on a node needs the standard library and pynvml, and nothing that only the controller has."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
# Runs on the controller, delegated to localhost.
CONTROLLER = {"library/time_curve.py"}
FOLDERS = ("library", "module_utils/steadyrack", "roles")
ALLOWED = {*sys.stdlib_module_names, "pynvml", "steadyrack"}
SOURCES = sorted(
    path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")
    if str(path.relative_to(REPOSITORY)) not in CONTROLLER
)  # fmt: skip


def imported(text: str) -> set[str]:
    """Every absolute import of a source, wherever it stands in it."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def foreign(names: set[str]) -> set[str]:
    """What of it a node does not have."""
    bad = {name for name in names if name.split(".")[0] not in ALLOWED | {"ansible"}}
    utils = "ansible.module_utils"
    for name in (one for one in names if one.split(".")[0] == "ansible"):
        if not name.startswith(f"{utils}.") or name.startswith(f"{utils}.steadyrack_report"):
            bad.add(name)
    return bad


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_only_what_a_node_has(path: Path) -> None:
    assert foreign(imported(path.read_text())) == set()


def test_the_guard_sees_what_it_is_for() -> None:
    assert len(SOURCES) > 20
    assert foreign(imported("def f():\n    import matplotlib.pyplot as p")) == {"matplotlib.pyplot"}
    assert foreign(imported("from ansible.module_utils.steadyrack_report import model"))
    assert foreign(imported((REPOSITORY / "library/time_curve.py").read_text()))


def test_the_drawing_is_not_among_the_files_that_go_to_a_node() -> None:
    import payload

    assert (payload.PACKAGE / "chrony_log.py").is_file()
    assert not list(payload.PACKAGE.rglob("*picture*"))
