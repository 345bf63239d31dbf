"""Random plans of every kind that a file can hold."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

from hypothesis import strategies as st

from autoplan.job import Job, ModelSource, Pins
from autoplan.plan import (
    Alternative,
    Estimate,
    MeshPlan,
    OpaquePlan,
    Plan,
    RegionPlan,
    SearchRecord,
    StageEstimate,
    StagePlan,
    StageTiming,
)
from autoplan.plan_details import (
    BlockFlow,
    FlowOperator,
    ModuleMemory,
    Outlook,
    ScalingPoint,
    SizeLimit,
    TensorRead,
)
from cost_models.memory import MemoryBreakdown
from cost_models.schedule_times import StageTimes
from cost_models.schedules import ScheduleName

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
texts = st.lists(text, max_size=3).map(tuple)
mapping = st.dictionaries(text, text, max_size=3)
count = st.integers(0, 2**62)
number = st.floats(0, 1e6)
degree = st.integers(1, 64)

regions = st.builds(
    RegionPlan,
    kind=text, blocks=st.just(()), recomputed=st.just(()), parameters=mapping, operators=mapping,
    inputs=st.just(("Replicate()", "Shard(1)")), recomputed_operators=texts,
    reconverted_inputs=st.sampled_from([(), (0,), (1,), (0, 1)]),
)  # fmt: skip
memories = st.builds(MemoryBreakdown, **dict.fromkeys(MemoryBreakdown.__slots__, count))
ranks = st.builds(
    StageEstimate, devices=count, compute_s=number, memory=memories, forward_s=number,
    backward_s=number, bubble_s=number, held_microbatches=count,
)  # fmt: skip
PARTS = ("compute_s", "exposed_comm_s", "bubble_s", "optimizer_s")
shares = st.floats(0, 1e6)
estimates = st.builds(
    lambda **parts: Estimate(
        step_s=sum(
            parts[f"{name}_s"] for name in ("compute", "exposed_comm", "bubble", "optimizer")
        ),
        **parts,
    ),
    compute_s=st.floats(1e-6, 1e6),
    exposed_comm_s=shares,
    bubble_s=shares,
    optimizer_s=shares,
    samples_per_s=number,
    mfu=st.floats(0, 1),
    comm_s=st.dictionaries(text, number, max_size=3),
    comm_bytes=st.dictionaries(text, count, max_size=3),
    comm_counts=st.dictionaries(text, count, max_size=3),
    exposed_by_axis_s=st.dictionaries(text, number, max_size=3),
    head_s=shares,
    tokens_per_s=st.none() | number,
    peak_memory_bytes=count,
    memory_limit_bytes=st.integers(1, 2**62),
    stages=st.just(()),
)
timings = st.builds(
    StageTiming,
    times=st.builds(StageTimes, **dict.fromkeys(StageTimes.__slots__, shares)),
    forward_messages_s=number,
    backward_messages_s=number,
    tail_s=shares,
    optimizer_s=shares,
    kept_bytes=count,
)
modules = st.builds(
    ModuleMemory, kind=text, module=text, copies=degree,
    **dict.fromkeys(
        ("parameters", "gradients", "optimizer_state", "gathered_parameters", "activations"),
        st.integers(0, 2**50),
    ),
)  # fmt: skip
limits = st.builds(SizeLimit, value=degree, does_not_fit=st.none() | count, peak_memory_bytes=count)


def point_of(nodes: int, devices: int, batch: int, step_s: float | None, why: str) -> ScalingPoint:
    return ScalingPoint(
        nodes=nodes, devices=devices, global_batch=batch, samples_per_s=step_s and batch / step_s,
        step_s=step_s, reason=why,
    )  # fmt: skip


points = st.builds(point_of, degree, degree, degree, st.none() | st.floats(1e-6, 1e6), text)
outlooks = st.none() | st.builds(
    Outlook,
    scaling=st.lists(points, max_size=3, unique_by=lambda point: point.nodes).map(
        lambda found: tuple(sorted(found, key=lambda point: point.nodes))
    ),
    largest_microbatch=st.none() | limits, longest_sequence=st.none() | limits,
)  # fmt: skip
outermost = st.sampled_from(["pp", "dp"])
meshes = st.builds(
    MeshPlan, pp=st.integers(1, 5), dp=degree, cp=degree, ep=degree, tp=degree, outermost=outermost
)
alternatives = st.builds(
    Alternative,
    name=text, mesh=meshes, zero=st.integers(0, 3), num_microbatches=degree, recompute=text,
    step_s=st.none() | number, peak_memory_bytes=count, fits=st.booleans(), reason=text,
    schedule=text, stages_per_rank=degree, replicas=degree,
)  # fmt: skip
opaque = st.builds(
    OpaquePlan, operator=text, calls=degree, first=text, splits_batch=st.booleans(),
    microbatch_s=number,
)  # fmt: skip
sources = st.builds(
    ModelSource,
    kind=st.sampled_from(["zoo", "config", "factory", "object"]),
    name=text,
    seq_len=st.none() | degree,
    inputs=st.lists(
        st.tuples(text, st.lists(degree, max_size=3).map(tuple)), max_size=2
    ).map(tuple),
)  # fmt: skip
pins = st.builds(
    Pins, dp=st.none() | degree, zero=st.none() | st.integers(0, 3),
    recompute=st.sampled_from([None, "none", "full"]), schedule=st.none() | text,
    stages_per_rank=st.none() | degree, replicas=st.none() | degree,
    outermost=st.none() | outermost,
)  # fmt: skip


@st.composite
def pipelines(draw, ranks: int, blocks: tuple[str, ...]) -> tuple[str, int, tuple[StagePlan, ...]]:
    """A schedule, a number of microbatches that it can run, and stages of the blocks."""
    if ranks == 1:
        return "none", draw(degree), ()
    schedule = draw(st.sampled_from(get_args(ScheduleName)))
    per_rank = {"gpipe": 1, "1f1b": 1, "zbv": 2}.get(schedule) or draw(st.integers(1, 3))
    microbatches = ranks * draw(st.integers(1, 4))
    number = ranks * per_rank
    cuts = draw(st.lists(st.integers(0, len(blocks)), min_size=number - 1, max_size=number - 1))
    edges = [0, *sorted(cuts), len(blocks)]
    held = [blocks[first:end] for first, end in pairwise(edges)]
    back_up = [*range(ranks), *reversed(range(ranks))]
    placed = back_up if schedule == "zbv" else [*range(ranks)] * per_rank
    stages = tuple(
        StagePlan(rank=rank, first=inside[0] if inside else "outside", blocks=inside)
        for rank, inside in zip(placed, held, strict=True)
    )
    return schedule, microbatches, stages


@st.composite
def blocks_in_regions(draw, blocks: tuple[str, ...]) -> tuple[RegionPlan, ...]:
    number = draw(st.integers(1, 3))
    chosen = [draw(st.integers(0, number - 1)) for _ in blocks]
    found = []
    for region in range(number):
        inside = tuple(b for b, r in zip(blocks, chosen, strict=True) if r == region)
        recomputed = tuple(block for block in inside if draw(st.booleans()))
        found.append(replace(draw(regions), blocks=inside, recomputed=recomputed))
    return tuple(found)


@st.composite
def estimates_of(draw, pipeline_ranks: int, stages: int) -> Estimate:
    """An estimate, with the seconds of its stages or, as files of older versions, without."""
    return replace(
        draw(estimates),
        stages=tuple(draw(ranks) for _ in range(pipeline_ranks)),
        timings=draw(st.just(()) | st.tuples(*[timings] * stages)),
        modules=draw(st.lists(modules, max_size=2).map(tuple)),
    )


@st.composite
def flows_of(draw, regions: tuple[RegionPlan, ...]) -> tuple[BlockFlow, ...]:
    """Of some of the regions: operators that read what enters, or one another."""

    def read(before: int) -> st.SearchStrategy[TensorRead]:
        return st.builds(
            TensorRead, source=st.none() | st.integers(-2, before - 1), forward=text,
            backward=text, nbytes=count,
        )  # fmt: skip

    found = []
    for region in regions:
        if region.blocks and draw(st.booleans()):
            size = draw(st.integers(0, 3))
            operators = tuple(
                FlowOperator(
                    name=draw(text), placement=draw(text), recomputed=draw(st.booleans()),
                    reads=tuple(draw(st.lists(read(number), max_size=2))),
                )
                for number in range(size)
            )  # fmt: skip
            outputs = tuple(draw(st.lists(read(size), max_size=1)))
            found.append(BlockFlow(block=region.blocks[0], operators=operators, outputs=outputs))
    return tuple(found)


@st.composite
def plans(draw) -> Plan:
    mesh, microbatch = draw(meshes), draw(degree)
    blocks = draw(st.lists(text.filter(lambda name: name != "outside"), unique=True, max_size=7))
    blocks = tuple(blocks)
    schedule, num_microbatches, stages = draw(pipelines(mesh.pp, blocks))
    in_regions = draw(blocks_in_regions(blocks))
    divisors = [number for number in range(1, mesh.dp + 1) if mesh.dp % number == 0]
    job = Job(
        model=draw(sources),
        cluster=draw(text),
        nodes=mesh.pp * mesh.dp,
        gpus_per_node=mesh.cp * mesh.ep * mesh.tp,
        global_batch=mesh.dp * microbatch * num_microbatches,
        precision=draw(st.sampled_from(["fp32", "bf16", "fp16"])),
        optimizer=draw(text),
        pins=draw(pins),
        memory_margin=draw(st.floats(0, 1, exclude_max=True)),
        memory_limit_bytes=draw(st.none() | st.integers(1, 2**62)),
        placements=draw(st.lists(st.tuples(text, text), max_size=2).map(tuple)),
        planned_only=draw(st.booleans()),
    )
    return Plan(
        job=job,
        fingerprint=draw(text),
        mesh=mesh,
        zero=draw(st.integers(0, 3)),
        microbatch=microbatch,
        num_microbatches=num_microbatches,
        schedule=schedule,
        regions=in_regions,
        estimate=draw(estimates_of(mesh.pp, max(1, len(stages)))),
        search=SearchRecord(gap=0.0, lower_bound_s=draw(number), candidates=3, space=draw(text)),
        alternatives=draw(st.lists(alternatives, max_size=2).map(tuple)),
        profile_digest=draw(text),
        stages=stages,
        replicas=draw(st.sampled_from(divisors)),
        warnings=draw(texts),
        opaque=draw(st.lists(opaque, max_size=2).map(tuple)),
        flows=draw(flows_of(in_regions)),
        outlook=draw(outlooks),
    )
