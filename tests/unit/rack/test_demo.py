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
        ("clock", ["ntp1"], "takes: UPSTREAM|all"),
        ("clock", ["ntp9", "1"], "known: all, ntp1"),
        ("clock", ["ntp1", "soon"], "a number"),
        ("uplink", ["relay-a1", "bend"], "cut or mended"),
        ("bend", ["gpu-a1", "0.1"], "asks no upstream"),
        ("bend", ["outside", "0.1"], "asks no upstream"),
        ("bend", ["relay-a1", "much"], "a number"),
        ("leap", ["ntp1", "jump"], "insert, delete"),
        ("leap", ["ntp9", "insert"], "known: all, ntp1"),
        ("skew", ["outside", "1"], "fault clock"),
        ("skew", ["gpu-a1", "late"], "a number"),
        ("rogue", ["gpu-a1"], "takes: HOST ADDRESS"),
        ("daemon", ["gpu-a1", "xntpd"], "known: openntpd"),
        ("relay", ["gpu-a1", "stop"], "relays: relay-a1, relay-a2, relay-b1"),
        ("relay", ["relay-a1", "melt"], "stopped or started"),
        ("inside", ["gpu-a1", "cut"], "is no relay"),
        ("inside", ["relay-a1", "burn"], "cut or mended"),
        ("loss", ["gpu-a1", "101"], "from 0 to 100"),
        ("loss", ["gpu-a1", "some"], "a number"),
        ("disk", ["gpu-a1", "empty"], "full or free"),
        ("webhook", ["slow"], "ok, error or hang"),
        ("gpu", ["gpu-a1", "0", "melted"], "known: lost"),
        ("cap", ["relay-a1", "0", "200"], "has no GPUs"),
        ("service", ["gpu-a1", "burn", "chrony"], "stopped, disabled or masked"),
    ],
)
def test_a_fault_with_wrong_words_says_what_it_takes_and_breaks_nothing(name, words, said):
    with pytest.raises(RackError) as caught:
        faults.inject(load("demo"), name, words)
    assert said in str(caught.value)
