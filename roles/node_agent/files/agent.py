#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The command `steadyrack` on a host: what is true of it, its GPU policy kept true, its clock watched.

Exit status of every subcommand:
  0   all well: nothing to do, applied, or every check passed
  1   something is not as declared (with `gpu apply --check`: something would be set)
  2   nothing failed, but something could not be read and is unknown
  3   the command could not be carried out; the message says why (malformed policy, lock, no root)
  64  wrong use of the command line
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, NamedTuple, Sequence

# The package and pynvml lie beside this file; python3 -I, by which we are started, does not look there.
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from steadyrack import (
    agent_checks,
    gpu_allow,
    gpu_apply,
    gpu_baseline,
    gpu_checks,
    gpu_metrics,
    gpu_mig,
    gpu_people,
    gpu_policy,
    gpu_roles,
    gpu_spare,
    gpu_tell,
    gpu_watch,
    nvml,
    pcie,
    time_checks,
    time_gate,
    time_settle,
    time_watch,
    verdict,
)
from steadyrack.errors import SteadyrackError, ToolError
from steadyrack.run import run

# Modules of the package that answer for one subsystem each: `checks(root)` gives its rows and does not
# raise for what it finds. A module that this node's copy does not have is left out.
CHECK_PROVIDERS = ("gpu_checks", "agent_checks", "time_checks", "firewall_checks")
# Nobody asks these on a host that has no GPUs to keep (a relay).
GPU_PROVIDERS = ("gpu_checks",)

EXIT_USAGE = 64
EXIT_CANNOT = 3

# Rows of what `gpu apply` sets; the others are for `check`.
ROLES = ("gpu.spare", "gpu.active", "gpu.allow_list", "gpu.compute_mode", "gpu.xid")
APPLIED = (
    "gpu.count", "gpu.power_cap", "gpu.persistence", "gpu.mig", "gpu.compute_mode", "gpu.allow_list", "gpu.active",
)  # fmt: skip

# While a node boots the driver may take a while to show its GPUs: seconds between two looks.
WAIT_LOOK_S = 2.0
# States that a node passes through while it boots.
COMING_UP = ("no_driver", "no_library", "no_devices", "timeout", "error")
# States of a GPU that waiting does not change.
SETTLED = ("ok", "lost", "reset_required")
MODPROBE = "nvidia-modprobe"
# A pass that the kernel log calls for may meet a long run of Ansible: how often, and after how long, it is tried again.
WATCH_TRIES = 5
WATCH_AGAIN_S = 5.0

Record = Dict[str, Any]


# --- check -------------------------------------------------------------------------------------


def all_checks(root: str) -> list[Record]:
    """The rows of every provider this node has."""
    rows: list[Record] = []
    gpus = agent_checks.keeps_gpus(root)
    for name in CHECK_PROVIDERS:
        provider = _provider(name)
        if provider is None or (name in GPU_PROVIDERS and not gpus):
            continue
        try:
            rows.extend(provider(root))
        except SteadyrackError as error:
            reason = error.sentence()
            rows.append(
                verdict.check_row(
                    "agent.checks", socket.gethostname(), verdict.UNKNOWN, reason=reason, hint=error.next_step
                )
            )
    return rows


