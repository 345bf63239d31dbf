"""Models of transformers are traced with the options that they come with, or refused by the option.

Attention written out, fused, with a mask of padding, and labels alone for an encoder and decoder
are traced; kernels of other packages and layers that are dropped at random are refused, the latter
in training only.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
)

import autoplan
from autoplan.errors import UnsupportedModelError
from autoplan.trace.capture import capture
from tests.parity.choose import random_program
from tests.parity.models import initialise
from tests.parity.simulate import assert_same, one_device, sharded

BATCH, LENGTH, VOCAB = 4, 8, 48
SLOW = pytest.mark.slow
SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 2 * LENGTH}
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def llama(attention: str) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, attn_implementation=attention, **SIZES,
        )
    )  # fmt: skip


def opt(**options: float) -> nn.Module:
    return OPTForCausalLM(
        OPTConfig(
            hidden_size=16, word_embed_proj_dim=16, ffn_dim=32, num_hidden_layers=2,
            num_attention_heads=2, dropout=0.0, attention_dropout=0.0, **SIZES, **options,
        )
    )  # fmt: skip


def bart(**options: float) -> nn.Module:
    sides = {"layers": 2, "ffn_dim": 32, "attention_heads": 2}
    own = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in sides.items()}
    return BartForConditionalGeneration(
        BartConfig(d_model=16, **own, **SIZES, **STILL, **options)  # pyright: ignore
    )


def t5() -> nn.Module:
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB, d_model=16, d_ff=32, d_kv=8, num_layers=2, num_heads=2,
            dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip


def wav2vec(**options: float) -> nn.Module:
    return Wav2Vec2ForSequenceClassification(
        Wav2Vec2Config(
            vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3),
            num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
            classifier_proj_size=8, **options,
        )
    )  # fmt: skip


def tokens() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: torch.randint(1, VOCAB, (BATCH, LENGTH)) for name in ("input_ids", "labels")}


def check(model: nn.Module, batch: dict[str, torch.Tensor]) -> None:
    """Over tp and microbatches it is the model on one device."""
    initialise(model, torch.float64)
    graph = capture(model, batch).at_batch(BATCH)
    truth = one_device(model, lambda: model(**batch).loss)
    emitted = random_program(graph, 2, 0, num_microbatches=2)
    assert_same(sharded(emitted, model, batch), truth, torch.float32)


@pytest.mark.parametrize("attention", [pytest.param("eager", marks=SLOW), "sdpa"])
def test_attention_written_out_and_fused(attention: str) -> None:
    check(llama(attention), tokens())


def test_attention_with_a_mask_of_padding() -> None:
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, 5:] = 0
    check(llama("sdpa"), {**tokens(), "attention_mask": mask})


@pytest.mark.parametrize("make", [bart, pytest.param(t5, marks=SLOW)])
def test_labels_alone_for_an_encoder_and_decoder(make) -> None:
    batch = tokens()
    batch["labels"][0, -3:] = -100
    check(make(), batch)


def test_kernels_of_other_packages_are_refused_by_name() -> None:
    model = llama("sdpa")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedModelError, match=r"flash_attention_2.*set it to 'sdpa'"):
        capture(model, tokens())


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (opt, "layerdrop"),
        (wav2vec, "layerdrop"),
        (bart, "encoder_layerdrop"),
        pytest.param(bart, "decoder_layerdrop", marks=SLOW),
    ],
)
def test_layers_dropped_at_random_are_refused_in_training(make, option: str) -> None:
    model = make(**{option: 0.1}).train()
    batch = tokens()
    if make is wav2vec:
        batch = {"input_values": torch.randn(BATCH, 200), "labels": torch.tensor([0, 1, 1, 0])}
    with pytest.raises(UnsupportedModelError, match=rf"{option}=0.1 in the config.*; set {option}"):
        capture(model, batch)


def test_layers_that_evaluation_keeps_are_traced() -> None:
    model = opt(layerdrop=0.1).eval()
    capture(model, tokens())
    assert model.config.layerdrop == 0.1


def test_the_doctor_looks_behind_dropped_layers() -> None:
    found = autoplan.doctor(opt(layerdrop=0.1).train(), tokens())
    assert [one.kind for one in found.findings if one.effect == "stops"] == ["randomness"]
    assert "tied weights" in {one.kind for one in found.findings}
