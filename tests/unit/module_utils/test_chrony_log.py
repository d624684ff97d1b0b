"""The parsers of chronyd's logs, on recorded ones and on every way a log is damaged."""

from __future__ import annotations

import calendar
import gzip
import os
from pathlib import Path

import chrony_logs
import pytest
from ansible.module_utils.steadyrack import chrony_log, chronyc

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/chrony/log"
LINE = (
    "2017-08-22 13:22:36 203.0.113.15     2     -3.541      0.075 -8.621e-06 N "
    "           2  2.940e-03 -2.084e-04  1.534e-02  3.472e-04  8.304e-03"
)
AT = 1503408156


def entries(name: str) -> list[chrony_log.Entry]:
    found, damaged = chrony_log.parse_entries((FIXTURES / name / "tracking.log").read_text().splitlines())
    assert damaged == 0
    return found


def at(text: str) -> int:
    hour, minute, second = map(int, text.split(":"))
    return calendar.timegm((2026, 11, 30, hour, minute, second))


# --- lines ---------------------------------------------------------------------------------------


def test_the_line_of_chronys_manual() -> None:
    entry = chrony_log.parse_tracking(LINE)
    assert entry is not None
    assert (entry.at, entry.source, entry.stratum, entry.frequency_ppm) == (AT, "203.0.113.15", 2, -3.541)
    # 7 minus 11: fast by -8.6 us, and the correction still to come says slow by -208.4 us.
    assert entry.offset_s == pytest.approx(-8.621e-06 + 2.084e-04)
    assert entry.bound_s == pytest.approx(8.304e-03)


def test_plus_50_ms_is_a_clock_that_is_ahead_as_chronyc_says_too() -> None:
    for name, sign in (("ahead", 1), ("behind", -1)):
        tracking = chronyc.parse_tracking((FIXTURES / f"node/chronyc-tracking-{name}.csv").read_text())
        entry = [one for one in entries("node") if one.at <= tracking.ref_time + 1][-1]
        assert entry.offset_s == pytest.approx(sign * 0.05, abs=1e-4)
        assert tracking.offset_s == pytest.approx(entry.offset_s, abs=1e-4)
        assert entry.bound_s == pytest.approx(tracking.bound_s, abs=1e-4)


def test_a_source_that_is_ahead_is_plus_in_both_logs_and_minus_in_chronyc_sources() -> None:
    told = chronyc.parse_sources((FIXTURES / "relay/chronyc-sources-ahead.csv").read_text())
    assert [source.offset_s for source in told if source.name == "127.0.0.14"] == [pytest.approx(-0.05, abs=1e-4)]
    for name, parse in (("measurements", chrony_log.parse_measurement), ("statistics", chrony_log.parse_statistic)):
        lines = (FIXTURES / f"relay/{name}.log").read_text().splitlines()
        samples = [sample for sample in map(parse, lines) if sample and sample.at >= at("08:16:50")]
        liar = [sample.offset_s for sample in samples if sample.source == "127.0.0.14"]
        assert len(liar) > 5
        assert all(offset == pytest.approx(0.05, abs=5e-4) for offset in liar)
        assert all(abs(sample.offset_s) < 5e-4 for sample in samples if sample.source != "127.0.0.14")


def test_an_unsynchronised_entry_has_no_offset_and_is_not_zero() -> None:
    first, last = entries("torn")[0], entries("torn")[-1]
    assert (first.offset_s, first.bound_s, last.offset_s, last.bound_s) == (None, None, None, None)


def test_an_entry_without_a_source() -> None:
    line = LINE.replace("203.0.113.15", " " * 12)
    entry = chrony_log.parse_tracking(line)
    assert entry is not None
    assert (entry.source, entry.stratum, entry.at) == ("", 2, AT)


