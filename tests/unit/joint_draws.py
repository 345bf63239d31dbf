"""Random families of menus.

Scales are drawn so that messages, compute, weights and activations take turns in being what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random

from autoplan.search.pipeline.configs import Config
from autoplan.search.pipeline.item_prices import Elements
from autoplan.search.pipeline.loads import Unit
from autoplan.search.pipeline.objectives import dealt
from autoplan.search.pipeline.weight_messages import WeightMessages
from autoplan.search.pipeline.whole import Apart
from autoplan.search.regions.column import Column
from autoplan.search.regions.menus import Crossing
from hardware_profiles.spec import ClusterSpec
from tests.unit.joint_families import ListedFamily, Way


def random_kinds(draw: Random, config: Config, most_items: int, *, is_uniform: bool) -> list[str]:
    """The region of each item; those of parts of the root begin with ``root``."""
    stages = config.pp * config.stages_per_rank
    count = draw.randint(stages, max(stages, most_items))
    while is_uniform:
        before, after = draw.randint(0, 1), draw.randint(0, 1)
        blocks = ["block"] * draw.randint(2, max(stages, most_items) - before)
        kinds = ["root0"] * before + blocks + ["root9"] * after
        if dealt([kind == "block" for kind in kinds], stages):
            return kinds
    found = [draw.choice(("block", "block", "other", "root")) for _ in range(count)]
    return [f"root{n}" if kind == "root" else kind for n, kind in enumerate(found)]


def _spread(draw: Random, low: float, high: float) -> float:
    """A power of ten between those of two exponents."""
    return 10 ** draw.uniform(low, high)


def random_family(
    draw: Random, config: Config, cluster: ClusterSpec, kinds: list[str]
) -> ListedFamily:
    scale = float(round(_spread(draw, 2, 8.5)))
    kept_scale = scale * 16 * _spread(draw, -1.5, 1)
    second = _seconds_of(config, cluster, scale) * _spread(draw, -1.5, 1.5)
    regions = list(dict.fromkeys(kinds))
    readers = tuple(n for n, kind in enumerate(kinds) if kind.startswith("root"))
    ties = len(readers) > 1 and draw.random() < 0.5
    tied = float(round(scale * _spread(draw, -1, 0.5))) if ties else 0.0
    own = {key: float(round(scale * _spread(draw, -1, 0.5))) for key in regions}
    frozen = {
        key: float(round(scale * _spread(draw, -1, 0.5))) if draw.random() < 0.3 else 0.0
        for key in regions
    }
    for key in regions:
        own[key] *= draw.random() > 0.15
    apart = _apart(Random(f"apart {scale} {kinds}"), kinds, scale)
    unit = Unit(
        trained_elements=tied + sum(one.unit.trained_elements for one in apart),
        frozen_elements=sum(one.unit.frozen_elements for one in apart),
        count=1,
    )
    elements = _elements(own, frozen, (tied, unit), config.tp)
    hop_s = second * _spread(draw, -2, 0.5) * draw.choice((0.0, 1.0, 1.0))
    crossing = hop_s * cluster.inter_node.bytes_per_s
    ways = []
    for _ in range(draw.choice((1, 1, 2))):
        share = draw.choice((1.0, 1.0 / config.tp))
        columns = {
            key: tuple(
                _column(
                    draw,
                    second=second,
                    kept=kept_scale,
                    own=own[key],
                    frozen=frozen[key],
                    tied=tied * share * key.startswith("root"),
                    tp=config.tp,
                )
                for _ in range(draw.randint(1, 4))
            )
            for key in regions
        }
        cuts = [
            Crossing(
                forward_bytes=float(round(share * crossing * draw.uniform(0.2, 1))),
                backward_bytes=float(round(share * crossing * draw.choice((0.0, 0.5, 1)))),
            )
            for _ in kinds[1:]
        ]
        if config.stages_per_rank > 1:
            inside = [n for n, pair in enumerate(pairwise(kinds)) if pair[0] == pair[1]]
            for number in inside:
                cuts[number] = cuts[inside[0]]
        ways.append(
            Way(
                columns=columns,
                cuts=tuple(cuts),
                tied=((readers, tied * share),) if ties else (),
                apart=tuple(_shared(one, share) for one in apart),
            )
        )
    return ListedFamily(
        keys=tuple(kinds),
        is_block=tuple(not kind.startswith("root") for kind in kinds),
        elements=elements,
        ways=tuple(ways),
        shared_s=draw.choice((0.0, 0.0, second * draw.random())),
    )


def _apart(draw: Random, kinds: list[str], scale: float) -> list[Apart]:
    """Up to two parameters, whole, that a block reads and other items too."""
    blocks = [n for n, kind in enumerate(kinds) if not kind.startswith("root")]
    found = []
    for _ in range(draw.choice((0, 0, 1, 2)) if blocks and len(kinds) > 1 else 0):
        block = draw.choice(blocks)
        others = [n for n in range(len(kinds)) if n != block]
        items = sorted([block, *draw.sample(others, draw.randint(1, len(others)))])
        elements, trains = float(round(scale * _spread(draw, -1, 0.5))), draw.random() < 0.7
        unit = Unit(
            trained_elements=elements * trains, frozen_elements=elements * (not trains), count=1
        )
        found.append(Apart(items=tuple(items), unit=unit))
    return found


def _shared(one: Apart, share: float) -> Apart:
    unit = Unit(
        trained_elements=one.unit.trained_elements * share,
        frozen_elements=one.unit.frozen_elements * share,
        count=1,
    )
    return replace(one, unit=unit)


def _seconds_of(config: Config, cluster: ClusterSpec, elements: float) -> float:
    """Seconds of a message of so many elements, at least a microsecond."""
    messages = WeightMessages(config, "bf16", cluster.gpus_per_node, cluster)
    unit = Unit(trained_elements=elements, frozen_elements=0.0, count=1)
    return max(1e-6, messages.gather_s(unit), messages.reduce_s(unit))


def _elements(
    own: Mapping[str, float], frozen: Mapping[str, float], common: tuple[float, Unit], tp: int
) -> dict[str, Elements]:
    """Of each region; parts of the root have tied elements beside their own.

    Args:
        common: the tied elements, and all that the root has beside what its parts have alone.
    """
    tied, unit = common
    root = [key for key in own if key.startswith("root")]
    all_trained = sum(own[key] for key in root) + unit.trained_elements
    all_frozen = sum(frozen[key] for key in root) + unit.frozen_elements
    return {
        key: Elements(
            trained=(trained := own[key] + tied * (key in root)),
            frozen=frozen[key],
            least_trained=trained / tp,
            least_frozen=frozen[key] / tp,
            unit_trained=all_trained if key in root else trained,
            unit_frozen=all_frozen if key in root else frozen[key],
        )
        for key in own
    }


def _column(
    draw: Random, *, second: float, kept: float, own: float, frozen: float, tied: float, tp: int
) -> Column:
    share = draw.choice((1.0, 1.0 / tp, draw.uniform(1.0 / tp, 1.0)))
    forward_s = second * _spread(draw, -0.7, 0.3)
    kept_bytes = float(round(kept * _spread(draw, -1, 0)))
    again = draw.random() < 0.4
    weight_s = forward_s * draw.uniform(0.3, 1.2) * (own + tied > 0)
    input_s = forward_s * draw.uniform(0.3, 1.2) + again * forward_s
    sends = draw.choice((0.0, draw.random()))
    working_bytes = float(round(kept_bytes * draw.random()))
    return Column(
        choices=(draw.randrange(10**9),),
        forward_s=forward_s,
        backward_input_s=input_s,
        backward_weight_s=weight_s,
        kept_bytes=float(round(kept_bytes * 0.1)) if again else kept_bytes,
        recomputed_bytes=kept_bytes if again else 0.0,
        operator_bytes=working_bytes,
        working_bytes=working_bytes,
        trained_elements=own * share + tied,
        frozen_elements=frozen * share,
        forward_messages_s=sends * forward_s * 0.5,
        backward_messages_s=sends * (input_s + weight_s) * 0.5,
    )
