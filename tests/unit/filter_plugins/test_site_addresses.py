"""Where the nodes of a site find their relays."""

from __future__ import annotations

from rack_inventory import site_addresses

HOSTVARS = {
    "relay-1": {"rack_site": "north", "ansible_host": "10.1.0.1"},
    "relay-2": {"rack_site": "north"},
    "relay-3": {"rack_site": "south", "ansible_host": "10.2.0.1"},
    "relay-4": {"rack_site": "south", "ansible_host": "2001:db8::1"},
}


def test_a_relay_without_ansible_host_is_reached_by_its_name() -> None:
    assert site_addresses(HOSTVARS, list(HOSTVARS), "north") == ["10.1.0.1", "relay-2"]


def test_relays_of_other_sites_are_not_served_from() -> None:
    assert site_addresses(HOSTVARS, list(HOSTVARS), "south") == ["10.2.0.1", "2001:db8::1"]
    assert site_addresses(HOSTVARS, list(HOSTVARS), "west") == []
