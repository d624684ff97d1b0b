"""Clocks side by side: order, words and differences."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.steadyrack_report import model
from conftest_report import SINCE, UNTIL, Answer


def build(*answers: dict[str, Any]) -> model.Report:
    return model.build("demo", answers, UNTIL, 24)


def test_who_needs_looking_at_comes_first(answer: Answer, unreachable: dict[str, Any]) -> None:
    silent = answer("gpu-a3", lambda second: 10.0 if second < 50000 else None)
    was = answer("gpu-a4", lambda second: 50000.0 if second < 500 else 10.0)
    was["log"]["summary"]["now_bound_us"] = 210.0
    report = build(answer("gpu-a1"), answer("gpu-a2", 31000.0), silent, was, answer("gpu-a5", 11000.0), unreachable)
    assert [(host.name, host.state) for host in report.hosts] == [
        ("gpu-a9", "no data"), ("gpu-a3", "silent"), ("gpu-a2", "alarm"), ("gpu-a4", "was in alarm"),
        ("gpu-a5", "warn"), ("gpu-a1", "ok"),
    ]  # fmt: skip


def test_the_headline_names_them_and_never_calls_unknown_well(answer: Answer, unreachable: dict[str, Any]) -> None:
    assert model.headline(build(answer("gpu-a1"), answer("gpu-a2"))) == ["all 2 clocks stayed within 30 ms"]
    assert model.headline(build(answer("gpu-a1"), unreachable)) == ["1 of 2 hosts: no data from gpu-a9"]
    assert model.headline(build()) == ["no host was asked"]
    hole = answer("gpu-a1")
    hole["log"]["summary"]["gap_s"] = 3600
    assert model.headline(build(hole)) == ["unknown for a while: gpu-a1 (60 min)"]
    assert model.headline(build(answer("gpu-a1", 31000.0)))[0] == "1 of 1 hosts: above the alarm line now: gpu-a1"


def source(median_us: float, beyond: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": "ntp.example.org", "address": "192.0.2.7", "kind": "upstream", "points": [[5, median_us]],
        "median_us": median_us, "last_us": median_us, "worst_us": median_us, "last_at": 5, "beyond_alarm": beyond,
        **changes,
    }  # fmt: skip


def test_a_lying_source_is_named_and_one_odd_measurement_is_not(answer: Answer) -> None:
    lines = model.headline(build(answer("relay-a1", upstreams=[source(50000.0, 500)])))
    assert lines == ["relay-a1 sees its source ntp.example.org (192.0.2.7) off by +50.00 ms"]
    odd = source(10.0, 1, worst_us=900000.0)
    assert model.headline(build(answer("relay-a1", upstreams=[odd]))) == ["all 1 clocks stayed within 30 ms"]
    past = source(10.0, 50, worst_us=-50000.0, kind="peer")
    assert (
        "saw its source ntp.example.org (192.0.2.7) (peer) off by −50.00 ms"
        in (model.headline(build(answer("relay-a1", upstreams=[past])))[0])
    )


def test_two_ahead_and_behind_are_as_far_apart_as_both(answer: Answer) -> None:
    skew = build(answer("gpu-a1", 20000.0), answer("gpu-a2", -15000.0), answer("gpu-a3", 0.0)).skews[0]
    assert skew.worst_ms == pytest.approx(35.0)
    assert skew.pair == ("gpu-a1", "gpu-a2")
    assert skew.uncertain_ms == pytest.approx(0.4)
    assert skew.name == "site-a"


def test_sites_are_compared_with_each_other_by_their_own_threshold(answer: Answer) -> None:
    hosts = [answer("gpu-a1", 20000.0), answer("gpu-a2", 1000.0), answer("gpu-b1", -90000.0, site="site-b")]
    hosts[0]["site_alarm_ms"] = 80
    report = build(*hosts)
    assert [(skew.name, round(skew.worst_ms or 0), skew.pair) for skew in report.skews] == [
        ("site-a", 19, ("gpu-a1", "gpu-a2")), ("between sites", 110, ("gpu-a1", "gpu-b1")),
    ]  # fmt: skip
    assert report.skews[1].alarm_ms == 80
    assert any("110.0 ms apart between sites: gpu-a1 ahead of gpu-b1" in line for line in model.headline(report))


def test_clocks_are_compared_only_while_both_are_known(answer: Answer, unreachable: dict[str, Any]) -> None:
    late = answer("gpu-a1", lambda second: None if second < 43200 else 40000.0)
    early = answer("gpu-a2", lambda second: None if second >= 43200 else -40000.0)
    skew = build(late, early, unreachable).skews[0]
    assert (skew.worst_ms, skew.at) == (None, None)
    assert all(point[1] is None for point in skew.points)


def test_a_node_clock_that_differs_from_the_controllers_is_said(answer: Answer) -> None:
    for now, words in ((UNTIL + 86400 * 3, "3.0 d ahead of"), (UNTIL - 7200, "2.0 h behind")):
        problems = build(answer("gpu-a1", now=now)).hosts[0].problems
        assert problems == [f"its clock reads {words} the controller's"]
    assert build(answer("gpu-a1", now=UNTIL + 30)).hosts[0].problems == []


def test_the_note_on_the_node_wins_over_the_inventory(answer: Answer) -> None:
    host = build(answer("gpu-a1", policy={"alarm_ms": 12.0, "site": "north"})).hosts[0]
    assert (host.alarm_ms, host.site) == (12.0, "north")


def test_points_keep_their_sign_and_time(answer: Answer) -> None:
    host = build(answer("gpu-a1", 50000.0)).hosts[0]
    assert host.points[0] == (SINCE + 16, 50.0, 50.2)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0204, "+0.020"), (-49.996, "−50.00"), (123.44, "+123.4"), (86400000.0, "+86\u202f400\u202f000")],
)
def test_milliseconds_in_words(value: float | None, text: str) -> None:
    assert model.milliseconds(value) == text
