"""The ratios of design §6, measured: each row against a ping of the same hosts in the same minute.

Wall time is printed, CPU is judged: on a busy machine the CPU ratio moves little and the wall ratio much. The bounds
are the design's budget, not what was measured on a good day (docs/performance.md has that).
"""

from __future__ import annotations

import pytest

from lab import bench, hosts

NODES = 4


@pytest.fixture(scope="module")
def rows():
    try:
        found = {row["run"].strip(): row for row in bench.measure(NODES, rounds=1)}
    finally:
        hosts.down(bench.rack_of(NODES))
    for row in found.values():
        print(row)
    return found


@pytest.mark.parametrize(
    ("run", "times_ping", "commands"),
    [
        ("site.yml, no change, without acceptance", 25, 20),
        ("role time_sync (nodes)", 5, 3),
        ("role node_agent", 5, 3),
        ("role rack_firewall", 5, 3),
        ("role gpu_policy", 5, 3),
        ("time gate", 3, 1),
        ("acceptance", 10, 5),
    ],
)
def test_a_run_stays_in_its_budget(rows, run, times_ping, commands):
    row = rows[run]
    assert 0 < row["cpu (both sides)"] <= times_ping
    assert row["commands"] <= commands
