"""The program behind ./rack. Standard library only: it runs before anything is installed."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from lab import commands
from lab.say import RackError, die


def main() -> int:
    # `kill` and Ctrl-C end the command the same way: children end with it, the next run finds consistent state.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="./rack", description="A GPU rack on one machine, and its tests.")
    commands.add(parser)
    args = parser.parse_args()
    try:
        return int(args.run(args) or 0)
    except RackError as error:
        return die(error)
    except KeyboardInterrupt:
        print("\nrack: interrupted; run the same command again, it goes on from what is there", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
