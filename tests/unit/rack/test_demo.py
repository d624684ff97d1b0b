"""What ./rack prints, and faults with wrong words."""

from __future__ import annotations

import pytest

from lab import demo, faults
from lab.say import RackError
from lab.topology import load


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
