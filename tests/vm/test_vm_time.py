"""Time where it is kept for real: steps, slewing, rtcsync and boots with a wrong clock, on a kernel of its own.

A VM is the node, beside a relay and clocks of containers (tests/rack/racks/vmtime.toml); the product's playbooks run
on both unmodified. The tests follow one another on the same machine, from its first power-on to its last. Times of a
guest under emulation are rough: bounds are wide, and still far from what a step or an unbounded slew would show.

Polls are 4 s here instead of the role's 16 s, so that one need not wait; nothing else differs from the defaults.
The figures of a run: `pytest -rP tests/vm/test_vm_time.py`.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from demo_rack import Run
from running import run_playbook

from lab import hosts, vm
from lab.topology import Rack, load

pytestmark = pytest.mark.slow

NODE, RELAY, RELAY_ADDRESS, NODES = "test-vm-time", "relay-v1", "10.219.1.21", "10.219.1.0/24"
POLL_LOG2_S = 2
YEAR, DAY = datetime.timedelta(days=365), datetime.timedelta(days=1)
CLOSE_S = 60.0
"""How exactly a hardware clock and a look over SSH tell the time."""
ALARM_S = 0.030
SYNCHRONISED_S = 0.010
"""A third of the alarm: what a synchronised guest stays within, emulated and on a busy machine."""
JUMP_S = 0.020
"""Between two samples, 0.2 s apart. A slew of 500 ppm moves a clock by 0.0001 s in that time."""
SLEW_PPM, NOISE_PPM = 500.0, 150.0
"""The role's ceiling, and how far the clock's own rate and the samples of an emulated machine are uncertain."""
HELD = "/run/steadyrack/chrony.env"
UNSYNC = 0x40
"""STA_UNSYNC (linux/timex.h)."""

SAMPLER = """
import os, time
raw, real = time.CLOCK_MONOTONIC_RAW, time.CLOCK_REALTIME
while os.path.exists("/run/clock-watch"):
    rows = []
    for _ in range(5):
        before, now, after = time.clock_gettime_ns(raw), time.clock_gettime_ns(real), time.clock_gettime_ns(raw)
        rows.append((after - before, before, now - (before + after) // 2))
    print(*min(rows)[1:], flush=True)
    time.sleep(0.2)
"""
"""The clock against a counter nobody can set or bend, ns; of five looks the one that was least interrupted."""
SNTP = """
import socket, struct, sys, time
rows = []
for _ in range(6):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        sent = time.time(); s.sendto(b"\\x23" + bytes(47), (sys.argv[1], 123)); data = s.recv(48); got = time.time()
    words = struct.unpack("!4I", data[32:48])
    there = [words[i] - 2208988800 + words[i + 1] / 2**32 for i in (0, 2)]
    rows.append((got - sent - (there[1] - there[0]), (sent - there[0] + got - there[1]) / 2))
    time.sleep(0.1)
print(*min(rows))
"""
"""Round trip and offset (+ = this clock is ahead) against a server, by nothing of chrony's: RFC 5905, section 8."""
ADJTIMEX = """
import ctypes, struct
buffer = ctypes.create_string_buffer(208)
state = ctypes.CDLL(None).adjtimex(buffer)
print(state, *struct.unpack_from("4qi", buffer, 8)[2:])
"""
"""State of the kernel's clock, maxerror (us), esterror, status bits."""


def clock_against_counter() -> float:
    """This machine's clock minus a counter nobody can set, in seconds: moves only when somebody moves the clock."""
    return time.time() - time.monotonic()


def eventually(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True


class Samples:
    """The guest's clock against its own counter, in seconds."""

    def __init__(self, text: str) -> None:
        self.rows = [tuple(int(word) / 1e9 for word in line.split()) for line in text.splitlines()]

    @property
    def seconds(self) -> float:
        return self.rows[-1][0] - self.rows[0][0]

    @property
    def largest_jump_s(self) -> float:
        return max(abs(b[1] - a[1]) for a, b in itertools.pairwise(self.rows))

    @property
    def ppm(self) -> float:
        """How fast the clock goes against the counter: the slope of a straight line through all samples."""
        n = len(self.rows)
        x0, y0 = (sum(row[i] for row in self.rows) / n for i in (0, 1))
        above = sum((x - x0) * (y - y0) for x, y in self.rows)
        return 1e6 * above / sum((x - x0) ** 2 for x, _ in self.rows)

    def last(self, seconds: float) -> Samples:
        part = Samples("")
        part.rows = [row for row in self.rows if row[0] >= self.rows[-1][0] - seconds]
        return part


class Node:
    """The VM, its relay, and what is looked at on them."""

    def __init__(self, rack: Rack, machine: vm.Machine, folder: Path) -> None:
        self.rack, self.machine, self.folder = rack, machine, folder
        self.inventory, self.runs = folder / "hosts.yml", itertools.count()
        self.inventory.write_text(json.dumps(inventory_of(rack, machine)))  # JSON is YAML

    def ssh(self, command: str, check: bool = True, stdin: str | None = None) -> str:
        # One login for many commands: emulated it takes a second.
        share = ["ControlMaster=auto", f"ControlPath={self.folder}/%C", "ControlPersist=30", "BatchMode=yes"]
        words = ["ssh", "-F", str(vm.SSH_CONFIG), *(w for s in share for w in ("-o", s)), self.machine.name, command]
        done = subprocess.run(words, check=False, text=True, capture_output=True, timeout=120, input=stdin or "")
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def python(self, code: str, *words: str) -> str:
        return self.ssh(f"python3 - {' '.join(words)}", stdin=code)

    def play(self, playbook: str, *words: str) -> Run:
        folder = self.folder / f"run-{next(self.runs)}"
        done = run_playbook(playbook, self.inventory, folder, list(words))
        events = list(done.events)
        return Run(done.rc, done.stats or {}, events, "\n".join(e.get("stdout", "") for e in events))

    def power_cycle(self, behind: datetime.timedelta) -> None:
        """The power goes and comes back; meanwhile the hardware clock has lost the time."""
        self.ssh("sync")
        vm.down(self.machine.name, keep_disk=True, cut=True)
        vm.up(self.machine, clock=ago(behind), owner=os.getpid())

    # --- the clock

    def behind_s(self) -> float:
        """Against this machine, over SSH: good to a second or two."""
        return time.time() - float(self.ssh("date +%s.%N"))

    def offset_s(self) -> float:
        """Against the relay, which has this machine's clock; + = ahead."""
        delay, offset = (float(word) for word in self.python(SNTP, RELAY_ADDRESS).split())
        print(f"offset against the relay {offset * 1e3:+.3f} ms (round trip {delay * 1e3:.3f} ms)")
        return offset

    def unsynchronised_for_the_kernel(self) -> bool:
        state, maxerror_us, _, status = (int(word) for word in self.python(ADJTIMEX).split())
        print(f"adjtimex: state {state}, status {status:#x}, maxerror {maxerror_us} us")
        return bool(status & UNSYNC)

    def move_clock(self, seconds: float) -> None:
        code = "import time; time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + {})"
        self.python(code.format(seconds))

    def during(self, action: Callable[[], object], after_s: float) -> Samples:
        """Sample the clock while something is done, and some seconds more."""
        self.ssh("touch /run/clock-watch && cat > /run/sampler.py", stdin=SAMPLER)
        self.ssh("systemd-run -q --collect --unit=clock-watch sh -c 'exec python3 /run/sampler.py > /run/samples'")
        assert eventually(lambda: self.ssh("cat /run/samples", check=False) != "", 60)
        action()
        time.sleep(after_s)
        text = self.ssh("rm /run/clock-watch; while systemctl -q is-active clock-watch; do sleep .1; done;"
                        " cat /run/samples; rm /run/samples")  # fmt: skip
        return Samples(text)

    # --- chronyd

    def tracking(self) -> list[str]:
        return self.ssh("chronyc -c tracking").split(",")

    def own_ppm(self) -> float:
        """What chronyd adds to the clock's rate for good; a slew comes on top."""
        return -float(self.tracking()[7])

    def options(self) -> list[str]:
        """How the running chronyd was called."""
        return self.ssh("tr '\\0' ' ' < /proc/$(systemctl show -P MainPID chrony)/cmdline").split()

    def journal(self, unit: str) -> list[tuple[float, str]]:
        """(seconds since the boot, line) of this boot."""
        lines = self.ssh(f"journalctl -b -u {unit} -o short-monotonic --no-hostname --no-pager").splitlines()
        found = [re.match(r"\[\s*([0-9.]+)\] \S+ (.*)", line) for line in lines]
        return [(float(match[1]), match[2]) for match in found if match]

    def steps(self) -> list[tuple[float, str]]:
        return [row for row in self.journal("chrony") if "System clock was stepped" in row[1]]

    def chronyd_began(self) -> float:
        """Seconds after the kernel's start, the first time."""
        return next(when for when, line in self.journal("chrony") if line.startswith("chronyd version"))

    def settled(self) -> list[tuple[float, str]]:
        """How steadyrack-time-settle has ended, each time."""
        words = "the clock follows ", "from now on it is only slewed"
        return [row for row in self.journal("steadyrack-time-settle") if any(word in row[1] for word in words)]

    def held(self) -> bool:
        return self.ssh(f"test -e {HELD} && echo yes", check=False) == "yes"

    # --- what happens around it

    def start_job(self) -> int:
        """A process that has opened what every process on a GPU opens; its number."""
        job = "exec 3</dev/nvidia-uvm; exec sleep infinity"
        self.ssh(f"test -e /dev/nvidia-uvm || mknod /dev/nvidia-uvm c 1 3; systemd-run -q --unit=job sh -c '{job}'")
        assert eventually(lambda: self.ssh("pgrep -f '^sleep infinity'", check=False) != "", 10)
        return int(self.ssh("systemctl show -P MainPID job"))

    def relay(self, *words: str) -> None:
        assert "200 OK" in hosts.execute(self.rack, RELAY, "chronyc", *words)


def ago(time_ago: datetime.timedelta) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0) - time_ago


def inventory_of(rack: Rack, machine: vm.Machine) -> dict:
    """The product's own shape, see inventory/example."""
    relay = {"ansible_host": RELAY_ADDRESS, "ansible_ssh_common_args": f'-F "{rack.state / "ssh_config"}"',
             "time_sync_upstreams": list(rack.hosts["outside"].upstream_clocks.values())}  # fmt: skip
    node = {"ansible_ssh_common_args": f'-F "{vm.SSH_CONFIG}"', "rack_gpus": []}
    polls = {f"time_sync_{side}_{end}poll": POLL_LOG2_S for side in ("upstream", "relay") for end in ("min", "max")}
    return {"all": {
        "vars": {"ansible_user": "root", "rack_site": "vmtime", "rack_networks": [NODES], **polls},
        "children": {"relays": {"hosts": {RELAY: relay}}, "gpu_nodes": {"hosts": {machine.name: node}}},
    }}  # fmt: skip


def good(run: Run) -> Run:
    assert run.rc == 0, run.failures() or run.text[-3000:]
    return run


@pytest.fixture(scope="session")
def this_clock() -> float:
    return clock_against_counter()


@pytest.fixture(scope="session")
def node(this_clock: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node a year behind, fresh from its installation, and a relay that works."""
    rack = load("vmtime")
    vm.down(NODE)
    hosts.up(rack)
    machine = vm.Machine(NODE, card=vm.network("rack-v=10.219.1.31", "vmtime"))
    vm.start(machine, clock=ago(YEAR), owner=os.getpid())
    found = Node(rack, machine, tmp_path_factory.mktemp("vmtime"))
    with ThreadPoolExecutor() as pool:
        relay = pool.submit(lambda: [good(found.play(f"playbooks/{name}.yml", "--limit relays")) for name in
                                     ("agent", "relay")])  # fmt: skip
        vm.up(machine, owner=os.getpid())
        relay.result()
    found.relay("allow", NODES)
    good(found.play("playbooks/agent.yml", "--limit gpu_nodes"))
    good(found.play("playbooks/relay.yml", "--limit gpu_nodes"))
    yield found
    vm.down(NODE)
    hosts.down(rack)


def test_c34_a_clock_a_year_behind_is_called_wrong_before_any_change(node: Node) -> None:
    """Not by a refused certificate or index, half-way through an installation."""
    assert node.unsynchronised_for_the_kernel()  # or the next test would show nothing
    run = node.play("playbooks/time.yml")
    ((host, message),) = run.failures()
    assert (run.rc, host) == (2, NODE)
    hours = float(re.search(r"clock wrong: seen ([0-9.]+) h behind the controller's", message)[1])
    assert abs(hours - YEAR.total_seconds() / 3600) < 0.1
    assert "time_sync_set_clock=true" in message
    assert not re.search("certificate|not valid yet|Release file", run.text)
    assert not run.changed(NODE)
    assert node.ssh("command -v chronyd; ls /etc/steadyrack/time_sync.json", check=False) == ""
    assert abs(node.behind_s() - YEAR.total_seconds()) < CLOSE_S


def test_a_clock_is_not_set_under_a_job_even_with_consent(node: Node) -> None:
    job = node.start_job()
    run = node.play("playbooks/time.yml", "-e time_sync_set_clock=true")
    node.ssh("systemctl stop job")
    ((_, message),) = run.failures()
    assert f"process {job} uses a GPU" in message
    assert abs(node.behind_s() - YEAR.total_seconds()) < CLOSE_S


def test_with_consent_it_is_set_and_chrony_comes_through_the_relay(node: Node) -> None:
    began = time.monotonic()
    run = good(node.play("playbooks/time.yml", "-e time_sync_set_clock=true"))
    print(f"from a year behind to synchronised, chrony installed: {time.monotonic() - began:.1f} s")
    assert "set the clock: it was 8760.0 h behind the controller's" in json.dumps([r for _, r in run.changed(NODE)])
    assert "Proxy" in node.ssh("cat /etc/apt/apt.conf.d/*")  # the way there was; the network has no other
    assert abs(node.offset_s()) < SYNCHRONISED_S
    # The kernel copies the time to the hardware clock only while it counts as synchronised, every 11 minutes
    # (CONFIG_RTC_SYSTOHC); that it counts as such is what rtcsync adds and what can be seen at once.
    assert eventually(lambda: not node.unsynchronised_for_the_kernel(), 30)


def test_a_node_that_boots_with_a_clock_a_year_off_steps_by_itself_then_never_again(node: Node) -> None:
    node.power_cycle(YEAR)
    assert eventually(lambda: len(node.settled()) > 0, 180)
    (stepped, what), (closed, why), began = node.steps()[0], node.settled()[0], node.chronyd_began()
    print(f"booted a year off: chronyd began {began:.1f} s after the kernel's start, stepped {stepped - began:.1f} s "
          f"later ({what}), settled {closed - began:.1f} s later")  # fmt: skip
    size = float(re.search(r"stepped by ([-0-9.]+) seconds", what)[1])
    assert abs(size - YEAR.total_seconds()) < CLOSE_S
    assert why.endswith(f"the clock follows {RELAY_ADDRESS}")
    assert began < stepped < closed < began + 150
    assert node.held()
    assert "-R" not in node.options()  # as chronyd was started in this boot, the file was not there
    assert abs(node.offset_s()) < SYNCHRONISED_S


def judge_slew(node: Node, samples: Samples, own_ppm: float) -> None:
    """No step, and the clock, which is ahead, is slowed down as much as it may be and no more."""
    bent = samples.last(10.0).ppm - own_ppm
    print(f"largest jump {samples.largest_jump_s * 1e3:.3f} ms in {samples.seconds:.1f} s, bent by {bent:+.1f} ppm "
          f"(own rate {own_ppm:+.1f} ppm); chronyd: {node.tracking()[4]} s outstanding")  # fmt: skip
    assert samples.largest_jump_s < JUMP_S
    assert -SLEW_PPM - NOISE_PPM < bent < -SLEW_PPM + NOISE_PPM
    assert node.options()[-2:] == ["-r", "-R"]


def test_a_restart_after_settling_does_not_step_what_is_off(node: Node) -> None:
    """Moved by 0.3 s while chronyd is stopped: three times what a boot would step."""
    assert eventually(lambda: float(node.tracking()[9]) < 100, 60)  # its own rate is known by now
    steps, own_ppm = node.steps(), node.own_ppm()
    node.ssh("systemctl stop chrony")
    node.move_clock(0.3)
    judge_slew(node, node.during(lambda: node.ssh("systemctl start chrony"), after_s=20), own_ppm)
    # A restart keeps the samples; a stop does not, chrony's unit removes the folder they are in.
    judge_slew(node, node.during(lambda: node.ssh("systemctl restart chrony"), after_s=12), own_ppm)
    assert sum("Loaded dump file" in line for _, line in node.journal("chrony")) == 1
    assert node.steps() == steps


def test_a_changed_configuration_restarts_chronyd_without_a_step(node: Node) -> None:
    steps, own_ppm = node.steps(), node.own_ppm()
    before = node.ssh("systemctl show -P MainPID chrony")
    wanted = "-e time_sync_max_clock_error_ppm=6 -e time_sync_wait_s=0"
    samples = node.during(lambda: good(node.play("playbooks/time.yml", wanted)), after_s=12)
    assert node.ssh("systemctl show -P MainPID chrony") != before
    assert "maxclockerror 6" in node.ssh("cat /etc/chrony/chrony.conf")
    assert sum("Loaded dump file" in line for _, line in node.journal("chrony")) == 2
    judge_slew(node, samples, own_ppm)
    assert node.steps() == steps


def test_without_the_file_in_run_the_same_restart_steps(node: Node) -> None:
    """The counter-test: these samples do show a step, and it is that file which prevents it."""
    steps = node.steps()
    node.ssh(f"rm {HELD}")
    samples = node.during(lambda: node.ssh("systemctl restart chrony"), after_s=15)
    print(f"without {HELD}: a jump of {samples.largest_jump_s * 1e3:.1f} ms")
    assert samples.largest_jump_s > 0.1
    assert len(node.steps()) == len(steps) + 1
    assert eventually(node.held, 30)
    assert abs(node.offset_s()) < SYNCHRONISED_S


def test_a_job_that_starts_before_the_relay_answers_never_sees_a_step(node: Node) -> None:
    node.relay("deny", "all")  # no answer to anybody
    node.power_cycle(DAY)
    assert not node.held()
    job = node.start_job()
    assert eventually(lambda: len(node.settled()) > 0, 30)
    closed, why = node.settled()[0]
    assert f"process {job} uses a GPU" in why
    assert node.held()
    samples = node.during(lambda: node.relay("allow", NODES), after_s=45)
    assert eventually(lambda: node.tracking()[0] != "00000000", 60)
    off = float(node.tracking()[4])
    print(f"closed {closed:.1f} s after the boot: {why}; the relay is back, {off:.3f} s outstanding, largest jump "
          f"{samples.largest_jump_s * 1e3:.3f} ms, {samples.last(10).ppm:+.1f} ppm")  # fmt: skip
    assert abs(off - DAY.total_seconds()) < CLOSE_S
    assert samples.largest_jump_s < JUMP_S
    assert node.steps() == []
    assert SLEW_PPM - NOISE_PPM < samples.last(10).ppm - node.own_ppm() < SLEW_PPM + NOISE_PPM


def test_without_a_job_the_first_answer_steps_however_late_it_comes(node: Node) -> None:
    node.relay("deny", "all")
    node.power_cycle(DAY)
    node.ssh("sleep $((60 - $(cut -d. -f1 /proc/uptime)))", check=False)
    assert (node.steps(), node.settled(), node.held()) == ([], [], False)
    answers = float(node.ssh("cut -d' ' -f1 /proc/uptime"))
    node.relay("allow", NODES)
    assert eventually(lambda: len(node.settled()) > 0, 90)
    (stepped, _), (closed, why) = node.steps()[0], node.settled()[0]
    print(f"relay answers from {answers:.1f} s after the boot on: stepped {stepped - answers:.1f} s later, "
          f"settled {closed - answers:.1f} s later")  # fmt: skip
    assert why.endswith(f"the clock follows {RELAY_ADDRESS}")
    assert node.held()
    assert abs(node.offset_s()) < SYNCHRONISED_S


def test_a_first_provisioning_under_a_job_does_not_step_either(node: Node) -> None:
    """chrony with Debian's own configuration, whose pool does not answer here; 2 s off; a job; nothing of ours yet."""
    node.ssh(
        "systemctl stop steadyrack-time-settle chrony; "
        "rm -rf /etc/steadyrack/time_sync.json /etc/chrony/steadyrack.* /etc/systemd/system/chrony.service.d "
        f"/usr/lib/systemd/system/steadyrack-time-settle.service {HELD} /run/chrony/*.dat; "
        "cp /usr/share/chrony/chrony.conf /etc/chrony/chrony.conf; systemctl daemon-reload; systemctl start chrony"
    )
    node.move_clock(2.0)
    job = node.start_job()
    assert "-R" not in node.options()
    steps, own_ppm = node.steps(), node.own_ppm()
    samples = node.during(lambda: good(node.play("playbooks/time.yml")), after_s=12)
    assert node.ssh("chronyc -c sources").split(",")[2] == RELAY_ADDRESS
    assert node.steps() == steps
    print(f"provisioned under job {job}")
    judge_slew(node, samples, own_ppm)


def test_this_machines_clock_was_never_moved(node: Node, this_clock: float) -> None:
    moved = clock_against_counter() - this_clock
    print(f"this machine's clock against its counter, from the first of these tests to the last: {moved * 1e3:+.3f} ms")
    assert abs(moved) < 0.5
