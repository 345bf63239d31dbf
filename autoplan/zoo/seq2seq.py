"""Encoders with a decoder: T5 (Raffel et al. 2020), BART (Lewis et al. 2020) and Whisper.

T5 and BART have dropout 0.1 and as many tokens on either side. Whisper (Radford et al. 2022, table
1; large-v3: its model card) reads 30 seconds of sound, and has no dropout. The decoder's inputs are
given beside the labels, as a data collator makes them.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.zoo.preset import NO_DROPOUT, Preset


def _t5(width: int, hidden: int, head: int, layers: int, heads: int) -> Preset:
    return Preset(
        model_type="t5",
        seq_len=512,
        dropout={"dropout_rate": 0.1},
        config={
            "vocab_size": 32128,
            "d_model": width,
            "d_ff": hidden,
            "d_kv": head,
            "num_layers": layers,
            "num_decoder_layers": layers,
            "num_heads": heads,
        },
    )


def _bart(width: int, layers: int, heads: int) -> Preset:
    return Preset(
        model_type="bart",
        seq_len=1024,
        dropout={"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1},
        config={
            "vocab_size": 50265,
            "max_position_embeddings": 1024,
            "d_model": width,
            "encoder_layers": layers,
            "decoder_layers": layers,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "encoder_ffn_dim": 4 * width,
            "decoder_ffn_dim": 4 * width,
        },
    )


def _whisper(
    width: int, layers: int, heads: int, mels: int = 80, vocabulary: int = 51865
) -> Preset:
    return Preset(
        model_type="whisper",
        seq_len=448,
        dropout=NO_DROPOUT,
        config={
            "vocab_size": vocabulary,
            "num_mel_bins": mels,
            "d_model": width,
            "encoder_layers": layers,
            "decoder_layers": layers,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "encoder_ffn_dim": 4 * width,
            "decoder_ffn_dim": 4 * width,
        },
    )


SEQ2SEQ: Mapping[str, Preset] = {
    "t5-small": _t5(512, 2048, 64, 6, 8),
    "t5-base": _t5(768, 3072, 64, 12, 12),
    "t5-large": _t5(1024, 4096, 64, 24, 16),
    "t5-3b": _t5(1024, 16384, 128, 24, 32),
    "t5-11b": _t5(1024, 65536, 128, 24, 128),
    "bart-base": _bart(768, 6, 12),
    "bart-large": _bart(1024, 12, 16),
    "whisper-small": _whisper(768, 12, 12),
    "whisper-large-v3": _whisper(1280, 32, 20, mels=128, vocabulary=51866),
}
