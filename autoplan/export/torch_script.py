"""A script in PyTorch alone: ``parallelize_module``, ``fully_shard`` and activation checkpointing.

Linear layers and embeddings that a plan splits over ``tp`` become ``ColwiseParallel`` (``Shard(0)``
of a linear weight) and ``RowwiseParallel`` (``Shard(1)``). What a layer split by columns makes
stays split only where the plan has it so all the way to the one layer split by rows beside it:
where every operator of their module is split. Elsewhere it is gathered, which is slower and never
wrong. Data parallelism is ``fully_shard`` over (replicas, shards), with shards of one rank for
ZeRO 0. What is gathered and reduced when is as the plan's own runtime has it, by the table of
``autoplan.capabilities``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files

from autoplan.capabilities import zero_stage
from autoplan.errors import PlanError
from autoplan.export.decisions import Decisions
from autoplan.export.exported import Exported, gathered_weights, heading
from autoplan.plan import RegionPlan

RELEASE = "PyTorch 2.13"
_DTYPES = {"bf16": "torch.bfloat16", "fp32": "torch.float32", "fp16": "torch.float16"}
_COMMUTE = ("unsqueeze", "expand")  # the same on a part as on the whole
_STYLES = {"Shard(0)": "columns", "Shard(1)": "rows"}


def torch_script(decisions: Decisions) -> Exported:
    """One Python file with ``parallelize(model)`` and ``train_step``.

    Raises:
        PlanError: the plan has a pipeline, which needs the model cut by hand.
    """
    plan = decisions.plan
    if plan.mesh.pp > 1:
        raise PlanError(
            f"--to torch: pp={plan.mesh.pp} cuts the model into stages, which a script without the "
            "model's code cannot; plan with --pin pp=1, or train the plan with autoplan.compile"
        )
    body = files("autoplan.export").joinpath("torch_script.txt").read_text(encoding="utf-8")
    launch = f"torchrun --nnodes {plan.job.nodes} --nproc-per-node {plan.job.gpus_per_node}"
    return Exported(
        framework=RELEASE,
        files={
            "parallel.py": heading(f"{RELEASE}; launched by {launch} your_training.py")
            + body.replace("# SETTINGS\n", "\n".join(_settings(decisions)) + "\n")
        },
        left_out=tuple(_left_out(decisions)),
    )


def _settings(decisions: Decisions) -> Iterator[str]:
    plan = decisions.plan
    yield f"TP = {plan.mesh.tp}"
    yield f"REPLICAS = {plan.replicas if plan.zero else plan.mesh.dp}"
    yield f"SHARDS = {decisions.shards if plan.zero else 1}"
    zero = zero_stage(plan.zero, pipeline=False, accumulates=True)
    yield f"RESHARD_AFTER_USE = {not zero.keeps_weights}  # False: weights are gathered once a step"
    yield f"REDUCE_EACH_MICROBATCH = {not zero.holds_full_gradients}  # False: once a step"
    yield f"MICROBATCH = {plan.microbatch}"
    yield f"MICROBATCHES = {plan.num_microbatches}"
    yield f"COMPUTE_DTYPE = {_DTYPES[plan.job.precision]}"
    yield from _tuple("BLOCKS", decisions.blocks)
    yield from _tuple("RECOMPUTED", sorted(decisions.recomputed_blocks, key=decisions.blocks.index))
    yield "SPLIT = {  # linear layers and embeddings over tp: by what, and whether the cut stays"
    for module, (style, stays) in split_modules(decisions).items():
        yield f"    {module!r}: ({style!r}, {stays}),"
    yield "}"


def _tuple(name: str, paths: list[str] | tuple[str, ...]) -> Iterator[str]:
    if not paths:
        yield f"{name}: tuple[str, ...] = ()"
        return
    yield f"{name} = ("
    yield from (f"    {path!r}," for path in paths)
    yield ")"


def split_modules(decisions: Decisions) -> Mapping[str, tuple[str, bool]]:
    """Paths of modules whose weight is split, with the way and whether its neighbours go on so."""
    if decisions.plan.mesh.tp == 1:
        return {}
    found: dict[str, tuple[str, bool]] = {}
    for region in decisions.plan.regions:
        stays = _staying(region)
        for prefix in region.blocks or ("",):
            for name, placement in region.parameters.items():
                module, _, leaf = name.rpartition(".")
                if leaf == "weight" and placement in _STYLES:
                    path = ".".join(filter(None, (prefix, module)))
                    found[path] = (_STYLES[placement], module.rpartition(".")[0] in stays)
    return found


def _staying(region: RegionPlan) -> frozenset[str]:
    """Parents of one module split by rows and others by columns, between which all is split."""
    by_parent: dict[str, list[str]] = {}
    for name, placement in region.parameters.items():
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and placement in _STYLES and module:
            by_parent.setdefault(module.rpartition(".")[0], []).append(placement)
    return frozenset(
        parent
        for parent, placements in by_parent.items()
        if region.blocks and placements.count("Shard(1)") == 1 < len(placements)
        if all(
            label != "replicate" or call.rpartition("/")[2].partition("#")[0] in _COMMUTE
            for call, label in region.operators.items()
            if call.rpartition("/")[0] == parent
        )
    )


def _left_out(decisions: Decisions) -> Iterator[str]:
    plan = decisions.plan
    yield "the model, data and learning rate: your script calls parallelize and train_step"
    yield "the mean over all tokens of a batch: train_step takes that of the microbatches' means"
    odd = sorted(
        {
            placement
            for name, placement in decisions.parameters.items()
            if placement != "Replicate()"
            and (placement not in _STYLES or not name.endswith((".weight", ".bias")))
        }
    )
    if plan.mesh.tp > 1:
        yield "placements of single operators on tp, and activations split along the sequence"
    if plan.mesh.tp > 1 and odd:
        yield f"parameters placed as {', '.join(odd)} on tp: whole on every rank there"
    if plan.zero in (1, 2):
        yield gathered_weights(plan.zero)
    if decisions.recompute == "operators":
        yield "single operators that run again: only whole blocks do here"
    if any(region.reconverted_inputs for region in plan.regions):
        yield "inputs of blocks kept as they entered, and converted again in the backward"
    if plan.job.precision == "fp16":
        yield "the loss scaling of fp16"
    if plan.job.optimizer != "adamw":
        yield f"the optimizer {plan.job.optimizer}: make it from model.parameters()"
