"""Families of the zoo that convolve, scan, route or look up, trained on four gloo ranks.

Those that ``tests/parity/test_matrix.py`` trains in many more ways are ``slow`` as it is.
"""

from __future__ import annotations

import pytest

from tests.distributed.families_on_ranks import check_families


def test_families_train_alike():
    check_families(
        [
            ("convnext-tiny", 1, 4, 0, 2),
            ("swin-tiny", 2, 2, 3, 1),
            ("switch-base-8", 1, 4, 0, 2),
            ("pangu-200b", 2, 2, 3, 2),
            ("mmoe", 2, 2, 1, 1),
        ]
    )


@pytest.mark.slow
def test_families_of_the_matrix_train_alike():
    check_families(
        [
            ("whisper-small", 2, 2, 1, 2),
            ("resnet50", 2, 2, 2, 1),
            ("mamba2-130m", 2, 2, 1, 1),
            ("dlrm-24b", 1, 4, 0, 1),
        ]
    )
