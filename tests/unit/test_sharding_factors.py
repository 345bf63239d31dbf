"""The factor map of a view against brute force on index arrays."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.sharding.equation import extent
from autoplan.sharding.factors import view_equation


@st.composite
def two_shapes(draw):
    """Two shapes of as many elements."""
    factors = draw(st.lists(st.sampled_from([1, 2, 2, 3, 3, 5]), max_size=5))
    shapes = []
    for _ in range(2):
        order = draw(st.permutations(factors))
        cuts = draw(st.lists(st.integers(0, len(order)), max_size=4).map(sorted))
        edges = [0, *cuts, len(order)]
        shapes.append(tuple(math.prod(order[a:b]) for a, b in itertools.pairwise(edges)))
    return tuple(shapes)


def rows(shape, dims, letter, sizes):
    """For each element of a tensor, in order, the index of ``letter`` that its dims give."""
    found = []
    for index in itertools.product(*(range(size) for size in shape)):
        for position, letters in zip(index, dims, strict=True):
            if letter in letters:
                after = extent(letters[letters.index(letter) + 1 :], sizes)
                found.append(position // after % sizes[letter])
    return found


@settings(deadline=None, max_examples=300)
@given(two_shapes())
def test_both_shapes_give_every_element_the_same_digits(shapes):
    old, new = shapes
    made = view_equation(old, new)
    assert made is not None
    for shape, dims in ((old, made.inputs[0]), (new, made.outputs[0])):
        assert tuple(extent(letters, made.sizes) for letters in dims) == shape
    for letter in made.sizes:
        if letter not in made.whole:
            before = rows(old, made.inputs[0], letter, made.sizes)
            after = rows(new, made.outputs[0], letter, made.sizes)
            assert len(before) == math.prod(old)
            assert before == after


def shardings(shape, ranks):
    """All ways to shard a shape: (dim, parts) -> owner of every element, in order."""
    found = {}
    for dim, size in enumerate(shape):
        for parts in range(1, size + 1):
            if size % (parts * ranks) == 0:
                chunk = size // (parts * ranks)
                found[dim, parts] = tuple(
                    index[dim] // chunk % ranks
                    for index in itertools.product(*(range(size) for size in shape))
                )
    return found


@settings(deadline=None, max_examples=200)
@given(two_shapes(), st.sampled_from([2, 3]))
def test_finds_every_shard_of_a_dim_that_stays_a_shard(shapes, ranks):
    """Complete where the cuts of both shapes divide one another, for whole letters."""
    old, new = shapes
    made = view_equation(old, new)
    assert made is not None
    if made.whole:
        return
    possible = {
        owners: (before, after)
        for before, owners in shardings(old, ranks).items()
        for after, others in shardings(new, ranks).items()
        if owners == others
    }
    offered = {
        placement
        for letter, size in made.sizes.items()
        for parts in range(1, size + 1)
        if size % (parts * ranks) == 0
        for placement in [shard(made.inputs[0], letter, parts, made.sizes)]
    }
    assert {before for before, _ in possible.values()} <= offered


def shard(dims, letter, parts, sizes):
    for dim, letters in enumerate(dims):
        if letter in letters:
            return dim, extent(letters[: letters.index(letter)], sizes) * parts
    raise AssertionError(letter)


@pytest.mark.parametrize(
    ("old", "new", "inputs", "outputs"),
    [
        ((4, 6), (24,), (("d0",), ("d0.1",)), (("d0", "d0.1"),)),
        ((24,), (4, 6), (("d0", "d1"),), (("d0",), ("d1",))),
        ((6, 4), (3, 8), (("d0", "d1"), ("d1.1",)), (("d0",), ("d1", "d1.1"))),
        ((1, 6), (6, 1, 1), ((), ("d0",)), (("d0",), (), ())),
        ((4, 6), (6, 4), (("d0", "old0"), ("old1",)), (("d0", "new0"), ("new1",))),
        ((1, 1), (), ((), ()), ()),
    ],
)
def test_names_letters_after_the_dims_of_the_new_shape(old, new, inputs, outputs):
    made = view_equation(old, new)
    assert made is not None
    assert (made.inputs[0], made.outputs[0]) == (inputs, outputs)


def test_no_equation_without_elements():
    assert view_equation((0, 3), (3, 0)) is None
