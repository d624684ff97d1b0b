"""A child for calls that may hang: the deadline holds, nothing of ours leaks into it, a stuck one is left."""

import os
import signal
import time

import pytest
from ansible.module_utils.steadyrack import child, files


def echo(channel):
    while True:
        channel.send({"echo": channel.receive()})


def test_messages_go_both_ways_whole_however_long():
    made = child.Child(echo)
    for message in ({"n": 1}, {"text": "x" * 300_000}, {"name": "東京"}):
        made.send(message)
        assert made.receive(5) == {"echo": message}
    assert made.stop()


def test_a_silent_child_is_given_up_at_the_deadline_and_ended():
    made = child.Child(lambda _channel: time.sleep(60))
    began = time.monotonic()
    with pytest.raises(child.ChildSilentError):
        made.receive(0.2)
    assert made.stop()
    assert 0.2 <= time.monotonic() - began < 2
    with pytest.raises(ProcessLookupError):
        os.kill(made.pid, 0)


def test_a_child_that_crashes_says_by_which_signal():
    made = child.Child(lambda _channel: os.kill(os.getpid(), signal.SIGSEGV))
    with pytest.raises(child.ChildGoneError, match="signal 11"):
        made.receive(5)


def test_c56_a_child_that_cannot_be_killed_is_not_waited_for():
    stuck = os.fork()
    if stuck == 0:
        time.sleep(60)
        os._exit(0)
    began = time.monotonic()
    assert not child.reaped(stuck, grace_s=0.2)  # it was not killed, as one in state D would not be
    assert time.monotonic() - began < 1
    os.kill(stuck, signal.SIGKILL)
    os.waitpid(stuck, 0)


def descriptors(channel):
    channel.send({"open": sorted(int(name) for name in os.listdir("/proc/self/fd"))})
    channel.send({"standard": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]})
    channel.receive()


def test_c56_a_stuck_child_keeps_neither_our_lock_nor_our_standard_output(tmp_path):
    path = str(tmp_path / "lock")
    with files.locked(path):
        made = child.Child(descriptors)
        # 0 to 4, and the one that listing the directory takes.
        assert made.receive(5)["open"] == [0, 1, 2, 3, 4, 5]
        assert made.receive(5)["standard"] == [os.devnull] * 3
    # The child still lives, as a stuck one would.
    with files.locked(path, wait_s=0.5):
        pass
    assert made.stop()


def test_the_child_ends_when_its_parent_is_gone():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        made = child.Child(echo)
        os.write(writer, str(made.pid).encode())
        os._exit(0)  # without stop(): as if killed
    os.waitpid(parent, 0)
    orphan = int(os.read(reader, 20))
    give_up = time.monotonic() + 5
    while os.path.exists(f"/proc/{orphan}") and time.monotonic() < give_up:
        with open(f"/proc/{orphan}/stat") as stat:
            if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                break  # ended; collecting it is for whoever adopted it
        time.sleep(0.02)
    else:
        assert not os.path.exists(f"/proc/{orphan}")
