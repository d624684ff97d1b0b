"""The axes that page and picture share."""

from __future__ import annotations

import pytest
from ansible.module_utils.steadyrack_report import scale


def test_noise_and_a_bend_are_both_readable() -> None:
    # On an axis that reaches 90 ms noise of 0.02 ms still takes a twentieth of a half, and 50 ms stays below the edge.
    assert scale.squeeze(0.02) / scale.squeeze(90) > 0.05
    assert 0.8 < scale.squeeze(50) / scale.squeeze(90) < 0.97
    assert scale.squeeze(-50) == -scale.squeeze(50)
    assert scale.squeeze(0) == 0


def test_ticks() -> None:
    assert scale.y_ticks(54) == [-10.0, -1.0, -0.1, 0.0, 0.1, 1.0, 10.0]
    assert [scale.y_label(value) for value in (0, -0.1, 10, 86400000)] == ["0", "−0.1", "+10", "+86400 s"]
    assert scale.x_ticks(1796018400, 1796104800)[0][1] == "08:00"
    assert len(scale.x_ticks(0, 31 * 86400)) <= 7


def test_a_column_keeps_the_spike_and_a_gap_divides() -> None:
    points = [(0, 1.0, None), (1, 50.0, None), (2, 1.0, None), (3, None, None), (4, 2.0, None), (95, 3.0, None)]
    runs = scale.columns(points, 1, 0, 100, 10)
    assert [[(column.low, column.high) for column in run] for run in runs] == [[(1.0, 50.0)], [(2.0, 2.0), (3.0, 3.0)]]
    assert runs[0][0].shown(10) == 50.0
    assert runs[0][0].shown(60) == pytest.approx(52 / 3)


def test_a_clock_that_went_back_does_not_mix_two_times_in_one_column() -> None:
    runs = scale.columns([(5, 1.0, None), (6, 1.0, None), (1, 9.0, None)], 1, 0, 100, 10)
    assert [column.mean for column in runs[0]] == [1.0, 9.0]
