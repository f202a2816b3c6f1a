"""Tables of pretraining."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from experiments.normalizer_report import RECEIVED, pictures
from experiments.pretrain.task import PretrainTask
from experiments.report.statistics import Column, beside
from experiments.sequence.model import HYBRID
from experiments.study import Study, run_study
from guides.rows import NORMALIZERS, UNDER_ITS_GUIDE

PRETRAINING = Study(
    name="pretraining-english",
    title="Pretraining with normalizers of attention: english",
    about="text: masked language model",
    text=(
        "Masked language model: {config.layers} layers of {config.heads} heads, width {config.width}, "
        "{config.masked:.0%} of the word pieces hidden, at most {config.sentences} sentences, {config.max_epochs} "
        "epochs. Perplexity and accuracy are those of hidden pieces of the test sentences. Weibull: concentration "
        "{config.concentration:g}, {config.prior} prior, KL weight {config.kl_weight:g}, test scores over "
        "{config.num_samples} posterior samples. SST-2: fine-tuned on at most 10000 sentences and phrases for "
        "{config.finetune_epochs} epochs; half of GLUE's development part validates and the other half (436 sentences) "
        "tests: these are no GLUE scores. Not pretrained: the same training from fresh weights. A key's mass is the "
        "sum of the weights that all queries give to it, at the mean of the attention; a key with less than 1e-8 is "
        "explained away. Five sweeps: normalizing over queries and keys five times; doubly normalized attention does "
        "it once. Losses still fall at the end, so the numbers compare speeds of learning as much as qualities."
    ),
    task=PretrainTask(),
    options={"dataset": "english", "sentences": 20_000, "max_epochs": 6, "finetune_epochs": 3},
    rows={**NORMALIZERS, "five sweeps, soft": {"normalizer": "sinkhorn", "sweeps": 5, "guide": "soft"}},
    heads=("attention", ""),
    baselines={**UNDER_ITS_GUIDE, "five sweeps, soft": UNDER_ITS_GUIDE["doubly_normalized, soft"]},
    columns=(
        Column("perplexity", "test_ppl", 2, better="lower"),
        Column("hidden pieces %", "test_accuracy", 2, 100, better="higher"),
        Column("SST-2 %", "sst2_accuracy", 2, 100, better="higher"),
        *beside(
            Column("SST-2 %, not pretrained", "scratch_accuracy", 2, 100),
            *RECEIVED,
        ),
    ),
    parts=(HYBRID, pictures),
)
WITH_ORDER = replace(
    PRETRAINING,
    name="pretraining-order",
    title="Pretraining with hidden pieces and the order of segments: {config.dataset}",
    text=(
        "Language model with both tasks of the paper, hidden pieces and the order of two segments: {config.layers} "
        "layers of {config.heads} heads, width {config.width}, paragraphs of Wikipedia articles, at most "
        "{config.sentences} sentences and {config.length} pieces of a pair, {config.max_epochs} epochs. Half of the "
        "pairs are swapped. Numbers are those of the test articles."
    ),
    options={"dataset": "squad", "sentence_order": True, "length": 128, "max_epochs": 12},
    rows={row: options for row, options in NORMALIZERS.items() if options["guide"] == "soft"},
    baselines={},
    columns=(
        Column("perplexity", "test_ppl", 2, better="lower"),
        Column("hidden pieces %", "test_accuracy", 2, 100, better="higher"),
        Column("order %", "test_order_accuracy", 2, 100, better="higher"),
        *beside(*RECEIVED),
    ),
)
STUDIES = {study.name: study for study in (PRETRAINING, WITH_ORDER)}

table = partial(run_study, STUDIES)
