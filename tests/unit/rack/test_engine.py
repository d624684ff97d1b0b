"""The engine and the set-up look at this machine; what they cannot work with they say in one sentence."""

from __future__ import annotations

import resource

import pytest

from lab import engine, images, setup
from lab.say import RackError


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with the given programs on PATH and the given user."""

    def make(programs: dict[str, str], uid: int = 0):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, body in programs.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr("os.geteuid", lambda: uid)
        monkeypatch.setattr(engine, "CONF", tmp_path / "containers.conf")
        engine.require_engine.cache_clear()
        return folder

    yield make
    engine.require_engine.cache_clear()


@pytest.mark.parametrize(
    ("programs", "uid", "said"),
    [
        ({"podman": "echo podman version 4.3.1"}, 1000, ["needs root", "rootless", "sudo"]),
        ({}, 0, ["podman 4 or newer", "not installed"]),
        ({"docker": "true"}, 0, ["podman 4 or newer", "Docker is here"]),
        ({"podman": "echo podman version 3.4.4"}, 0, ["podman 4 or newer", "3.4.4"]),
        ({"podman": "echo nonsense"}, 0, ["podman 4 or newer", "nonsense"]),
    ],
)
def test_an_engine_that_will_not_do_is_refused_with_what_would(machine, programs, uid, said):
    machine(programs, uid)
    with pytest.raises(RackError) as caught:
        engine.require_engine()
    assert [word for word in said if word not in str(caught.value)] == []


@pytest.mark.parametrize("version", ["4.3.1", "4.9.3", "5.4.2", "10.0"])
def test_newer_engines_are_taken(machine, version):
    machine({"podman": f"echo podman version {version}"})
    engine.require_engine()


@pytest.mark.parametrize(("v2", "order"), [(True, ["crun", "runc"]), (False, ["runc", "crun"])])
def test_the_runtime_tried_first_depends_on_the_cgroup_layout(machine, monkeypatch, v2, order):
    machine({"crun": "true", "runc": "true"})
    monkeypatch.setattr(engine, "cgroup_v2", lambda: v2)
    assert engine._runtimes() == order


def test_a_runtime_that_does_not_start_is_passed_over(machine, monkeypatch):
    machine({"crun": "true", "runc": "true", "podman": 'grep -q \'runtime = "crun"\' "$CONTAINERS_CONF"'})
    monkeypatch.setenv("PATH", f"{machine({})}:/usr/bin:/bin")
    monkeypatch.setattr(engine, "cgroup_v2", lambda: False)
    assert engine.settle_runtime("image") == "crun"
    assert 'runtime = "crun"' in engine.CONF.read_text()


def test_no_runtime_that_starts_is_an_error_with_each_ones_words(machine, monkeypatch):
    machine({"crun": "true", "runc": "true", "podman": "echo it broke >&2; exit 125"})
    monkeypatch.setattr(engine, "cgroup_v2", lambda: False)
    with pytest.raises(RackError, match="runc: it broke"):
        engine.settle_runtime("image")
    assert not engine.CONF.exists()


def test_limits_are_never_above_what_this_process_may_give(machine, monkeypatch):
    machine({})
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 2048))
    engine._write_conf("runc")
    assert "nofile=2048:2048" in engine.CONF.read_text()
    assert "nproc=2048:2048" in engine.CONF.read_text()


def test_missing_packages_are_named_to_whoever_may_not_install_them(machine):
    machine({"apt-get": "exit 1"}, uid=1000)
    with pytest.raises(RackError) as caught:
        setup.install(["podman", "mmdebstrap"])
    assert "podman mmdebstrap" in str(caught.value)
    assert "sudo ./rack demo" in str(caught.value)


def test_without_apt_the_packages_are_named(machine):
    machine({})
    with pytest.raises(RackError, match="no apt"):
        setup.install(["podman"])


def test_nothing_missing_installs_nothing(machine):
    machine({})
    setup.install([])


def test_an_installation_that_brings_nothing_is_not_taken_for_success(machine):
    machine({"apt-get": "exit 0"})
    with pytest.raises(RackError, match="still not found"):
        setup.install(["qemu-system-x86"], {"no-such-program": "qemu-system-x86"})


def test_what_a_linter_leaves_does_not_make_images_anew(tmp_path):
    (tmp_path / "program").write_text("x")
    before = images.tree(tmp_path)
    for folder in (".ruff_cache", "__pycache__"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "leftover").write_text("y")
    assert images.tree(tmp_path) == before
    (tmp_path / "program").write_text("z")
    assert images.tree(tmp_path) != before
