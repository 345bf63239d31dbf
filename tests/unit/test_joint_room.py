"""What a rank holds beside its items' columns is never less than what the bounds take off."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.search.pipeline.model import Model
from autoplan.search.pipeline.room import (
    passing_of,
    recomputing_room_bytes,
    room_bytes,
    steps_fit,
    widest_part,
)
from autoplan.search.pipeline.whole import StageContent, value_of_whole
from tests.unit import joint_configs
from tests.unit.joint_problems import random_problem


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_room_is_what_no_plan_of_one_stage_leaves_less_than(seed):
    problem, draw = random_problem(seed, joint_configs.flat, most_items=5), Random(seed)
    problem = replace(problem, limit_bytes=2**40)
    family, way = problem.family, draw.randrange(len(problem.family.ways))
    costs, menus = problem.costs(way), family.ways[way].columns
    columns = tuple(draw.choice(menus[key]) for key in family.keys)
    (peak,) = value_of_whole(costs, [StageContent(first=0, columns=columns)]).memory
    twice = sum(elements * (len(items) - 1) for items, elements in family.ways[way].tied)
    held = (
        sum(column.kept_bytes for column in columns)
        + costs.memory.held_per_trained * (sum(c.trained_elements for c in columns) - twice)
        + costs.memory.held_per_frozen * sum(c.frozen_elements for c in columns)
    )
    model = Model(keys=family.keys, menus=family.free, elements=family.elements)
    at_peak = replace(costs, memory=replace(costs.memory, limit_bytes=peak.total))
    assert steps_fit(at_peak, model)[0, -1]
    widest = widest_part(model, family.is_block)
    working = sum(
        column.operator_bytes
        for column, key in zip(columns, family.keys, strict=True)
        if key == widest
    )
    room = room_bytes(costs, model, widest)[0, -1]
    assert held + working + problem.limit_bytes - room <= peak.total + 1
    assert room_bytes(costs, model)[0, -1] <= room
    blocks = [c for c, is_block in zip(columns, family.is_block, strict=True) if is_block]
    behind = family.keys[len(columns) - family.is_block[::-1].index(True) :] if blocks else ()
    tail = columns[len(columns) - len(behind) :]
    later = held - sum(c.kept_bytes for c in tail)
    later += costs.memory.trained.gradients_made * sum(c.trained_elements for c in tail)
    if blocks:
        room = room_bytes(costs, model, None, behind)[0, -1]
        assert later + problem.limit_bytes - room <= peak.total + 1
    for passing in passing_of(costs) if blocks else ():
        again = sum(
            c.recomputed_bytes - passing.let_go_blocks * c.kept_bytes for c in blocks
        ) / len(blocks)
        room = recomputing_room_bytes(costs, model, passing)[0, -1]
        assert later + again + problem.limit_bytes - room <= peak.total + 1


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_a_range_fits_while_the_optimizer_steps_or_not(seed):
    problem = random_problem(seed, joint_configs.staged, most_items=5)
    family, costs = problem.family, replace(problem.costs(0), tied=(), apart=())
    least = [family.elements[key].least for key in family.keys]
    memory = costs.memory
    needed = memory.fixed_bytes + sum(
        memory.held_bytes(unit) + memory.trained.optimizer_step * unit.trained_elements
        for unit in least[:2]
    )
    model = Model(keys=family.keys, menus=family.free, elements=family.elements)
    for limit_bytes, fits in ((needed + 1, True), (needed - 1, False)):
        limited = replace(costs, memory=replace(memory, limit_bytes=limit_bytes))
        assert steps_fit(limited, model)[0, 2] == fits
