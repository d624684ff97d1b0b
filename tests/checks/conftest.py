"""The checks of a rack: the inventory says what should be, the node is asked what is, rows say how they compare.

The same files run at the end of site.yml, in molecule's verify, and by hand:

    pytest tests/checks --ansible-inventory=inventory/myrack --hosts=ansible://all

Every host is read once, all at the same time (no `-n` needed). A test is one check id on one host; it records one
row a subject and fails when a row is `fail` or `unknown`. A test that does not apply to a host is not run there;
one that applies to no host at all, or that looked at nothing, fails the run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from acceptance import nodes, rows
from acceptance.nodes import Node
from acceptance.report import Report
from acceptance.rows import Row

REPORT = pytest.StashKey[Report]()
NODES = pytest.StashKey[dict[str, Node]]()
PEERS = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("acceptance", "acceptance checks of a rack")
    group.addoption(
        "--report",
        type=Path,
        default=os.environ.get("STEADYRACK_REPORT"),
        help="write all rows as JSON to this file (default: $STEADYRACK_REPORT, else none)",
    )
    group.addoption("--evidence", type=Path, help="judge DIR/<host>.json, recorded before, instead of reading hosts")
    group.addoption("--record", type=Path, help="keep the raw evidence of each host as DIR/<host>.json")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config.option, "evidence"):
        return  # found on the way through a larger tree, not asked for: see pytest_ignore_collect
    if not config.option.ansible_inventory:
        raise pytest.UsageError("which rack? say --ansible-inventory=inventory/NAME")
    if getattr(config.option, "numprocesses", None):
        raise pytest.UsageError(
            "leave out -n: hosts are read in parallel as it is, and rows are counted in one process"
        )
    config.option.connection = config.option.connection or "ansible"
    # testinfra calls ansible-inventory by name; the one that belongs to this Python is meant.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if config.option.report:
        config.option.report.unlink(missing_ok=True)
    config.stash[REPORT] = Report(str(config.option.ansible_inventory))
    config.stash[NODES] = {}
    config.stash[PEERS] = {}


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Without an inventory there is no host to check, and this machine must not become one."""
    return None if hasattr(config.option, "evidence") else True


# --- which test on which host; reading ------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    known = config.stash[NODES]
    chosen = [item for item in items if _applies(item, _node_of(item, known))]
    _miss_none(config.stash[REPORT], items, chosen, known)
    if dropped := [item for item in items if item not in chosen]:
        config.hook.pytest_deselected(items=dropped)
    items[:] = chosen
    if not config.option.collectonly:
        _read(config.option.record, known, chosen)


def _node_of(item: pytest.Item, known: dict[str, Node]) -> Node:
    host = item.callspec.params["_testinfra_host"]  # type: ignore[attr-defined]
    backend = host.backend
    if backend.NAME != "ansible":
        raise pytest.UsageError("hosts come from the inventory: --hosts=ansible://PATTERN")
    name = str(backend.get_hostname())
    if name not in known:
        runner = backend.ansible_runner
        peers = item.config.stash[PEERS]
        if not peers:
            peers.update({peer: runner.get_variables(peer) for peer in runner.get_hosts("all")})
        known[name] = Node(host, peers, item.config.option.evidence)
    return known[name]


def _applies(item: pytest.Item, node: Node) -> bool:
    return any(group in node.groups for group in _groups(item))


def _groups(item: pytest.Item) -> tuple[str, ...]:
    marker = item.get_closest_marker("groups")
    if marker is None or item.get_closest_marker("check") is None:
        raise pytest.UsageError(f"{item.nodeid} needs the markers check(id) and groups(name, ...)")
    return tuple(marker.args)


def _check_id(item: pytest.Item) -> str:
    return str(item.get_closest_marker("check").args[0])  # type: ignore[union-attr]


def _miss_none(report: Report, items: list[pytest.Item], chosen: list[pytest.Item], known: dict[str, Node]) -> None:
    """Say which tests have no host and which hosts no test; the former fails unless --limit explains it."""
    met = {_function(item) for item in chosen}
    for name, item in {_function(item): item for item in items}.items():
        if name in met:
            continue
        groups = _groups(item)
        peers = next(iter(known.values())).peers
        if any(group in facts.get("group_names", []) for facts in peers.values() for group in groups):
            why = f"no host of {' or '.join(groups)} among the hosts chosen"
            report.not_run.append({"check": _check_id(item), "test": name, "reason": why})
        else:
            report.problem(
                f"{name} ({_check_id(item)}) matched no host: the inventory has none in {' or '.join(groups)}"
            )
    busy = {_node_of(item, known).name for item in chosen}
    for name in sorted(set(known) - busy):
        report.not_run.append({"host": name, "reason": f"no check is for its groups: {', '.join(known[name].groups)}"})


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _read(record: Path | None, known: dict[str, Node], chosen: list[pytest.Item]) -> None:
    """One read a host, of all that the files with tests for it ask for (their `reads(node)`)."""
    modules: dict[str, dict[str, Any]] = {}
    for item in chosen:
        module = item.getparent(pytest.Module).obj  # type: ignore[union-attr]
        modules.setdefault(_node_of(item, known).name, {})[module.__name__] = module
    wanted = [known[name] for name in modules]
    nodes.read_all(wanted, lambda node: nodes.merge(module.reads(node) for module in modules[node.name].values()))
    for node in wanted if record else []:
        record.mkdir(parents=True, exist_ok=True)  # type: ignore[union-attr]
        try:
            (record / f"{node.name}.json").write_text(json.dumps(node.evidence, indent=1) + "\n")  # type: ignore[operator]
        except nodes.UnreadableError:
            continue