def _provider(name: str) -> Callable[[str], list[Record]] | None:
    try:
        module = importlib.import_module(f"steadyrack.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"steadyrack.{name}":
            raise
        return None
    found: Callable[[str], list[Record]] = module.checks
    return found


def do_check(options: argparse.Namespace) -> int:
    """`steadyrack check`."""
    rows = all_checks(options.root)
    if options.json:
        print(json.dumps({"host": socket.gethostname(), "at": verdict.utc_now(), "checks": rows}, indent=2))
    else:
        print(table(("verdict", "check", "subject", "state", "expected", "measured"), map(check_cells, rows)))
        findings = [attention(row) for row in rows if needs_attention(row)]
        print("\n".join(["", *findings] if findings else []), end="\n" if findings else "")
    return verdict.exit_code(rows)


def check_cells(row: Record) -> list[str]:
    """One row of checks for people, failures in capitals."""
    word = row["verdict"].upper() if row["verdict"] == verdict.FAIL else row["verdict"]
    if row["verdict"] == verdict.PASS and row["severity"] == verdict.WARNING:
        word = "warning"
    unit = " " + row["unit"] if row["unit"] else ""
    values = [("" if row[key] is None else f"{plain(row[key])}{unit}") for key in ("expected", "measured")]
    return [word, row["id"], row["subject"], row["state"] or "", *values]


def needs_attention(row: Record) -> bool:
    """Whatever is not plainly well or plainly out of scope."""
    return row["verdict"] in (verdict.FAIL, verdict.UNKNOWN) or row["severity"] == verdict.WARNING


# --- status ------------------------------------------------------------------------------------


def do_status(options: argparse.Namespace) -> int:
    """`steadyrack status`."""
    pci = pcie.read_gpus(options.root)
    node = nvml.read_node(options.root, [device["bus_id"] for device in pci])
    trouble = None
    policy = None
    try:
        policy = gpu_policy.load(policy_path(options.root))
    except SteadyrackError as error:
        trouble = error.sentence()
    host = socket.gethostname()
    roles = gpu_checks.roles_of(policy, options.root, host)
    known = gpu_checks.Found(roles=roles, baseline=gpu_baseline.look(options.root, node["gpus"]))
    rows = gpu_checks.rows(policy, node, pci, host, known)
    if options.json:
        print(json.dumps({"host": socket.gethostname(), "at": verdict.utc_now(), "node": node, "pci": pci,
                          "policy_error": trouble, "checks": rows}, indent=2))  # fmt: skip
    else:
        print(status_text(node, pci, Wanted(policy, roles, trouble), rows))
    return EXIT_CANNOT if trouble else verdict.exit_code(rows)


class Wanted(NamedTuple):
    """What is wanted of this host, and what keeps it from being known."""

    policy: gpu_policy.Policy | None
    roles: gpu_roles.Roles | None
    trouble: str | None

    def role(self, gpu: Record) -> str | None:
        return None if self.roles is None else self.roles.role(gpu)


def status_text(node: Record, pci: Sequence[Record], wanted: Wanted, rows: Sequence[Record]) -> str:
    """What one screen at 3 a.m. should say."""
    lines = [
        f"host    {socket.gethostname()}  {verdict.utc_now()}",
        "driver  {}  NVML {}{}".format(
            node["driver_version"] or "not loaded",
            node["state"],
            "" if node["state"] == "ok" else ": " + node["reason"],
        ),
        "policy  " + (wanted.trouble or policy_text(wanted.policy)),
    ]
    if node["state"] != "ok":
        lines.append("next    {}".format(node["next_step"]))
    cells = [gpu_cells(gpu, wanted, pci, rows) for gpu in node["gpus"]] or [pci_cells(device) for device in pci]
    heads = ("slot", "uuid", "role", "cap W wanted", "requested", "enforced", "draw W", "temp C", "link", "persist",
             "verdict")  # fmt: skip
    lines += ["", table(heads, cells) if cells else "no GPU on the PCI bus"]
    # What a sick GPU cannot tell follows from its state, which gpu.count names: the cause once, not four times.
    sick = ({gpu["state"] for gpu in node["gpus"]} | {node["state"]}) - {"ok"}
    bad = [row for row in rows if needs_attention(row) and (row["id"] == "gpu.count" or row["state"] not in sick)]
    if bad:
        lines += ["", *(attention(row) for row in bad)]
    return "\n".join(lines)


def policy_text(policy: gpu_policy.Policy | None) -> str:
    """The policy in a few words."""
    if policy is None:
        return f"none: {gpu_policy.POLICY_PATH} is not there"
    caps = ", ".join(
        "{} {}".format(rule.match, f"{rule.cap_w:g} W" if rule.cap_w is not None else f"{rule.cap_percent:g} %")
        for rule in policy.power_cap
    )
    cut = ", ".join(f"{rule.match} {gpu_mig.in_words(rule.mig or {})}" for rule in policy.mig)
    count = "any number of" if policy.gpu_count is None else policy.gpu_count
    spares = "" if policy.spares is None else f", {policy.spares.count} of them spare"
    return "{} GPUs{}; cap {}; persistence {}{}".format(
        count,
        spares,
        caps or "none",
        {True: "on", False: "off", None: "not said"}[policy.persistence_mode],
        f"; MIG {cut}" if cut else "",
    )


def gpu_cells(gpu: Record, wanted: Wanted, pci: Sequence[Record], rows: Sequence[Record]) -> list[str]:
    """One GPU's line."""
    role = wanted.role(gpu)
    wish = gpu_policy.resolve(wanted.policy or gpu_policy.Policy(), gpu, role)
    power = gpu["power"]
    link = next((device["link"]["width"] for device in pci if device["bus_id"] == gpu["bus_id"]), None)
    return [
        gpu["bus_id"] or "?",
        (gpu["uuid"] or "?")[:12],
        "-" if role is None else role.upper() if role == gpu_spare.FAILED else role,
        "-" if wish.cap_mw is None else plain(wish.cap_mw / 1000),
        *(plain(power[key]) for key in ("requested_w", "enforced_w", "draw_w")),
        plain(gpu["temperature_c"]),
        "?" if link is None else f"x{link}",
        {True: "on", False: "off", None: "?"}[gpu["persistence"]],
        gpu["state"].upper() if gpu["state"] != "ok" else gpu_verdict(gpu, rows),
    ]


def pci_cells(device: Record) -> list[str]:
    """A GPU's line where NVML tells nothing."""
    link = device["link"]["width"]
    word = "fallen off the bus" if device["on_bus"] is False else "unknown"
    return [device["bus_id"], "?", "-", "-", "?", "?", "?", "?", "?" if link is None else f"x{link}", "?", word]


def gpu_verdict(gpu: Record, rows: Sequence[Record]) -> str:
    """The worst word among this GPU's rows."""
    names = (gpu["uuid"], gpu["bus_id"])
    mine = [row for row in rows if row["subject"] in names]
    for judged in (verdict.FAIL, verdict.UNKNOWN):
        states = [row["state"] or judged for row in mine if row["verdict"] == judged]
        if states:
            return "{}: {}".format(judged.upper() if judged == verdict.FAIL else judged, ", ".join(states))
    warned = [str(row["state"]) for row in mine if row["severity"] == verdict.WARNING]
    return "warning: " + ", ".join(warned) if warned else "ok"


def attention(row: Record) -> str:
    """A finding that somebody should read, with the next step on its own line."""
    word = "!" if row["verdict"] == verdict.FAIL else "?" if row["verdict"] == verdict.UNKNOWN else "~"
    text = "{} {} {}: {}".format(word, row["id"], row["subject"], row["reason"])
    return text + (f"\n    {row['hint']}" if row["hint"] else "")


# --- gpu apply ---------------------------------------------------------------------------------


def do_gpu_apply(options: argparse.Namespace) -> int:
    """`steadyrack gpu apply`."""
    policy, trouble = gpu_policy.load_or_last(options.root)
    if policy is None:
        say("info", f"{gpu_policy.POLICY_PATH} is not there: nothing to apply")
        return 0
    if trouble is not None:
        say("error", f"{trouble}; until then the last policy that was whole is kept")
    if options.wait and not options.check:
        wait_for_gpus(options.root, policy, options.wait)
    elif not options.check:
        create_device_files(options.root, len(pcie.read_gpus(options.root)))
    outcome = gpu_apply.apply(
        policy, options.root, socket.gethostname(), check=options.check, strict=False,
        reload=lambda: gpu_policy.load_or_last(options.root)[0],
    )  # fmt: skip
    say_outcome(outcome, options.check)
    if not options.check:
        try:
            gpu_metrics.write(options.root, outcome, options.textfile)
        except OSError as error:
            say("warning", f"the metrics were not written: {error.strerror}")
    if not options.check and options.tell:
        gpu_tell.deliver(options.root, say, owner=os.geteuid())
    return EXIT_CANNOT if trouble is not None else apply_status(outcome, options.check)


def say_outcome(outcome: gpu_apply.Outcome, check: bool) -> None:
    """What happened, what was set and what is not as it should be, to the journal."""
    for event in outcome.events:
        level = "error" if event["event"] in ("failed", "no_spare") else "warning"
        say(level, event_text(event, check))
    for change in outcome.changes:
        say("warning" if change["cause"] == "drift" else "notice", change_text(change, check))
    if outcome.files:
        say("notice", "list for jobs: " + ", ".join(outcome.files) + ("; not written" if check else ""))
    for note in outcome.notes:
        say("info", note)
    for line in gpu_apply.warnings(outcome):
        say("warning", line)
    for row in [] if check else outcome.broken():
        say("error", attention(row))


def do_gpu_tell(options: argparse.Namespace) -> int:
    """`steadyrack gpu tell`."""
    gpu_tell.deliver(options.root, say, owner=os.geteuid())
    return 0


def apply_status(outcome: gpu_apply.Outcome, check: bool) -> int:
    """The exit status: what is not as declared before what is not known."""
    if check and outcome.changed:
        return 1
    rows = [row for row in outcome.rows if row["id"] in APPLIED]
    return 0 if all(row["verdict"] == verdict.NOT_JUDGED for row in rows) else verdict.exit_code(rows)


def event_text(event: Record, check: bool) -> str:
    """What happened to a GPU's role."""
    where = f" {event['bus_id']}" if event["bus_id"] else ""
    return f"{event['uuid']}{where}: {event['text']}" + ("; not done, only looked" if check else "")


def change_text(change: Record, check: bool) -> str:
    """Who changed what, from what to what."""
    causes = {
        "drift": "another writer had set it",
        "lost_state": "back at the default, as after a reboot or driver reload",
        "not_applied": "the driver enforced more than was asked for",
        "role": "its role has changed",
    }
    return "{} {}: {} {} -> {} ({}){}".format(
        change["uuid"], change["bus_id"], change["setting"], plain(change["before"]), plain(change["after"]),
        causes[change["cause"]], "; not set, only looked" if check else "",
    )  # fmt: skip


# --- spares, and the list for jobs --------------------------------------------------------------


def do_spare_status(options: argparse.Namespace) -> int:
    """`steadyrack spare status`."""
    host = socket.gethostname()
    policy = gpu_people.policy_with_roles(options.root)
    roles = gpu_roles.Roles(policy, options.root, host)
    pci = pcie.read_gpus(options.root)
    node = nvml.read_node(options.root, [device["bus_id"] for device in pci])
    rows = [
        row for row in gpu_checks.rows(policy, node, pci, host, gpu_checks.Found(roles=roles)) if row["id"] in ROLES
    ]
    state = roles.state or gpu_spare.empty()
    if options.json:
        found = {"host": host, "at": verdict.utc_now(), "roles": state, "listed": roles.listed, "checks": rows}
        print(json.dumps(found, indent=2))
        return verdict.exit_code(rows)
    cells = [
        [one["bus_id"], uuid, one["role"].upper() if one["role"] == gpu_spare.FAILED else one["role"],
         "yes" if uuid in (roles.listed or []) else "no", one["since"], one["reason"] or ""]
        for uuid, one in sorted(state["gpus"].items(), key=lambda pair: str(pair[1]["bus_id"]))
    ]  # fmt: skip
    print(table(("slot", "uuid", "role", "for jobs", "since", "why"), cells))
    for event in state["history"][-options.events :]:
        print("{}  {}".format(event["at"], event_text(event, check=False)))
    findings = [attention(row) for row in rows if needs_attention(row)]
    print("\n".join(["", *findings] if findings else []), end="\n" if findings else "")
    return verdict.exit_code(rows)


def do_spare_promote(options: argparse.Namespace) -> int:
    """`steadyrack spare promote`."""
    loser = gpu_people.promote(options.root, options.spare or "", options.instead_of, options.even_if_busy)
    say("notice", f"{loser} is given up; a spare takes its place")
    return _pass(options)


def do_spare_return(options: argparse.Namespace) -> int:
    """`steadyrack spare return`."""
    uuid = gpu_people.take_back(options.root, options.gpu)
    say("notice", f"{uuid} is back: a spare, and active where a place is free")
    return _pass(options)


def do_spare_forget(options: argparse.Namespace) -> int:
    """`steadyrack spare forget`."""
    uuid = gpu_people.forget(options.root, options.gpu)
    say("notice", f"{uuid} is struck off")
    return _pass(options)


def _pass(options: argparse.Namespace) -> int:
    """Bring the cards to the roles a person has just changed."""
    options.check, options.wait, options.textfile, options.tell = False, 0.0, None, True
    return do_gpu_apply(options)


def do_gpu_accept(options: argparse.Namespace) -> int:
    """`steadyrack gpu accept-baseline`."""
    changes = gpu_baseline.accept(options.root, options.uuid)
    for change in changes:
        say("notice", "{uuid}: {counter} {from} -> {to} is the base from now on".format(**change))
    if not changes:
        say("info", "nothing has risen since the base")
    return 0


def do_gpu_env(options: argparse.Namespace) -> int:
    """`steadyrack gpu env`."""
    listed = gpu_allow.read(options.root)
    if listed is None:
        raise ToolError(gpu_allow.LIST_PATH, "not there", "the list for jobs", "steadyrack gpu apply, as root")
    print("\n".join(f"export {line}" for line in gpu_allow.variables(listed)))
    return 0


def do_gpu_watch(options: argparse.Namespace) -> int:
    """`steadyrack gpu watch`."""
    command = [sys.executable, "-I", os.path.realpath(__file__), "--root", options.root, "gpu"]
    textfile = ["--textfile", options.textfile] if options.textfile else []
    tellers: list[subprocess.Popen[bytes]] = []

    def look() -> None:
        # A process of its own: this one keeps what it needs to wait, and nothing of the driver's.
        for _try in range(WATCH_TRIES):
            status = subprocess.run([*command, "apply", "--no-tell", *textfile], stdin=subprocess.DEVNULL, check=False)
            if status.returncode != EXIT_CANNOT:
                break
            say("error", "the pass could not be carried out (a lock, a disk); it is tried again")
            time.sleep(WATCH_AGAIN_S)
        # Hooks may take long, and the next card does not wait for them.
        tellers[:] = [teller for teller in tellers if teller.poll() is None]
        tellers.append(subprocess.Popen([*command, "tell"], stdin=subprocess.DEVNULL))

    gpu_watch.follow(look, say)
    return 0


def wait_for_gpus(root: str, policy: gpu_policy.Policy, wait_s: float) -> None:
    """Make the device files appear and wait, up to ``wait_s`` seconds, until the driver shows the GPUs.

    Whatever is there at the end is worked with: one missing GPU must not leave the others uncapped.
    """
    give_up = time.monotonic() + wait_s
    told = ""
    while True:
        pci = pcie.read_gpus(root)
        create_device_files(root, len(pci))
        node = nvml.read_node(root, [device["bus_id"] for device in pci])
        # What the bus does not show, and what the driver calls lost, does not come by waiting.
        wanted = sum(device["on_bus"] is not False for device in pci) or policy.gpu_count or 0
        here = sum(gpu["state"] in SETTLED for gpu in node["gpus"])
        if (node["state"] == "ok" and here >= wanted) or node["state"] not in ("ok", *COMING_UP):
            return
        if time.monotonic() + WAIT_LOOK_S > give_up:
            return
        seen = f"waiting for the GPUs: NVML {node['state']}, {here} of {wanted} answer"
        if seen != told:
            say("info", seen)
        told = seen
        time.sleep(WAIT_LOOK_S)


def create_device_files(root: str, count: int) -> None:
    """Have /dev/nvidia* made where they are missing: services that wait for them lose the race at boot."""
    missing = [number for number in range(count) if not os.path.exists(os.path.join(root, f"dev/nvidia{number}"))]
    if missing and shutil.which(MODPROBE):
        run([MODPROBE, "-u", *(f"-c={number}" for number in missing)], timeout_s=20.0)


# --- time ---------------------------------------------------------------------------------------


def do_time_gate(options: argparse.Namespace) -> int:
    """`steadyrack time gate`."""
    host = socket.gethostname()
    # The leak counter is not asked for: it does not decide.
    policy = time_checks.load_policy(options.root)
    rows = [time_checks.not_declared(host)] if policy is None else time_checks.judge(policy, host)
    decision = time_gate.decide(host, rows)
    if options.json:
        print(json.dumps({"host": host, "at": verdict.utc_now(), "may_start": decision.may_start,
                          "line": decision.line, "checks": rows}, indent=2))  # fmt: skip
    else:
        print(decision.line)
    return decision.code


def do_time_watch(options: argparse.Namespace) -> int:
    """`steadyrack time watch`."""
    # Under test the hooks are the tester's; on a node they are root's, whoever starts this.
    owner = 0 if options.root == "/" else os.geteuid()
    watch = time_watch.Watch(options.root, textfile=options.textfile, hook_owner=owner)
    watch.serve(options.interval, time_watch.stop_on_signals())
    return 0


def do_time_settle(options: argparse.Namespace) -> int:
    """`steadyrack time settle`."""
    ended = time_settle.settle(options.root, say=lambda text: say("info", text))
    if ended is not None:
        say("notice", ended.why + ("; orphan mode: " + ended.local if ended.local else ""))
    return 0


# --- words -------------------------------------------------------------------------------------


def say(level: str, text: str) -> None:
    """One line to the journal with its priority when systemd runs us, else plain."""
    if os.environ.get("JOURNAL_STREAM"):
        number = {"error": 3, "warning": 4, "notice": 5, "info": 6}[level]
        text = "\n".join(f"<{number}>{line}" for line in text.splitlines())
    print(text, flush=True)


def plain(value: Any) -> str:
    """A value for people: ``?`` for what is not known, no needless decimals."""
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{round(value, 1):g}" if isinstance(value, float) else str(value)


def table(heads: Sequence[str], rows: Any) -> str:
    """Columns as wide as they need to be."""
    lines = [list(heads), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def policy_path(root: str) -> str:
    """The policy file below a root."""
    return os.path.join(root, gpu_policy.POLICY_PATH.lstrip("/"))


class Parser(argparse.ArgumentParser):
    """argparse ends with 2 on wrong use, which means `unknown` here."""

    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def parser() -> Parser:
    """The command line. A later subsystem adds its subcommand here."""
    statuses = (__doc__ or "").partition("Exit status")
    top = Parser(prog="steadyrack", description="What is true of this host; its GPUs and its clock kept so.",
                 epilog="".join(statuses[1:]), formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    # For tests, which put a tree of files in the place of the node's own.
    top.add_argument("--root", default="/", help=argparse.SUPPRESS)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser("status", help="the GPUs in one table, and what needs attention")
    status.add_argument("--json", action="store_true", help="everything that was read, as JSON")
    status.set_defaults(do=do_status)
    check = commands.add_parser("check", help="every check of this node: pass, fail, unknown or not judged")
    check.add_argument("--json", action="store_true", help="the rows as JSON")
    check.set_defaults(do=do_check)
    gpu = commands.add_parser("gpu", help="the GPU policy").add_subparsers(dest="verb", required=True, metavar="VERB")
    apply_ = gpu.add_parser("apply", help="bring every GPU to the policy; does nothing where all is as declared")
    apply_.add_argument("--wait", type=seconds, default=0.0, metavar="SECONDS",
                        help="wait this long for the driver to show all GPUs (default 0)")  # fmt: skip
    apply_.add_argument("--check", action="store_true", help="only say what would be set; exit status 1 if anything")
    apply_.add_argument("--no-tell", dest="tell", action="store_false", help="leave the hooks to `gpu tell`")
    apply_.add_argument("--textfile", metavar="DIRECTORY",
                        help="of node_exporter's textfile collector (default: Debian's, else our own)")  # fmt: skip
    apply_.set_defaults(do=do_gpu_apply)
    base = gpu.add_parser("accept-baseline", help="take the error counts of now as the base for rises")
    base.add_argument("uuid", nargs="?", help="of one GPU; left out: of all")
    base.set_defaults(do=do_gpu_accept)
    tell = gpu.add_parser("tell", help="tell the hooks of alarm.d what happened to GPUs and they do not know yet")
    tell.set_defaults(do=do_gpu_tell)
    env = gpu.add_parser("env", help='the GPUs that jobs may use, as lines for a shell: eval "$(steadyrack gpu env)"')
    env.set_defaults(do=do_gpu_env)
    follow = gpu.add_parser("watch", help="follow the kernel log until ended; apply at each Xid")
    follow.add_argument("--textfile", metavar="DIRECTORY", help="as for `gpu apply`")
    follow.set_defaults(do=do_gpu_watch)
    spare_commands(commands.add_parser("spare", help="which GPUs work and which stand by"))
    times = commands.add_parser("time", help="this host's clock").add_subparsers(
        dest="verb", required=True, metavar="VERB"
    )
    gate = times.add_parser("gate", help="may a job start now? 0 yes, 1 no, 2 not known; one line says why")
    gate.add_argument("--json", action="store_true", help="the answer and the rows behind it as JSON")
    gate.set_defaults(do=do_time_gate)
    watch = times.add_parser("watch", help="look after the clock until ended; alarms to journal, hooks and metrics")
    watch.add_argument(
        "--interval", type=interval, default=10.0, metavar="SECONDS", help="between two looks (default 10)"
    )
    watch.add_argument("--textfile", metavar="DIRECTORY",
                       help="of node_exporter's textfile collector (default: Debian's, else our own)")  # fmt: skip
    watch.set_defaults(do=do_time_watch)
    settle = times.add_parser(
        "settle", help="wait until the clock follows a source or a job runs, then let nobody step it"
    )
    settle.set_defaults(do=do_time_settle)
    return top


def spare_commands(spare: argparse.ArgumentParser) -> None:
    """`steadyrack spare …`."""
    verbs = spare.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("status", help="the role of every GPU, what jobs are given, and what happened last")
    show.add_argument("--json", action="store_true", help="everything that is known, as JSON")
    show.add_argument("--events", type=int, default=5, metavar="N", help="how many of the last events (default 5)")
    show.set_defaults(do=do_spare_status)
    promote = verbs.add_parser("promote", help="let a spare take the place of a GPU that you give up")
    promote.add_argument("spare", nargs="?", help="UUID (or its beginning), serial or slot; left out: the next one")
    promote.add_argument("--instead-of", required=True, metavar="GPU", help="the GPU to give up")
    promote.add_argument("--even-if-busy", action="store_true",
                         help="although it is well and a job is on it, which is not ended")  # fmt: skip
    promote.set_defaults(do=do_spare_promote)
    back = verbs.add_parser("return", help="after repair: take a failed GPU back, or accept one that was put in")
    back.add_argument("gpu", help="UUID (or its beginning), serial or slot")
    back.set_defaults(do=do_spare_return)
    gone = verbs.add_parser("forget", help="strike off a failed or new GPU that has left the host")
    gone.add_argument("gpu", help="UUID (or its beginning), serial or slot")
    gone.set_defaults(do=do_spare_forget)


def seconds(text: str) -> float:
    """A time span of the command line."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600 seconds")
    return value


def interval(text: str) -> float:
    """A time between two looks: a tenth of a second would be a load, not a watch."""
    value = seconds(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1 second")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status comes back."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.do(options)
    except SteadyrackError as error:
        print(f"steadyrack: {error.sentence()}", file=sys.stderr)
        return EXIT_CANNOT
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
