"""What is written for chronyd, release by release, and how a running daemon takes it over.

The golden files are written anew by ``STEADYRACK_GOLDEN=write pytest <this file>``; look at the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.steadyrack import chrony_config
from ansible.module_utils.steadyrack.chrony_config import Config, Paths, action_for, config_of, directives
from ansible.module_utils.steadyrack.errors import InputError
from hypothesis import given
from hypothesis import strategies as st

GOLDEN = Path(__file__).resolve().parents[2] / "fixtures/chrony/golden"
PATHS = Paths()
SECRET = "HEX:1dc764e0791b11fa67efc7ecbc4b0d73f68a070c"
KEY = {"id": 7, "type": "SHA256", "key": SECRET}
UPSTREAMS = [
    {"address": "ntp.aliyun.com", "operator": "alibaba"},
    {"address": "ntp.tencent.com", "operator": "tencent"},
    {"address": "ntp.sjtu.edu.cn", "operator": "sjtu.edu.cn"},
    {"address": "2001:db8:100::123", "operator": "us", "offset_s": 0.0125},
]
RELAY = {
    "mode": "relay",
    "site": "site-a",
    "sources": UPSTREAMS,
    "client_networks": ["10.213.1.0/24", "2001:db8:1::/64"],
}
PAIR = {**RELAY, "peers": ["10.213.1.22", "10.213.1.23"], "other_sites": {"10.213.0.41": "site-b"}}
CLIENT = {"mode": "client", "site": "site-a", "sources": [{"address": "10.213.1.21"}, {"address": "10.213.1.22"}]}
MODES: dict[str, dict[str, Any]] = {
    "relay-pair": PAIR,
    "relay-alone": RELAY,
    "relay-keys": {**PAIR, "keys": [KEY]},
    "relay-nts": {**PAIR, "sources": [{**entry, "nts": True} for entry in UPSTREAMS]},
    "relay-ipv6": {
        **RELAY,
        "sources": [{"address": f"2001:db8:{number}::123"} for number in range(4)],
        "peers": ["2001:db8:1::22"],
        "other_sites": {"2001:db8:ff::41": "Süd"},
        "client_networks": ["2001:db8:1::/64"],
    },
    "client": CLIENT,
    "client-key": {**CLIENT, "keys": [KEY], "key_id": 7},
    "client-ipv6": {**CLIENT, "sources": [{"address": "2001:db8:1::21"}, {"address": "fe80::22%eth1"}]},
}
RELEASES: dict[str, tuple[int, int] | None] = {
    "none": None, "4.0": (4, 0), "4.3": (4, 3), "4.6": (4, 6), "4.7": (4, 7), "4.8": (4, 8),
}  # fmt: skip

modes = pytest.mark.parametrize("mode", MODES)
releases = pytest.mark.parametrize("release", RELEASES)
relays = pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("relay")])
clients = pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("client")])


def conf(mode: str | dict[str, Any], release: str = "4.6", interfaces: tuple[str, ...] = ()) -> str:
    values = MODES[mode] if isinstance(mode, str) else mode
    return chrony_config.conf_text(config_of(values), PATHS, RELEASES[release], interfaces)


def words(text: str, name: str) -> list[str]:
    return [" ".join(row) for row in directives(text) if row[0] == name]


def everything(mode: str, release: str) -> str:
    """All that is written for one host, and the command by which a running daemon takes it over."""
    config, version = config_of(MODES[mode]), RELEASES[release]
    parts = {
        PATHS.conf: chrony_config.conf_text(config, PATHS, version, ("enp1s0",)),
        f"{PATHS.sourcedir}/steadyrack.sources": chrony_config.sources_text(config),
        PATHS.note: chrony_config.note_text(config, PATHS, version, ["systemd-timesyncd.service"]),
        "reload": " | ".join(chrony_config.reload_command(config, version)) + "\n",
    }
    if config.keys:
        parts[PATHS.keyfile] = chrony_config.keys_text(config)
    return "".join(f"===== {path}\n{text}" for path, text in parts.items())


# --- golden files ------------------------------------------------------------------------------------


@modes
@releases
def test_everything_written_is_as_last_looked_at(mode: str, release: str) -> None:
    path, text = GOLDEN / f"{mode}-{release}.txt", everything(mode, release)
    if os.environ.get("STEADYRACK_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_host() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"{mode}-{release}.txt" for mode in MODES for release in RELEASES
    }


# Of the directives of chrony 4.0 those that are written.
KNOWN_DIRECTIVES = {
    "allow", "authselectmode", "driftfile", "dumpdir", "hwtimestamp", "keyfile", "leapsecmode", "local", "log",
    "logchange", "logdir", "makestep", "maxclockerror", "maxdistance", "maxslewrate", "port", "ratelimit", "rtcsync",
    "sourcedir",
}  # fmt: skip


@modes
@releases
def test_no_directive_is_written_that_4_0_does_not_know_c36(mode: str, release: str) -> None:
    """C36. The daemon itself is asked on each host before a file is replaced."""
    assert {row[0] for row in directives(conf(mode, release, ("eth0",)))} <= KNOWN_DIRECTIVES


# --- the cases ---------------------------------------------------------------------------------------


@modes
@releases
def test_only_our_own_directory_is_read_c27(mode: str, release: str) -> None:
    """C27: neither the distribution's pool nor DHCP adds a source."""
    readers = ("sourcedir", "confdir", "include", "server", "pool", "peer", "refclock")
    rows = [" ".join(row) for row in directives(conf(mode, release)) if row[0] in readers]
    assert rows == ["sourcedir /etc/chrony/steadyrack.d"]


