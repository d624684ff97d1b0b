"""Files are whole or absent; a lock is let go when its holder dies, and never waited for without end."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import errors, files

# Without the fix this would wait for ever, so a child with a deadline asks.
READ = "import sys; sys.path.insert(0, sys.argv[1]); from steadyrack import files; files.read_bytes(sys.argv[2])"
AS_NOBODY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


def test_a_write_replaces_content_and_mode_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text("old")
    files.atomic_write(str(path), b"new", 0o640)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(tmp_path) == ["policy.json"]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "policy.json"
    path.write_text("old")

    def no_space(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(errors.StateFileError, match="No space left"):
        files.atomic_write(str(path), b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["policy.json"]


def test_a_symbolic_link_is_replaced_and_its_target_left_alone(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("theirs")
    link.symlink_to(target)
    files.atomic_write(str(link), b"ours")
    assert not link.is_symlink()
    assert target.read_text() == "theirs"


def test_a_reader_never_sees_half_a_file(tmp_path):
    path = tmp_path / "state"
    files.atomic_write(str(path), b"a" * 100_000)
    writer = subprocess.Popen(
        [sys.executable, "-c",
         "import sys; sys.path.insert(0, sys.argv[1]); from steadyrack import files\n"
         "for n in range(60): files.atomic_write(sys.argv[2], b'ab'[n % 2:n % 2 + 1] * 100_000)",
         str(Path(files.__file__).parent.parent), str(path)]
    )  # fmt: skip
    try:
        while writer.poll() is None:
            assert set(path.read_bytes()) in ({ord("a")}, {ord("b")})
            assert path.stat().st_size == 100_000
    finally:
        writer.kill()
    assert writer.returncode == 0


def test_owner_and_group_are_taken_by_name_or_number_and_an_unknown_one_is_refused(tmp_path):
    path = tmp_path / "file"
    me = str(os.geteuid())
    files.atomic_write(str(path), b"x", owner=me, group=str(os.getegid()))
    with pytest.raises(errors.InputError, match="no such user"):
        files.atomic_write(str(path), b"y", owner="nobody-by-that-name")
    with pytest.raises(errors.InputError, match="no such group"):
        files.atomic_write(str(path), b"y", group="no-group-by-that-name")
    assert path.read_bytes() == b"x"


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(errors.StateFileError, match="no directory"):
        files.atomic_write(str(tmp_path / "none/file"), b"x")


@AS_NOBODY
def test_a_file_that_may_not_be_read_is_not_taken_for_absent(tmp_path):
    path = tmp_path / "secret"
    path.write_text("x")
    path.chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(errors.AccessError, match="run it as root"):
            files.read_bytes(str(path))
    finally:
        os.seteuid(0)


def test_absent_and_half_written_json_are_told_apart(tmp_path):
    path = tmp_path / "state.json"
    assert files.load_json(str(path)) is None
    path.write_text('{"version": 1, "gpus": [')
    with pytest.raises(errors.StateFileError, match="not JSON"):
        files.load_json(str(path))
    path.write_text("[1]")
    with pytest.raises(errors.StateFileError, match="list"):
        files.load_json(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(errors.StateFileError):
        files.load_json(str(path))


def test_c88_any_unicode_survives_the_round_trip(tmp_path):
    path = tmp_path / "state.json"
    files.atomic_write(str(path), files.dump_json({"owner": "Zoë Ä 東京"}))
    assert files.load_json(str(path)) == {"owner": "Zoë Ä 東京"}
    assert "東京" in path.read_text(encoding="utf-8")


HOLDER = (
    "import sys, time; sys.path.insert(0, sys.argv[1]); from steadyrack import files\n"
    "with files.locked(sys.argv[2]): print('held', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    path = tmp_path / "run/our.lock"
    command = [sys.executable, "-c", HOLDER, str(Path(files.__file__).parent.parent), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process, str(path)
    process.kill()
    process.wait()


def test_a_held_lock_is_not_waited_for_without_end_and_the_holder_is_named(holder):
    process, path = holder
    began = time.monotonic()
    with pytest.raises(errors.BusyError, match=f"process {process.pid}"), files.locked(path, wait_s=0.2):
        pytest.fail("two holders")
    assert 0.2 <= time.monotonic() - began < 2


def test_the_lock_is_free_when_its_holder_is_killed(holder):
    process, path = holder
    process.kill()
    process.wait()
    with files.locked(path, wait_s=5):
        pass


@pytest.mark.parametrize("path", ["afile/x", "afile/deeper/x"])
def test_a_file_where_a_directory_belongs_is_a_typed_error(tmp_path, path):
    (tmp_path / "afile").write_text("")
    with pytest.raises(errors.StateFileError), files.locked(str(tmp_path / path)):
        pass
    with pytest.raises(errors.StateFileError):
        files.make_directory(str(tmp_path / path))


def test_a_pipe_or_a_device_in_the_place_of_a_file_is_an_error_and_never_waited_for(tmp_path):
    pipe = tmp_path / "note.json"
    os.mkfifo(pipe)
    home = str(Path(files.__file__).resolve().parents[1])
    for path in (str(pipe), "/dev/zero", str(tmp_path)):
        done = subprocess.run(
            [sys.executable, "-c", READ, home, path], capture_output=True, text=True, timeout=30, check=False
        )
        assert f"StateFileError: {path}: seen not a regular file" in done.stderr


def test_what_systemd_has_masked_reads_as_empty(tmp_path):
    (tmp_path / "x.service").symlink_to("/dev/null")
    assert files.read_bytes(str(tmp_path / "x.service")) == b""
