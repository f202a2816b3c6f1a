"""Names of data sets, without their readers.

A new graph has its name in ``GraphName`` here and a reader that is registered under it in ``data/graphs/load.py``; new
sentence pairs have their name in ``ParallelName`` and their reader in ``data/text/parallel.py``.
"""

from typing import Literal

Citations = Literal["cora", "citeseer", "pubmed"]
Heterophilous = Literal["actor", "texas", "chameleon_filtered", "squirrel_filtered", "minesweeper"]
GraphName = Literal["digits", Citations, Heterophilous]
ParallelName = Literal["toy", "multi30k", "iwslt14", "ted", "tatoeba", "europarl_de_en", "hansards_fr_en"]
CaptionsName = Literal["flickr8k", "coco"]
PhotoQuestionsName = Literal["easy_vqa", "daquar"]
GlueName = Literal["rte", "mrpc", "cola", "sst2", "stsb", "mnli", "qnli", "qqp", "wnli"]
RaceLevel = Literal["middle", "high"]