@modes
@releases
def test_the_clock_steps_in_its_first_updates_only_c29_c34(mode: str, release: str) -> None:
    """C29, C34."""
    wanted = "makestep 1 3" if mode.startswith("relay") else "makestep 0.1 3"
    assert words(conf(mode, release), "makestep") == [wanted]


@relays
def test_a_relay_serves_its_networks_of_both_families_and_nobody_else_c35(mode: str) -> None:
    """C35."""
    assert words(conf(mode), "allow") == sorted(f"allow {network}" for network in MODES[mode]["client_networks"])
    assert words(conf(mode), "port") == []


def test_a_relay_for_nobody_is_refused_c35() -> None:
    """C35."""
    with pytest.raises(InputError, match="client_networks: seen none"):
        config_of({**RELAY, "client_networks": []})


@pytest.mark.parametrize("network", ["10.0.0.1/24", "10.0.0.0/33", "rack", "10.0.0.0/24 all", ""])
def test_a_network_that_is_none_is_refused_c35(network: str) -> None:
    """C35."""
    with pytest.raises(InputError, match="client_networks"):
        config_of({**RELAY, "client_networks": [network]})


@clients
@releases
def test_a_client_serves_nobody(mode: str, release: str) -> None:
    text = conf(mode, release)
    assert words(text, "port") == ["port 0"]
    assert words(text, "allow") == words(text, "local") == words(text, "maxdistance") == words(text, "ratelimit") == []
    assert "deny all" not in chrony_config.reload_command(config_of(MODES[mode]), RELEASES[release])


@relays
@releases
def test_local_only_where_the_release_can_wait_for_a_first_sync_c36(mode: str, release: str) -> None:
    """C36: from 4.6 the daemon waits by itself (activate), before that the settle unit switches it on."""
    version = RELEASES[release]
    text, config = conf(mode, release), config_of(MODES[mode])
    note = json.loads(chrony_config.note_text(config, PATHS, version, []))
    reloads = chrony_config.reload_command(config, version)
    options = "stratum 10 orphan distance 0.1"
    if version is not None and version >= (4, 6):
        assert words(text, "local") == [f"local {options} activate 0.1"]
        assert note["local_when_synchronised"] is None
        assert f"local {options} activate 0.1" in reloads
    else:
        assert words(text, "local") == []
        assert note["local_when_synchronised"] == options
        # A reload leaves what the settle unit switched on.
        assert not any(command.startswith("local") for command in reloads)


