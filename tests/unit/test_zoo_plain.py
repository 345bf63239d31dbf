"""Plain models are transformers' models: the same weights, losses and graphs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from autoplan import zoo
from autoplan.trace.capture import capture
from autoplan.trace.graph import OpGraph
from autoplan.zoo.plain import plain
from autoplan.zoo.plain.rope import RopeParameters, Stretched, frequencies
from autoplan.zoo.presets import PRESETS
from autoplan.zoo.pretrained import pretrained
from autoplan.zoo.subject import ModelUnderPlan
from tests.families import DEPTHS, LENGTH, TINY, VOCAB

OF_EACH_KIND = (
    "gpt2", "gpt3-125m", "llama2-7b", "llama3.1-8b", "llama3.2-1b", "mistral-7b", "qwen2-0.5b",
    "qwen2-7b", "qwen3-8b", "t5-11b",
)  # fmt: skip
PLAIN = [
    name for name, p in PRESETS.items() if plain(p.model_type, p.fields(), p.seq_len, origin=name)
]
FAMILIES = [name for name in TINY if name in PLAIN]


def _both(name: str, **changes: object) -> tuple[ModelUnderPlan, ModelUnderPlan]:
    """The plain model and transformers' of a preset with other fields."""
    preset = PRESETS[name]
    fields = {**preset.fields(), **changes}
    one = plain(preset.model_type, fields, LENGTH, origin="a test")
    assert one is not None
    return one, pretrained(preset.model_type, fields, LENGTH, origin="a test")


def _layers(name: str, layers: int) -> dict[str, int]:
    return {field: layers for field in DEPTHS if field in PRESETS[name].fields()}


def _without_lines(graph: OpGraph) -> OpGraph:
    return replace(graph, nodes=tuple(replace(node, where="") for node in graph.nodes))


def test_the_models_planned_most_are_plain():
    assert {"gpt3-175b", "llama3-8b", "llama3-405b", "mistral-7b", "qwen3-32b"} <= set(PLAIN)


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_graphs_are_those_of_transformers(name):
    ours, theirs = _both(name, **_layers(name, 2))
    graphs = [
        _without_lines(capture(one.model, one.example_inputs, dtype=torch.bfloat16, fold=False))
        for one in (ours, theirs)
    ]
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_states_and_losses_are_those_of_transformers(name):
    ours, theirs = _both(name, vocab_size=VOCAB, **TINY[name], **_layers(name, 2))
    assert list(ours.model.state_dict()) == list(theirs.model.state_dict())
    generator = torch.Generator().manual_seed(0)
    models = [one.model.to_empty(device="cpu").double().eval() for one in (ours, theirs)]
    state = {
        key: torch.randn(value.shape, generator=generator, dtype=torch.float64) / 5
        for key, value in models[0].state_dict().items()
    }
    turns = torch.rand(LENGTH, generator=generator)
    for model in models:
        model.load_state_dict(state)
        for key, buffer in model.named_buffers():
            assert key.endswith("inv_freq")
            buffer.copy_(turns[: buffer.numel()])
    ids = torch.randint(VOCAB, (3, LENGTH), generator=generator)
    with torch.no_grad():
        batch = dict.fromkeys(ours.example_inputs, ids)
        expected = models[1](**batch).loss
        torch.testing.assert_close(models[0](**batch), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["llama3-8b", "llama3.1-8b", "llama3.2-1b"])
def test_frequencies_are_those_of_transformers(name):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = PRESETS[name].fields()
    theirs = LlamaRotaryEmbedding(LlamaConfig(**fields)).inv_freq
    read = RopeParameters.read(fields["rope_parameters"])
    assert read is not None
    ours = frequencies(read, 2 * theirs.numel(), device="cpu")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


def test_long_wavelengths_are_stretched_and_short_ones_stay():
    stretched = Stretched(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )
    plainly = frequencies(RopeParameters(theta=1e4), 64, device="cpu")
    longer = frequencies(RopeParameters(theta=1e4, stretched=stretched), 64, device="cpu")
    wavelengths = 2 * torch.pi / plainly
    assert torch.equal(longer[wavelengths < 64 / 4], plainly[wavelengths < 64 / 4])
    torch.testing.assert_close(longer[wavelengths > 64], plainly[wavelengths > 64] / 8)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {"attention_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
        ("mistral", {"sliding_window": 4096}),
        ("qwen2", {"use_sliding_window": True}),
        ("gemma", {}),
    ],
)
def test_what_plain_models_lack_is_left_to_transformers(model_type, changes):
    fields = {**PRESETS["llama3-8b"].fields(), **changes}
    assert plain(model_type, fields, None, origin="a test") is None


def test_plain_models_are_built_without_transformers():
    code = (
        "import sys; from autoplan import zoo; "
        "[zoo.build(name) for name in ('llama3-8b', 'gpt2', 't5-3b')]; "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_lengths_are_checked():
    assert zoo.build("llama3.1-8b", 131072).seq_len == 131072
    assert zoo.build("llama3.1-8b").seq_len == 8192
