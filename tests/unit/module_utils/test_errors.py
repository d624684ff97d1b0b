"""Errors carry the thing, what was seen, what was wanted and the next step."""

import pytest
from ansible.module_utils.steadyrack import errors


def test_the_sentence_has_all_four_parts_in_order():
    error = errors.InputError("power cap", "50 W", "150 to 300 W", "correct the inventory")
    assert str(error) == "power cap: seen 50 W, wanted 150 to 300 W. Next: correct the inventory"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (("thing",), "thing"),
        (("thing", "this"), "thing: seen this"),
        (("thing", None, "that"), "thing: wanted that"),
        (("thing", None, None, "do it"), "thing. Next: do it"),
        (("thing", 0), "thing: seen 0"),
    ],
)
def test_parts_that_are_not_known_are_left_out(parts, sentence):
    assert str(errors.SteadyrackError(*parts)) == sentence


def test_every_error_of_the_project_is_a_steadyrack_error_and_names_its_kind():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, errors.SteadyrackError)
        assert errors.SteadyrackError.as_dict(kind("thing", "seen")) == {
            "kind": kind.__name__, "thing": "thing", "seen": "seen", "wanted": None, "next_step": None,
        }  # fmt: skip
