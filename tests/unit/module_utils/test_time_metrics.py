"""The text file for Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import alarms, time_checks, time_egress, time_metrics
from ansible.module_utils.steadyrack.chronyc import Clock, parse_sources
from clocks import NOW, good, sources, tracking

POLICY = time_checks.TimePolicy("relay", ["10.88.0.51"], 30.0, 10.0, "chrony", "site-a", other_sites={"b1": "site-b"})
SAMPLE = re.compile(r'([a-z_]+)(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? (-?[0-9.e+-]+)')


def samples(clock: Clock | None, standing: list[alarms.Standing] | None = None, **more: object) -> dict[str, float]:
    text = time_metrics.render(POLICY, clock, standing or [], more.get("egress"), NOW)  # type: ignore[arg-type]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert SAMPLE.fullmatch(line), line
    assert len(lines) == len(set(lines))
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_good_clock() -> None:
    found = samples(good(0.001, dispersion=0.002), egress=time_egress.Record(4))
    assert found["steadyrack_time_offset_seconds"] == -0.001  # field 5 is + when behind
    assert found["steadyrack_time_bound_seconds"] == pytest.approx(0.003)
    assert found['steadyrack_time_state{state="synchronised"}'] == 1
    assert found['steadyrack_time_state{state="down"}'] == 0
    assert found["steadyrack_time_egress_packets_total"] == 4
    assert found["steadyrack_time_look_timestamp_seconds"] == NOW


@pytest.mark.parametrize(
    "clock",
    [
        Clock(None, [], "506", down=True),
        Clock(tracking()._replace(refid="00000000", stratum=0), []),
        Clock(tracking()._replace(refid="7F7F0101"), []),
        None,
    ],
)
def test_what_is_not_known_has_no_line_and_is_never_zero(clock: Clock | None) -> None:
    found = samples(clock)
    absent = ("steadyrack_time_offset_seconds", "steadyrack_time_bound_seconds", "steadyrack_time_egress_packets_total")
    assert not set(absent) & set(found)


def test_alarms_are_there_by_check_id_and_the_quiet_ones_are_0() -> None:
    standing = [alarms.Standing("time.sources", 'odd"name\\', "warning", 999.5, False)]
    found = samples(good(), standing)
    assert found['steadyrack_time_alarm_active{check="time.sources"}'] == 1
    assert found['steadyrack_time_alarm_active{check="time.offset"}'] == 0
    assert found['steadyrack_time_alarm_active{check="time.config"}'] == 0
    name = 'steadyrack_time_alarm_since_seconds{check="time.sources",subject="odd\\"name\\\\",severity="warning"}'
    assert found[name] == 999.5


def test_the_alarm_of_the_firewall_shows_and_so_does_one_of_a_check_that_nobody_listed() -> None:
    standing = [alarms.Standing("firewall.ntp", "inet t", "critical", 999.5, False)]
    assert samples(good())['steadyrack_time_alarm_active{check="firewall.ntp"}'] == 0
    assert samples(good(), standing)['steadyrack_time_alarm_active{check="firewall.ntp"}'] == 1
    found = samples(good(), [alarms.Standing("time.new", "gpu-a1", "critical", 999.5, False)])
    assert found['steadyrack_time_alarm_active{check="time.new"}'] == 1


def test_sources_and_skew() -> None:
    listed = sources(("a", "x", "377"), ("c", "?", "0")) + parse_sources("^,?,b1,2,6,377,1,-0.05,-0.05,0.02")
    found = samples(Clock(tracking(), listed))
    assert found['steadyrack_time_source_falseticker{source="a"}'] == 1
    assert found['steadyrack_time_source_reachable{source="c"}'] == 0
    assert 'steadyrack_time_source_offset_seconds{source="c"}' not in found
    assert found['steadyrack_time_skew_seconds{site="site-b",relay="b1"}'] == -0.05
    assert found['steadyrack_time_skew_uncertainty_seconds{site="site-b",relay="b1"}'] == 0.02


def test_the_exporters_directory_is_used_where_it_exists_and_ours_is_made_where_not(tmp_path: Path) -> None:
    assert time_metrics.directory(str(tmp_path), None) == str(tmp_path / time_metrics.OWN_DIRECTORY)
    (tmp_path / time_metrics.EXPORTER_DIRECTORY).mkdir(parents=True)
    assert time_metrics.directory(str(tmp_path), None) == str(tmp_path / time_metrics.EXPORTER_DIRECTORY)
    assert time_metrics.directory(str(tmp_path), "/srv/text") == str(tmp_path / "srv/text")


def test_the_file_is_replaced_whole_and_readable_and_nothing_is_left_beside(tmp_path: Path) -> None:
    time_metrics.write(str(tmp_path), "one 1\n")
    time_metrics.write(str(tmp_path), "two 2\n")
    (only,) = tmp_path.iterdir()
    assert (only.name, only.read_text(), only.stat().st_mode & 0o777) == (time_metrics.FILE, "two 2\n", 0o644)
    with pytest.raises(OSError, match="No such file"):
        time_metrics.write(str(tmp_path / "absent"), "")
