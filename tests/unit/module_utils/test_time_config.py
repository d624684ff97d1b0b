"""Chrony's files against the digests that the role noted: edits, losses, strangers, and what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import time_checks, time_config
from ansible.module_utils.steadyrack.files import sha256

CONF, FOLDER = "/etc/chrony/chrony.conf", "/etc/chrony/steadyrack.d"
SOURCES = f"{FOLDER}/steadyrack.sources"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Both files as the role left them, and the note's digests."""
    found = {}
    for path, text in ((CONF, "sourcedir /etc/chrony/steadyrack.d\n"), (SOURCES, "server 10.213.1.21 iburst\n")):
        place = tmp_path / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        found[path] = sha256(text.encode())
    return found


def row(files: dict[str, str], root: Path) -> dict[str, Any]:
    (found,) = time_config.rows("gpu-a1", files, str(root))
    assert (found["id"], found["subject"]) == ("time.config", "gpu-a1")
    return found


def test_files_as_written_pass(files: dict[str, str], tmp_path: Path) -> None:
    found = row(files, tmp_path)
    assert (found["verdict"], found["state"], found["measured"]) == ("pass", "ours", "2 files")
    assert found["source"] == f"{CONF}, {SOURCES}"


@pytest.mark.parametrize("path", [CONF, SOURCES])
def test_an_edit_of_one_letter_fails_and_is_named(path: str, files: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / path[1:]
    place.write_text(place.read_text() + "#")
    found = row(files, tmp_path)
    assert (found["verdict"], found["state"], found["reason"]) == ("fail", "edited", f"{path} was edited")
    assert "site.yml" in found["hint"]


def test_a_file_that_is_gone_fails(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / CONF[1:]).unlink()
    assert row(files, tmp_path)["reason"] == f"{CONF} is gone"


def test_a_directory_that_is_gone_is_its_files_loss(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / SOURCES[1:]).unlink()
    (tmp_path / FOLDER[1:]).rmdir()
    found = row(files, tmp_path)
    assert (found["verdict"], found["reason"]) == ("fail", f"{SOURCES} is gone")


def test_a_stranger_among_our_sources_fails_and_what_chronyd_does_not_read_does_not(
    files: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / FOLDER[1:] / "README").write_text("server 192.0.2.1\n")
    (tmp_path / "etc/chrony/pool.sources").write_text("pool pool.ntp.org\n")  # in a directory that is not read
    assert row(files, tmp_path)["verdict"] == "pass"
    (tmp_path / FOLDER[1:] / "dhcp.sources").write_text("server 192.0.2.1\n")
    found = row(files, tmp_path)
    assert (found["verdict"], found["reason"]) == ("fail", f"{FOLDER}/dhcp.sources is not ours")


def test_all_troubles_are_in_one_row(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / CONF[1:]).write_text("pool pool.ntp.org\n")
    (tmp_path / FOLDER[1:] / "a.sources").touch()
    assert row(files, tmp_path)["reason"] == f"{CONF} was edited; {FOLDER}/a.sources is not ours"


def test_a_file_that_cannot_be_read_is_unknown(files: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / CONF[1:]
    place.unlink()
    place.mkdir()  # root reads any file, a directory it does not
    found = row(files, tmp_path)
    assert (found["verdict"], found["state"]) == ("unknown", None)
    assert CONF in found["reason"]
    assert found["hint"] == "look at what stands in its place"


@pytest.mark.parametrize("noted", [None, {}])
def test_a_note_without_digests_says_nothing(noted: dict[str, str] | None, tmp_path: Path) -> None:
    assert time_config.rows("gpu-a1", noted, str(tmp_path)) == []


def test_a_note_that_is_gone_is_a_failure_while_other_files_of_the_role_stand(tmp_path: Path) -> None:
    assert [row["id"] for row in time_checks.checks(str(tmp_path))] == ["time.synchronised"]
    trace = tmp_path / time_config.TRACES[1]
    trace.parent.mkdir(parents=True)
    trace.write_text("")
    row = time_checks.checks(str(tmp_path))[1]
    assert (row["id"], row["verdict"], row["state"]) == ("time.config", "fail", "missing")
    assert f"/{time_config.TRACES[1]} still stands" in row["reason"]
