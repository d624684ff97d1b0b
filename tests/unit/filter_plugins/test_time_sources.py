"""filter_plugins/time_sources.py: votes by operator, loops, and whom a relay asks besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rack_inventory
import time_sources
import yaml
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

ROLE = Path(__file__).resolve().parents[3] / "roles/time_sync"
FOUR = ["ntp.aliyun.com", "ntp.tencent.com", "ntp.sjtu.edu.cn", "ntp.ntsc.ac.cn"]
HOSTVARS = {
    "relay-a1": {"rack_site": "site-a", "ansible_host": "10.213.1.21", "rack_outside_address": "10.213.0.21"},
    "relay-a2": {"rack_site": "site-a", "ansible_host": "10.213.1.22", "rack_outside_address": "2001:db8:ff::22"},
    "relay-b1": {"rack_site": "Süd", "ansible_host": "10.213.2.21", "rack_outside_address": "10.213.0.41"},
    "relay-c1": {"rack_site": "site-c"},
}
RELAYS = list(HOSTVARS)
OWN = time_sources.relay_addresses(HOSTVARS, RELAYS)


def upstreams(values: Any, own: Any = (), least: Any = 1) -> list[dict[str, Any]]:
    return time_sources.time_upstreams(values, own, least)


def refused(values: Any, own: Any = (), least: Any = 1) -> str:
    """What is said; every refusal names the input and what was wanted."""
    with pytest.raises(AnsibleFilterError) as caught:
        upstreams(values, own, least)
    assert "time_sync_upstreams" in str(caught.value)
    assert "wanted" in str(caught.value)
    return str(caught.value)


# --- who runs a server ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "operator"),
    [
        ("ntp.aliyun.com", "alibaba"),
        ("ntp7.cloud.aliyuncs.com", "alibaba"),
        ("NTP.Tencent.COM.", "tencent"),
        ("time1.cloud.tencent.com", "tencent"),
        ("time.google.com", "google"),
        ("169.254.169.123.amazonaws.com", "amazon"),
        ("ntp.sjtu.edu.cn", "sjtu.edu.cn"),
        ("ntp2.ntp.sjtu.edu.cn", "sjtu.edu.cn"),
        ("ntp.ntsc.ac.cn", "ntsc.ac.cn"),
        ("ntp.nict.jp", "nict.jp"),
        ("ntp1.example.co.uk", "example.co.uk"),
        ("0.cn.pool.ntp.org", "0.cn.pool.ntp.org"),
        ("1.cn.pool.ntp.org", "1.cn.pool.ntp.org"),
        ("clock", "clock"),
        ("192.0.2.1", "192.0.2.1"),
        ("203.107.6.88", "alibaba"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("::ffff:203.107.6.88", "alibaba"),
        ("zeit.bücher.example", "bücher.example"),
    ],
)
def test_the_operator_is_the_registered_domain_or_a_known_one(address: str, operator: str) -> None:
    assert time_sources.operator_of(address) == operator


@pytest.mark.parametrize(
    ("pair", "operator"),
    [
        (["ntp.aliyun.com", "ntp1.cloud.aliyuncs.com"], "alibaba"),
        (["ntp.aliyun.com", "203.107.6.88"], "alibaba"),
        (["a.ntp.example.org", "b.ntp.example.org"], "example.org"),
        (["ntp.sjtu.edu.cn", "202.120.2.101"], "sjtu.edu.cn"),
        ([{"address": "192.0.2.1", "operator": "We"}, {"address": "192.0.2.2", "operator": "we "}], "we"),
        (["ntp.aliyun.com", {"address": "192.0.2.1", "operator": "Alibaba"}], "alibaba"),
    ],
)
def test_two_servers_of_one_operator_are_one_vote(pair: list[Any], operator: str) -> None:
    said = refused(pair)
    assert f"are both run by {operator}: one vote" in said
    assert all((entry if isinstance(entry, str) else entry["address"]) in said for entry in pair)


def test_the_operator_that_is_given_counts() -> None:
    pair = [{"address": "a.example.org", "operator": "one"}, {"address": "b.example.org", "operator": "two"}]
    assert [entry["operator"] for entry in upstreams(pair)] == ["one", "two"]


def test_names_of_the_public_pool_are_many_operators() -> None:
    assert len(upstreams([f"{number}.pool.ntp.org" for number in range(4)], least=4)) == 4


def test_the_roles_defaults_are_four_operators() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    entries = upstreams(defaults["time_sync_upstreams"], OWN, defaults["time_sync_min_operators"])
    assert len({entry["operator"] for entry in entries}) == 4
    assert defaults["time_sync_min_operators"] == time_sources.LEAST_OPERATORS
    assert defaults["time_sync_alarm_ms"] == time_sources.ALARM_MS


@pytest.mark.parametrize("pair", [["a.example", "A.example."], ["2001:db8::1", "[2001:DB8:0::1]"],
                                  ["192.0.2.1", "::ffff:192.0.2.1"]])  # fmt: skip
def test_one_server_twice_is_named(pair: list[str]) -> None:
    assert "are one server" in refused(pair)


@pytest.mark.parametrize("least", [5, "5", 5.0])
def test_fewer_operators_than_wanted_are_refused(least: Any) -> None:
    assert "4 operators; wanted at least 5" in refused(FOUR, least=least)
    assert len(upstreams(FOUR, least=4)) == 4


@pytest.mark.parametrize("values", [None, [], {}, "ntp.aliyun.com", 5, ()])
def test_no_upstream_is_refused(values: Any) -> None:
    assert "wanted a list of time servers outside" in refused(values)


# --- loops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["relay-a1", "Relay-B1.", "10.213.1.22", "10.213.0.41", "2001:DB8:FF:0::22", "[2001:db8:ff::22]",
     "::ffff:10.213.0.21"],
)  # fmt: skip
def test_a_relay_of_the_inventory_is_no_upstream(address: str) -> None:
    assert f"{address}: a relay of this inventory" in refused([*FOUR[:3], address], OWN)


def test_every_address_of_a_relay_is_known() -> None:
    assert OWN == ["relay-a1", "10.213.1.21", "10.213.0.21", "relay-a2", "10.213.1.22", "2001:db8:ff::22", "relay-b1",
                   "10.213.2.21", "10.213.0.41", "relay-c1"]  # fmt: skip
    assert time_sources.relay_addresses({}, None) == []


# --- entries -------------------------------------------------------------------------------------------


def test_an_entry_says_more_of_a_server() -> None:
    entry = {"address": " ntp.example ", "operator": "Uni Süd", "nts": True, "offset_s": -0.002}
    assert upstreams([entry]) == [{"address": "ntp.example", "operator": "uni süd", "nts": True, "offset_s": -0.002}]
    assert upstreams(["a.example"]) == [
        {"address": "a.example", "operator": "a.example", "nts": False, "offset_s": 0.0}
    ]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (5, "[0].address: 5"),
        (None, "[0].address: None"),
        ("", "[0].address: ''"),
        (["a"], "[0].address: ['a']"),
        ({}, "[0].address: None"),
        ({"address": ["a"]}, "[0].address"),
        ({"adress": "a"}, "[0].adress: unknown (did you mean address?)"),
        ({"address": "a", 5: 1}, "[0].5: unknown"),
        ({"address": "a", "nts": "yes"}, "[0].nts: 'yes'"),
        ({"address": "a", "operator": ["we"]}, "[0].operator: ['we']"),
        ({"address": "a", "offset_s": "0.1"}, "[0].offset_s: '0.1'"),
        ({"address": "a", "offset_s": True}, "[0].offset_s: True"),
        ({"address": "a", "offset_s": 2}, "[0].offset_s: 2"),
        ({"address": "a", "offset_s": float("nan")}, "[0].offset_s: nan"),
        ({"address": "a", "offset_s": None}, "[0].offset_s: None"),
    ],
)
def test_a_malformed_entry_is_named_by_its_place(entry: Any, said: str) -> None:
    assert said in refused([entry])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = JSON | st.fixed_dictionaries(
    {"address": JSON}, optional={"operator": JSON, "nts": JSON, "offset_s": JSON, "adress": JSON}
)


@given(st.lists(ENTRIES, max_size=5) | JSON, st.lists(st.text(max_size=8), max_size=3) | JSON, JSON)
def test_whatever_is_given_is_taken_or_refused_in_words(values: Any, own: Any, least: Any) -> None:
    try:
        entries = time_sources.time_upstreams(values, own, least)
    except AnsibleFilterError as error:
        entries, said = None, str(error)
    if entries is None:
        assert "wanted" in said
    else:
        assert len({entry["operator"] for entry in entries}) == len(entries) >= float(least)


@given(st.lists(ENTRIES, max_size=4) | JSON)
def test_entries_for_the_module_are_bare_or_refused_in_words(values: Any) -> None:
    try:
        entries = rack_inventory.source_entries(values, "time_sync_relays")
    except AnsibleFilterError as error:
        entries, said = None, str(error)
    if entries is None:
        assert "time_sync_relays" in said
    else:
        assert all(isinstance(entry["address"], str) and "[" not in entry["address"] for entry in entries)


def test_brackets_are_for_urls() -> None:
    assert rack_inventory.source_entries(["[2001:db8::1]", {"address": "[2001:db8::2]", "nts": True}]) == [
        {"address": "2001:db8::1"},
        {"address": "2001:db8::2", "nts": True},
    ]


# --- the other relays ------------------------------------------------------------------------------------


def test_relays_of_a_site_ask_each_other_inside() -> None:
    assert time_sources.site_peers(HOSTVARS, RELAYS, "relay-a1") == ["10.213.1.22"]
    assert time_sources.site_peers(HOSTVARS, RELAYS, "relay-b1") == []
    assert time_sources.site_peers(HOSTVARS, None, "relay-b1") == []
    named = {"x": {"rack_site": "s"}, "y": {"rack_site": "s"}}
    assert time_sources.site_peers(named, ["x", "y"], "x") == ["y"]


def test_relays_of_other_sites_are_looked_at_from_outside() -> None:
    assert time_sources.other_sites(HOSTVARS, RELAYS, "relay-a1") == {"10.213.0.41": "Süd"}
    assert time_sources.other_sites(HOSTVARS, RELAYS, "relay-b1") == {
        "10.213.0.21": "site-a", "2001:db8:ff::22": "site-a",
    }  # fmt: skip
    # Who has no address outside is reached by nobody and asks nobody there.
    assert time_sources.other_sites(HOSTVARS, RELAYS, "relay-c1") == {}


def test_addresses_become_networks_of_one_host_and_names_do_not() -> None:
    given_addresses = ["10.213.0.41", "2001:DB8::1", "relay.example", "[2001:db8::2]", "", None]
    assert time_sources.as_networks(given_addresses) == ["10.213.0.41/32", "2001:db8::1/128", "2001:db8::2/128"]
    assert time_sources.as_networks(None) == []


# --- before any host is contacted ------------------------------------------------------------------------


def found(host: str, before: tuple[str, ...] = (), **changes: dict[str, Any]) -> list[str]:
    """What is said of one host; ``changes`` are variables of hosts (_ for -)."""
    facts: dict[str, dict[str, Any]] = {**HOSTVARS, "gpu-a1": {"ansible_host": "10.213.1.31"}}
    facts.update({name.replace("_", "-"): {**facts[name.replace("_", "-")], **more} for name, more in changes.items()})
    errors = {"hosts": {name: list(before) for name in facts}, "inventory": []}
    answer = time_sources.time_errors(errors, facts, {"relays": RELAYS, "gpu_nodes": ["gpu-a1"]})
    assert answer["inventory"] == []
    return [line for line in answer["hosts"][host] if line not in before]


def test_a_sound_inventory_has_nothing_to_say() -> None:
    for host in [*RELAYS, "gpu-a1"]:
        assert found(host, relay_a1={"time_sync_upstreams": FOUR}) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([*FOUR, "relay-b1"], "a relay of this inventory"),
        ([*FOUR, "ntp1.aliyun.com"], "both run by alibaba"),
        (FOUR[:3], "3 operators; wanted at least 4"),
        ([{"address": FOUR[0], "nts": True}, *FOUR[1:]], "nts on some and not on others"),
        ([], "wanted a list of time servers"),
        ("ntp.aliyun.com", "wanted a list of time servers"),
    ],
)
def test_what_makes_the_vote_less_than_it_seems_is_said_once_of_its_relay(values: Any, said: str) -> None:
    (line,) = found("relay-a1", relay_a1={"time_sync_upstreams": values})
    assert line.startswith("relay-a1: time_sync_upstreams")
    assert said in line
    assert found("relay-b1", relay_a1={"time_sync_upstreams": values}) == []


@pytest.mark.parametrize("address", ["255.255.255.255", "240.0.0.1", "224.0.1.1", "ff02::101", "0x7f000001", "0x7f.1",
                                     "127.1", "2130706433", "localhost", "::ffff:127.0.0.1"])  # fmt: skip
def test_an_upstream_that_is_no_single_server_outside_is_refused(address: str) -> None:
    assert "this host itself, or no host" in refused([address])


def test_a_link_local_upstream_needs_its_interface_and_a_clouds_clock_does_not() -> None:
    assert "link-local, on no interface" in refused(["fe80::1"])
    assert len(upstreams(["fe80::1%eth0", "169.254.169.123", "0x.example"])) == 3


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("gpu-a1", "gpu-a1, a node of this inventory"),
        ("GPU-A1.", "gpu-a1, a node of this inventory"),
        ("10.213.1.31", "gpu-a1, a node of this inventory"),
        ("::ffff:10.213.1.31", "gpu-a1, a node of this inventory"),
    ],
)
def test_a_node_of_the_racks_is_no_upstream(address: str, said: str) -> None:
    (line,) = found("relay-a1", relay_a1={"time_sync_upstreams": [*FOUR, address]})
    assert f"{address}: {said}" in line
    assert "wanted servers outside" in line


def test_a_clock_of_ones_own_beside_the_rack_may_be_an_upstream() -> None:
    own = {"time_sync_upstreams": [*FOUR, "10.213.1.99"], "rack_networks": ["10.213.1.0/24"]}
    assert found("relay-a1", relay_a1=own) == []


def test_what_is_said_already_is_not_said_again() -> None:
    said = ("relay-a1: time_sync_upstreams: 10.0.0.300: not an address",)
    assert found("relay-a1", said, relay_a1={"time_sync_upstreams": ["10.0.0.300"]}) == []


@pytest.mark.parametrize("least", [3, "3", 3.0])
def test_fewer_operators_can_be_wanted(least: Any) -> None:
    assert found("relay-a1", relay_a1={"time_sync_upstreams": FOUR[:3], "time_sync_min_operators": least}) == []


@pytest.mark.parametrize(
    "given_values",
    [{"time_sync_warn_ms": 31}, {"time_sync_warn_ms": "31"}, {"time_sync_warn_ms": 9, "time_sync_alarm_ms": "8"}],
)
def test_a_warning_above_the_alarm_is_refused(given_values: dict[str, Any]) -> None:
    (line,) = found("gpu-a1", gpu_a1=given_values)
    assert line.startswith(f"gpu-a1: time_sync_warn_ms: {given_values['time_sync_warn_ms']}, above time_sync_alarm_ms")


@pytest.mark.parametrize(
    "given_values",
    [{"time_sync_warn_ms": 30}, {"time_sync_warn_ms": 0, "time_sync_alarm_ms": 1}, {"time_sync_warn_ms": "many"},
     {"time_sync_warn_ms": "(cannot be evaluated: x)"}, {"time_sync_warn_ms": True}, {"time_sync_alarm_ms": 2}],
)  # fmt: skip
def test_a_warning_that_is_not_above_it_or_is_no_number_is_no_matter_of_this(given_values: dict[str, Any]) -> None:
    assert found("gpu-a1", gpu_a1=given_values) == []


@pytest.mark.parametrize(
    ("given_values", "said"),
    [
        ({"time_sync_upstream_minpoll": 9}, "time_sync_upstream_minpoll: 9, above time_sync_upstream_maxpoll (8, its"),
        ({"time_sync_relay_minpoll": 6}, "time_sync_relay_minpoll: 6, above time_sync_relay_maxpoll (4, its default)"),
        ({"time_sync_upstream_maxpoll": "5"}, "time_sync_upstream_minpoll: 6, above time_sync_upstream_maxpoll (5)"),
        ({"time_sync_relay_maxpoll": 3}, "time_sync_relay_minpoll: 4, above"),
    ],
)
def test_a_shortest_interval_above_the_longest_is_refused(given_values: dict[str, Any], said: str) -> None:
    (line,) = found("gpu-a1", gpu_a1=given_values)
    assert said in line
    both = {"time_sync_upstream_minpoll": 9, "time_sync_upstream_maxpoll": 9, "time_sync_relay_maxpoll": 5}
    assert found("gpu-a1", gpu_a1=both) == []


def test_intervals_are_held_against_the_roles_own_defaults() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    for kind, ends in time_sources.POLLS.items():
        assert ends == tuple(defaults[f"time_sync_{kind}_{end}poll"] for end in ("min", "max"))


INPUTS = ["time_sync_upstreams", "time_sync_relays", "time_sync_warn_ms", "time_sync_alarm_ms",
          "time_sync_min_operators", "ansible_host", "rack_outside_address"]  # fmt: skip


@given(st.dictionaries(st.sampled_from(INPUTS), JSON))
def test_whatever_an_inventory_holds_preflight_goes_on(variables: dict[str, Any]) -> None:
    for host in ("relay_a1", "gpu_a1"):
        lines = found(host.replace("_", "-"), **{host: variables})
        assert all(line.startswith(host.replace("_", "-") + ": time_sync_") for line in lines)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"time_sync_keys": [{"id": 7, "key": "HEX:1"}]}, "key 7 is not of a form"),
        ({"time_sync_keys": [{"id": 7, "key": None}]}, "key 7 is not of a form"),
        ({"time_sync_keys": [{"id": True, "key": "HEX:AB"}]}, "an id is true or false"),
        ({"time_sync_keys": [{"id": 7, "type": "AES128", "key": "HEX:ABCDEF"}]}, "key 7 is not of a form"),
        ({"time_sync_keys": [{"id": 7, "key": "two words"}]}, "key 7 is not of a form"),
        ({"time_sync_keys": [{"id": 7, "key": "HEX:AB"}, {"id": 7, "key": "HEX:CD"}]}, "each id once"),
        ({"time_sync_key_id": 7}, "no such key"),
        ({"time_sync_key_id": "8", "time_sync_keys": [{"id": 7, "key": "HEX:AB"}]}, "no such key"),
    ],
)
def test_keys_that_the_role_would_refuse_are_told_first_and_never_shown(variables: dict[str, Any], said: str) -> None:
    facts = {"gpu-a1": {"rack_site": "a", **variables}}
    lines = time_sources.time_errors({"hosts": {"gpu-a1": []}}, facts, {"gpu_nodes": ["gpu-a1"]})["hosts"]["gpu-a1"]
    assert len(lines) == 1
    assert said in lines[0]
    assert not any(secret in lines[0] for secret in ("HEX:1", "ABCDEF", "two words", "HEX:AB"))


def test_a_good_key_is_taken() -> None:
    key = {"id": 7, "type": "AES128", "key": "HEX:" + "0F" * 16}
    facts = {"gpu-a1": {"rack_site": "a", "time_sync_keys": [key], "time_sync_key_id": 7}}
    assert time_sources.time_errors({"hosts": {"gpu-a1": []}}, facts, {})["hosts"]["gpu-a1"] == []


# --- keys and NTS of a whole site ------------------------------------------------------------------------

KEY = {"id": 1, "key": "HEX:AB01"}
OTHER = {"id": 1, "key": "HEX:CD02"}
SECOND = {"id": 2, "key": "HEX:EF03"}


def of_pair(host: str, one: Any = (), two: Any = (), **node: Any) -> list[str]:
    """What is said of ``host`` in a site of two relays with these keys and a node with these variables."""
    changes = {"relay_a1": {"time_sync_keys": list(one)}, "relay_a2": {"time_sync_keys": list(two)}}
    return found(host, **changes, gpu_a1={"rack_site": "site-a", **node})


@pytest.mark.parametrize(
    ("host", "one", "two", "node", "said"),
    [
        ("relay-a1", [KEY], [], {}, "key 1 is here and not on relay-a2"),
        ("relay-a2", [KEY], [], {}, "key 1 is on relay-a1 and not here"),
        ("relay-a1", [KEY], [OTHER], {}, "key 1 has another type or secret than on relay-a2"),
        ("relay-a1", [KEY], [{**KEY, "type": "SHA512"}], {}, "key 1 has another type or secret than on relay-a2"),
        ("relay-a2", [KEY, SECOND], [KEY], {}, "key 2 is on relay-a1 and not here"),
        ("gpu-a1", [KEY], [KEY], {"time_sync_keys": [SECOND], "time_sync_key_id": 2}, "key 2 is here and not on"),
        ("gpu-a1", [KEY], [KEY], {"time_sync_keys": [OTHER], "time_sync_key_id": 1}, "another type or secret than on"),
        ("gpu-a1", [], [], {"time_sync_keys": [KEY]}, "key 1 is here and not on relay-a1"),
        ("gpu-a1", [KEY], [], {"time_sync_keys": [KEY], "time_sync_key_id": 1}, "key 1 is here and not on relay-a2"),
    ],
    ids=range(9),  # a test's name is told to the environment
)
def test_keys_are_the_same_on_all_relays_and_a_nodes_key_is_theirs(
    host: str, one: Any, two: Any, node: Any, said: str
) -> None:
    (line,) = of_pair(host, one, two, **node)
    assert line.startswith(f"{host}: time_sync_keys: ")
    assert said in line
    assert "wanted one set of keys on all relays of a site, or none" in line
    assert not any(secret in line for secret in ("AB01", "CD02", "EF03", "HEX"))


@pytest.mark.parametrize("host", ["relay-a1", "relay-a2", "relay-b1", "gpu-a1"])
def test_keys_that_agree_in_any_spelling_and_a_node_without_one_pass(host: str) -> None:
    spelt = {"id": "1", "type": "SHA256", "key": "HEX:ab01"}
    assert of_pair(host, [KEY, SECOND], [SECOND, spelt]) == []
    assert of_pair(host, [KEY, SECOND], [SECOND, spelt], time_sync_keys=[SECOND], time_sync_key_id=2) == []
    assert of_pair(host, [{"id": 1, "key": "ASCII:x"}], [{"id": 1, "key": "x"}]) == []


def test_nts_on_one_relay_of_a_site_alone_is_refused_on_both() -> None:
    secured = [{"address": name, "nts": True} for name in FOUR]
    (first,) = found("relay-a1", relay_a1={"time_sync_upstreams": secured})
    (second,) = found("relay-a2", relay_a1={"time_sync_upstreams": secured})
    assert "nts here and not on relay-a2; wanted all relays of a site or none" in first
    assert "nts on relay-a1 and not here" in second
    assert found("relay-b1", relay_a1={"time_sync_upstreams": secured}) == []
    both = {"relay_a1": {"time_sync_upstreams": secured}, "relay_a2": {"time_sync_upstreams": secured}}
    assert found("relay-a1", **both) == found("relay-a2", **both) == []
