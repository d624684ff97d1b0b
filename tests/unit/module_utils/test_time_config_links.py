"""time.config: chronyd's files are those that the role wrote, and nothing else lies beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import time_config, verdict
from ansible.module_utils.steadyrack.files import sha256

CONF, SOURCES = "/etc/chrony/chrony.conf", "/etc/chrony/steadyrack.d/steadyrack.sources"
FILES = {CONF: sha256(b"conf\n"), SOURCES: sha256(b"server 10.1.0.21 iburst\n")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/chrony/steadyrack.d").mkdir(parents=True)
    (tmp_path / CONF[1:]).write_text("conf\n")
    (tmp_path / SOURCES[1:]).write_text("server 10.1.0.21 iburst\n")
    return tmp_path


def reason(root: Path) -> str:
    (row,) = time_config.rows("gpu-a1", FILES, str(root))
    assert (row["verdict"], row["state"]) == (verdict.FAIL, "edited")
    return str(row["reason"])


def test_as_the_role_wrote_them(root: Path) -> None:
    (row,) = time_config.rows("gpu-a1", FILES, str(root))
    assert (row["verdict"], row["state"]) == (verdict.PASS, "ours")


def test_a_note_of_before_says_nothing(root: Path) -> None:
    assert time_config.rows("gpu-a1", None, str(root)) == []


def test_an_edit_a_loss_and_a_stranger_are_named(root: Path) -> None:
    (root / CONF[1:]).write_text("conf\nserver 10.9.9.9\n")
    (root / SOURCES[1:]).unlink()
    (root / "etc/chrony/steadyrack.d/dhcp.sources").write_text("server 10.9.9.9\n")
    said = reason(root)
    assert f"{CONF} was edited" in said
    assert f"{SOURCES} is gone" in said
    assert "/etc/chrony/steadyrack.d/dhcp.sources is not ours" in said


def test_a_link_in_place_of_the_directory_is_named_although_all_is_there(root: Path) -> None:
    folder = root / "etc/chrony/steadyrack.d"
    folder.rename(root / "elsewhere")
    folder.symlink_to(root / "elsewhere")
    assert reason(root) == "/etc/chrony/steadyrack.d is a link"


def test_what_cannot_be_read_is_unknown(root: Path) -> None:
    (root / CONF[1:]).unlink()
    (root / CONF[1:]).mkdir()
    (row,) = time_config.rows("gpu-a1", FILES, str(root))
    assert row["verdict"] == verdict.UNKNOWN
