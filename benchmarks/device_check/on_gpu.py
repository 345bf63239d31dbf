"""The real device: one GPU, NCCL with one rank, and the modules that plans emit.

Weights are the same numbers wherever they are drawn once, on the host; every setting gets a copy.
"""

from __future__ import annotations

import gc
import time
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

import autoplan
from autoplan.captured import captured
from autoplan.plan import Plan
from autoplan.runtime.parallelize import parallelize
from autoplan.verification.inputs import draw_inputs
from autoplan.verification.model import with_weights
from autoplan.zoo import ModelUnderPlan
from autoplan.zoo.presets import PRESETS
from autoplan.zoo.pretrained import pretrained
from benchmarks.device_check.check import DoesNotFitError, StepFigures
from benchmarks.device_check.settings import Setting
from hardware_profiles.load import load_facts, with_digest
from hardware_profiles.schema import ProfileFacts
from hardware_profiles.write import save

STEPS = 5
_ROOMY = 4
"""Times the memory: plans are made as if it were enough, so that what does not fit is tried."""


class _Model:
    """A model on the meta device, and with weights on the host once they are asked for."""

    def __init__(self, case: ModelUnderPlan) -> None:
        self.case = case

    @cached_property
    def weighted(self) -> nn.Module:
        return with_weights(self.case.model)


class Gpu:
    """This process' GPU.

    Args:
        folder: for profiles that say more memory.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        self._folder, self._device = folder, device
        self._last: tuple[tuple[object, ...], _Model] | None = None

    def now_s(self) -> float:
        return time.monotonic()

    def free_bytes(self) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved()

    def planned(self, setting: Setting, profile: str) -> Plan:
        case = self._model(setting).case
        return autoplan.plan(
            case.model,
            case.example_inputs,
            cluster=self._roomy(profile),
            gpus_per_node=1,
            global_batch=setting.samples,
            batch_norm="local",
            pins={"microbatch": setting.samples, "recompute": setting.recompute},
            loss_fn=case.loss_fn,
        )

    def trained(self, setting: Setting, plan: Plan) -> StepFigures:
        known = self._model(setting)
        case = known.case
        graph = captured(case, plan.job)
        try:
            module = parallelize(
                known.weighted,
                graph,
                plan,
                device=self._device,
                seed=0,
                compiler="inductor" if setting.compiled else None,
            )
            drawn = draw_inputs(graph, case, setting.samples)
            batch = {name: value.to(self._device) for name, value in drawn.items()}
            found = module.measure(batch, STEPS)
            return StepFigures(step_s=found.step_s.median_s, peak_bytes=found.peak_bytes)
        except torch.cuda.OutOfMemoryError:
            raise DoesNotFitError from None
        finally:
            module = batch = None
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _model(self, setting: Setting) -> _Model:
        """The last one is kept, for settings that differ in nothing else."""
        key = setting.model, setting.seq_len, setting.fields
        if self._last is None or self._last[0] != key:
            self._last = key, _Model(case_of(setting))
        return self._last[1]

    def _roomy(self, profile: str) -> str:
        path = self._folder / f"roomy-{Path(profile).stem}.toml"
        if not path.exists():
            save(roomy(load_facts(profile)), path)
        return str(path)


def roomy(facts: ProfileFacts) -> ProfileFacts:
    """A profile that says several times the memory."""
    memory = facts.device.memory_bytes
    more = memory.model_copy(update={"value": _ROOMY * memory.value, "provenance": "assumed"})
    device = facts.device.model_copy(update={"memory_bytes": more})
    return with_digest(facts.model_copy(update={"device": device}))


def case_of(setting: Setting) -> ModelUnderPlan:
    """The model of a setting on the meta device, and its inputs."""
    preset = PRESETS[setting.model]
    fields = {**preset.fields(), **dict.fromkeys(preset.dropout, 0.0), **setting.fields}
    return pretrained(preset.model_type, fields, setting.seq_len, origin=setting.model)
