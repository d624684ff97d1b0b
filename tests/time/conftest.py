"""Scenarios of time that need minutes: `./rack test --all` only. The same rack and fixtures as tests/demo."""

import pytest
from rack_fixtures import built, fault, play, rack, sh
from scenario import FIGURES, HOOK, HOOK_TEXT, TOLD, Watched

from lab import faults

__all__ = ["built", "fault", "play", "rack", "sh"]


@pytest.fixture(scope="session")
def watched(built, rack):
    """Every host with a hook that writes down what it is told, as an administrator would put it there."""
    found = Watched(rack)
    script = f"rm -f {TOLD}; cat >{HOOK} <<'EOF'\n{HOOK_TEXT}EOF\nchmod 0755 {HOOK}"
    found.each(script)
    yield found
    found.each(f"rm -f {HOOK} {TOLD}")


@pytest.fixture(scope="module")
def inject(request, rack, watched, play):
    """Faults of a whole module, which begins with every clock well and no alarm.

    They are taken back at its end, and where a test has failed the rack is put right for the next module.
    """
    watched.calm()
    before = request.session.testsfailed
    yield lambda name, *words: faults.inject(rack, name, [str(w) for w in words])
    faults.inject(rack, "heal", [])
    if request.session.testsfailed > before:
        play("site.yml", "--skip-tags", "acceptance")


def pytest_terminal_summary(terminalreporter):
    if FIGURES:
        terminalreporter.section("measured")
        for what, measured in FIGURES:
            terminalreporter.write_line(f"{what:90} {measured}")
