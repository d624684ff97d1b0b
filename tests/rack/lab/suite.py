"""`./rack test`: every stage in turn, counted, with the time each took. A stage that fails does not hide the next one.

Fast tier: lint, unit tests, molecule, the demo end to end. `--all` adds what is slow. Two lanes run side by side.
What a tier leaves out is printed. A skipped test fails the run unless its reason is in ALLOWED_SKIPS.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from lab import hosts, images, setup
from lab.demo import table
from lab.paths import ROOT, STATE
from lab.say import RackError, run, step
from lab.topology import load

RESULTS = STATE / "test"
ALLOWED_SKIPS = (
    r"no second Python \(3\.12 or newer\) on this machine",
    r"only on a machine with an NVIDIA GPU",
)
RACKS = ("molecule", "demo", "interrupt", "time", "other-demo")
BESIDE = ("lint", "unit", "passes", "other", "firewall", "vm", "nvidia-smi")
LANES = (RACKS, BESIDE)
"""Stages that run beside one another, each lane in its order: the first waits for hosts, polls and alarms most of the
time. `firewall` needs the rack of `molecule` and waits until that is done. `bench` measures: it runs alone, at the end.
"""
RACK_OF = {
    "molecule": {"molecule", "firewall"},
    "demo": {"demo", "interrupt", "time", "other-demo"},
    "vmtime": {"vm"},
}
"""Which stages leave which rack behind. One that was up for something else stays."""
SLOW = ("passes", "interrupt", "time", "other-demo", "other", "firewall", "vm", "nvidia-smi", "bench")
"""Stages of --all only."""
PASSES = (
    "tests/unit/spare",
    "tests/unit/library/test_gpu_policy_mig.py",
    "tests/unit/module_utils/test_gpu_sight.py",
    "tests/unit/playbooks/test_demo_inventory_spoilt.py",
)
"""Unit tests that run hundreds of passes of the agent, or of preflights: a third of the time of all."""


@dataclass
class Outcome:
    """What a stage came to. `problems` are sentences; a stage without any has passed."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="the slow stages too: " + ", ".join(SLOW))
    parser.add_argument("--only", action="append", metavar="STAGE", help="this stage only (may be given again)")
    parser.add_argument("--list", action="store_true", help="the stages, in order")
    parser.add_argument("--keep", action="store_true", help="leave the racks up afterwards")


def command(args: argparse.Namespace) -> int:
    if args.list:
        for name, stage in STAGES.items():
            print(f"{name:12} {'(--all) ' if name in SLOW else ''}{(stage.__doc__ or '').splitlines()[0]}")
        return 0
    unknown = set(args.only or ()) - set(STAGES)
    if unknown:
        raise RackError(f"no stage is called {', '.join(sorted(unknown))}", "known: " + ", ".join(STAGES))
    wanted = [name for name in STAGES if (name in args.only if args.only else args.all or name not in SLOW)]
    setup.install(setup.missing_packages())
    setup.python(dev=True)
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    began = time.monotonic()
    outcomes = _run_stages(wanted)
    took_s = time.monotonic() - began
    if not args.keep:
        for rack, stages in RACK_OF.items():
            if not stages.isdisjoint(wanted):
                hosts.down(load(rack))
    return _close(outcomes, [name for name in STAGES if name not in wanted], took_s)


def _run_stages(wanted: list[str]) -> list[Outcome]:
    """The lanes at once until the last stage of both has ended, then what runs alone. In the order of STAGES."""
    lanes = [found for lane in LANES if (found := [name for name in lane if name in wanted])]
    if any(name in RACKS or name in SLOW for name in wanted):
        images.settle()  # both lanes need them
    elif "unit" in wanted:
        images.build_native()
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda lane: [_run_stage(name, beside=len(lanes) > 1) for name in lane], lanes):
            outcomes += done
    outcomes += [_run_stage(name) for name in wanted if not any(name in lane for lane in lanes)]
    return sorted(outcomes, key=lambda outcome: wanted.index(outcome.name))


_SETUP = threading.Lock()
"""Lanes make the same environment once."""
_MOLECULE = threading.Lock()
"""Its rack belongs to one stage at a time."""
_PREFIX = threading.local()
"""`.text`: what begins a line of the stage that this thread runs, where another prints beside it."""


def _run_stage(name: str, beside: bool = False) -> Outcome:
    _PREFIX.text = f"{name:10} | " if beside else ""
    outcome, started = Outcome(name), time.monotonic()
    step(f"=== {name}")
    try:
        STAGES[name](outcome)
    except RackError as error:
        outcome.problems.append(str(error))
    outcome.seconds = time.monotonic() - started
    if outcome.problems and not outcome.failed:
        outcome.failed = len(outcome.problems)
    for reason in outcome.skipped:
        if not any(re.search(pattern, reason) for pattern in ALLOWED_SKIPS):
            outcome.problems.append(f"skipped for a reason that is not on the list: {reason}")
            outcome.failed += 1
    step(f"=== {name}: {'FAILED' if outcome.failed or outcome.problems else 'ok'} ({outcome.seconds:.0f} s)")
    return outcome


