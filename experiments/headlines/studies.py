"""The study of headlines: normalizers of attention, and the first words of a text as baseline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from experiments.headlines.task import HeadlineTask, lead_baseline, load_texts, rouge, summaries
from experiments.report.report import Part
from experiments.report.statistics import Column, Estimate, Row, beside, paired_difference
from experiments.sequence.model import HYBRID
from experiments.study import Finished, Study, run_study
from guides.rows import NORMALIZERS, UNDER_ITS_GUIDE

SCORES = (
    Column("ROUGE-1", "test_rouge_1", 2, better="higher"),
    Column("ROUGE-2", "test_rouge_2", 2, better="higher"),
    Column("ROUGE-L", "test_rouge_l", 2, better="higher"),
)


def first_words(finished: Finished) -> Sequence[Part]:
    """Return a table of the ROUGE scores of every row minus those of the first words of each text."""
    config = next(iter(finished.configs.values()))
    test = load_texts(config)["test"]
    baseline, words = lead_baseline(test, config.lead_words), f"the first {config.lead_words} words"
    names = {column.metric.removeprefix("test_"): column.name for column in SCORES}
    rows: list[Row] = [{"headlines of": words}]
    for name, values in baseline.items():
        interval = paired_difference(values, [0.0] * len(values))
        rows[0][names[name]] = Estimate(interval.mean, low=interval.low, high=interval.high)
    for row in finished.rows:
        folders = [Path(finished.configs[row, "", seed].out) for seed in finished.seeds]
        seeds = [rouge(summaries(folder), test.headlines) for folder in folders]
        means = {
            name: [fmean(values) for values in zip(*(scores[name] for scores in seeds), strict=True)]
            for name in baseline
        }
        differences = {names[name]: paired_difference(means[name], baseline[name]) for name in baseline}
        rows.append({"headlines of": f"{row}, minus {words}"} | differences)
    text = (
        f"On {len(test)} test texts. The score of a text is its mean over seeds. The 95 % intervals are over texts and "
        f"not corrected for the number of comparisons."
    )
    return [Part("Beyond the first words", text, rows)]


HEADLINES = Study(
    name="headlines",
    title="Headlines with normalizers of attention",
    about="text: headlines",
    text=(
        "Transformer of {config.layers} + {config.layers} layers of {config.heads} heads, width {config.width}, at "
        "most {config.vocabulary} word pieces, and no copying of words; {config.max_epochs} epochs, in the first "
        "{config.lead_epochs} of which the decoder learns to write the first {config.lead_words} words of a text. The "
        "decoder has {config.decoder} attention, normalized by softmax. Weibull: concentration "
        "{config.concentration:g}, {config.prior} prior, KL weight {config.kl_weight:g}; hybrid begins with a share of "
        "{config.hybrid_share:g}. Beam search with {config.beam} hypotheses, attention at its mean; perplexity of "
        "weibull over {config.num_samples} posterior samples. ROUGE is the F-measure of torchmetrics. The paper's "
        "numbers, ROUGE-1, 2 and L of its table 3, are from about 4 million training texts and 12 layers of width 768, "
        "and are shown only to compare the order of the rows."
    ),
    task=HeadlineTask(),
    options={"precision": "bf16-mixed"},
    rows=NORMALIZERS,
    heads=("attention", ""),
    baselines=UNDER_ITS_GUIDE,
    columns=(
        *SCORES,
        Column("perplexity", "test_ppl", 2, better="lower"),
        *beside(Column("words", "test_words", 1), Column("ms/step", "step_ms", 0)),
    ),
    paper={
        "softmax, soft": "38.02 / 18.93 / 35.25",
        "doubly_normalized, soft": "38.19 / 19.09 / 35.52",
        "hybrid, soft": "38.27 / 19.30 / 35.56",
    },
    parts=(first_words, HYBRID),
)
STUDIES = {study.name: study for study in (HEADLINES,)}

table = partial(run_study, STUDIES)
