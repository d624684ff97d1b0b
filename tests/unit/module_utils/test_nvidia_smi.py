"""nvidia-smi as a second witness: its three outputs, its failures, and what it says for no value."""

from pathlib import Path

import pytest
from ansible.module_utils.steadyrack import errors, nvidia_smi
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/gpu"
UUID = "GPU-657227da-611f-5a74-89fc-c3e616de4e02"


def fixture(name):
    return (FIXTURES / name).read_text()


# --- exit status and failures ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rc", "text", "state"),
    [
        (6, "No devices were found\n", "no_devices"),  # C53
        (
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure…\n",
            "no_driver",
        ),  # C58
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", "no_library"),
        (15, "Unable to determine the device handle for GPU1: GPU is lost.\n", "lost"),
        (
            18,
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n",
            "driver_mismatch",
        ),  # C02
        (4, "Insufficient Permissions\n", "no_permission"),  # C39
        (2, 'Field "device_minor" is not a valid field to query.\n', "bad_request"),  # C54
        (255, "Failed to initialize NVML: Driver/library version mismatch\n", "driver_mismatch"),
        (255, "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error\n", "lost"),
        (0, "No devices were found\n", "no_devices"),  # behind a pipe the status is the pipe's
        (139, "", "error"),
        (0, "", "ok"),
    ],
)
def test_c02_c53_c58_the_state_comes_from_the_exit_status_before_the_text(rc, text, state):
    assert nvidia_smi.state_of(rc, text) == state


def test_c02_a_message_where_rows_are_expected_gives_no_rows_and_the_library_it_names():
    record = nvidia_smi.parse_csv(
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n", rc=18
    )
    assert (record["state"], record["rows"], record["library_version"]) == ("driver_mismatch", [], "535.161")
    for parse in (nvidia_smi.parse_xml, nvidia_smi.parse_list):
        assert parse("No devices were found\n", rc=6)["gpus"] == []


@pytest.mark.parametrize(
    ("line", "bus_id"),
    [
        ("Unable to determine the device handle for GPU0000:07:00.0: Unknown Error", "0000:07:00.0"),
        ("Unable to determine the device handle for GPU 000:BA:80.0: Unknown Error", "0000:ba:80.0"),
        ("Unable to determine the device handle for GPU 00000000:3B:00.0: GPU is lost.", "0000:3b:00.0"),
        ("Unable to determine the device handle for gpu 1: GPU is lost.", None),  # 550 and 535 give an index
    ],
)
def test_c52_every_spelling_of_an_unreachable_gpu_is_recognised(line, bus_id):
    (found,) = nvidia_smi.unreachable(f"text before\n{line}\n")
    assert found["bus_id"] == bus_id
    assert found["raw"] == line


def test_c52_rows_of_the_other_gpus_are_kept():
    record = nvidia_smi.parse_csv(
        f"uuid, power.limit [W]\n{UUID}, 250.00 W\n"
        "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error\n",
        rc=15,
    )
    assert [row["uuid"] for row in record["rows"]] == [UUID]
    assert record["unreachable"][0]["bus_id"] == "0000:07:00.0"


def test_c54_an_optional_field_the_driver_does_not_know_is_left_out_and_asked_again():
    text = 'Field "device_minor" is not a valid field to query.\n'
    assert nvidia_smi.parse_csv(text, rc=2)["unknown_fields"] == ["device_minor"]
    assert nvidia_smi.without_unknown(["uuid", "device_minor"], text) == ["uuid"]


def test_c54_a_required_field_the_driver_does_not_know_is_an_error():
    with pytest.raises(errors.ToolError, match="nvidia-smi field uuid"):
        nvidia_smi.without_unknown(["uuid"], 'Field "uuid" is not a valid field to query.\n')


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    ["N/A", "[N/A]", "[Not Supported]", "Not Supported", "[Unknown Error]", "Unknown", "[Not Found]", "n/a", "ERR!",
     "[GPU requires reset]", "", "  [ N/A ] "],
)  # fmt: skip
def test_c50_every_word_for_no_value_is_none(word):
    assert nvidia_smi.value(word) is None
    assert nvidia_smi.number(word) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("228.82", 228.82), ("420.00 W", 420.0), ("16x", 16.0), ("34 C", 34.0), ("-5", -5.0), ("0", 0.0)],
)
def test_numbers_stay_numbers_with_or_without_their_unit(text, number):
    assert nvidia_smi.number(text) == number


