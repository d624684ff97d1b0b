"""The machine's Debian mirror is read from whatever form its apt configuration has."""

from __future__ import annotations

import pytest

from lab import mirror

DEB822 = """Types: deb
# a comment
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.fixture
def apt(tmp_path):
    mirror.archives.cache_clear()
    (tmp_path / "sources.list.d").mkdir()
    yield tmp_path
    mirror.archives.cache_clear()


def test_deb822_sources(apt):
    (apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert mirror.lines("trixie", apt=apt) == [
        "deb http://mirror.test/debian trixie main",
        "deb http://mirror.test/debian trixie-updates main",
        "deb http://mirror.test/debian-security trixie-security main",
    ]


def test_one_line_sources_with_options(apt):
    (apt / "sources.list").write_text(
        "# deb http://off.test/debian bookworm main\n"
        "deb [signed-by=/k.gpg arch=amd64] https://m.test/debian/ bookworm main\n"
        "deb-src https://src.test/debian bookworm main\n"
    )
    assert mirror.archives(apt) == ("https://m.test/debian/", None)


def test_a_disabled_entry_and_other_repositories_are_not_the_mirror(apt):
    (apt / "sources.list.d" / "a.sources").write_text(DEB822.replace("Types: deb\n# a", "Enabled: no\nTypes: deb\n# a"))
    (apt / "sources.list.d" / "b.list").write_text("deb https://vendor.test/apt stable main\n")
    assert mirror.archives(apt) == (None, "http://mirror.test/debian-security")


def test_not_a_debian_leaves_the_choice_to_mmdebstrap(apt):
    (apt / "sources.list").write_text("deb http://archive.test/ubuntu noble main\n")
    assert mirror.lines("bookworm", apt=apt) == []


def test_components_are_carried(apt):
    (apt / "sources.list.d" / "debian.sources").write_text(DEB822)
    assert mirror.lines("bookworm", "main non-free", apt=apt)[0].endswith("bookworm main non-free")
