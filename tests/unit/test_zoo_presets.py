"""The presets: published sizes, inputs by task, dropout, and graphs whose operators have rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torch import nn

from autoplan import zoo
from autoplan.sharding.rules import known
from autoplan.trace.capture import capture
from autoplan.zoo.others import OTHERS
from autoplan.zoo.preset import Preset
from autoplan.zoo.presets import PRESETS
from tests.families import DEPTHS, STAGES, TINY, shallow, tiny

PARAMETERS = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-125m": 125_239_296, "opt-350m": 331_196_416, "opt-1.3b": 1_315_758_080,
    "opt-2.7b": 2_651_596_800, "opt-6.7b": 6_658_473_984, "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "falcon-40b": 41_303_293_952,
    "llama2-7b": 6_738_415_616, "llama2-13b": 13_015_864_320, "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800,
    "llama3.1-8b": 8_030_261_248, "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400, "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "qwen2-0.5b": 494_032_768, "qwen2-1.5b": 1_543_714_304, "qwen2-7b": 7_615_616_512,
    "qwen2-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264,
    "gemma-2b": 2_506_172_416, "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888, "gemma2-9b": 9_241_705_984, "gemma2-27b": 27_227_128_320,
    "mixtral-8x7b": 46_702_792_704, "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624, "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_404_352,
    "bert-base": 109_514_298, "bert-large": 335_174_458,
    "roberta-base": 124_697_433, "roberta-large": 355_412_057,
    "vit-b16": 86_567_656, "vit-l16": 304_326_632, "vit-h14": 632_045_800,
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336, "t5-11b": 11_307_321_344,
    "bart-base": 139_420_416, "bart-large": 406_291_456,
    "whisper-small": 241_734_912, "whisper-large-v3": 1_543_490_560,
    "resnet50": 25_557_032, "resnet152": 60_192_808,
    "convnext-tiny": 28_589_128, "convnext-base": 88_591_464, "convnext-large": 197_767_336,
    "swin-tiny": 28_288_354, "swin-base": 87_768_224,
    "lstm-66m": 66_034_000, "mamba2-130m": 128_989_632, "mamba2-2.7b": 2_702_599_680,
}  # fmt: skip
"""Of the released weights; models without a release are counted by their sizes below."""

SIZES = {
    "gpt3-125m": (768, 12), "gpt3-350m": (1024, 24), "gpt3-760m": (1536, 24),
    "gpt3-1.3b": (2048, 24), "gpt3-2.7b": (2560, 32), "gpt3-6.7b": (4096, 32),
    "gpt3-13b": (5120, 40), "gpt3-175b": (12288, 96), "opt-66b": (9216, 64),
    "opt-175b": (12288, 96),
}  # fmt: skip
ROUNDED = {
    "pangu-200b": 207.0e9, "dlrm-24b": 24.0e9, "mamba2-370m": 3.7e8, "mamba2-780m": 7.8e8,
    "mamba2-1.3b": 1.34e9, "switch-base-8": 6.2e8,
}  # fmt: skip
"""As published, to the digits that are printed; the query layer is one of PanGu's 64."""

VOCABULARIES = {"gpt3": (50257, 2048), "opt": (50272, 2050)}
"""Rows of the tables of tokens and of positions; OPT's has two rows more than positions."""

LENGTHS = {
    "gpt2": 1024, "gpt3": 2048, "opt": 2048, "falcon": 2048, "llama2": 4096, "llama3": 8192,
    "llama3.1": 8192, "llama3.2": 8192, "mistral": 8192, "qwen2": 4096, "qwen3": 4096,
    "gemma": 8192, "gemma2": 8192, "bert": 512, "roberta": 512, "t5": 512, "bart": 1024,
    "mixtral": 8192, "deepseek": 4096, "whisper": 448, "lstm": 35, "pangu": 1024,
    "mamba2": 2048, "switch": 512,
}  # fmt: skip
PAIRED = ("t5", "bart", "switch")
RECORDS = {
    "dlrm-24b": {"dense": (2, 13), "rows": (2, 26), "labels": (2,)},
    "mmoe": {"features": (2, 32), "labels": (2, 2)},
}
RESNETS = ("resnet50", "resnet152")
"""The first layer of each stage has a shortcut of its own."""