def test_what_is_neither_number_nor_a_known_word_is_an_error_and_never_a_zero():
    with pytest.raises(errors.ToolError, match="a number"):
        nvidia_smi.number("twelve W")


@given(st.text(max_size=12))
def test_any_text_is_a_number_no_value_or_a_typed_error(text):
    try:
        number = nvidia_smi.number(text)
    except errors.ToolError:
        return
    assert number is None or isinstance(number, float)


# --- csv ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["550", "535"])
def test_the_csv_of_both_drivers_gives_one_row_a_gpu(version):
    rows = nvidia_smi.parse_csv(fixture(f"nvidia_smi_{version}_query.csv"))["rows"]
    assert [row["pci.bus_id"] for row in rows] == ["0000:31:00.0", "0000:4b:00.0", "0000:b1:00.0", "0000:ca:00.0"]
    first = rows[0]
    assert first["uuid"] == UUID
    assert first["serial"] == "1320246419636"  # a name, though it is all digits
    assert first["vbios_version"] == "92.00.90.00.03"
    assert (first["power.limit"], first["power.default_limit"], first["power.min_limit"]) == (250.0, 300.0, 150.0)
    assert first["enforced.power.limit"] is None
    assert first["raw"]["enforced.power.limit"] == "[N/A]"
    assert first["pcie.link.width.current"] == 16.0


def test_c42_one_broken_field_is_none_with_its_text_and_a_draw_above_the_limit_is_no_error():
    text = (
        "name, utilization.gpu [%], utilization.memory [%], temperature.gpu, power.draw [W], power.limit [W], "
        "fan.speed [%], "
        "clocks.current.graphics [MHz], clocks.current.memory [MHz], power.default_limit [W]\n"
        "GeForce RTX 2080 Ti, 100, 37, 56, 228.82, 210.00, 56, 1560, 6800, [Unknown Error]\n"
    )
    (row,) = nvidia_smi.parse_csv(text)["rows"]
    assert row["power.default_limit"] is None
    assert row["raw"] == {"power.default_limit": "[Unknown Error]"}
    assert (row["power.draw"], row["power.limit"]) == (228.82, 210.0)


@pytest.mark.parametrize("word", ["[Not Supported]", "[N/A]"])
def test_c50_old_and_new_word_give_the_same_row(word):
    (row,) = nvidia_smi.parse_csv(f"a, b, c, d, e, f, g\n2004, 2004, 0, 44, {word}, 0, 0\n")["rows"]
    assert row["e"] is None
    assert (row["a"], row["c"], row["d"]) == (2004.0, 0.0, 44.0)


def test_a_row_of_another_length_than_its_header_is_an_error():
    with pytest.raises(errors.ToolError, match="1 cells"):
        nvidia_smi.parse_csv("a, b\n1\n")


# --- XML ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["550", "535"])
def test_the_xml_of_both_drivers_gives_the_facts_in_nvmls_names(version):
    record = nvidia_smi.parse_xml(fixture(f"nvidia_smi_{version}_q_x.xml"))
    (gpu,) = record["gpus"]
    assert (gpu["bus_id"], gpu["uuid"], gpu["serial"]) == ("0000:31:00.0", UUID, "1320246419636")
    power = gpu["power"]
    assert (power["requested_w"], power["enforced_w"], power["default_w"]) == (250.0, 250.0, 300.0)
    assert (power["min_w"], power["max_w"]) == (150.0, 300.0)
    assert 40 < power["draw_w"] < 60
    assert (gpu["pcie"]["width"], gpu["pcie"]["width_max"], gpu["pcie"]["gen_max"]) == (16, 16, 4.0)
    assert gpu["persistence"] is True
    assert gpu["vbios"] == "92.00.90.00.03"
    assert gpu["inforom"]["image"] == "1001.0230.00.03"


