"""Classifiers of images in stages of shrinking size, for ImageNet's 1000 classes at 224 x 224.

ResNet (He et al. 2015, table 1), with its strides in the 3 x 3 convolutions as in all releases,
ConvNeXt (Liu et al. 2022, section 3) and Swin Transformer (Liu et al. 2021, section 3.3). The last
two were trained with stochastic depth, which drops whole blocks for a sample: it costs nothing and
is left out here.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoplan.zoo.preset import NO_DROPOUT, Preset

_IMAGES = {"image_size": 224, "num_labels": 1000}


def _resnet(second: int, middle: int) -> Preset:
    """Bottleneck blocks, ``second`` and ``middle`` of them in the second and the third stage."""
    return Preset(
        model_type="resnet",
        seq_len=None,
        dropout=NO_DROPOUT,
        config={
            "num_labels": 1000,
            "depths": [3, second, middle, 3],
            "hidden_sizes": [256 << stage for stage in range(4)],
        },
    )


def _convnext(width: int, middle: int) -> Preset:
    """The third of four stages is ``middle`` blocks deep; widths double from stage to stage."""
    return Preset(
        model_type="convnext",
        seq_len=None,
        dropout=NO_DROPOUT,
        config={
            **_IMAGES,
            "depths": [3, 3, middle, 3],
            "hidden_sizes": [width << stage for stage in range(4)],
            "drop_path_rate": 0.0,
        },
    )


def _swin(width: int, middle: int, heads: int) -> Preset:
    """The third of four stages is ``middle`` blocks deep; widths and heads double each time."""
    return Preset(
        model_type="swin",
        seq_len=None,
        dropout=NO_DROPOUT,
        config={
            **_IMAGES,
            "embed_dim": width,
            "depths": [2, 2, middle, 2],
            "num_heads": [heads << stage for stage in range(4)],
            "window_size": 7,
            "drop_path_rate": 0.0,
        },
    )


IMAGES: Mapping[str, Preset] = {
    "resnet50": _resnet(4, 6),
    "resnet152": _resnet(8, 36),
    "convnext-tiny": _convnext(96, 9),
    "convnext-base": _convnext(128, 27),
    "convnext-large": _convnext(192, 27),
    "swin-tiny": _swin(96, 6, 3),
    "swin-base": _swin(128, 18, 4),
}
