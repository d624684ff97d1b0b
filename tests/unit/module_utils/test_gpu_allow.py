"""The list of GPUs for jobs: its texts, /etc/environment kept as others wrote it, and files that are whole."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import gpu_allow
from ansible.module_utils.steadyrack.gpu_allow import BEGIN, END, Card, environment_text, listed, others
from hypothesis import given
from hypothesis import strategies as st

A = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
B = "GPU-bbbbbbbb-1111-2222-3333-444444444444"
C = "GPU-cccccccc-1111-2222-3333-444444444444"
CARDS = [Card(A, 3), Card(B, 0), Card(C, 2)]
ENVIRONMENT = f"""\
{BEGIN}
CUDA_DEVICE_ORDER=PCI_BUS_ID
CUDA_VISIBLE_DEVICES={A},{B}
NVIDIA_VISIBLE_DEVICES={A},{B}
{END}
"""


# --- texts ---------------------------------------------------------------------------------------


def test_the_list_is_what_a_shell_and_systemd_read(tmp_path: Path) -> None:
    path = tmp_path / "gpus.env"
    path.write_text(gpu_allow.list_text([A, B]))
    script = f". {shlex.quote(str(path))}; echo $CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PCI_BUS_ID", f"{A},{B}", f"{A},{B}"]
    # Neither systemd's EnvironmentFile= nor --env-file knows quotes, `export` or blanks around `=`.
    for line in path.read_text().splitlines():
        assert line.startswith("#") or (line.partition("=")[0].isidentifier() and not set(line) & set("\"' "))


def test_no_gpu_at_all_is_none_for_cuda_and_void_for_the_container_toolkit() -> None:
    # Empty means "not set" to the toolkit, which then gives no GPU or all of them, by its configuration.
    assert gpu_allow.variables([])[1:] == ["CUDA_VISIBLE_DEVICES=", "NVIDIA_VISIBLE_DEVICES=void"]
    assert listed(gpu_allow.list_text([])) == []


@pytest.mark.parametrize("uuids", [[], [A], [A, B, C]])
def test_the_list_is_read_back_as_it_was_written(uuids: list[str]) -> None:
    assert listed(gpu_allow.list_text(uuids)) == uuids
    assert listed(environment_text("A=1\n", uuids)) == uuids


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, None),
        ("", None),
        ("nonsense\n", None),
        ("CUDA_VISIBLE_DEVICES\n", None),
        ("NVIDIA_VISIBLE_DEVICES=void\n", None),
        ("CUDA_VISIBLE_DEVICES=\n", []),
        ("CUDA_VISIBLE_DEVICES=0,1\n", []),
        ("CUDA_VISIBLE_DEVICES=GPU-1234\n", []),
        (f"  CUDA_VISIBLE_DEVICES={A}, {B} \n", [A, B]),
        ("\0\x1b[31m\ufffd=\n", None),
    ],
)
def test_a_list_that_is_nonsense(text: str | None, found: list[str] | None) -> None:
    assert listed(text) == found


def test_slurm_gets_device_files_by_minor_number_and_none_that_is_not_known() -> None:
    text = gpu_allow.gres_text("gpu-a1", [*CARDS, Card("GPU-x", None)])
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        f"NodeName=gpu-a1 Name=gpu File=/dev/nvidia{minor}" for minor in (3, 0, 2)
    ]


# --- /etc/environment ----------------------------------------------------------------------------


def test_our_lines_come_last_so_that_they_count() -> None:
    old = 'PATH="/usr/bin:/bin"\nCUDA_VISIBLE_DEVICES=0\n'
    assert environment_text(old, [A, B]) == old + ENVIRONMENT


def test_our_lines_are_there_once_after_any_number_of_writings() -> None:
    text = "LANG=C\n"
    for uuids in ([A], [A, B], [], [B], [A, B]):
        text = environment_text(text, uuids)
    assert text == "LANG=C\n" + ENVIRONMENT


def test_what_others_add_behind_ours_is_kept_and_comes_before_ours() -> None:
    assert environment_text(ENVIRONMENT + "LATER=1\n", [A, B]) == "LATER=1\n" + ENVIRONMENT


def test_what_others_write_into_our_lines_is_kept() -> None:
    torn = ENVIRONMENT.replace(f"{END}\n", "INSIDE=1\n" + END + "\n")
    assert environment_text(torn, [A, B]) == "INSIDE=1\n" + ENVIRONMENT


def test_lines_behind_ours_survive_when_somebody_took_our_last_line_away() -> None:
    torn = ENVIRONMENT.replace(f"{END}\n", "") + "PROXY=http://10.0.0.1\nLANG=C\n"
    assert environment_text(torn, [A, B]) == "PROXY=http://10.0.0.1\nLANG=C\n" + ENVIRONMENT


def test_a_last_line_without_a_newline_stays_a_line_of_its_own() -> None:
    assert environment_text("LANG=C", [A, B]) == "LANG=C\n" + ENVIRONMENT


@pytest.mark.parametrize(
    "old", ["A=1\r\nB=2\r\n", "A=x\x0cy\n", "A=x\x1cy\n", "A=x\u2028y\n", "\n\nA=1\n\n", " A=1 \n"]
)
def test_the_lines_of_others_stay_byte_for_byte(old: str) -> None:
    assert environment_text(old, [A, B]) == old + ENVIRONMENT


def test_foreign_settings_of_the_same_names_are_found_and_ours_are_not() -> None:
    text = (
        f"export CUDA_VISIBLE_DEVICES=0\n# CUDA_VISIBLE_DEVICES=1\n{ENVIRONMENT} NVIDIA_VISIBLE_DEVICES=all\nPATH=x\n"
    )
    assert others(text) == ["export CUDA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=all"]
    assert others("") == []
    assert others(ENVIRONMENT) == []


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [
                BEGIN,
                END,
                f"CUDA_VISIBLE_DEVICES={A}",
                "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                "",
                "#",
                "export NVIDIA_VISIBLE_DEVICES=",
            ]
        ),
        st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20),
    ),
    max_size=12,
)


@given(LINES, st.booleans(), st.lists(st.sampled_from([A, B, C]), unique=True))
def test_any_text_is_written_once_for_all_and_loses_nothing_of_others(
    lines: list[str], ends: bool, uuids: list[str]
) -> None:
    old = "\n".join(lines) + ("\n" if ends else "")
    text = environment_text(old, uuids)
    assert environment_text(text, uuids) == text
    assert listed_last(text) == uuids
    assert text.count(BEGIN) >= 1
    ours = ("CUDA_DEVICE_ORDER", *gpu_allow.VISIBLE)
    foreign = [
        line for line in lines if line.strip() not in (BEGIN, END) and line.partition("=")[0].strip() not in ours
    ]
    kept = text.split("\n")
    for line in foreign:
        assert line in kept
        kept.remove(line)


def listed_last(text: str) -> list[str] | None:
    """What pam_env makes of the file: the last setting counts."""
    found = None
    for line in text.split("\n"):
        found = listed(line) if listed(line) is not None else found
    return found


# --- files ---------------------------------------------------------------------------------------


def write(root: Path, cards: list[Card], environment: bool = True) -> list[str]:
    return gpu_allow.write(str(root), "gpu-a1", cards, environment)


def test_every_place_is_written_once_and_then_left_alone(tmp_path: Path) -> None:
    assert gpu_allow.read(str(tmp_path)) is None
    assert write(tmp_path, CARDS[:2]) == [gpu_allow.LIST_PATH, gpu_allow.GRES_PATH, gpu_allow.ENVIRONMENT_PATH]
    assert gpu_allow.read(str(tmp_path)) == [A, B]
    inodes = {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()}
    assert write(tmp_path, CARDS[:2]) == []
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*") if path.is_file()} == inodes


def test_looking_writes_nothing(tmp_path: Path) -> None:
    found = gpu_allow.differs(str(tmp_path), "gpu-a1", CARDS, True)
    assert {path: old for path, (old, _wanted) in found.items()} == dict.fromkeys(found, "")
    assert list(tmp_path.iterdir()) == []


def test_without_consent_the_environment_is_not_touched(tmp_path: Path) -> None:
    environment = tmp_path / "etc/environment"
    environment.parent.mkdir()
    environment.write_text("LANG=C\n")
    assert gpu_allow.ENVIRONMENT_PATH not in write(tmp_path, CARDS, environment=False)
    assert environment.read_text() == "LANG=C\n"


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o664])
def test_a_file_keeps_its_mode_and_a_new_one_is_for_all_to_read(tmp_path: Path, mode: int) -> None:
    environment = tmp_path / "etc/environment"
    environment.parent.mkdir()
    environment.write_text("LANG=C\n")
    environment.chmod(mode)
    write(tmp_path, CARDS)
    assert environment.stat().st_mode & 0o7777 == mode
    assert (tmp_path / gpu_allow.LIST_PATH.lstrip("/")).stat().st_mode & 0o7777 == 0o644


def test_bytes_that_are_no_utf_8_stay_as_they_are(tmp_path: Path) -> None:
    environment = tmp_path / "etc/environment"
    environment.parent.mkdir()
    environment.write_bytes(b"NAME=M\xfcller\n")
    write(tmp_path, CARDS[:2])
    assert environment.read_bytes() == b"NAME=M\xfcller\n" + ENVIRONMENT.encode()
    assert write(tmp_path, CARDS[:2]) == []
