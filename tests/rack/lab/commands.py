"""The words of ./rack and what each one does."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from lab import bench, demo, faults, hosts, images, setup, suite, vm
from lab.engine import require_engine
from lab.topology import load


def add(parser: argparse.ArgumentParser) -> None:
    """Declare every sub-command; each sets `run` to a function of the parsed arguments."""
    words = parser.add_subparsers(metavar="COMMAND", required=True)

    def word(name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> argparse.ArgumentParser:
        sub = words.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    def rack_option(sub: argparse.ArgumentParser) -> None:
        sub.add_argument("--rack", default="demo", help="which of tests/rack/racks/ (default: demo)")

    word("demo", _demo, "set up, bring the demo rack up, run site.yml on it, show what is now true")
    sub = word("up", _up, "bring a rack of containers up and configure nothing")
    rack_option(sub)
    sub = word("down", _down, "remove the rack: containers, networks, keys")
    rack_option(sub)
    sub.add_argument("--purge", action="store_true", help="remove the images and the virtual environment too")
    sub = word("status", _status, "what runs")
    rack_option(sub)
    sub = word("shell", _shell, "a shell on a host, or one command: ./rack shell gpu-a1 steadyrack status")
    rack_option(sub)
    sub.add_argument("host")
    sub.add_argument("words", nargs=argparse.REMAINDER)
    sub = word("restart", _restart, "restart a host, as a power cycle would")
    rack_option(sub)
    sub.add_argument("host")
    sub = word("fault", faults.command, "break something; ./rack fault --list shows what")
    rack_option(sub)
    faults.arguments(sub)
    suite.arguments(word("test", suite.command, "pass every test; --all adds the slow ones"))
    sub = word("bench", bench.command, "ratios of runs to a ping of the same hosts")
    bench.arguments(sub)
    vm.arguments(word("vm", vm.command, "a host with a kernel of its own (QEMU): up, down, status, shell, log"))
    word("setup", _setup, "install what is missing and make the virtual environment")
    word("images", lambda _: images.build_all(), "build the images that are missing")
    word("lock", lambda _: setup.lock(), "write requirements*.txt anew from requirements*.in")


def _demo(_: argparse.Namespace) -> int:
    return demo.demo()


def _setup(_: argparse.Namespace) -> None:
    setup.setup()


def _up(args: argparse.Namespace) -> None:
    setup.install(setup.missing_packages())
    hosts.up(load(args.rack))


def _down(args: argparse.Namespace) -> None:
    require_engine()
    hosts.down(load(args.rack))
    if args.purge:
        vm.purge()
        images.purge()
        demo.forget()


def _status(args: argparse.Namespace) -> None:
    require_engine()
    print(demo.table(hosts.status(load(args.rack))))


def _shell(args: argparse.Namespace) -> int:
    return hosts.shell(load(args.rack), args.host, args.words)


def _restart(args: argparse.Namespace) -> None:
    hosts.restart(load(args.rack), args.host)