# --- fixtures ------------------------------------------------------------------------------------


@pytest.fixture
def node(host: Any, request: pytest.FixtureRequest) -> Node:
    """The host under check: `setting(name)` says what should be, `command`, `unit`, `file` … what is."""
    return request.config.stash[NODES][host.backend.get_hostname()]


@pytest.fixture
def rack_nodes(node: Node, request: pytest.FixtureRequest) -> dict[str, Node]:
    """Every host of this run by name, all read before the first test: for what two hosts must agree on."""
    return request.config.stash[NODES]


@pytest.fixture
def record(
    node: Node, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[Iterable[Row]], None]:
    """Hand over the rows of the test, once, at its end; fails the test when one is `fail` or `unknown`."""
    report = request.config.stash[REPORT]
    check = _check_id(request.node)

    def take(found: Iterable[Row]) -> None:
        found = list(found)
        assert found, f"{check} looked at nothing on {node.name}"
        assert {one["id"] for one in found} == {check}, f"only rows of {check} belong here"
        request.node.rows = report.add(node.name, found, node.variables.get("acceptance_waivers"))
        for one in request.node.rows:
            record_property(f"{one['id']} {one['subject']}", one["verdict"])
        bad = [rows.sentence(one) for one in request.node.rows if one["verdict"] in rows.BAD]
        if bad:
            pytest.fail("\n".join(bad), pytrace=False)

    return take


# --- the verdict of the run ----------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that ends without rows leaves one that says why: unknown is a finding too."""
    outcome = yield
    error = call.excinfo.value if call.excinfo else None
    unfinished = error is not None or call.when == "call"
    if getattr(item, "rows", None) is not None or outcome.skipped or not unfinished:
        return outcome
    node = item.config.stash[NODES][item.callspec.params["_testinfra_host"].backend.get_hostname()]  # type: ignore[attr-defined]
    row = rows.row(_check_id(item), node.name, rows.UNKNOWN, **_why_no_rows(error))
    item.rows = item.config.stash[REPORT].add(node.name, [row], node.variables.get("acceptance_waivers"))  # type: ignore[attr-defined]
    outcome.outcome = "failed" if item.rows[0]["verdict"] in rows.BAD else "passed"  # type: ignore[attr-defined]
    if error is None or isinstance(error, (nodes.UnreadableError, nodes.UnsetError)):
        outcome.longrepr = rows.sentence(item.rows[0])  # type: ignore[attr-defined]
    return outcome


def _why_no_rows(error: BaseException | None) -> dict[str, str]:
    if error is None:
        return {"reason": "the check itself broke: it ended without a row"}
    if isinstance(error, nodes.UnreadableError):
        return {"reason": str(error)}
    if isinstance(error, nodes.UnsetError):
        return {"reason": str(error), "hint": "set it in the inventory"}
    return {"reason": f"the check itself broke: {type(error).__name__}: {error}"}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _SKIPS.append((report.nodeid, reason.removeprefix("Skipped: ")))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _BROKEN.append(f"{report.nodeid}: {str(report.longrepr).strip().splitlines()[-1]}")


_SKIPS: list[tuple[str, str]] = []
_BROKEN: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if REPORT not in config.stash or config.option.collectonly:
        return
    report = config.stash[REPORT]
    for name, reason in _SKIPS:
        report.skipped(name, reason)
    for text in _BROKEN:
        report.problem(f"checks that could not be collected: {text}")
    if not report.rows:
        report.problem("no check was run")
    if config.option.report:
        report.write(config.option.report)
    if report.problems and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    report = config.stash.get(REPORT, None)
    if report is None:
        return
    for text in report.problems:
        terminalreporter.write_line(f"PROBLEM {text}", red=True)
    tally = ", ".join(f"{number} {verdict}" for verdict, number in rows.counts(report.rows).items() if number)
    terminalreporter.write_line(f"rows: {tally or 'none'}")