@releases
def test_orphan_mode_that_is_not_wanted_is_nowhere_and_is_switched_off(release: str) -> None:
    config = config_of({**RELAY, "orphan_distance_s": 0})
    assert "local" not in conf({**RELAY, "orphan_distance_s": 0}, release)
    assert json.loads(chrony_config.note_text(config, PATHS, RELEASES[release], []))["local_when_synchronised"] is None
    assert "local off" in chrony_config.reload_command(config, RELEASES[release])


@modes
def test_every_source_gets_iburst_in_the_file_and_by_chronyc_c37(mode: str) -> None:
    """C37."""
    config = config_of(MODES[mode])
    rows = [row for row in chrony_config.sources_text(config).splitlines() if not row.startswith("#")]
    assert rows
    assert all(row.split()[0] == "server" and row.split()[2] == "iburst" for row in rows)
    assert rows == [f"server {name} {options}" for name, options in chrony_config.source_options(config).items()]


def test_peers_are_polled_as_servers_and_other_sites_are_never_followed() -> None:
    options = chrony_config.source_options(config_of(PAIR))
    assert options["10.213.1.22"] == options["10.213.1.23"] == "iburst minpoll 4 maxpoll 4 xleave"
    assert [name for name, text in options.items() if "noselect" in text] == ["10.213.0.41"]
    assert options["2001:db8:100::123"].endswith(" offset 0.0125")
    assert all("maxdelay 0.2" in options[entry["address"]] for entry in UPSTREAMS)


def test_a_small_offset_keeps_its_digits() -> None:
    config = config_of({**CLIENT, "sources": [{"address": "a", "offset_s": -0.000123456}]})
    assert chrony_config.source_options(config)["a"].endswith("offset -0.000123456")


# --- authentication ------------------------------------------------------------------------------------


def test_nts_on_some_is_refused_and_named() -> None:
    mixed = [{**UPSTREAMS[0], "nts": True}, *UPSTREAMS[1:]]
    with pytest.raises(
        InputError, match=r"NTS: seen not on ntp\.tencent\.com, .*wanted NTS on every upstream or on none"
    ):
        config_of({**RELAY, "sources": mixed})


def test_nts_stands_on_upstreams_only_and_a_peer_without_is_still_followed() -> None:
    options = chrony_config.source_options(config_of(MODES["relay-nts"]))
    assert [name for name, text in options.items() if text.split()[-1] == "nts" or " nts " in text] == [
        entry["address"] for entry in UPSTREAMS
    ]
    assert words(conf("relay-nts"), "authselectmode") == ["authselectmode ignore"]
    assert words(conf("relay-pair"), "authselectmode") == []
    assert words(conf({**MODES["relay-nts"], "peers": []}), "authselectmode") == []


def test_a_key_stands_on_every_relay() -> None:
    options = chrony_config.source_options(config_of(MODES["client-key"]))
    assert all(text.endswith(" key 7") for text in options.values())
    assert chrony_config.keys_text(config_of(MODES["client-key"])).splitlines()[1:] == [f"7 SHA256 {SECRET}"]


@modes
@releases
def test_a_secret_is_in_the_key_file_and_nowhere_else(mode: str, release: str) -> None:
    files = everything(mode, release).split("===== ")
    assert [text.split("\n")[0] for text in files if SECRET in text] in ([], [PATHS.keyfile])


@pytest.mark.parametrize("mode", ["relay-keys", "client-key"])
def test_keys_are_read_again_before_sources_ask_for_them(mode: str) -> None:
    command = chrony_config.reload_command(config_of(MODES[mode]), (4, 3))
    assert command[-2:] == ["rekey", "reload sources"]
    assert words(conf(mode), "keyfile") == [f"keyfile {PATHS.keyfile}"]


