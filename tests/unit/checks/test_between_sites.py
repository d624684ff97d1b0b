"""A relay looks at the relays of other sites without following them: what each of them is found to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from recorded_rack import Outcome, Rack

SOURCES = "/etc/chrony/steadyrack.d/*.sources"
# Site → its relay's outside address, and what chronyd says of it: reach, offset and error margin in seconds. Of two
# sites it says nothing: one is not polled, the other's relay has no address outside.
LOOKED_AT: Mapping[str, tuple[str, tuple[str, str, str] | None]] = {
    "near": ("10.213.0.41", ("377", "0.020", "0.010")),
    "far": ("10.213.0.42", ("377", "-0.150", "0.010")),
    "vague": ("10.213.0.43", ("377", "0.090", "0.020")),
    "silent": ("10.213.0.44", ("0", "0.000", "0.000")),
    "unasked": ("10.213.0.45", None),
    "inside": ("", None),
}


def look(evidence: dict[str, Any]) -> None:
    """The daemon polls those sites' relays, and its file of sources names them."""
    file = evidence["files"][SOURCES]["/etc/chrony/steadyrack.d/steadyrack.sources"]
    for address, said in LOOKED_AT.values():
        if said:
            reach, offset, margin = said
            line = f"^,?,{address},2,6,{reach},19,{offset},{offset},{margin}\n"
            evidence["commands"]["chronyc sources"]["out"] += line
            file["content"] += f"server {address} iburst noselect\n"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    rack = Rack(tmp_path_factory.mktemp("rack"))
    rack.add("relay-a1", "relay-a1", look, {"rack_outside_address": "10.213.0.21", "rack_site": "here"})
    for site, (address, _said) in LOOKED_AT.items():
        outside = {"rack_outside_address": address} if address else {}
        rack.add(f"relay-{site}", "relay-a1", lambda evidence: False, outside, site=site)
    return rack.run(hosts="ansible://relay-a1")


def test_each_other_site_is_compared_by_what_the_daemon_measured(outcome: Outcome) -> None:
    rows = {row["subject"]: row for row in outcome.rows("relay-a1", "time.skew") if row["subject"] != "relay-a1"}
    assert {subject: (row["verdict"], row["state"], row["measured"]) for subject, row in rows.items()} == {
        "here and near": ("pass", "together", 30.0),
        "here and far": ("fail", "apart", 160.0),
        "here and vague": ("unknown", "uncertain", 110.0),
        "here and silent": ("unknown", "silent", None),
        "here and unasked": ("unknown", "silent", None),
    }
    assert {(row["expected"], row["unit"]) for row in rows.values()} == {(100, "ms")}
    assert rows["here and far"]["reason"] == "150.000 ms apart, 10.000 ms uncertain"
    assert rows["here and silent"]["reason"] == "10.213.0.44 does not answer"


def test_another_sites_relay_is_looked_at_and_a_silent_one_is_a_warning(outcome: Outcome) -> None:
    elsewhere = {address for address, _said in LOOKED_AT.values()}
    rows = {row["subject"]: row for row in outcome.rows("relay-a1", "time.sources") if row["subject"] in elsewhere}
    assert {address: (row["verdict"], row["severity"], row["state"]) for address, row in rows.items()} == {
        "10.213.0.41": ("pass", "info", "noselect"),
        "10.213.0.42": ("pass", "info", "noselect"),
        "10.213.0.43": ("pass", "info", "noselect"),
        "10.213.0.44": ("pass", "warning", "silent"),
        "10.213.0.45": ("fail", "critical", "missing"),
    }
    assert rows["10.213.0.44"]["reason"] == "the other site cannot be compared"


def test_they_are_no_upstreams_and_the_file_of_sources_must_name_them(outcome: Outcome) -> None:
    (clock,) = outcome.rows("relay-a1", "time.synchronised")
    (files,) = outcome.rows("relay-a1", "time.config")
    assert clock["verdict"] == "pass"
    assert files["verdict"] == "fail"
    assert "10.213.0.45" in files["reason"].partition("the inventory")[2]


def test_a_relay_without_an_address_outside_compares_no_sites(rack: Rack) -> None:
    rack.add("relay-a1", "relay-a1")
    rack.add("relay-b1", "relay-a1", lambda evidence: False, {"rack_outside_address": "10.213.0.41"})
    found = rack.run(hosts="ansible://relay-a1")
    assert found.rows("relay-a1", "time.sources")
    assert "10.213.0.41" not in {row["subject"] for row in found.rows("relay-a1", "time.sources")}
    assert {row["subject"] for row in found.rows("relay-a1", "time.skew")} == {"relay-a1"}
