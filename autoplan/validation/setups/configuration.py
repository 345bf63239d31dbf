"""How the run of a row was set up.

What the row leaves open is derived where it follows, taken from the framework's usual choice where
there is one (and then said), and refused by name otherwise. Models whose positions are learned are
of GPT-3's kind and train with the framework's dropout; those whose positions turn queries and keys
train without.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autoplan.validation.published.numbers import says_nothing
from autoplan.validation.published.rows import IncompleteRowError, MeasuredRow
from autoplan.validation.setups.batches import batches_of
from autoplan.validation.setups.clusters import cluster_of
from autoplan.validation.setups.frameworks import Usage, usage_of
from autoplan.validation.setups.hybrid import replicas_of
from autoplan.validation.setups.mesh import Mesh, mesh_of
from autoplan.validation.setups.pipelines import schedule_of, virtual_stages_of
from autoplan.validation.setups.setup import Setup
from autoplan.validation.setups.shapes import transformer_of
from autoplan.validation.setups.transformer import Transformer
from autoplan.validation.setups.words import (
    attention_generation_of,
    attention_of,
    check_task,
    document_len_of,
    dtype_of,
    quantised,
    recompute_of,
    tuning_of,
)

_SIZE_TOLERANCE = 0.15
_MOST_GPUS = 2**20
_MOST_LAYERS = 2**12
_MOST_WORK = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """The setups that a row may mean.

    Attributes:
        choices: one, or where the row leaves microbatch or interleaving open, all that it allows.
        assumed: what the row leaves open and what was taken for it.
        no_time: why the step time cannot be priced although memory can; None where it can.
    """

    choices: tuple[Setup, ...]
    assumed: tuple[str, ...]
    no_time: str | None


def configuration_of(row: MeasuredRow) -> Configuration:
    """How a row's run was, or may have been, set up.

    Raises:
        IncompleteRowError: the row is not complete enough, or states what is not priced.
    """
    if row.faults:
        raise IncompleteRowError(row.faults[0])
    check_task(row)
    if not (says_nothing(row.offload) or row.offload.lower() in ("no", "off", "false", "0")):
        raise IncompleteRowError(f"offload {row.offload}: not priced")
    assumed: list[str] = []
    usage = usage_of(row)
    if not usage.known:
        name = row.framework or "not stated"
        assumed.append(f"framework: {name}; taken for {usage.framework.name} in eager mode")
    choices = _choices(row, usage, assumed)
    for setup in choices:
        _check_amounts(setup)
    no_time = None
    if row.seq_varies:
        no_time = "step time: sequence lengths vary"
        assumed.append(f"seq_len: the longest, {choices[0].seq_len}")
    assumed += _differing_size(row, choices[0])
    return Configuration(choices=choices, assumed=tuple(assumed), no_time=no_time)


def _choices(row: MeasuredRow, usage: Usage, assumed: list[str]) -> tuple[Setup, ...]:
    layer_only = "layer" in row.task.lower() and "memory" not in row.task.lower()
    tp = row.tp or 1
    model = transformer_of(
        row, assumed, needs_vocab=not layer_only, vocab_multiple=usage.vocab_multiple * tp
    )
    if row.seq_len is None:
        raise IncompleteRowError("seq_len is not stated")
    cluster = cluster_of(row, assumed)
    zero = _zero(row, usage, assumed)
    mesh = mesh_of(row, cluster, zero, assumed)
    _check_splits(row, model, mesh)
    generation = attention_generation_of(row, usage)
    batches = batches_of(row, mesh, usage, assumed)
    setup = Setup(
        model=model,
        framework=replace(
            usage.framework,
            attention_generation=generation,
            dropout=usage.framework.dropout and not model.rotary,
        ),
        cluster=cluster.name,
        gpus=mesh.gpus,
        gpus_per_node=mesh.gpus_per_node,
        seq_len=row.seq_len,
        microbatch=batches[0][0],
        microbatches=batches[0][1],
        tp=mesh.tp,
        pp=mesh.pp,
        dp=mesh.dp,
        cp=mesh.cp,
        ep=mesh.ep,
        zero=zero,
        replicas=1 if layer_only else replicas_of(row, mesh, zero, assumed),
        sequence_parallel=_sequence_parallel(row, usage, mesh, assumed),
        recompute=recompute_of(row, usage, assumed),
        attention=attention_of(row, usage),
        compute_dtype=dtype_of(row, cluster.device, assumed),
        tuning=tuning_of(row),
        quantised=quantised(row),
        document_len=document_len_of(row, assumed),
        layer_only=layer_only,
        without_ends=bool(re.search(r"analytic|relative", row.mem_kind.lower())),
        forward_only=layer_only and "forward" in row.task.lower(),
    )
    return tuple(
        replace(
            setup,
            microbatch=microbatch,
            microbatches=microbatches,
            virtual_stages=chunks,
            schedule=schedule_of(row, chunks),
        )
        for microbatch, microbatches in batches
        for chunks in virtual_stages_of(row, model.layers, microbatches, mesh, usage, assumed)
    )


def _zero(row: MeasuredRow, usage: Usage, assumed: list[str]) -> int:
    if row.zero is not None:
        return row.zero
    alone = row.dp == 1 or row.n_gpus == 1
    if not alone and "zero" in row.config_complete.lower():
        raise IncompleteRowError("the ZeRO stage is not stated")
    if alone:
        return 0
    assumed.append(f"zero: {usage.zero}, as {usage.framework.name} does")
    return usage.zero


def _differing_size(row: MeasuredRow, setup: Setup) -> list[str]:
    """Notes that the stated sizes do not give the stated number of parameters."""
    if row.n_params_b is None or setup.layer_only:
        return []
    positions = 0 if setup.model.rotary else setup.seq_len
    built = setup.model.parameters(positions) / 1e9
    if abs(built / row.n_params_b - 1) <= _SIZE_TOLERANCE:
        return []
    return [f"sizes: as stated, {built:.3g}e9 parameters; the source says {row.n_params_b:g}e9"]


def _check_amounts(setup: Setup) -> None:
    """Refuses what no cluster runs, before hours are spent on it."""
    work = setup.pp * setup.virtual_stages * setup.microbatches
    for name, amount, most in (
        ("n_gpus", setup.gpus, _MOST_GPUS),
        ("layers", setup.model.layers, _MOST_LAYERS),
        ("stages x microbatches", work, _MOST_WORK),
    ):
        if amount > most:
            raise IncompleteRowError(f"{name} {amount}: more than {most} are not priced")


def _check_splits(row: MeasuredRow, model: Transformer, mesh: Mesh) -> None:
    if model.heads % mesh.tp:
        raise IncompleteRowError(f"{model.heads} heads do not split over tp {mesh.tp}")
    if mesh.pp > model.layers:
        raise IncompleteRowError(f"{model.layers} layers on {mesh.pp} stages")
    if model.experts % mesh.ep:
        raise IncompleteRowError(f"{model.experts} experts do not split over ep {mesh.ep}")
    if (row.seq_len or 0) % mesh.cp:
        raise IncompleteRowError(f"{row.seq_len} tokens do not split over cp {mesh.cp}")


def _sequence_parallel(row: MeasuredRow, usage: Usage, mesh: Mesh, assumed: list[str]) -> bool:
    if mesh.tp == 1:
        return False
    if row.seq_parallel is not None:
        return row.seq_parallel
    if usage.splits_sequence:
        assumed.append(f"seq_parallel: yes, as {usage.framework.name} does with tp")
    return usage.splits_sequence