@pytest.mark.parametrize(
    ("changes", "thing"),
    [
        ({"keys": [KEY, {**KEY, "type": "AES128"}]}, "keys"),
        ({"keys": [KEY], "key_id": 8}, "key_id"),
        ({"keys": [], "key_id": 8}, "key_id"),
        ({"keys": [{**KEY, "type": "MD5"}]}, "key 7"),
        ({"keys": [{**KEY, "id": 0}]}, "key 0"),
        ({"keys": [{**KEY, "key": "hunter2 and more"}]}, "key 7"),
        ({"keys": [{**KEY, "key": "hunter2\n8 SHA256 ASCII:x"}]}, "key 7"),
        ({"keys": [{**KEY, "key": "HEX:hunter2"}]}, "key 7"),
        ({"keys": [{**KEY, "key": "HEX:123"}]}, "key 7"),
        ({"keys": [{**KEY, "key": ""}]}, "key 7"),
        ({"keys": [{**KEY, "type": "AES128", "key": "HEX:00ff"}]}, "key 7"),
        ({"keys": [KEY], "key_id": 7, "sources": [{"address": "a", "nts": True}]}, "key_id"),
    ],
)
def test_keys_that_chronyd_would_leave_out_are_refused_without_a_word_of_the_secret(
    changes: dict[str, Any], thing: str
) -> None:
    with pytest.raises(InputError) as caught:
        config_of({**CLIENT, **changes})
    assert caught.value.thing == thing
    assert "hunter2" not in json.dumps(caught.value.as_dict()) + str(caught.value)


@pytest.mark.parametrize(("kind", "key"), [("AES128", "HEX:" + "0a" * 16), ("AES256", "HEX:" + "0A" * 32),
                                           ("SHA512", "ASCII:tr0ub4dor"), ("SHA384", "tr0ub4dor")])  # fmt: skip
def test_keys_of_every_form_are_taken(kind: str, key: str) -> None:
    config = config_of({**CLIENT, "keys": [{"id": 1, "type": kind, "key": key}], "key_id": 1})
    assert chrony_config.keys_text(config).endswith(f"1 {kind} {key}\n")


# --- contradictions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "thing"),
    [
        ({"sources": []}, "sources"),
        ({"sources": [{"address": "a"}, {"address": "a"}]}, "source a"),
        ({"sources": [{"address": "a."}, {"address": "A"}]}, "source a."),
        ({"sources": [{"address": "2001:db8::1"}, {"address": "2001:DB8:0::1"}]}, "source 2001:db8::1"),
        ({"sources": [{"address": "a"}], "peers": ["a"]}, "source a"),
        ({"sources": [{"address": "a"}], "peers": ["b"], "other_sites": {"b": "x"}}, "source b"),
        ({"sources": [{"address": "a iburst"}]}, "source 'a iburst'"),
        ({"sources": [{"address": "a\nallow all"}]}, "source 'a\\nallow all'"),
        ({"sources": [{"address": "#a"}]}, "source '#a'"),
        ({"sources": [{"address": ""}]}, "source ''"),
        ({"upstream_poll": [8, 6]}, "upstream polling"),
        ({"relay_poll": [5, 4]}, "relay polling"),
        ({"relay_poll": [4]}, "relay_poll"),
        ({"warn_ms": 31.0}, "warn_ms"),
        ({"warn_ms": 0.0}, "warn_ms"),
        ({"alarm_ms": 0.0, "warn_ms": 0.0}, "warn_ms"),
        ({"alarm_ms": float("nan")}, "warn_ms"),
    ],
)
def test_contradictions_are_refused_and_named(changes: dict[str, Any], thing: str) -> None:
    with pytest.raises(InputError) as caught:
        config_of({**RELAY, **changes})
    assert caught.value.thing == thing
    assert "nothing was changed" in caught.value.sentence()


