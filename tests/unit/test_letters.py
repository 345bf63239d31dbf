"""Letters bring JSON values or a refusal of the same class, as they were."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.errors import AutoplanError, InfeasibleError, PlanError, ProfileError
from autoplan.letters import letter_of, opened, refusal

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(values)
def test_what_is_found_arrives(value: object) -> None:
    assert opened(letter_of(lambda: value).encode()) == value


@pytest.mark.parametrize("kind", [AutoplanError, InfeasibleError, PlanError, ProfileError])
def test_a_refusal_is_raised_in_its_class(kind: type[AutoplanError]) -> None:
    def refuses() -> object:
        raise kind("too much")

    for letter in (letter_of(refuses), refusal(kind("too much"))):
        with pytest.raises(kind, match="too much") as caught:
            opened(letter)
        assert type(caught.value) is kind


def test_other_errors_are_no_letters() -> None:
    with pytest.raises(ZeroDivisionError):
        letter_of(lambda: 1 / 0)