def _close(outcomes: list[Outcome], left_out: list[str], took_s: float) -> int:
    """Print the table, the problems, what was left out, and one closing line of the kind pytest prints.

    `took_s`: of all stages together, which is less than their sum where they ran beside one another.
    """
    print()
    print(
        table(
            [
                {
                    "stage": o.name,
                    "passed": str(o.passed),
                    "failed": str(o.failed),
                    "skipped": str(len(o.skipped)),
                    "seconds": f"{o.seconds:.0f}",
                }
                for o in outcomes
            ]
        )
    )
    for outcome in outcomes:
        for reason in outcome.skipped:
            print(f"skipped in {outcome.name}: {reason}")
    if left_out:
        print(f"left out of this run: {', '.join(left_out)}  (./rack test --all)")
    for outcome in outcomes:
        for problem in outcome.problems:
            print(f"\n--- {outcome.name}\n{problem}")
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    skipped = sum(len(o.skipped) for o in outcomes)
    counts = ((failed, "failed"), (passed, "passed"), (skipped, "skipped"))
    words = [f"{number} {word}" for number, word in counts if number or word == "passed"]
    print(f"\n===== {', '.join(words)} in {took_s:.2f}s =====")
    if not passed and not failed:
        print("rack: nothing was tested")
        return 1
    return 1 if failed else 0


