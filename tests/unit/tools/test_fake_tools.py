"""The tests' own stand-ins for a node's tools, from a checkout and an interpreter whose paths have blanks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack.run import run
from fake_chronyd import FakeChronyd
from fake_nft import FakeNft
from fake_node import FakeNode


def test_they_run_where_paths_have_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of #! ends at the first blank: every test of a module failed in such a checkout."""
    place = tmp_path / "a place"
    place.mkdir()
    (place / "the python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(place / "the python"))
    (place / "node").mkdir()
    node = FakeNode(place / "node")
    monkeypatch.setenv("PATH", str(node.bin), prepend=":")
    node.set_units({"a.service": {"active": "active"}, "chrony.service": {"active": "active"}})
    FakeChronyd(node, place / "chrony.conf", place)
    nft = FakeNft(node)
    nft.edit("table inet t {\n}\n")
    node.answers("getent", "an answer\n")
    assert "ActiveState=active" in run(["systemctl", "show", "--property=ActiveState", "a.service"]).out
    assert run(["nft", "list", "table", "inet", "t"]).out == "table inet t {\n}\n"
    assert run(["unshare", "--net", "--", "sh", "-c", 'echo "$FAKE_SCRATCH"']).out.startswith(f"{node.root}/scratch.")
    assert run(["chronyc", "-c", "tracking"]).rc == 0
    assert run(["getent", "x"]).out == "an answer\n"
    assert run(["systemd-run", "--", "true"]).rc == 0
    assert nft.timer.read_text() == "--\ntrue\n"
    asked = node.calls()
    assert {call.split()[0] for call in asked} == {"systemctl", "nft", "getent", "systemd-run"}