def xml(inner):
    return (
        '<?xml version="1.0" ?>\n<nvidia_smi_log><driver_version>550.1</driver_version>'
        f"<gpu id='00000000:06:00.0'>{inner}</gpu></nvidia_smi_log>"
    )


def block(name, **limits):
    inner = "".join(f"<{tag}>{text}</{tag}>" for tag, text in limits.items())
    return f"<{name}>{inner}</{name}>"


OLD = block("power_readings", power_draw="99.00 W", power_limit="420.00 W", enforced_power_limit="420.00 W")
NEW = block("gpu_power_readings", current_power_limit="220.00 W", requested_power_limit="220.00 W")
BOARD = block("module_power_readings", current_power_limit="N/A", requested_power_limit="N/A")


@pytest.mark.parametrize(
    ("inner", "watts"), [(OLD, 420.0), (NEW, 220.0), (NEW + BOARD, 220.0), (BOARD + NEW, 220.0), (BOARD + OLD, 420.0)]
)
def test_c40_both_layouts_give_the_same_fact_and_the_board_never_overrides_the_gpu(inner, watts):
    (gpu,) = nvidia_smi.parse_xml(xml(inner))["gpus"]
    assert (gpu["power"]["requested_w"], gpu["power"]["enforced_w"]) == (watts, watts)


@pytest.mark.parametrize(
    "inner", ["", BOARD, "<gpu_power_readings><limit>220 W</limit></gpu_power_readings>", "<watt_readings/>"]
)
def test_c40_an_unknown_layout_is_a_clear_error(inner):
    with pytest.raises(errors.ToolError, match="layout we do not know"):
        nvidia_smi.parse_xml(xml(inner))


def test_c38_requested_and_enforced_are_two_facts():
    inner = (
        "<gpu_power_readings><current_power_limit>500.00 W</current_power_limit><requested_power_limit>700.00 W"
        "</requested_power_limit><default_power_limit>700.00 W</default_power_limit><min_power_limit>200.00 W"
        "</min_power_limit><max_power_limit>700.00 W</max_power_limit></gpu_power_readings>"
    )
    power = nvidia_smi.parse_xml(xml(inner))["gpus"][0]["power"]
    assert (power["requested_w"], power["enforced_w"]) == (700.0, 500.0)