FIRST_APART = ("mamba2",)
"""The first layer makes the residual float32, which the others find so."""

MELS = {"whisper-small": 80, "whisper-large-v3": 128}


def _family(name: str) -> str:
    return name.partition("-")[0]


def _count(name: str) -> float:
    """Published, or for a GPT of width d and depth L: L (12 d^2 + 13 d) + 2 d + tables of d.

    Of mixed experts: 32 tables of 2^20 rows, 8 experts of two layers, and 2 tasks.
    """
    if name in PARAMETERS:
        return PARAMETERS[name]
    if name in ROUNDED:
        return pytest.approx(ROUNDED[name], rel=0.005)
    if name == "mmoe":
        expert = 2048 * (2048 + 1) + 512 * (2048 + 1)
        return 32 * 2**20 * 64 + 8 * expert + 2 * (2048 * 8 + 256 * (512 + 1) + 256 + 1)
    width, layers = SIZES[name]
    return layers * (12 * width**2 + 13 * width) + (2 + sum(VOCABULARIES[_family(name)])) * width


def test_every_preset_is_counted():
    assert {*PARAMETERS, *SIZES, *ROUNDED, "mmoe"} == set(zoo.names())


def _rates(model: Any) -> set[float]:
    """All dropout that is not zero: of transformers' config, or of the parts of a plain model."""
    if not hasattr(model, "config"):
        return {part.p for part in model.modules() if isinstance(part, nn.Dropout)} - {0.0}
    fields = model.config.to_dict()
    return {value for key, value in fields.items() if "drop" in key and value}


@pytest.mark.parametrize("name", PRESETS)
def test_published_sizes_inputs_and_dropout(name):
    subject = zoo.build(name)
    assert sum(parameter.numel() for parameter in subject.model.parameters()) == _count(name)
    assert {parameter.device.type for parameter in subject.model.parameters()} == {"meta"}
    assert subject.model.training
    assert _rates(subject.model) == {*PRESETS[name].dropout.values()} - {0.0}
    length = LENGTHS.get(_family(name))
    assert subject.seq_len == length
    shapes = {key: tuple(value.shape) for key, value in subject.example_inputs.items()}
    if name in RECORDS:
        assert shapes == RECORDS[name]
        return
    if length is None:
        assert shapes == {"pixel_values": (2, 3, 224, 224), "labels": (2,)}
        return
    keys = {"input_ids", "labels", *(["decoder_input_ids"] if _family(name) in PAIRED else [])}
    if name in MELS:
        assert shapes.pop("input_features") == (2, MELS[name], 3000)
        keys = {"decoder_input_ids", "labels"}
    assert shapes == dict.fromkeys(keys, (2, length))


def _layers(preset: Preset) -> int:
    fields = preset.fields()
    return sum(fields.get(STAGES) or (fields[name] for name in DEPTHS if name in fields))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in TINY)) for name in PRESETS],
)
def test_all_operators_of_two_layers_have_rules(name):
    """Sizes of a family that differ in numbers alone are among the slow tests."""
    subject = shallow(PRESETS[name], 2, 64)
    graph = capture(subject.model, subject.example_inputs, fold=False)
    assert not {node.target for node in graph.of_kind("call") if not known(node.target)}


@pytest.mark.parametrize("name", TINY)
def test_folded_traces_are_whole_traces(name):
    subject = tiny(name, layers=6)
    folded = capture(subject.model, subject.example_inputs)
    assert folded == capture(subject.model, subject.example_inputs, fold=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in (*OTHERS, *RESNETS)])
def test_all_layers_are_blocks_at_full_depth(name):
    """A layer is one block or, where the first differs from the rest as in T5, several."""
    subject = zoo.build(name)
    graph = capture(subject.model, subject.example_inputs)
    layer = r"^.*?\.\d+\.\w+\.\d+" if STAGES in PRESETS[name].fields() else r"^.*?\.\d+"
    layers = {re.findall(layer, block.path)[0] for block in graph.blocks}
    apart = _family(name) in FIRST_APART
    assert len(layers) == _layers(PRESETS[name]) - apart