def shown(words: list[str | Path], log: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> tuple[int, str]:
    """Run a command with its output on the terminal and in .rack/test/<log>; return (exit code, output)."""
    full = {
        **os.environ,
        **setup.environment(),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "ANSIBLE_NOCOLOR": "1",
        **(env or {}),
    }
    lines = []
    with (
        subprocess.Popen(
            [str(word) for word in words],
            cwd=cwd,
            env=full,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
        (RESULTS / log).open("w") as handle,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(getattr(_PREFIX, "text", "") + line, end="", flush=True)
            handle.write(line)
            lines.append(line)
    return process.returncode, "".join(lines)


def _programme(outcome: Outcome, name: str, words: list[str | Path]) -> None:
    """One linter: a pass or a problem with its output."""
    done = run(words, check=False, env=setup.environment(), cwd=ROOT, timeout_s=300)
    if done.returncode == 0:
        outcome.passed += 1
        step(f"{name}: ok")
    else:
        outcome.problems.append(f"{name}:\n{(done.stdout + done.stderr).strip()[-6000:]}")


def _pytest(outcome: Outcome, name: str, words: list[str | Path], venv: Path = setup.VENV, each: bool = True) -> None:
    """Run pytest and take counts and reasons from its JUnit file. `each`: a line for every test, which take seconds."""
    junit = RESULTS / f"{name}.xml"
    env = {**setup.environment(venv), "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    how = ["-v" if each else "-q", "--durations=10", "--durations-min=1", f"--junitxml={junit}"]
    code, _ = shown([venv / "bin" / "python", "-m", "pytest", *how, *words], f"{name}.log", env)
    if not junit.exists():
        raise RackError(f"pytest ({name}) ended with {code} and without a result")
    cases = list(ET.parse(junit).iter("testcase"))
    for case in cases:
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
            outcome.problems.append(f"{case.get('classname')}::{case.get('name')}  (see .rack/test/{name}.log)")
        elif skip is not None:
            outcome.skipped.append(f"{case.get('name')}: {skip.get('message')}")
        else:
            outcome.passed += 1
    if code not in (0, 1) or not cases:
        outcome.problems.append(f"pytest ({name}) ended with exit code {code} after {len(cases)} tests")


def lint(outcome: Outcome) -> None:
    """ruff, mypy, yamllint, ansible-lint (production profile, empty skip list), shell syntax."""
    python_files: list[str | Path] = ["library", "module_utils", "filter_plugins", "lookup_plugins", "roles", "tests"]
    _programme(outcome, "ruff", [setup.tool("ruff"), "check", "."])
    _programme(outcome, "ruff format", [setup.tool("ruff"), "format", "--check", "."])
    _programme(
        outcome,
        "mypy",
        [
            setup.tool("mypy"),
            "module_utils/steadyrack",
            "module_utils/steadyrack_report",
            "filter_plugins",
            "tests/rack/lab",
        ],
    )
    _programme(outcome, "yamllint", [setup.tool("yamllint"), "--strict", "."])
    _programme(outcome, "ansible-lint", [setup.tool("ansible-lint"), "--offline", "-q"])
    _programme(
        outcome,
        "shell scripts",
        ["sh", "-c", "for f in rack .ci/run $(git ls-files '*.sh'); do sh -n $f || exit 1; done"],
    )
    old = [p for version in ("3.8", "3.9") if (p := _interpreter(version))]
    if old:  # what runs on a node must at least compile on the oldest Python a node may have
        _programme(outcome, f"{old[0].name} reads node code", [old[0], "-m", "compileall", "-q", *python_files[:2]])


def unit(outcome: Outcome) -> None:
    """Pure functions, modules through main(), the NVML emulator under the real pynvml."""
    others = [f"--ignore={path}" for path in PASSES]
    _pytest(outcome, "unit", ["-n", "2", *others, "tests/unit"], each=False)


def passes(outcome: Outcome) -> None:
    """Passes of the agent killed at every step and under random events, MIG, spoilt inventories."""
    _pytest(outcome, "passes", ["-n", "2", *PASSES], each=False)


def molecule(outcome: Outcome) -> None:
    """Roles on fresh hosts: check mode on a bare host, converge, idempotence, the checks."""
    with _MOLECULE:
        run([setup.tool("molecule"), "reset"], check=False, env=setup.environment(), cwd=ROOT)
        code, text = shown([setup.tool("molecule"), "test", "--all"], "molecule.log")
    # A molecule run whose checks matched no host is green with everything skipped: count what really ran.
    for passed, skipped in re.findall(r"(\d+) passed(?:, (\d+) skipped)?", text):
        outcome.passed += int(passed)
        outcome.skipped += ["a check in molecule (see .rack/test/molecule.log)"] * int(skipped or 0)
    if code:
        outcome.problems.append(f"molecule ended with {code}; the end of its output:\n{text[-3000:]}")
    elif not outcome.passed:
        outcome.problems.append("molecule was green without a single check that ran")


def demo(outcome: Outcome) -> None:
    """The demo rack end to end: build, no-change run, drift, repair, faults, restart, ansible-runner."""
    hosts.up(load("demo"))
    _pytest(outcome, "demo", ["-x", "--maxfail=5", "tests/demo"])


def other(outcome: Outcome) -> None:
    """Unit tests of the controller's side on another Python (3.12 or newer, the newest ansible-core).

    What runs on a node runs on Debian 13's Python 3.13 in the demo, and the rack's own tool is tried where it stands.
    """
    if venv := _other_python(outcome):
        own = ("filter_plugins", "lookup_plugins", "module_utils_report", "playbooks/test_preflight.py", "roles")
        _pytest(outcome, "other", ["-n", "2", *(f"tests/unit/{name}" for name in own)], venv, each=False)


def other_demo(outcome: Outcome) -> None:
    """A no-change site.yml on the demo rack, with the same other Python and ansible-core."""
    if venv := _other_python(outcome):
        hosts.up(load("demo"))
        _pytest(outcome, "other-demo", ["tests/demo/test_unchanged.py"], venv)


def _other_python(outcome: Outcome) -> Path | None:
    """An environment of the newest other Python this machine has; without one the stage is skipped, with the reason."""
    interpreter = next((p for v in ("3.13", "3.12", "3.14") if (p := _interpreter(v))), None)
    if interpreter is None:
        outcome.skipped.append("no second Python (3.12 or newer) on this machine")
        return None
    venv = STATE / f"venv-{interpreter.name}"
    with _SETUP:
        setup.python(dev=True, venv=venv, interpreter=str(interpreter))
    return venv


def interrupt(outcome: Outcome) -> None:
    """Killed at a bad moment, `./rack up` and site.yml alike: the next run goes on from what is there."""
    hosts.up(load("demo"))
    _pytest(outcome, "interrupt", ["tests/interrupt"])


def scenarios(outcome: Outcome) -> None:
    """Time on the demo rack, minutes long: liars, leap seconds, relays that die, and how soon each is seen."""
    hosts.up(load("demo"))
    _pytest(outcome, "time", ["tests/time"])


def firewall(outcome: Outcome) -> None:
    """New rules that cut SSH, on the molecule rack: the way back, and what survives a flush, a reload and a restart."""
    with _MOLECULE:
        hosts.up(load("molecule"))
        _pytest(outcome, "firewall", ["tests/firewall"])


def vm(outcome: Outcome) -> None:
    """A real Debian kernel under QEMU: what containers cannot show, and time on a clock that may be set."""
    _pytest(outcome, "vm", ["tests/vm"])


def nvidia_smi(outcome: Outcome) -> None:
    """Real nvidia-smi (Debian non-free, 535 and 550) on the emulator, in throw-away containers."""
    _pytest(outcome, "nvidia-smi", ["tests/nvidia_smi"])


def bench(outcome: Outcome) -> None:
    """The ratios of docs/performance.md for a few hosts."""
    _pytest(outcome, "bench", ["tests/bench"])


def _interpreter(version: str) -> Path | None:
    """A real interpreter of that version: on PATH, or a pyenv version that its shim would not start."""
    found = shutil.which(f"python{version}")
    roots = [Path(os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")))]
    candidates = [Path(found)] if found else []
    candidates += sorted(p for root in roots for p in root.glob(f"versions/{version}.*/bin/python{version}"))
    for path in candidates:
        if run([path, "-c", "import ssl, venv"], check=False).returncode == 0:
            return path
    return None


STAGES: dict[str, Callable[[Outcome], None]] = {
    "lint": lint,
    "unit": unit,
    "passes": passes,
    "molecule": molecule,
    "demo": demo,
    "interrupt": interrupt,
    "time": scenarios,
    "other-demo": other_demo,
    "other": other,
    "firewall": firewall,
    "vm": vm,
    "nvidia-smi": nvidia_smi,
    "bench": bench,
}
