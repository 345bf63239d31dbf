"""A plan that was made before, in the terms of the search, so that it can be priced anew.

A plan says in which placement activations enter blocks. What crosses only between parts of the root
it leaves open; there the fastest is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from autoplan.errors import PlanError
from autoplan.plan import Plan
from autoplan.search.folded_graph import door_name
from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.costs import whole_costs
from autoplan.search.pipeline.family import Boundary, Family, family
from autoplan.search.pipeline.solve import Found
from autoplan.search.pipeline.whole import StageContent, value_of_whole
from autoplan.search.pricing import Pricing
from autoplan.search.regions.boundaries import boundary_of
from autoplan.search.regions.chosen import ChosenMenu
from autoplan.search.regions.column import Column
from autoplan.search.regions.menus import RegionDecisions, RegionMenus
from autoplan.sharding.assignment import ROOT, assign, relative_name
from autoplan.sharding.placement import Placement, parse
from autoplan.trace.graph import Ref
from autoplan.trace.stack import Item, stack_of
from cost_models.schedules import ScheduleName


def found_of(pricing: Pricing, plan: Plan) -> Found:
    """A plan with its value by the costs of today.

    Raises:
        PlanError: the plan is not one of the model, or nothing that a search could have found.
    """
    config = _config(plan)
    of_rank = pricing.at_cp(config.cp)
    assign(of_rank.graph, plan.regions, config.tp)
    by_operator = any(
        region.recomputed_operators or region.reconverted_inputs for region in plan.regions
    )
    shared = family(
        of_rank,
        stack_of(of_rank.graph),
        config.tp,
        config.microbatch,
        "free" if by_operator else "blocks",
    )
    chosen = _Chosen(shared.menus, plan)
    boundary = chosen.boundary()
    costs = whole_costs(pricing, shared, config, boundary)
    stages = tuple(
        StageContent(first=first, columns=chosen.columns(first, stop, boundary))
        for first, stop in _ranges(shared, plan)
    )
    return Found(
        config=config,
        family=shared,
        boundary=boundary,
        costs=costs,
        stages=stages,
        value=value_of_whole(costs, stages),
    )


def _config(plan: Plan) -> Config:
    mesh = plan.mesh
    return Config(
        pp=mesh.pp,
        dp=mesh.dp,
        cp=mesh.cp,
        tp=mesh.tp,
        zero=plan.zero,
        replicas=plan.replicas,
        microbatch=plan.microbatch,
        num_microbatches=plan.num_microbatches,
        schedule=next((name for name in get_args(ScheduleName) if name == plan.schedule), None),
        stages_per_rank=len(plan.stages) // mesh.pp or 1,
        outermost=mesh.outermost,
    )


def _ranges(shared: Family, plan: Plan) -> Iterator[tuple[int, int]]:
    """The items of each stage, from the first to behind the last."""
    names = [item.name for item in shared.menus.stack.items]
    if not plan.stages:
        yield 0, len(names)
        return
    missing = next((stage.first for stage in plan.stages if stage.first not in names), None)
    if missing is not None:
        raise PlanError(f"a stage begins at {missing}, which is no place to cut now; plan again")
    firsts = [names.index(stage.first) for stage in plan.stages]
    yield from zip(firsts, [*firsts[1:], len(names)], strict=True)


class _Chosen:
    """What a plan decides for every item."""

    def __init__(self, menus: RegionMenus, plan: Plan) -> None:
        self._menus = menus
        self._of_block = {path: region for region in plan.regions for path in region.blocks}
        self._root = next(region for region in plan.regions if region.kind == ROOT)
        self._known: dict[tuple[str, bool, str], ChosenMenu] = {}
        self._items = [
            self._menu(item, key) for item, key in zip(menus.stack.items, menus.keys, strict=True)
        ]

    def columns(self, first: int, stop: int, boundary: Boundary) -> tuple[Column, ...]:
        """The columns of some items, given what crosses between items."""
        known: dict[ChosenMenu, Column] = {}
        for menu in self._items[first:stop]:
            if menu not in known:
                known[menu] = menu.column(boundary)
        return tuple(known[menu] for menu in self._items[first:stop])

    def boundary(self) -> Boundary:
        """Placements of what crosses between items, and of parameters that several read."""
        found = self._entered()
        first = {one.name: one.placements[0] for one in self._menus.boundaries}
        for one in self._menus.boundaries:
            if one.name not in found:
                tried = [{**first, **found, one.name: each} for each in one.placements]
                found[one.name] = min(tried, key=self._seconds)[one.name]
        for one in self._menus.shared_parameters:
            reader = one.items[0]
            decided = self._decided(self._menus.stack.items[reader], self._menus.keys[reader])
            found[one.name] = decided.parameters[one.name]
        return found

    def _entered(self) -> dict[str, Placement]:
        """The placements in which activations enter blocks, by boundary."""
        crossing, found = boundary_of(self._menus.boundaries), dict[str, Placement]()
        for region in self._of_block.values():
            for number, text in enumerate(region.inputs):
                at = crossing.get(Ref(door_name(region.kind, number)))
                if at is None:
                    continue
                name, placement = self._menus.boundaries[at].name, parse(text)
                if found.setdefault(name, placement) != placement:
                    raise PlanError(
                        f"{name} enters some blocks as {found[name]!r} and others as {text}: such "
                        "a plan has no price; give all blocks of the plan the same placement"
                    )
        return found

    def _seconds(self, boundary: Boundary) -> float:
        return sum(
            column.forward_s + column.backward_input_s + column.backward_weight_s
            for column in self.columns(0, len(self._items), boundary)
        )

    def _menu(self, item: Item, key: str) -> ChosenMenu:
        region = self._of_block.get(item.name, self._root)
        known = key, item.name in region.recomputed, region.blocks[0] if region.blocks else ""
        if known not in self._known:
            self._known[known] = ChosenMenu(self._menus, key, self._decided(item, key))
        return self._known[known]

    def _decided(self, item: Item, key: str) -> RegionDecisions:
        plan, region = self._of_block.get(item.name, self._root), self._menus.regions[key]
        is_whole = item.name in plan.recomputed
        again = {name for name in plan.recomputed_operators if not is_whole}
        return RegionDecisions(
            strategies={
                node.name: plan.operators[relative_name(plan.kind, node.name)]
                for node in region.calls
            },
            parameters={
                name: parse(plan.parameters[relative_name(plan.kind, name)])
                for name in region.parameters
            },
            inputs=tuple(map(parse, plan.inputs)),
            recomputed=tuple(
                node.name for node in region.calls if relative_name(plan.kind, node.name) in again
            ),
            converted_again=() if is_whole else plan.reconverted_inputs,
            recomputes_all=is_whole,
        )
