"""docs/checks.md has an entry for every check id that our code can put into a row, and for no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCES = ("module_utils/steadyrack", "library", "filter_plugins", "roles", "tests/checks")
ID = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
ENTRY = re.compile(r"^### `([^`]+)`$", re.MULTILINE)
PARTS = ("**Producer**", "**Source**", "**Threshold**", "| state | verdict | means |", "**3 a.m.**")


def makes_a_row(call: ast.Call) -> bool:
    """A call of check_row, row, judged or the marker check, by whatever way the name is reached."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("check_row", "row", "judged", "check")


def texts(node: ast.AST) -> list[str]:
    """The texts of a constant or of a tuple of them."""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def ids_in(source: str) -> set[str]:
    """The ids that the calls in this text give to rows: written out, by a constant, or by a loop over a tuple."""
    nodes = list(ast.walk(ast.parse(source)))
    named: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            pairs: Iterable[tuple[ast.AST, ast.AST]] = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.comprehension, ast.For)):
            pairs = [(node.target, node.iter)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Name):
                named.setdefault(target.id, []).extend(texts(value))
    found: set[str] = set()
    for call in nodes:
        if isinstance(call, ast.Call) and makes_a_row(call):
            given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "id")]
            for value in given:
                found.update(named.get(value.id, []) if isinstance(value, ast.Name) else texts(value))
    return {text for text in found if ID.fullmatch(text)}


def python_files() -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def findings(in_code: Iterable[str], document: str) -> list[str]:
    """What is wrong with the document, one sentence each."""
    entries, known = ENTRY.findall(document), set(in_code)
    found = [f"{name} has no entry" for name in sorted(known - set(entries))]
    found += [f"{name} has an entry and no code" for name in sorted(set(entries) - known)]
    found += [f"{name} has {entries.count(name)} entries" for name in sorted(set(entries)) if entries.count(name) > 1]
    bodies = re.split(r"^#{2,3} .*$", document, flags=re.MULTILINE)
    titles = re.findall(r"^#{2,3} (.*)$", document, re.MULTILINE)
    for title, body in zip(titles, bodies[1:], strict=True):
        if title.startswith("`"):
            found += [f"{title.strip('`')} does not say {part}" for part in PARTS if part not in body]
    return found


@pytest.fixture(scope="module")
def in_code() -> set[str]:
    return set().union(*(ids_in(path.read_text()) for path in python_files()))


def test_every_check_id_has_an_entry_and_every_entry_a_check(in_code):
    assert findings(in_code, (REPOSITORY / "docs" / "checks.md").read_text()) == []


def test_each_check_of_the_acceptance_run_is_among_the_ids_found(in_code):
    """The finder is not blind: markers are found by text here, and by syntax there."""
    text = "".join(path.read_text() for path in (REPOSITORY / "tests" / "checks").rglob("test_*.py"))
    marked = set(re.findall(r'mark\.check\("([^"]+)"\)', text))
    assert len(marked) >= 10
    assert marked <= in_code
    assert {"agent.checks", "service.unit", "package.relay_only"} <= in_code


# --- that these tests can fail -------------------------------------------------------------------

SAMPLE = """
CHECK = "disk.full"
FIELDS = {"power.draw_w": "nvml"}
verdict.check_row("gpu.count", host, PASS)
verdict.check_row(id="gpu.memory", subject=host)
rows = [row(name, host, UNKNOWN) for name in ("time.one", "time.two")]
judged(CHECK, host, True)
open("agent.py")
"""
WHOLE = "### `disk.full`\n\n" + "\n".join(PARTS) + "\n"


def test_ids_are_found_in_every_way_of_writing_them_and_other_dotted_words_are_not():
    assert ids_in(SAMPLE) == {"gpu.count", "gpu.memory", "time.one", "time.two", "disk.full"}


@pytest.mark.parametrize(
    ("ids", "document", "finding"),
    [
        ({"disk.full", "disk.slow"}, WHOLE, "disk.slow has no entry"),
        (set(), WHOLE, "disk.full has an entry and no code"),
        ({"disk.full"}, WHOLE + WHOLE, "disk.full has 2 entries"),
        ({"disk.full"}, WHOLE.replace("**3 a.m.**", ""), "disk.full does not say **3 a.m.**"),
        ({"disk.full"}, WHOLE, None),
    ],
)
def test_a_gap_in_the_document_is_a_finding(ids, document, finding):
    assert findings(ids, document) == ([] if finding is None else [finding])