@given(st.text(max_size=20))
def test_no_text_becomes_a_directive_of_its_own(address: str) -> None:
    try:
        config = config_of({**CLIENT, "sources": [{"address": address}]})
    except InputError:
        return
    assert len(directives(chrony_config.sources_text(config))) == 1


# --- releases ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("chronyd (chrony) version 4.3 (+CMDMON +NTP +REFCLOCK +RTC +PRIVDROP +SCFILTER)", (4, 3)),
        ("chronyd (chrony) version 4.6.1 (+CMDMON +NTP -DEBUG)", (4, 6)),
        ("chronyd (chrony) version 4.0-pre2 (+CMDMON)", (4, 0)),
        ("chronyd (chrony) version 5.0\n", (5, 0)),
    ],
)
def test_the_release_is_read(said: str, version: tuple[int, int]) -> None:
    assert chrony_config.version_of(said) == version


@pytest.mark.parametrize("said", ["chronyd (chrony) version 3.5 (+CMDMON)", "chronyd (chrony) version 3.5.1"])
def test_a_release_too_old_is_refused_c36(said: str) -> None:
    """C36."""
    with pytest.raises(InputError, match=r"version 3\.5, wanted 4\.0 or later.*upgrade"):
        chrony_config.version_of(said)


@pytest.mark.parametrize(
    "said", ["", "chronyd: not found", "chronyd (chrony) version DEVELOPMENT", "version", "version 4"]
)
def test_a_release_that_cannot_be_read_is_an_error_not_a_guess(said: str) -> None:
    with pytest.raises(InputError, match="chronyd --version"):
        chrony_config.version_of(said)


def test_of_an_unknown_release_nothing_is_expected() -> None:
    assert not any(chrony_config.knows(None, feature) for feature in chrony_config.FEATURES)
    assert not chrony_config.knows((4, 5), "local activate")
    assert chrony_config.knows((4, 6), "local activate")
    assert chrony_config.knows((5, 0), "local activate")


# --- what a running daemon does about it -----------------------------------------------------------------


def changed(old: dict[str, Any], new: dict[str, Any], release: str = "4.6") -> str:
    return action_for(conf(old, release), conf(new, release))


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({}, "none"),
        ({"sources": UPSTREAMS[:3]}, "none"),  # they stand in another file
        ({"client_networks": ["10.9.0.0/16"]}, "reload"),
        ({"orphan_distance_s": 0.2}, "reload"),
        ({"orphan_distance_s": 0}, "reload"),
        ({"ratelimit": False}, "restart"),
        ({"max_distance_s": 1.0}, "restart"),
        ({"max_clock_error_ppm": 10.0}, "restart"),
        ({"max_slew_ppm": 100.0}, "restart"),
        ({"keys": [KEY]}, "restart"),
        ({"client_networks": ["10.9.0.0/16"], "max_distance_s": 1.0}, "restart"),
    ],
)
def test_only_what_chronyc_cannot_say_restarts(changes: dict[str, Any], action: str) -> None:
    assert changed(RELAY, {**RELAY, **changes}) == action


def test_comments_and_the_order_of_lines_are_nothing_to_a_daemon() -> None:
    text = conf(RELAY)
    lines = text.splitlines()
    assert action_for(text, "\n".join(reversed(lines))) == "none"
    assert action_for(text, "\n".join(line for line in lines if not line.startswith("#"))) == "none"
    assert action_for(text, text + "\n\n  ! said\n% so\n; and so\n  # too\n") == "none"
    assert action_for(text.replace("makestep 1 3", "makestep   1\t3  "), text) == "none"


def test_a_file_that_was_not_there_or_was_edited_restarts() -> None:
    text = conf(RELAY)
    assert action_for(None, text) == "restart"
    assert action_for(text + "server 192.0.2.66 iburst\n", text) == "restart"
    assert action_for(text + "Allow all\n", text) == "reload"
    assert action_for("", text) == "restart"


