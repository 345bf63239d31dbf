"""Models without a counterpart in transformers.

DLRM as MLPerf trains it on Criteo's terabyte of clicks (tables of at most 40 million rows), a
multi-gate mixture of experts with 8 experts and 2 tasks as in Ma et al. 2018 over tables of a
common size, the large LSTM of Zaremba et al. 2014, PanGu-alpha 200B (Zeng et al. 2021, table 2; its
64 layers hold the query layer, as its count of parameters says), and Switch Transformer (Fedus et
al. 2021) of T5-Base with the capacity factor 1.25.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.zoo.preset import NO_DROPOUT, Preset

_CRITEO_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip

OTHERS: Mapping[str, Preset] = {
    "dlrm-24b": Preset(
        model_type="dlrm",
        seq_len=None,
        dropout=NO_DROPOUT,
        config={
            "dense": 13,
            "rows": _CRITEO_ROWS,
            "width": 128,
            "bottom": (512, 256),
            "top": (1024, 1024, 512, 256),
        },
    ),
    "mmoe": Preset(
        model_type="mmoe",
        seq_len=None,
        dropout=NO_DROPOUT,
        config={
            "features": 32,
            "rows": 1 << 20,
            "width": 64,
            "experts": 8,
            "hidden": 2048,
            "outputs": 512,
            "tasks": 2,
            "tower": 256,
        },
    ),
    "lstm-66m": Preset(
        model_type="lstm",
        seq_len=35,
        dropout={"dropout": 0.65},
        config={"vocab_size": 10000, "width": 1500, "layers": 2, "positions": 35},
    ),
    "pangu-200b": Preset(
        model_type="pangu",
        seq_len=1024,
        dropout=NO_DROPOUT,
        config={
            "vocab_size": 40000,
            "positions": 1024,
            "width": 16384,
            "layers": 64,
            "heads": 128,
        },
    ),
    "switch-base-8": Preset(
        model_type="switch",
        seq_len=512,
        dropout=NO_DROPOUT,
        config={
            "vocab_size": 32128,
            "positions": 512,
            "width": 768,
            "hidden": 3072,
            "layers": 12,
            "heads": 12,
            "experts": 8,
            "capacity": 80,
        },
    ),
}
