"""`./rack test` must not be green for the wrong reason."""

from __future__ import annotations

import pytest

from lab import suite
from lab.say import RackError


@pytest.fixture
def stage(monkeypatch):
    """Run one stage made of the given function."""

    def run(function):
        monkeypatch.setitem(suite.STAGES, "probe", function)
        return suite._run_stage("probe")

    return run


def test_a_skip_for_a_reason_nobody_listed_fails(stage):
    outcome = stage(lambda o: o.skipped.append("test_x: I did not feel like it"))
    assert outcome.failed == 1
    assert "not on the list" in outcome.problems[0]


def test_a_listed_skip_is_counted_and_does_not_fail(stage):
    outcome = stage(lambda o: o.skipped.append("no second Python (3.12 or newer) on this machine"))
    assert (outcome.failed, len(outcome.skipped)) == (0, 1)


def test_an_error_in_a_stage_is_a_failure_with_its_words(stage):
    def breaks(_):
        raise RackError("podman is gone", "nothing", "install it")

    outcome = stage(breaks)
    assert outcome.failed == 1
    assert "podman is gone" in outcome.problems[0]


def test_nothing_tested_is_not_success(capsys):
    assert suite._close([suite.Outcome("empty")], [], 1.0) == 1
    assert "nothing was tested" in capsys.readouterr().out


def test_the_closing_line_counts_everything_and_what_is_left_out_is_named(capsys):
    good, bad = suite.Outcome("a", passed=3, skipped=["x: why"]), suite.Outcome("b", failed=1, problems=["broke"])
    assert suite._close([good, bad], ["vm"], 60.0) == 1
    out = capsys.readouterr().out
    assert "1 failed, 3 passed, 1 skipped in 60.00s" in out
    assert "left out of this run: vm" in out
    assert "skipped in a: x: why" in out


def test_all_green_ends_with_zero():
    assert suite._close([suite.Outcome("a", passed=1)], [], 1.0) == 0


def test_every_stage_says_in_its_first_line_what_it_does():
    assert all(stage.__doc__ for stage in suite.STAGES.values())
    assert set(suite.SLOW) <= set(suite.STAGES)
    assert set().union(*suite.RACK_OF.values()) <= set(suite.STAGES)


def test_every_stage_runs_once_and_in_one_lane_or_alone(monkeypatch):
    ran = []
    for name in suite.STAGES:
        monkeypatch.setitem(suite.STAGES, name, lambda outcome: ran.append(outcome.name))
    monkeypatch.setattr(suite.images, "settle", lambda: None)
    wanted = list(suite.STAGES)
    assert [outcome.name for outcome in suite._run_stages(wanted)] == wanted
    assert sorted(ran) == sorted(wanted)
    assert ran[-1] == "bench"


def test_what_a_lane_prints_says_whose_it_is(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    for name in ("lint", "molecule"):
        monkeypatch.setitem(suite.STAGES, name, lambda o: suite.shown(["echo", "words"], f"{o.name}.log"))
    monkeypatch.setattr(suite.images, "settle", lambda: None)
    suite._run_stages(["lint", "molecule"])
    out = capsys.readouterr().out
    assert "lint       | words" in out
    assert "molecule   | words" in out
