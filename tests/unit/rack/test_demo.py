"""The table the demo prints: the worst verdict is shown, unknown never counts as pass."""

from __future__ import annotations

import pytest

from lab import demo, faults
from lab.say import RackError
from lab.topology import load


def row(verdict, host="gpu-a1", check="gpu.power_cap", **more):
    return {"host": host, "id": check, "verdict": verdict, "measured": 300, "unit": "W", **more}


def test_the_worst_verdict_of_a_check_is_the_one_shown():
    (line,) = demo.summary([row("pass"), row("unknown", reason="GPU is lost"), row("pass")])
    assert (line["verdict"], line["subjects"], line["measured"]) == ("unknown", "3", "GPU is lost")


def test_a_verdict_nobody_knows_is_not_shown_as_pass():
    (line,) = demo.summary([row("pass"), row("odd")])
    assert line["verdict"] == "odd"


def test_equal_measurements_are_shown_once():
    (line,) = demo.summary([row("pass"), row("pass")])
    assert line["measured"] == "300 W"


def test_counts_name_every_verdict():
    assert demo.count([row("pass"), row("fail"), row("unknown")]) == "1 pass, 1 fail, 1 unknown"
    assert demo.count([]) == "no checks"


def test_columns_line_up():
    lines = demo.table([{"a": "x", "b": "1"}, {"a": "long", "b": "2"}]).splitlines()
    assert lines == ["A     B", "x     1", "long  2"]


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("nope", [], "known: clock"),
        ("clock", ["ntp1"], "takes: UPSTREAM"),
        ("clock", ["ntp9", "1"], "known: ntp1"),
        ("clock", ["ntp1", "soon"], "a number"),
        ("uplink", ["relay-a1", "bend"], "cut or mended"),
        ("gpu", ["gpu-a1", "0", "melted"], "known: lost"),
        ("cap", ["relay-a1", "0", "200"], "has no GPUs"),
        ("service", ["gpu-a1", "burn", "chrony"], "stopped, disabled or masked"),
    ],
)
def test_a_fault_with_wrong_words_says_what_it_takes_and_breaks_nothing(name, words, said):
    with pytest.raises(RackError) as caught:
        faults.inject(load("demo"), name, words)
    assert said in str(caught.value)