def test_an_ipv6_source_and_columns_of_a_later_release() -> None:
    entry = chrony_log.parse_tracking(LINE.replace("203.0.113.15 ", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff") + " 7 x")
    assert entry is not None
    assert entry.source.endswith(":ffff")


def test_the_guess_of_a_daemon_that_has_just_started_is_no_bound() -> None:
    # 1.5 s stated in the first seconds, the truth was 25 us.
    found = [entry for entry in entries("node") if entry.offset_s is not None]
    assert found[0].bound_s is None
    assert all(entry.bound_s is None or entry.bound_s < 0.2 for entry in found)


def test_the_bound_knows_of_an_offset_that_has_just_appeared() -> None:
    # Column 14 of this entry is 0.24 ms: it covers the time before the clock was found to be 45 ms off.
    entry = next(one for one in entries("node") if (one.offset_s or 0) > 0.04)
    assert entry.bound_s >= entry.offset_s


@pytest.mark.parametrize(
    "line",
    [
        "",
        "=" * 130,
        chrony_logs.BANNER,
        LINE[:-1],  # 8.304e-0 would be 8.3 s
        LINE[:-4],
        LINE[:60],
        LINE[:70] + LINE,
        LINE.replace("8.304e-03", "      nan"),
        LINE.replace("-8.621e-06", "-8.6x1e-06"),
        LINE.replace("2017-08-22 13:22:36", "INVALID     INVALID"),
        LINE.replace("2017-08-22", "2017-13-22"),
        LINE.replace("2017-08-22", "2017-02-31"),
        LINE.replace("2017-08-22", "2017-02-29"),
        LINE.replace("13:22:36", "24:22:36"),
        LINE.replace("13:22:36", "13:60:36"),
        LINE.replace("13:22:36", "99:99:99"),
        LINE.replace("13:22:36", "-1:22:36"),
    ],
)
def test_what_is_not_an_entry_is_none_and_never_a_zero(line: str) -> None:
    assert chrony_log.parse_tracking(line) is None


def test_damaged_lines_are_counted_and_banners_are_not() -> None:
    text = chrony_logs.with_banners([LINE, LINE[:70], LINE])
    found, damaged = chrony_log.parse_entries(text.splitlines())
    assert (len(found), damaged) == (2, 1)


def test_a_measurement_that_chronyd_did_not_use_is_left_out() -> None:
    good = chrony_logs.measurement_line(AT, 0.05, "192.0.2.1")
    assert chrony_log.parse_measurement(good) == chrony_log.Sample(AT, "192.0.2.1", 0.05)
    assert chrony_log.parse_measurement(chrony_logs.measurement_line(AT, 9.0, "192.0.2.1", "111 111 0111")) is None


def test_the_year_rolls_over() -> None:
    one, other = chrony_log.parse_time("2026-12-31", "23:59:59"), chrony_log.parse_time("2027-01-01", "00:00:00")
    assert other - one == 1
    assert chrony_log.parse_time("2016-12-31", "23:59:60") == chrony_log.parse_time("2017-01-01", "00:00:00")


def test_times_are_utc_whatever_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        assert chrony_log.parse_tracking(LINE).at == AT
        assert chrony_log.stamp(AT) == "2017-08-22 13:22:36"
    finally:
        monkeypatch.undo()
        time.tzset()


# --- files ---------------------------------------------------------------------------------------


def lines_of(*seconds: int) -> str:
    return "".join(chrony_logs.tracking_line(AT + second, 1e-5) + "\n" for second in seconds)


def times(tail: chrony_log.Tail) -> list[int]:
    return [entry.at - AT for entry in chrony_log.parse_entries(tail.lines)[0]]


def test_rotated_logs_are_read_as_one(tmp_path: Path) -> None:
    (tmp_path / "tracking.log").write_text(lines_of(40, 50))
    (tmp_path / "tracking.log.1").write_text(lines_of(20, 30))
    (tmp_path / "tracking.log.2.gz").write_bytes(gzip.compress(lines_of(0, 10).encode()))
    (tmp_path / "tracking.log.3").write_text(lines_of(-90000))
    (tmp_path / "tracking.logger").write_text(lines_of(5))
    tail = chrony_log.read_tail(str(tmp_path), "tracking", AT - 5, AT + 60)
    assert times(tail) == [0, 10, 20, 30, 40, 50]
    assert tail.problems == []


def test_dated_rotation_and_a_file_that_is_being_compressed(tmp_path: Path) -> None:
    (tmp_path / "tracking.log").write_text("")
    (tmp_path / "tracking.log-20170822").write_text(lines_of(20))
    (tmp_path / "tracking.log-20170822.gz").write_bytes(b"half")
    (tmp_path / "tracking.log-20170821.gz").write_bytes(gzip.compress(lines_of(10).encode()))
    tail = chrony_log.read_tail(str(tmp_path), "tracking", AT, AT + 60)
    assert (times(tail), tail.problems) == ([10, 20], [])


def test_a_file_that_is_rotated_away_while_it_is_read_is_a_problem_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tracking.log").write_text(lines_of(-90000))
    (tmp_path / "tracking.log.1").write_text(lines_of(10))
    real = os.path.getsize

    def gone(path: str) -> int:
        if path.endswith("tracking.log"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path)

    monkeypatch.setattr(os.path, "getsize", gone)
    tail = chrony_log.read_tail(str(tmp_path), "tracking", AT, AT + 60)
    assert times(tail) == [10]
    assert tail.problems == [f"{tmp_path}/tracking.log is not there"]


@pytest.mark.parametrize("chunk", [64, 1 << 19])
def test_of_an_archive_that_is_too_large_the_newest_lines_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    text = lines_of(*range(0, 1600, 16))
    (tmp_path / "tracking.log.1.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(chrony_log, "MAX_BYTES", 1000)
    monkeypatch.setattr(chrony_log, "CHUNK", chunk)
    tail = chrony_log.read_tail(str(tmp_path), "tracking", AT, AT + 2000)
    found = times(tail)
    assert "only its newest 0 MB were read" in tail.problems[0]
    assert found == list(range(0, 1600, 16))[-len(found) :]
    assert len(found) == 1000 // len(text.splitlines()[0] + "\n")


def test_a_broken_archive_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "tracking.log").write_text(lines_of(20))
    (tmp_path / "tracking.log.1.gz").write_bytes(gzip.compress(lines_of(10).encode())[:-9])
    tail = chrony_log.read_tail(str(tmp_path), "tracking", AT, AT + 60)
    assert times(tail) == [20]
    assert "tracking.log.1.gz cannot be read" in tail.problems[0]


def test_the_last_line_is_still_being_written_and_zeros_of_a_power_cut(tmp_path: Path) -> None:
    text = lines_of(0) + "\0" * 4096 + lines_of(10) + lines_of(20)[:-3]
    (tmp_path / "tracking.log").write_text(text)
    assert times(chrony_log.read_tail(str(tmp_path), "tracking", AT, AT + 60)) == [0, 10]


@pytest.mark.parametrize("chunk", [37, 150, 1000, 1 << 19])
def test_the_size_of_the_pieces_does_not_matter(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrony_log, "CHUNK", chunk)
    (tmp_path / "tracking.log").write_text(chrony_logs.with_banners(lines_of(*range(0, 2000, 16)).splitlines()))
    expected = [second for second in range(0, 2000, 16) if second >= 1000]
    assert times(chrony_log.read_tail(str(tmp_path), "tracking", AT + 1000, AT + 3000)) == expected


def test_entries_in_the_future_are_counted_not_returned(tmp_path: Path) -> None:
    (tmp_path / "tracking.log").write_text(lines_of(0, 10, 365 * 86400))
    tail = chrony_log.read_tail(str(tmp_path), "tracking", AT - 100, AT + 20)
    assert (times(tail), tail.ahead, tail.newest) == ([0, 10], 1, AT + 365 * 86400)


def test_a_log_that_is_missing_empty_or_no_file(tmp_path: Path) -> None:
    assert chrony_log.read_tail(str(tmp_path / "none"), "tracking", 0, 9).problems == [f"{tmp_path}/none is not there"]
    assert chrony_log.read_tail(str(tmp_path), "tracking", 0, 9) == chrony_log.Tail([], None, 0, [], False)
    os.mkfifo(tmp_path / "tracking.log")
    assert "not a regular file" in chrony_log.read_tail(str(tmp_path), "tracking", 0, 9).problems[0]


# --- curves --------------------------------------------------------------------------------------


def test_the_gaps_of_a_real_log() -> None:
    found = entries("node")
    gaps = chrony_log.find_gaps(found, found[0].at, at("08:18:06"), chrony_log.gap_limit([one.at for one in found]))
    assert [gap.why for gap in gaps] == ["unsynchronised", "nothing logged"]
    assert gaps[1].since == at("08:17:05")
    assert gaps[1].until == at("08:17:35")


def test_unsynchronised_lasts_until_the_next_entry_or_the_end() -> None:
    gaps = chrony_log.find_gaps(entries("torn"), at("08:15:55"), at("08:18:00"), 20)
    assert gaps[-1] == chrony_log.Gap(at("08:16:36"), at("08:18:00"), "unsynchronised")


def made(*rows: tuple[int, float | None]) -> list[chrony_log.Entry]:
    lines = [chrony_logs.tracking_line(AT + second, offset) for second, offset in rows]
    return chrony_log.parse_entries(lines)[0]


def test_no_line_is_drawn_across_a_gap_a_step_back_or_an_unsynchronised_entry() -> None:
    found = made((0, 0.0), (16, 0.0), (500, 0.0), (516, None), (532, 0.0), (200, 0.0), (216, 0.0))
    assert [[one.at - AT for one in run] for run in chrony_log.runs(found, 80)] == [[0, 16], [500], [532], [200, 216]]
    gaps = chrony_log.find_gaps(found, AT, AT + 216, 80)
    assert [gap.why for gap in gaps] == ["nothing logged", "unsynchronised", "time went back"]


def test_one_or_two_missed_polls_are_no_gap() -> None:
    found = made(*((second, 0.0) for second in range(0, 1600, 16) if second not in (480, 496)))
    limit = chrony_log.gap_limit([entry.at for entry in found])
    assert limit == 80
    assert chrony_log.find_gaps(found, AT, AT + 1600, limit) == []


def test_silence_at_either_end_is_a_gap() -> None:
    gaps = chrony_log.find_gaps(made((1000, 0.0)), AT, AT + 5000, 100)
    assert [(gap.since - AT, gap.until - AT) for gap in gaps] == [(0, 1000), (1000, 5000)]
    assert chrony_log.find_gaps([], AT, AT + 5000, 100) == [chrony_log.Gap(AT, AT + 5000, "nothing logged")]


def test_a_jump_is_told_once_and_a_slow_bend_is_none() -> None:
    assert [
        (round(jump.before_s, 3), round(jump.after_s, 3))
        for jump in chrony_log.find_jumps(chrony_log.runs(entries("node"), 20))
    ] == [(0.0, 0.05), (-0.049, -0.05)]
    bent = made(*((second, 0.05 - 5e-4 * second) for second in range(0, 96, 4)))
    assert chrony_log.find_jumps([bent]) == []


def test_time_above_a_limit_counts_no_gap() -> None:
    found = made((0, 0.05), (16, 0.05), (1000, 0.05), (1016, 0.0), (1032, 0.0))
    assert chrony_log.seconds_above(chrony_log.runs(found, 80), 0.03) == 32


def test_thinning_never_loses_a_spike() -> None:
    found = made(*((second, 0.2 if second == 5008 else 1e-5) for second in range(0, 80000, 16)))
    kept = chrony_log.thinned(found, 1000, [lambda e: e.offset_s, lambda e: -e.offset_s])
    assert len(kept) <= 162
    assert [entry.at - AT for entry in kept if entry.offset_s > 0.1] == [5008]


@pytest.mark.parametrize(("source", "stratum"), [("127.127.1.1", 10), ("10.213.1.21", 11), ("127.127.1.1", 5)])
def test_local_fallback_reads_zero_and_is_neither_zero_nor_fine(source: str, stratum: int) -> None:
    """A relay that serves its own oscillator, and a node that follows such a relay."""
    entry = chrony_log.parse_tracking(chrony_logs.tracking_line(AT, 0.0, source, stratum=stratum))
    assert entry is not None
    assert (entry.islanded, entry.offset_s, entry.bound_s, entry.lost) == (True, None, None, "local fallback")


def test_local_fallback_is_a_gap_of_its_own_kind() -> None:
    rows = [(0, 0.0, 3), (16, 0.0, 3), (32, 0.0, 10), (48, 0.0, 10), (64, None, 3), (80, 0.0, 3), (96, 0.0, 10)]
    lines = [chrony_logs.tracking_line(AT + second, offset, stratum=stratum) for second, offset, stratum in rows]
    found = chrony_log.parse_entries(lines)[0]
    gaps = chrony_log.find_gaps(found, AT, AT + 110, 80)
    assert [(gap.since - AT, gap.until - AT, gap.why) for gap in gaps] == [
        (32, 64, "local fallback"), (64, 80, "unsynchronised"), (96, 110, "local fallback"),
    ]  # fmt: skip
    assert [[one.at - AT for one in run] for run in chrony_log.runs(found, 80)] == [[0, 16], [80]]


def test_no_bound_is_not_a_bound_of_zero() -> None:
    rows = [(0, 0.05, 1e6), (16, 0.0, 1e6), (48, 0.0, 0.05), (64, 0.0, 0.05)]
    found = chrony_log.parse_entries([chrony_logs.tracking_line(AT + at, ahead, skew=skew) for at, ahead, skew in rows])
    stretches = chrony_log.runs(found[0], 80)
    assert chrony_log.seconds_above(stretches, 0.03) == 16  # the offset alone is above
    assert chrony_log.seconds_unbounded(stretches, 0.03) == 32
