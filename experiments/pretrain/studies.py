"""Tables of pretraining."""

from __future__ import annotations

from functools import partial

from experiments.pretrain.task import PretrainTask
from experiments.report.statistics import Column, beside
from experiments.sequence.model import HYBRID
from experiments.study import Study, run_study
from guides.rows import NORMALIZERS, UNDER_ITS_GUIDE

PRETRAINING = Study(
    name="pretraining-english",
    title="Pretraining with normalisers of attention: english",
    about="text: masked language model",
    text=(
        "Masked language model: {config.layers} layers of {config.heads} heads, width {config.width}, "
        "{config.masked:.0%} of the word pieces hidden, at most {config.sentences} sentences, {config.max_epochs} "
        "epochs. Perplexity and accuracy are those of hidden pieces of the test sentences. Weibull: concentration "
        "{config.concentration:g}, {config.prior} prior, KL weight {config.kl_weight:g}, test scores over "
        "{config.num_samples} posterior samples. SST-2: fine-tuned on at most 10000 sentences and phrases for "
        "{config.finetune_epochs} epochs; half of GLUE's development part validates and the other half (436 sentences) "
        "tests: these are no GLUE scores. Not pretrained: the same from fresh weights. A key's mass is the sum of the "
        "weights that all queries give to it, at the mean of the attention; it is explained away below 1e-8. Losses "
        "still fall at the end, so these are speeds of learning as much as qualities."
    ),
    task=PretrainTask(),
    options={"dataset": "english", "sentences": 20_000, "max_epochs": 6, "finetune_epochs": 3},
    rows=NORMALIZERS,
    heads=("attention", ""),
    baselines=UNDER_ITS_GUIDE,
    columns=(
        Column("perplexity", "test_ppl", 2, better="lower"),
        Column("hidden pieces %", "test_accuracy", 2, 100, better="higher"),
        Column("SST-2 %", "sst2_accuracy", 2, 100, better="higher"),
        *beside(
            Column("SST-2 %, not pretrained", "scratch_accuracy", 2, 100),
            Column("explained away %", "explained_away", 3, 100),
            Column("mass, 1st percentile", "key_mass_1_percent"),
        ),
    ),
    parts=(HYBRID,),
)
STUDIES = {study.name: study for study in (PRETRAINING,)}

table = partial(run_study, STUDIES)
