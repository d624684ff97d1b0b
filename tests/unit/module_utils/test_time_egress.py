"""The leak counter: growth is a leak, absence is not zero."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import time_egress
from ansible.module_utils.steadyrack.time_egress import Record
from fake_node import FakeNode

NOW = 1_000_000.0
NOTE = {"version": 1, "mode": "client", "table": "steadyrack_ntp", "counters": ["ntp_egress"]}


def answer(packets: int) -> str:
    head = {"metainfo": {"version": "1.0.6", "json_schema_version": 1}}
    counter = {"family": "inet", "name": "ntp_egress", "table": "steadyrack_ntp", "handle": 2, "packets": packets}
    return json.dumps({"nftables": [head, {"counter": {**counter, "bytes": 76 * packets}}]})


def note(root: Path, **changes: object) -> None:
    path = root / time_egress.NOTE_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**NOTE, **changes}))


def judged(root: Path, record: Record | None) -> tuple[str, str | None, Record | None]:
    (row,), after = time_egress.rows("gpu-a1", str(root), NOW, record)
    return row["verdict"], row["state"], after


def test_without_the_firewalls_note_nothing_is_judged(node: FakeNode, tmp_path: Path) -> None:
    assert judged(tmp_path, None)[0] == "not_judged"


def test_a_relay_may_ask_outside(node: FakeNode, tmp_path: Path) -> None:
    note(tmp_path, mode="relay", counters=["ntp_foreign"])
    assert judged(tmp_path, None)[0] == "not_judged"


@pytest.mark.parametrize(
    ("record", "packets", "expected"),
    [
        (Record(0), 0, ("pass", "quiet")),
        (Record(7), 7, ("pass", "quiet")),  # long ago
        (Record(7), 8, ("fail", "leak")),
        (Record(7), 3, ("fail", "leak")),  # the counter began anew, and has counted since
        (Record(7), 0, ("pass", "quiet")),
        (Record(8, NOW - 60, 1), 8, ("fail", "leak")),  # it has not been quiet for long
        (Record(8, NOW - 700, 1), 8, ("pass", "quiet")),
        (Record(8, NOW + 86400, 1), 8, ("pass", "quiet")),  # the wall clock was set back: its age says nothing
        (None, 0, ("pass", "quiet")),
        (None, 5, ("unknown", "unrecorded")),
    ],
)
def test_growth_is_a_leak(
    node: FakeNode, tmp_path: Path, record: Record | None, packets: int, expected: tuple[str, str]
) -> None:
    note(tmp_path)
    node.answers("nft", answer(packets))
    assert judged(tmp_path, record)[:2] == expected


@pytest.mark.parametrize(
    ("out", "rc"),
    [
        ("", 1),
        ("gibberish", 0),
        ('{"nftables": []}', 0),
        ('{"nftables": [{"counter": {"name": "other", "packets": 1}}]}', 0),
        ('{"nftables": [{"counter": {"name": "ntp_egress", "packets": null}}]}', 0),
        ("[]", 0),
    ],
)
def test_a_counter_that_cannot_be_read_is_unknown_never_zero(node: FakeNode, tmp_path: Path, out: str, rc: int) -> None:
    note(tmp_path)
    node.answers("nft", out, rc, "Error: No such file or directory")
    assert judged(tmp_path, Record(0)) == ("unknown", "unreadable", None)


def test_the_record_comes_back_from_its_file_and_garbage_is_none(tmp_path: Path) -> None:
    (tmp_path / "var/lib/steadyrack").mkdir(parents=True)
    time_egress.save_record(Record(9, NOW, 2), str(tmp_path))
    assert time_egress.load_record(str(tmp_path)) == Record(9, NOW, 2)
    for text in ("{", '{"packets": "9", "grown": 0}', '{"packets": -1, "grown": 0}', "[]"):
        (tmp_path / time_egress.RECORD_PATH).write_text(text)
        assert time_egress.load_record(str(tmp_path)) is None