@given(st.lists(st.sampled_from([*conf(RELAY).splitlines(), "allow all", "server x", "  # x", ""])))
def test_going_to_the_same_meaning_does_nothing_and_back_costs_the_same(lines: list[str]) -> None:
    before, after = "\n".join(lines), conf(RELAY)
    assert action_for(before, after) == action_for(after, before)
    assert (action_for(before, after) == "none") == (directives(before) == directives(after))


def test_the_reload_of_a_relay_empties_its_table_first() -> None:
    assert chrony_config.reload_command(config_of(RELAY), (4, 8)) == [
        "chronyc", "-m", "deny all", "allow 10.213.1.0/24", "allow 2001:db8:1::/64",
        "local stratum 10 orphan distance 0.1 activate 0.1", "reload sources",
    ]  # fmt: skip


def test_the_reload_of_a_client_is_its_sources() -> None:
    assert chrony_config.reload_command(config_of(CLIENT), (4, 3)) == ["chronyc", "-m", "reload sources"]


@pytest.mark.parametrize(
    ("release", "old", "new", "action"),
    [
        ("4.3", {}, {"orphan_distance_s": 0.2}, "reload"),
        ("4.3", {}, {"orphan_distance_s": 0}, "reload"),
        ("4.3", {"orphan_distance_s": 0}, {}, "reload"),
        ("4.3", {}, {"alarm_ms": 20.0}, "none"),
        ("4.6", {}, {"orphan_distance_s": 0.2}, "none"),  # there the file says it
    ],
)
def test_orphan_mode_that_only_the_note_tells_of_is_taken_over(
    release: str, old: dict[str, Any], new: dict[str, Any], action: str
) -> None:
    notes = [
        chrony_config.note_text(config_of({**RELAY, **changes}), PATHS, RELEASES[release], []) for changes in (old, new)
    ]
    assert chrony_config.note_action(notes[0], notes[1]) == action


@pytest.mark.parametrize("before", [None, '{"version": 1'])
def test_a_note_that_is_not_there_or_is_no_note_breaks_nothing(before: str | None) -> None:
    after = chrony_config.note_text(config_of(RELAY), PATHS, (4, 3), [])
    assert chrony_config.note_action(before, after) == ("none" if before is None else "reload")


# --- the note --------------------------------------------------------------------------------------------


def test_the_note_says_who_is_asked_and_what_is_wrong() -> None:
    config = config_of({**PAIR, "site": "Süd", "alarm_ms": 12.5, "warn_ms": 4.0})
    text = chrony_config.note_text(config, PATHS, (4, 8), ["ntp.service"])
    note = json.loads(text)
    assert "Süd" in text
    assert (note["version"], note["mode"], note["unit"]) == (2, "relay", "chrony")
    assert note["sources"] == [entry["address"] for entry in UPSTREAMS]
    assert note["operators"]["ntp.aliyun.com"] == "alibaba"
    assert note["peers"] == ["10.213.1.22", "10.213.1.23"]
    assert note["other_sites"] == {"10.213.0.41": "site-b"}
    assert (note["alarm_ms"], note["warn_ms"], note["site_skew_alarm_ms"], note["min_upstreams"]) == (
        12.5,
        4.0,
        100.0,
        3,
    )
    assert note["rivals"] == ["ntp.service"]


def test_hardware_that_stamps_is_named_one_by_one() -> None:
    assert words(conf(CLIENT, "4.3", ("eth0", "eth1")), "hwtimestamp") == ["hwtimestamp eth0", "hwtimestamp eth1"]


def test_defaults_of_the_module_are_those_of_the_data() -> None:
    assert Config("client", "", ()).max_slew_ppm == config_of(CLIENT).max_slew_ppm == 500.0
