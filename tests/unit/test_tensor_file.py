"""Files of checkpoints give back what was written, whatever the type of the numbers."""

from __future__ import annotations

import pytest
import torch

from autoplan.runtime.layout import Box
from autoplan.runtime.state import Piece
from autoplan.runtime.tensor_file import read_pieces, write_pieces

DTYPES = [torch.complex128, torch.complex64, torch.float64, torch.bfloat16, torch.int64, torch.bool]


@pytest.mark.parametrize("names", [("a",), ("a", "ab"), ("a", "ab", "abc")])
def test_numbers_of_all_types_come_back(tmp_path, names):
    box = Box((0, 1), (3, 5))
    drawn = torch.randn(3, 5, dtype=torch.complex128)
    values = {
        f"{name}.{dtype}": (drawn if dtype.is_complex else drawn.real).to(dtype)
        for name in names
        for dtype in DTYPES
    }
    pieces = [
        Piece(name=name, values=each, box=box, shape=(3, 6), is_first_copy=True)
        for name, each in values.items()
    ]
    write_pieces(tmp_path / "file", pieces)
    found = read_pieces(tmp_path / "file")
    assert found.keys() == values.keys()
    for name, stored in found.items():
        assert torch.equal(stored.values, values[name])
        assert (stored.box, stored.shape) == (box, (3, 6))
