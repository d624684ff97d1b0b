"""What a run of the checks makes of hosts, groups, skips and itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_rack import ROOT, Rack


@pytest.fixture
def own_checks(rack: Rack, tmp_path: Path) -> Path:
    """A copy of tests/checks in a checkout of its own, to put another test into."""
    checkout = tmp_path / "checkout"
    shutil.copytree(
        ROOT / "tests" / "checks", checkout / "tests" / "checks", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("roles", "module_utils"):
        (checkout / name).symlink_to(ROOT / name)
    rack.checks = checkout / "tests" / "checks"
    for path in rack.checks.glob("*/test_*.py"):
        path.unlink()
    return rack.checks


HEAD = """
import pytest
from acceptance.rows import row
def reads(node):
    return {}
pytestmark = [pytest.mark.groups("gpu_nodes"), pytest.mark.check("demo.thing")]
"""


def put(checks: Path, body: str, head: str = HEAD) -> None:
    (checks / "demo").mkdir()
    (checks / "demo" / "test_demo.py").write_text(head + body)


def test_a_good_rack_passes(rack: Rack) -> None:
    rack.add("relay-a1", "relay-a1")
    rack.add("gpu-a1", "gpu-a1")
    outcome = rack.run()
    assert outcome.code == 0, outcome.output
    assert outcome.report["problems"] == []
    assert outcome.report["not_run"] == []
    assert {row["verdict"] for row in outcome.report["checks"]} == {"pass"}


def test_checks_for_hosts_left_out_by_limit_are_named_as_not_run(rack: Rack) -> None:
    rack.add("relay-a1", "relay-a1")
    rack.add("gpu-a1", "gpu-a1")
    outcome = rack.run(hosts="ansible://gpu-a1")
    assert outcome.code == 0, outcome.output
    assert [(one["check"], one["reason"]) for one in outcome.report["not_run"]] == [
        ("package.relay_only", "no host of relays among the hosts chosen"),
        ("time.serving", "no host of relays among the hosts chosen"),
    ]


def test_a_check_that_matched_no_host_of_the_inventory_fails_the_run(rack: Rack) -> None:
    rack.add(
        "gpu-a1", "gpu-a1", variables={"time_sync_relays": ["10.213.1.21"], "package_mirror_relays": ["10.213.1.21"]}
    )
    rack.groups["relays"] = {}
    outcome = rack.run()
    assert outcome.code == 1
    why = "matched no host: the inventory has none in relays"
    assert [why in text for text in outcome.report["problems"]] == [True, True]
    assert [text.split()[1] for text in outcome.report["problems"]] == ["(package.relay_only)", "(time.serving)"]
    assert outcome.bad("gpu-a1") == []
    assert {row["id"] for row in outcome.rows("gpu-a1") if row["verdict"] != "pass"} == {"time.skew"}  # it is alone


def test_a_host_for_which_there_is_no_check_is_named(rack: Rack) -> None:
    rack.add("relay-a1", "relay-a1")
    rack.add("gpu-a1", "gpu-a1")
    rack.add("store-a1", "gpu-a1", group="stores")
    outcome = rack.run()
    assert [one["host"] for one in outcome.report["not_run"]] == ["store-a1"]


def test_a_pattern_that_names_no_host_fails(rack: Rack) -> None:
    rack.add("gpu-a1", "gpu-a1")
    outcome = rack.run(hosts="ansible://gpu-z9")
    assert outcome.code not in (0, 5), outcome.output


def test_no_checks_at_all_fail(rack: Rack, own_checks: Path) -> None:
    rack.add("gpu-a1", "gpu-a1")
    outcome = rack.run()
    assert outcome.code == 1
    assert outcome.report["problems"] == ["no check was run"]


ILL_BEHAVED = """
@pytest.mark.check("demo.skips")
def test_skips(node):
    pytest.skip("not today")

@pytest.mark.check("demo.breaks")
def test_breaks(node, record):
    node.evidence["nothing"]

@pytest.mark.check("demo.empty")
def test_looks_at_nothing(node, record):
    record([])

@pytest.mark.check("demo.stranger")
def test_records_rows_of_another_check(node, record):
    record([row("demo.other", "x", "pass")])

@pytest.mark.check("demo.silent")
def test_records_nothing(node):
    pass
"""


def test_checks_that_skip_break_or_say_nothing_fail_the_run(rack: Rack, own_checks: Path) -> None:
    rack.add("gpu-a1", "gpu-a1")
    put(own_checks, ILL_BEHAVED)
    outcome = rack.run()
    assert outcome.code == 1
    assert ["was skipped (not today)" in text for text in outcome.report["problems"]] == [True]
    rows = {row["id"]: (row["verdict"], row["reason"].splitlines()[0]) for row in outcome.report["checks"]}
    broke = "the check itself broke: "
    assert rows == {
        "demo.breaks": ("unknown", broke + "KeyError: 'nothing'"),
        "demo.empty": ("unknown", broke + "AssertionError: demo.empty looked at nothing on gpu-a1"),
        "demo.stranger": ("unknown", broke + "AssertionError: only rows of demo.stranger belong here"),
        "demo.silent": ("unknown", broke + "it ended without a row"),
    }


def test_a_file_that_cannot_be_collected_fails_the_run(rack: Rack, own_checks: Path) -> None:
    rack.add("gpu-a1", "gpu-a1")
    put(own_checks, "def broken(:\n")
    outcome = rack.run()
    assert outcome.code == 2
    assert "checks that could not be collected" in " / ".join(outcome.report["problems"])


def test_a_check_without_its_markers_is_refused(rack: Rack, own_checks: Path) -> None:
    rack.add("gpu-a1", "gpu-a1")
    put(own_checks, "def test_it(node):\n    pass\n", head="def reads(node):\n    return {}\n")
    outcome = rack.run()
    assert outcome.code == 4
    assert "needs the markers check(id) and groups(name, ...)" in outcome.output


def test_junit_has_a_test_for_each_check_and_host_and_its_rows_as_properties(rack: Rack) -> None:
    rack.add("relay-a1", "relay-a1")
    rack.add("gpu-a1", "gpu-a1")
    rack.run(f"--junitxml={rack.folder}/report.xml")
    text = (rack.folder / "report.xml").read_text()
    assert 'name="test_every_gpu_is_capped_as_planned[ansible://gpu-a1]"' in text
    assert '<property name="pcie.width 0000:31:00.0" value="pass"' in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hosts=ansible://all"], "which rack? say --ansible-inventory"),
        (["--ansible-inventory=x", "-n", "2"], "leave out -n"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(options: list[str], said: str) -> None:
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests" / "checks"), *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 4
    assert said in done.stdout + done.stderr
