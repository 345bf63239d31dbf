"""Small models that train on a CPU in a fraction of a second, of the kinds that plans are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoplan.zoo.pretrained import pretrained

Batch = dict[str, Tensor]

_WIDTH, _LAYERS, _LENGTH, _VOCAB, _CLASSES = 256, 4, 128, 512, 16
_GPT = {
    "n_embd": _WIDTH, "n_layer": _LAYERS, "n_head": 8, "n_positions": _LENGTH, "vocab_size": _VOCAB,
    "bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
_BERT = {
    "hidden_size": _WIDTH, "num_hidden_layers": _LAYERS, "num_attention_heads": 8,
    "intermediate_size": 4 * _WIDTH, "vocab_size": _VOCAB, "max_position_embeddings": _LENGTH,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "architectures": ["BertForMaskedLM"],
}  # fmt: skip
_T5 = {
    "d_model": _WIDTH, "d_ff": 4 * _WIDTH, "d_kv": 32, "num_heads": 8, "num_layers": 2,
    "num_decoder_layers": 2, "vocab_size": _VOCAB, "dropout_rate": 0.0,
    "decoder_start_token_id": 0, "pad_token_id": 0,
    "architectures": ["T5ForConditionalGeneration"],
}  # fmt: skip
_VIT = {
    "hidden_size": 192, "num_hidden_layers": _LAYERS, "num_attention_heads": 6,
    "intermediate_size": 768, "image_size": 32, "patch_size": 4, "num_labels": _CLASSES,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "architectures": ["ViTForImageClassification"],
}  # fmt: skip


class MLP(nn.Module):
    """Layers of products and GELU with a residual; returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(512, 1024) for _ in range(_LAYERS))
        self.down = nn.ModuleList(nn.Linear(1024, 512) for _ in range(_LAYERS))
        self.head = nn.Linear(512, _CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(x)))
        return F.cross_entropy(self.head(x), labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model and what it is fed: the same weights and the same rows in every call.

    Attributes:
        samples: of the global batch.
    """

    name: str
    samples: int
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]


def _of_transformers(model_type: str, fields: Mapping[str, Any], length: int | None) -> nn.Module:
    torch.manual_seed(0)
    model = pretrained(model_type, fields, length, origin="a benchmark").model
    made = type(model)(model.config).train()
    made.loss_type = model.loss_type
    return made


def _drawn(samples: int, shapes: Mapping[str, tuple[int, ...]], highest: int) -> Batch:
    """Numbers below ``highest`` for names of tokens and labels, normal ones for the others."""
    draw = torch.Generator().manual_seed(1)
    return {
        name: torch.randn((samples, *shape), generator=draw)
        if name in ("x", "pixel_values")
        else torch.randint(highest, (samples, *shape), generator=draw)
        for name, shape in shapes.items()
    }


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            name="GPT",
            samples=8,
            build=lambda: _of_transformers("gpt2", _GPT, _LENGTH),
            batch=lambda: _drawn(8, {"input_ids": (_LENGTH,), "labels": (_LENGTH,)}, _VOCAB),
        ),
        Subject(
            name="MLP",
            samples=512,
            build=lambda: _seeded(MLP),
            batch=lambda: _drawn(512, {"x": (512,), "labels": ()}, _CLASSES),
        ),
        Subject(
            name="ViT",
            samples=8,
            build=lambda: _of_transformers("vit", _VIT, None),
            batch=lambda: _drawn(8, {"pixel_values": (3, 32, 32), "labels": ()}, _CLASSES),
        ),
        Subject(
            name="BERT",
            samples=8,
            build=lambda: _of_transformers("bert", _BERT, _LENGTH),
            batch=lambda: _drawn(8, {"input_ids": (_LENGTH,), "labels": (_LENGTH,)}, _VOCAB),
        ),
        Subject(
            name="T5",
            samples=8,
            build=lambda: _of_transformers("t5", _T5, _LENGTH // 2),
            batch=lambda: _drawn(
                8,
                dict.fromkeys(("input_ids", "decoder_input_ids", "labels"), (_LENGTH // 2,)),
                _VOCAB,
            ),
        ),
    )
}


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()
