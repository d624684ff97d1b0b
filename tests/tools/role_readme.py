#!/usr/bin/env python3
"""Keep the table of inputs in each role's README equal to its argument specification.

    python tests/tools/role_readme.py           # says which READMEs are out of date, exit status 1 if any
    python tests/tools/role_readme.py --write   # puts them right

A README holds its table under the heading "## Inputs"; everything else in it is written by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"
HEADER = "| name | type | default | meaning |\n|---|---|---|---|\n"
HEADING = "## Inputs"


def load(path: Path) -> Any:
    """One YAML file; an empty one is an empty dictionary."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def options_of(role: Path) -> dict[str, Any]:
    """The inputs of a role by name."""
    options: dict[str, Any] = load(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return options


def type_of(option: dict[str, Any]) -> str:
    """``list of str`` rather than two columns."""
    kind = str(option.get("type", "str"))
    return f"{kind} of {option['elements']}" if "elements" in option else kind


def default_of(option: dict[str, Any]) -> str:
    """The default as YAML would have it, on one line."""
    if option.get("required"):
        return "required"
    value = option.get("default")
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value, ensure_ascii=False)}`"


def meaning_of(option: dict[str, Any]) -> str:
    """The description on one line, with its choices."""
    text = option["description"]
    text = " ".join(text) if isinstance(text, list) else text
    choices = option.get("choices")
    text = " ".join(str(text).split()) + (
        f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
    )
    return text.replace("|", "\\|")


def table(role: Path) -> str:
    """The generated table of one role."""
    rows = [
        f"| `{name}` | {type_of(option)} | {default_of(option)} | {meaning_of(option)} |\n"
        for name, option in options_of(role).items()
    ]
    return HEADER + "".join(rows)


def updated(role: Path) -> str:
    """The README as it should be; a missing section is an error that names it."""
    path = role / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {role.name}\n\n## Inputs\n"
    lines = text.splitlines(keepends=True)
    if HEADING not in text.splitlines():
        raise SystemExit(f"{path}: no heading '{HEADING}'; wanted one, under which the table goes")
    begin = text.splitlines().index(HEADING) + 1
    end = next((n for n in range(begin, len(lines)) if lines[n].startswith("## ")), len(lines))
    old = [n for n in range(begin, end) if lines[n].startswith("|")]
    if not old:
        return "".join([*lines[:begin], "\n", table(role), *lines[begin:]])
    # The first block of table lines of the section; anything else in it is written by hand.
    last = next((n for n in range(old[0], end) if not lines[n].startswith("|")), end)
    return "".join([*lines[: old[0]], table(role), *lines[last:]])


def out_of_date() -> list[Path]:
    """Roles whose README differs from what it should be."""
    roles = sorted(path.parent.parent for path in ROLES.glob("*/meta/argument_specs.yml"))
    return [
        role for role in roles if not (role / "README.md").exists() or (role / "README.md").read_text() != updated(role)
    ]


def main(arguments: list[str]) -> int:
    stale = out_of_date()
    for role in stale:
        if "--write" in arguments:
            (role / "README.md").write_text(updated(role), encoding="utf-8")
        print(f"roles/{role.name}/README.md: {'written' if '--write' in arguments else 'out of date'}")
    return 1 if stale and "--write" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
