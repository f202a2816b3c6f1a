"""COCO's captions by the split of Karpathy and Fei-Fei.

Source:
    Chen et al., Microsoft COCO Captions, 2015; Karpathy and Fei-Fei, Deep Visual-Semantic Alignments for Generating
    Image Descriptions, 2015.
"""

from pathlib import Path

from experiments.datasets.images.caption_data import CAPTIONS, CaptionedImages
from experiments.datasets.images.karpathy import read_karpathy


@CAPTIONS.register("coco")
def read_coco(root: Path, split: str, skip: bool) -> CaptionedImages:
    """Read a split of dataset_coco.json; the photographs are in coco/train2014 and coco/val2014."""
    return read_karpathy(root / "coco" / "dataset_coco.json", root / "coco", split, skip=skip)
