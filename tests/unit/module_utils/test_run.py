"""Programs are run without a shell, in the C locale, with a deadline."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack.errors import DeadlineError, ToolError
from ansible.module_utils.steadyrack.run import must_run, run


def test_output_and_status_are_kept_apart() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.rc, done.out, done.err, done.missing) == (3, "out\n", "err\n", False)


def test_a_missing_program_is_an_answer() -> None:
    done = run(["no-such-program-here"])
    assert done.missing
    assert done.rc == 127


def test_a_file_that_cannot_be_executed_is_no_missing_program(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")
    done = run([str(tmp_path / "tool")])
    assert (done.rc, done.missing) == (126, False)


def test_no_shell_ever_reads_an_argument() -> None:
    assert run(["printf", "%s", "$(echo x); `id` *"]).out == "$(echo x); `id` *"


def test_the_locale_is_c_and_sbin_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_MESSAGES", "de_DE.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    out = run(["env"]).out.splitlines()
    assert "LC_ALL=C" in out
    assert "LANG=C" in out
    assert not any(line.startswith("LC_MESSAGES") for line in out)
    assert "/usr/sbin" in next(line for line in out if line.startswith("PATH=")).split("=", 1)[1].split(":")


def test_a_hang_ends_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"no answer within 0\.3 s"):
        run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"], timeout_s=0.3)
    assert time.monotonic() - began < 3
    pid = int((tmp_path / "pid").read_text())
    time.sleep(0.1)
    # Gone, or a zombie that nobody has collected.
    state = Path(f"/proc/{pid}/stat").read_text().split()[2] if os.path.exists(f"/proc/{pid}") else "gone"
    assert state in ("gone", "Z")


def test_bytes_that_are_no_text_do_not_hide_the_rest() -> None:
    assert run(["printf", r"a\377b"]).out == "a�b"


def test_stdin_is_given_or_empty() -> None:
    assert run(["cat"], stdin="text").out == "text"
    assert run(["cat"]).out == ""


def test_must_run_names_what_was_wanted() -> None:
    with pytest.raises(ToolError, match=r"wanted the state\. Next: look there"):
        must_run(["sh", "-c", "echo broken >&2; exit 1"], "the state", "look there")
    with pytest.raises(ToolError, match="not found"):
        must_run(["no-such-program-here"], "x", "y")


def test_no_process_left_is_an_error_of_ours_and_no_traceback(tmp_path: Path) -> None:
    """A watch that meets it says so and looks again; ENOEXEC stands for EAGAIN and ENOMEM, which take the same way."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    with pytest.raises(ToolError, match="cannot be started: Exec format error"):
        run([str(program)])
