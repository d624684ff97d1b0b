"""Preflight on whole inventories: bad input gets one clear error. No host is contacted, so none is needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from running import run_playbook

ROOT = Path(__file__).resolve().parents[3]
EVERYBODY = {"relay-a1", "relay-a2", "relay-b1", "gpu-a1", "gpu-a2", "gpu-b1"}


@pytest.fixture
def demo(tmp_path):
    """A copy of the demo inventory to spoil. Its connection would fail: whoever connects is found out."""
    folder = tmp_path / "inventory"
    shutil.copytree(ROOT / "inventory" / "demo", folder)
    (folder / "group_vars/all/connection.yml").write_text("ansible_ssh_common_args: -o ProxyCommand=false\n")
    return folder


def edit(folder: Path, change, name: str = "hosts.yml") -> None:
    path = folder / name
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data, allow_unicode=True))


def add_node(tree, name="gpu-a3", **variables) -> None:
    children = tree["all"]["children"]
    children["gpu_nodes"]["hosts"][name] = {"ansible_host": "10.213.1.33", **variables}
    children["site_a"]["children"]["rack_a1"]["hosts"][name] = None


def preflight(folder: Path, *words: str, playbook: str = "playbooks/preflight.yml"):
    """(rc, {host: message of its failure}, hosts that passed)"""
    done = run_playbook(playbook, folder, folder.parent / "run", list(words))
    failed, passed = {}, set()
    for event in done.events:
        data = event.get("event_data", {})
        if event["event"] == "runner_on_failed":
            failed[data["host"]] = json.dumps(data["res"].get("msg", data["res"]), ensure_ascii=False)
        elif event["event"] == "runner_on_unreachable":
            raise AssertionError(f"preflight connected to {data['host']}")
        elif event["event"] == "runner_on_ok":
            passed.add(data["host"])
    return done.rc, failed, passed - set(failed)


def test_the_demo_fits_and_says_by_how_much(demo):
    rc, failed, passed = preflight(demo)
    assert (rc, failed) == (0, {})
    assert passed == EVERYBODY


def test_the_example_inventory_passes(tmp_path):
    folder = tmp_path / "inventory"
    shutil.copytree(ROOT / "inventory" / "example", folder)
    rc, failed, _ = preflight(folder)
    assert (rc, failed) == (0, {})


@pytest.mark.parametrize("words", [(), ("--limit", "gpu-a3"), ("--check",)])
def test_a_third_node_is_refused_with_the_watts_also_under_limit(demo, words):
    edit(demo, add_node)
    rc, failed, _ = preflight(demo, *words)
    assert rc != 0
    assert "5400" in failed["gpu-a3"]
    assert "3800" in failed["gpu-a3"]


def test_site_yml_stops_there_before_anything_is_touched(demo):
    """Of the site whose rack is over its budget; the other site would go on, and be connected to."""
    edit(demo, add_node)
    rc, failed, _ = preflight(demo, "--skip-tags", "acceptance", "--limit", "site_a", playbook="site.yml")
    assert rc != 0
    assert set(failed) == {"relay-a1", "relay-a2", "gpu-a1", "gpu-a2", "gpu-a3"}


def test_a_rack_over_budget_does_not_stop_the_other_rack(demo):
    def second_rack(tree):
        children = tree["all"]["children"]
        for number in (1, 2, 3):
            children["gpu_nodes"]["hosts"][f"gpu-c{number}"] = {"ansible_host": f"10.213.1.5{number}"}
        hosts = dict.fromkeys(f"gpu-c{number}" for number in (1, 2, 3))
        children["site_a"]["children"]["rack_c1"] = {"hosts": hosts}

    edit(demo, second_rack)
    rack = yaml.safe_load((demo / "group_vars/rack_a1/rack.yml").read_text())
    (demo / "group_vars/rack_c1").mkdir()
    (demo / "group_vars/rack_c1/rack.yml").write_text(yaml.safe_dump({**rack, "rack_name": "demo-c1"}))
    rc, failed, passed = preflight(demo)
    assert rc != 0
    assert set(failed) == {"gpu-c1", "gpu-c2", "gpu-c3"}
    assert passed >= EVERYBODY


def unknown_group(tree):
    tree["all"]["children"]["gpu_node"] = {"hosts": {"gpu-a3": {"ansible_host": "10.213.1.33"}}}


def same_address(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["ansible_host"] = "10.213.1.31"


def no_relay(tree):
    del tree["all"]["children"]["relays"]
    for site, rack in (("site_a", "rack_a1"), ("site_b", "rack_b1")):
        hosts = tree["all"]["children"][site]["children"][rack]["hosts"]
        for name in [name for name in hosts if name.startswith("relay-")]:
            del hosts[name]


def no_relay_at_one_site(tree):
    del tree["all"]["children"]["relays"]["hosts"]["relay-b1"]
    del tree["all"]["children"]["site_b"]["children"]["rack_b1"]["hosts"]["relay-b1"]


def one_outside_address_for_a_pair(tree):
    tree["all"]["children"]["relays"]["hosts"]["relay-a2"]["rack_outside_address"] = "10.213.0.21"


def outside_address_of_a_node(tree):
    of_node(tree)["rack_outside_address"] = "10.213.0.99"


def bad_address(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["ansible_host"] = "10.213.1.999"


def unicode_address(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["ansible_host"] = "knöten-2"


def bad_name(tree):
    hosts = tree["all"]["children"]["gpu_nodes"]["hosts"]
    hosts["gpu_a!2"] = hosts.pop("gpu-a2")
    rack = tree["all"]["children"]["site_a"]["children"]["rack_a1"]["hosts"]
    rack["gpu_a!2"] = rack.pop("gpu-a2")


def index(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["gpu_policy_overrides"] = [
        {"uuid": "2", "power_cap_w": 250}
    ]


def cap_too_high(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["gpu_policy_power_cap_w"] = 400


def misspelt_input(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["gpu_policy_power_capw"] = 250


def of_node(tree):
    return tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]


def brackets(tree):
    of_node(tree)["ansible_host"] = "[2001:db8::31]"


def other_rack_name(tree):
    of_node(tree)["rack_name"] = "demo-a1 "


def rack_name_in_capitals(tree):
    of_node(tree)["rack_name"] = "DEMO-A1"


def text_for_a_number(tree):
    of_node(tree)["time_sync_alarm_ms"] = "thirty"


def port_out_of_range(tree):
    tree["all"]["children"]["relays"]["hosts"]["relay-a1"]["package_mirror_port"] = 99999


def wait_that_the_agent_refuses(tree):
    of_node(tree)["node_agent_boot_wait_s"] = 4000


def misspelt_key_of_an_override(tree):
    of_node(tree)["gpu_policy_overrides"] = [{"model": "A100 80GB PCIe", "power_cap": 200}]


def bad_upstream(tree):
    tree["all"]["children"]["relays"]["hosts"]["relay-a1"]["time_sync_upstreams"] = ["ntp..bad"]


def no_cards(tree):
    of_node(tree)["rack_gpus"] = []


def count_beside_the_sum(tree):
    of_node(tree)["gpu_policy_gpu_count"] = 3


def model_twice(tree):
    cards = {"count": 2, "power_max_w": 300, "power_min_w": 150}
    of_node(tree)["rack_gpus"] = [{"model": m, **cards} for m in ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe")]


def misspelt_fact(tree):
    tree["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"]["rack_host_base"] = 700


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unknown_group, ["gpu_node", "gpu_nodes"]),
        (same_address, ["10.213.1.31", "gpu-a1", "gpu-a2"]),
        (no_relay, ["relay"]),
        (no_relay_at_one_site, ["gpu-b1", "site-b", "no relay"]),
        (one_outside_address_for_a_pair, ["rack_outside_address", "also that of relay-a1", "also that of relay-a2"]),
        (outside_address_of_a_node, ["gpu-a2", "rack_outside_address", "no relay"]),
        (bad_address, ["10.213.1.999"]),
        (unicode_address, ["knöten-2"]),
        (bad_name, ["gpu_a!2"]),
        (brackets, ["[2001:db8::31]", "without brackets"]),
        (other_rack_name, ["demo-a1 ", "blanks"]),
        (rack_name_in_capitals, ["DEMO-A1", "demo-a1", "one feed"]),
        (text_for_a_number, ["time_sync_alarm_ms", "thirty"]),
        (port_out_of_range, ["package_mirror_port", "1 to 65535"]),
        (wait_that_the_agent_refuses, ["node_agent_boot_wait_s", "0 to 3600"]),
        (misspelt_key_of_an_override, ["power_cap", "power_cap_w"]),
        (bad_upstream, ["time_sync_upstreams", "ntp..bad"]),
        (no_cards, ["rack_gpus", "empty"]),
        (count_beside_the_sum, ["gpu_policy_gpu_count", "4, the sum"]),
        (model_twice, ["also listed as"]),
        (index, ["gpu_policy_overrides", "UUID"]),
        (cap_too_high, ["400", "300"]),
        (misspelt_input, ["gpu_policy_power_capw", "gpu_policy_power_cap_w"]),
        (misspelt_fact, ["rack_host_base", "rack_host_base_w"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_bad_input_is_named_before_anything_is_contacted(demo, spoil, said):
    edit(demo, spoil)
    rc, failed, _ = preflight(demo)
    assert rc != 0
    text = " ".join(failed.values())
    assert [word for word in said if word not in text] == []


@pytest.mark.parametrize("address", ["2001:db8::31", "node-1.rack.example", "1.node.example.com"])
def test_c86_c87_well_formed_names_and_ipv6_pass(demo, address):
    edit(demo, lambda t: t["all"]["children"]["gpu_nodes"]["hosts"]["gpu-a2"].update(ansible_host=address))
    rc, failed, _ = preflight(demo)
    assert (rc, failed) == (0, {})


def test_a_relay_that_is_reached_by_its_name_alone_is_refused_before_the_firewall_would(demo):
    edit(demo, lambda t: t["all"]["children"]["relays"]["hosts"]["relay-a1"].pop("ansible_host"))
    rc, failed, passed = preflight(demo)
    assert rc != 0
    assert "set ansible_host to its address" in failed["gpu-a1"]
    assert passed >= {"relay-b1", "gpu-b1"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rack_bmc_networks", ["10.0.0.0/7"], "would let the world ask"),
        ("rack_networks", ["0.0.0.0/1", "128.0.0.0/1"], "would let the world ask"),
        ("rack_firewall_extra_rules", [{"chain": "input", "rule": 'log prefix "x'}], "quotes"),
        ("time_sync_upstreams", ["127.0.0.1", "b.com", "c.com", "d.com"], "this host itself"),
        ("time_sync_upstreams", ["::", "b.com", "c.com", "d.com"], "no host"),
        ("time_sync_set_clock", "maybe", "true, false or ask"),
        ("time_sync_rivals", ["chrony.service"], "not chronyd's own"),
        ("node_agent_webhook_url", "http://hook.example/s3cret\nx", "http:// or https:// and a host"),
        ("node_agent_webhook_proxy", "http://", "http://host:port"),
        ("node_agent_textfile_directory", "relative/dir", "an absolute path"),
    ],
)
def test_what_a_role_would_refuse_midway_or_nobody_would_is_refused_first(demo, name, value, said):
    (demo / "host_vars").mkdir()
    (demo / "host_vars/relay-a1.yml").write_text(yaml.safe_dump({name: value}))
    rc, failed, _ = preflight(demo)
    assert rc != 0
    assert said in failed["relay-a1"]
    assert "s3cret" not in str(failed)


def test_a_model_and_a_slot_are_known_in_every_spelling_that_the_node_takes(demo):
    overrides = [{"model": "a100 80gb pcie", "power_cap_w": 200}, {"bus_id": "00000000:31:00.0", "power_cap_w": 250}]
    edit(demo, lambda t: of_node(t).update(gpu_policy_overrides=overrides))
    rc, failed, _ = preflight(demo)
    assert (rc, failed) == (0, {})


def test_c88_rack_and_site_names_may_be_in_any_script(demo):
    edit(demo, lambda v: v.update(rack_name="机柜-ä1"), "group_vars/rack_a1/rack.yml")
    edit(demo, lambda v: v.update(rack_site="北京"), "group_vars/site_a/site.yml")
    edit(demo, add_node)
    rc, failed, _ = preflight(demo)
    assert rc != 0
    assert "机柜-ä1" in failed["gpu-a3"]