def test_c55_plain_na_and_missing_elements_are_none_and_the_uuid_stays():
    inner = (
        "<serial>N/A</serial><uuid>GPU-11111111-2222-3333-4444-555555555555</uuid><vbios_version>80.28.7A.00.14</vbios_version>"
        "<board_id>N/A</board_id><inforom_version><img_version>N/A</img_version></inforom_version>" + NEW
    )
    (gpu,) = nvidia_smi.parse_xml(xml(inner))["gpus"]
    assert gpu["uuid"] == "GPU-11111111-2222-3333-4444-555555555555"
    assert (gpu["serial"], gpu["part_number"], gpu["inforom"]["image"], gpu["temperature_c"]) == (
        None,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("text", ["", "<a/>", "<nvidia_smi_log><gpu>", "hello"])
def test_what_is_not_its_xml_is_a_clear_error(text):
    with pytest.raises(errors.ToolError, match="nvidia-smi -q -x"):
        nvidia_smi.parse_xml(text)


@pytest.mark.parametrize(
    ("action", "state"),
    [
        ("None", "ok"),
        ("Reset", "out_of_service"),
        ("Drain and Reset", "out_of_service"),
        ("Frobnicate", "unknown_word"),
        (None, "not_told"),
    ],
)
def test_c51_the_recovery_field_decides_and_an_unknown_word_is_no_pass(action, state):
    element = "" if action is None else f"<gpu_recovery_action>{action}</gpu_recovery_action>"
    (gpu,) = nvidia_smi.parse_xml(xml(element + NEW))["gpus"]
    assert nvidia_smi.recovery_state(gpu["recovery_action"]) == state


# --- list --------------------------------------------------------------------------------------


def test_c49_mig_devices_stand_under_their_gpu_and_are_not_counted_as_gpus():
    text = (
        "GPU 0: A100-SXM4-40GB (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
        "  MIG 3g.20gb Device 0: (UUID: MIG-GPU-11111111-2222-3333-4444-555555555555/1/0)\n"
        "  MIG 3g.20gb     Device  1: (UUID: MIG-66666666-2222-3333-4444-555555555555)\n"
        "GPU 1: A100-SXM4-40GB (UUID: GPU-66666666-7777-8888-9999-000000000000)\n"
    )
    first, second = nvidia_smi.parse_list(text)["gpus"]
    assert [one["profile"] for one in first["mig"]] == ["3g.20gb", "3g.20gb"]
    assert first["mig"][0]["uuid"].endswith("/1/0")
    assert (second["uuid"], second["mig"]) == ("GPU-66666666-7777-8888-9999-000000000000", [])


def test_the_list_of_a_healthy_node():
    assert len(nvidia_smi.parse_list(fixture("nvidia_smi_550_list.txt"))["gpus"]) == 4


def test_a_lost_gpu_leaves_the_others_in_the_list():
    record = nvidia_smi.parse_list(fixture("nvidia_smi_550_list_lost.txt"), rc=15)
    assert (record["state"], len(record["gpus"]), len(record["unreachable"])) == ("lost", 3, 1)


def test_a_line_of_another_kind_is_an_error():
    with pytest.raises(errors.ToolError, match="a GPU or a MIG device"):
        nvidia_smi.parse_list("GPU 0: A100\n")


@pytest.mark.parametrize("release", ["535", "550"])
def test_the_part_number_is_the_boards_where_the_gpus_own_is_na(release, repository):
    text = (repository / f"tests/fixtures/gpu/nvidia_smi_{release}_q_x.xml").read_text()
    assert {gpu["part_number"] for gpu in nvidia_smi.parse_xml(text)["gpus"]} == {"900-21001-0020-100"}


# --- what stands beside the data -----------------------------------------------------------------

WARNING = "WARNING: infoROM is corrupted at gpu 0000:3B:00.0"
ROWS = "uuid, power.limit [W]\nGPU-1, 300.00 W\nGPU-2, 250.00 W\n"


@pytest.mark.parametrize("text", [WARNING + "\n" + ROWS, ROWS + WARNING + "\n"])
def test_c42_a_warning_beside_the_rows_of_status_14_is_kept_and_is_no_row(text):
    record = nvidia_smi.parse_csv(text, rc=14)
    assert [row["power.limit"] for row in record["rows"]] == [300.0, 250.0]
    assert (record["state"], record["messages"]) == ("corrupted_inforom", [WARNING])


def test_c40_a_warning_after_the_xml_does_no_harm(repository):
    text = (repository / "tests/fixtures/gpu/nvidia_smi_550_q_x.xml").read_text()
    assert nvidia_smi.parse_xml(f"{text}\n{WARNING}\n", rc=14)["gpus"] == nvidia_smi.parse_xml(text)["gpus"]


def test_c49_a_warning_in_the_list_is_no_gpu():
    text = f"GPU 0: A100 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n{WARNING}\n"
    record = nvidia_smi.parse_list(text, rc=14)
    assert (len(record["gpus"]), record["messages"]) == (1, [WARNING])


@pytest.mark.parametrize("word", ["[Function Not Found]", "Function Not Found", "[GPU access blocked]", "broken"])
def test_c42_a_word_where_a_number_of_watts_belongs_is_none_with_the_word_kept(word):
    (row,) = nvidia_smi.parse_csv(f"uuid, power.limit [W]\nGPU-1, {word}\n")["rows"]
    assert (row["power.limit"], row["raw"]["power.limit"]) == (None, word)


def test_rows_without_a_header_are_an_error_and_not_one_card_less():
    with pytest.raises(errors.ToolError, match="noheader"):
        nvidia_smi.parse_csv("A100, GPU-1, 300.00 W\nA100, GPU-2, 300.00 W\n")


@pytest.mark.parametrize("text", ["", "\n"])
def test_nothing_printed_is_not_a_node_without_gpus(text):
    assert nvidia_smi.parse_list(text)["state"] == "no_output"
    assert nvidia_smi.parse_csv(text)["state"] == "no_output"
