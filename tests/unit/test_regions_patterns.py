"""Patterns of regions, shared by degrees, against those made anew."""

import numpy as np
import pytest

from autoplan.search.pricing import Pricing
from autoplan.search.regions.menus import RegionMenus, region_menus
from autoplan.search.regions.pattern import Pattern, TooLargeError
from autoplan.search.regions.patterns import Patterns
from autoplan.trace.stack import stack_of
from tests.unit.region_graphs import random_model
from tests.unit.search_graphs import job, small_cluster


def tables(menus: RegionMenus) -> list[np.ndarray]:
    return [
        table
        for key in dict.fromkeys(menus.keys)
        for mode in range(len(menus.tables(key).ways))
        for table in menus.tables(key).table(mode).reduction.terms.tables.values()
    ]


def test_degrees_that_share_patterns_have_the_tables_of_their_own() -> None:
    graph, cluster = random_model(7, operators=4), small_cluster(gpus_per_node=4)
    pricing, shared = Pricing(graph, job(gpus=4, batch=4), cluster), Patterns()
    for tp, microbatch in ((2, 1), (4, 1), (4, 2), (2, 2)):
        costs = pricing.microbatch(tp, microbatch)
        known = tables(region_menus(stack_of(graph), costs, patterns=shared))
        anew = tables(region_menus(stack_of(graph), costs, patterns=Patterns()))
        assert len(known) == len(anew)
        assert all(np.array_equal(a, b) for a, b in zip(known, anew, strict=True))


def test_a_table_of_more_entries_than_the_limit_is_refused() -> None:
    pattern = Pattern((3, 4, 5), most_entries=12)
    pattern.add((0, 1), 1, 1.0, "forward_s")
    with pytest.raises(TooLargeError):
        pattern.add((0, 2), 1, 1.0, "forward_s")
    with pytest.raises(TooLargeError):
        pattern.block((0, 1, 2), np.ones((3, 4, 5), dtype=bool))
