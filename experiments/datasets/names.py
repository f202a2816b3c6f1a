"""Names of data sets, for those who only choose one: this imports no reader."""

from typing import Literal

GraphName = Literal[
    "digits",
    "cora",
    "citeseer",
    "pubmed",
    "actor",
    "texas",
    "chameleon_filtered",
    "squirrel_filtered",
    "minesweeper",
]
ParallelName = Literal["toy", "multi30k", "iwslt14", "ted", "tatoeba", "europarl_de_en", "hansards_fr_en"]
CaptionsName = Literal["flickr8k", "coco"]
PhotoQuestionsName = Literal["easy_vqa", "daquar"]
