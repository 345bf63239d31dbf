"""Causal language models that keep a state instead of attending: Mamba-2.

Dao and Gu 2024, trained on the Pile at 2048 tokens; sizes of its released models, with heads of 64.
They run as transformers writes them in PyTorch, by products of chunks of 256 tokens (the paper's
section 6), and not by the authors' fused kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.zoo.preset import NO_DROPOUT, Preset


def _mamba2(width: int, layers: int) -> Preset:
    return Preset(
        model_type="mamba2",
        seq_len=2048,
        dropout=NO_DROPOUT,
        config={
            "vocab_size": 50288,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_heads": width // 32,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 1,
            "chunk_size": 256,
            "tie_word_embeddings": True,
        },
    )


STATES: Mapping[str, Preset] = {
    "mamba2-130m": _mamba2(768, 24),
    "mamba2-370m": _mamba2(1024, 48),
    "mamba2-780m": _mamba2(1536, 48),
    "mamba2-1.3b": _mamba2(2048, 48),
    "mamba2-2.7b": _mamba2(2560, 64),
}
