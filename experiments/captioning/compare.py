"""Compare inference schemes for the attention of a captioning model: a table, pictures and a report.

python -m experiments.compare --task captioning
python -m experiments.compare --task captioning --dataset flickr8k --results experiments/results
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments.captioning import train as captioning
from experiments.captioning.config import SCHEMES, CaptioningConfig, CompareCaptions
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import DEFINITIONS
from experiments.captioning.figures import caption_sections
from experiments.captioning.model import load_trained
from experiments.captioning.rows import base_config, features_text, floor_text
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.files import read_text, user_errors
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.columns import Column, Runs, summary_rows
from experiments.report.report import Part, Report
from experiments.sequence.compare import protocol, scheme_config, train_schemes

__all__ = ["SCHEMES", "CompareCaptions", "run"]

SHOWN = ("weibull", "hard_enum")  # rows that are drawn
COLUMNS = (
    *(Column(f"BLEU-{n}", f"test_bleu_{n}", 1) for n in range(1, 5)),
    Column("ROUGE-L", "test_rouge_l", 1),
    Column("CIDEr-D", "test_cider_d", 1),
    Column("METEOR", "test_nltk_meteor", 1),
    Column("true %", "test_true_captions", 1, 100),
    Column("perplexity", "test_ppl"),
    Column("points %", "test_pointing", 1, 100),
    Column("samples %", "test_pointing_samples", 1, 100),
    Column("mass %", "test_pointing_mass", 1, 100),
    Column("prior points %", "test_pointing_prior", 1, 100),
    Column("entropy", "test_entropy"),
    Column("ms/step", "step_ms", 0),
    Column("parameters", "parameters", 0, spread=False),
)
LEGEND = (
    "BLEU by sacrebleu's counts, METEOR is NLTK-METEOR; CIDEr-D and ROUGE-L as in coco-caption. Perplexity: alignments "
    "summed out exactly; weibull and lognormal: predictive, over posterior samples. Entropy of the mean weights "
    "that predict."
)
POINTING = (
    "Points: share of the digit words of the captions made whose largest mean posterior weight is on the digit's own "
    "cell; samples and mass: of posterior samples, and the mean weight there. The posterior of soft, weibull and "
    "lognormal has not seen the word, that of the hard schemes has, and their prior has not."
)


@exclusive
def run(config: CompareCaptions) -> dict[str, float]:
    """Train all rows, print the table, and write pictures and report.html; ``"<scheme>/<metric>"`` to its mean."""
    name, free = f"captioning-{config.dataset}", ("schemes", "pictures")
    sweep = Sweep("experiments.compare", config, f"compare/{name}", free=free, always=("task",))
    first = base_config(config, sweep.folder, 0)
    with user_errors(ValueError, OSError, ImportError):
        # features are made here, once a seed, and not by several workers at a time
        for seed in range(config.seeds if config.dataset != "digits" else 1):
            data = load_images(replace(first, seed=seed), progress=config.progress)
    sweep.open()
    trainings = _train(config, sweep)
    runs = trainings.by_row()
    table = Part(text=_legend(config, data["test"], runs), rows=summary_rows("scheme", runs, COLUMNS))
    print("Drawing the pictures ...", flush=True)
    parts = [table, *_pictures(config, trainings, sweep.folder / "figures")]
    report = Report(f"Captioning: {config.dataset}", name, parts)
    meanings = {name: f"{text}; mean over seeds" for name, text in DEFINITIONS.items()}
    return sweep.finish(report, trainings, definitions=meanings)


def _train(config: CompareCaptions, sweep: Sweep) -> Trainings[CaptioningConfig]:
    bases = {seed: base_config(config, sweep.folder, seed) for seed in range(config.seeds)}
    configs = {}
    changes = {"warm_start": config.epochs // 2, "patience": config.patience}
    for scheme in config.schemes:
        for seed, base in bases.items():
            configs[scheme, seed] = scheme_config(config, base, scheme, scheme, **changes)
    first = {("soft at first", seed): base for seed, base in bases.items()} if config.base_epochs else {}
    return train_schemes(sweep, captioning.run, first, configs)


def _legend(config: CompareCaptions, test: RegionCaptions, runs: Mapping[str, Runs]) -> str:
    """How the numbers came about, and what random captions score."""
    parts = [protocol(config)]
    encoder = test.encoder if config.dataset == "digits" or config.encoder != "own" else "content-encoder, one a seed"
    parts += [features_text(encoder, test), floor_text(runs[config.schemes[0]][0])]
    return " ".join([*parts, LEGEND, POINTING] if test.scenes is not None else [*parts, LEGEND])


def _pictures(config: CompareCaptions, trainings: Trainings[CaptioningConfig], folder: Path) -> list[Part]:
    """Attention and uncertainty of the captions that the first seed made of some test images."""
    data = load_images(trainings.first(*trainings.rows[0]))["test"]
    # the longest captions show most
    places = sorted(range(len(data)), key=lambda image: -len(data.captions[image][0].split()))[: config.pictures]
    parts = []
    for scheme in SHOWN:
        if scheme in config.schemes:
            out = Path(str(trainings.first(scheme).out))
            trained = load_trained(out, data.regions.size(2), device=config.device)
            captions = read_text(out / "captions.txt", "remove its folder to train it again").splitlines()
            parts += caption_sections(trained, data, captions, places, folder, name=scheme)
    return parts
