"""Families of the zoo that attend, trained on four gloo ranks.

Those that ``tests/parity/test_matrix.py`` trains in many more ways are ``slow`` as it is.
"""

from __future__ import annotations

import pytest

from tests.distributed.families_on_ranks import check_families


def test_families_train_alike():
    check_families(
        [
            ("opt-350m", 2, 2, 1, 1),
            ("falcon-40b", 2, 2, 3, 2),
            ("gemma2-9b", 1, 4, 0, 2),
            ("deepseek-v3", 2, 2, 1, 1),
            ("bart-base", 1, 4, 0, 1),
        ]
    )


@pytest.mark.slow
def test_families_of_the_matrix_train_alike():
    check_families(
        [
            ("mixtral-8x7b", 2, 2, 3, 2),
            ("bert-base", 2, 2, 2, 2),
            ("vit-b16", 4, 1, 3, 1),
            ("t5-small", 2, 2, 1, 2),
        ]
    )
