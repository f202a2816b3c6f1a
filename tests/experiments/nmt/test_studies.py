"""Studies of translation: what each declares, end to end at a tiny size, and the claims that are checked."""

import json
import re
from functools import partial
from typing import get_args

import pytest
import torch

from experiments.datasets.text import parallel
from experiments.datasets.text.parallel import PARALLEL, ParallelReader
from experiments.datasets.text.toy_translation import toy_translation
from experiments.datasets.text.vocabulary import train_tokenizer
from experiments.files import UserError
from experiments.harness.folder import saved_options
from experiments.harness.options import StudyOptions
from experiments.harness.results import read_metrics
from experiments.nmt.alignments import PairAlignment, alignment_summary
from experiments.nmt.claims import claim_parts, claims, table_claims
from experiments.nmt.config import TranslationConfig
from experiments.nmt.figures import differing_places
from experiments.nmt.model import build
from experiments.nmt.studies import SCHEMES, STUDIES
from experiments.report.claims import Verdict
from experiments.report.results import read_results
from experiments.study import run_study

TINY = {"train_pairs": 32, "test_pairs": 6, "hidden": 8, "embedding": 8, "vocabulary": 300, "num_samples": 2, "beam": 1}


@pytest.fixture
def small_corpus(monkeypatch):
    monkeypatch.setattr(parallel, "toy_corpus", partial(toy_translation, 0, train=32, val=4, test=6))


@pytest.fixture
def study(small_corpus, tmp_path):
    """Run a study on the small corpus: the report that it publishes."""

    def study(name, *, changes=None, **options):
        given = {"seeds": 2, "workers": 1, "progress": False, "out": tmp_path / "out", "results": tmp_path / "results"}
        changes = TINY | {"max_epochs": 1} | (changes or {})
        run_study(STUDIES, StudyOptions(name=name, changes=changes, **given | options))
        (path,) = (tmp_path / "results").glob("*.json")
        return read_results(path)[0]

    return study


def titles(report):
    return [part.title for part in report.parts]


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_declares_are_options_of_a_training(name):
    study = STUDIES[name]
    for level in study.levels.values():
        for row in (study.base, *study.rows.values()):
            config = TranslationConfig(**{**study.options, **level, **row})
            config.build_scheme()
    assert name in ("compare", study.name)


@pytest.mark.slow
def test_the_comparison(study, tmp_path, capsys):
    report = study("compare", changes={"k_max": 2}, base={"max_epochs": 1})
    printed, warned = capsys.readouterr()
    assert "warning: soft, 0: the network predicts words hardly better than their frequencies do" in warned
    for scheme in SCHEMES:
        assert f"\n{scheme}  " in printed
    assert sum(printed.count(f"\n{verdict}: ") for verdict in get_args(Verdict)) == 4
    assert "IBM Model 1" in printed
    assert re.search(r"Of 8 rows, \w+ predicts translations best", printed)
    table = report.parts[0]
    assert {"perplexity", "K-max BLEU", "AER prior %", "AER posterior %", "entropy", "posterior gap"} <= {
        *table.rows[0]
    }
    assert [row["scheme"] for row in table.rows] == [*SCHEMES]
    assert report.summary in " ".join(printed.split())
    out = tmp_path / "out"
    names = {"categorical_enum", "marginal", "dirichlet", "weibull", "agreement"}
    assert {path.stem for path in (out / "figures").glob("*.png")} == names
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == len(names)
    # what was found comes first, and the best of every column is marked
    assert page.index('<p class="lead">Of 8 rows, ') < page.index("<table") < page.index("<h2>")
    metrics = read_metrics(out)
    best = min(SCHEMES, key=lambda scheme: metrics[f"{scheme}/test_ppl"])
    assert re.search(rf'<th scope="row">{best}</th><td><strong>', page)
    assert page.count('<svg class="plot"') >= 6
    views = json.loads(re.search('id="viewer-index">(.*?)</script>', page)[1])["views"]
    assert len(views) == 6
    view = json.loads(re.search('id="viewer-0">(.*?)</script>', page)[1])
    assert [panel["group"] for panel in view["panels"] if panel["name"] == "posterior"] == [*SCHEMES]
    # every scheme goes on from soft attention, at half the learning rate
    saved = {path.name: saved_options(path) for path in (out / "runs").iterdir()}
    assert saved["dirichlet-1"]["init_from"] == str(out / "runs" / "base-1")
    assert saved["base-1"]["learning_rate"] == 2 * saved["dirichlet-1"]["learning_rate"]
    assert [saved[f"{name}-0"]["posterior_from_prior"] for name in ("soft", "dirichlet")] == [False, True]


def test_every_scheme_from_the_beginning_and_what_its_uncertainty_is_worth(study, tmp_path):
    changes = {"dataset": "toy", "selective_pairs": 5, "out_of_domain": (), "k_max": 2, "layers": 1}
    rows = ("soft", "marginal", "dirichlet")
    report = study("translation-multi30k-from-scratch", changes=changes | {"max_epochs": 2}, rows=rows)
    assert "from the beginning, for 2 epochs at most" in report.parts[0].text
    assert "Claims of the papers (Deng et al., 2018; Fan et al., 2020)" in titles(report)
    (ranks,) = (part for part in report.parts if part.text.startswith("Rank correlation (Spearman's)"))
    assert [row["scheme"] for row in ranks.rows] == [*rows]
    assert ranks.rows[0]["by attention"] == "-"  # of soft attention there is no such doubt
    metrics = read_metrics(tmp_path / "out" / "runs" / "marginal-1")
    assert metrics["BLEU at 100% by entropy"] == metrics["BLEU at 100% by length"]
    saved = {row: saved_options(tmp_path / "out" / "runs" / f"{row}-0") for row in rows}
    assert [(one["warm_start"], one["init_from"]) for one in saved.values()] == [(0, None), (0, None), (3, None)]


def test_normalizers_are_levels(study, tmp_path):
    options = {"rows": ("soft", "marginal"), "levels": ("softmax", "hybrid"), "base": {"max_epochs": 1}, "seeds": 1}
    report = study("translation-toy-normalizers", **options)
    metrics = read_metrics(tmp_path / "out")
    assert 0.3 < metrics["hybrid/soft/temporal_share"] < 0.7
    assert metrics["hybrid/marginal/test_ppl"] != metrics["softmax/marginal/test_ppl"]
    assert "softmax/soft/temporal_share" not in metrics
    rows = [(row["normalised by"], row["scheme"], row["temporal share"] == "-") for row in report.parts[0].rows]
    assert rows == [
        ("softmax", "soft", True), ("softmax", "marginal", True), ("hybrid", "soft", False),
        ("hybrid", "marginal", False),
    ]  # fmt: skip


@pytest.mark.slow
def test_aligners(study):
    rows = ("marginal", "soft", "categorical_enum", "weibull", "marginal, null_word False")
    report = study("alignment-europarl_de_en-ablations", changes={"dataset": "toy"}, rows=rows, seeds=1)
    parts = {part.title: part for part in report.parts}

    def names(title):
        return [row["aligner"] for row in parts[title].rows]

    baselines = [name for name in names("Alignment error rates") if name not in rows]
    assert baselines[:3] == ["IBM Model 1", "IBM Model 2", "Model 2 with a diagonal prior (as fast_align)"]
    assert names("Alignment error rates") == [*baselines, *rows]
    # soft attention has no prior, and that of weibull, which sees the source alone, aligns nothing
    assert names("Links by the prior, which does not see the word") == [
        "marginal", "categorical_enum", "marginal, null_word False",
    ]  # fmt: skip
    # where there is no inference network, the posterior is exact already
    assert names("Links by the exact posterior") == ["categorical_enum"]
    assert names("Ablations") == ["marginal", "marginal, null_word False"]
    for cell in parts["Against the baselines: geometric, mbr"].rows[0].values():
        if not isinstance(cell, str):
            assert cell.low <= cell.mean <= cell.high
    ablation = parts["Ablations"].rows[1]["- marginal"]
    assert (ablation.over, ablation.better, ablation.against) == ("items", "lower", "marginal")
    for row in parts["Alignment error rates"].rows:
        assert 0 <= row["chosen"].mean <= 100
    assert "has the largest agreement of both directions" in parts["Alignment error rates"].text
    assert [part.picture.name for part in report.parts if part.picture] == [
        f"{report.name}-{kind}.png" for kind in ("aer", "calibration")
    ]


def test_aligners_need_gold_links(study, monkeypatch):
    def read(root, split, languages, rules):
        text = parallel.read_toy(root, split, languages, rules)
        return type(text)(text.source, text.target, "bare", languages)

    monkeypatch.setitem(PARALLEL, "toy", ParallelReader(read, ("de", "en"), tokenised=True))
    with pytest.raises(UserError, match="toy has gold links of 0 test pairs, expected 2 at least"):
        study("alignment-europarl_de_en", changes={"dataset": "toy"}, seeds=1)


@pytest.mark.parametrize(("scheme", "shown"), [("weibull", False), ("marginal", True)])
def test_a_prior_that_sees_the_source_alone_has_no_error_rate(scheme, shown):
    text = toy_translation(0, train=4, val=1, test=3)["test"]
    vocabulary = train_tokenizer([*text.source, *text.target], size=260)
    config = TranslationConfig(guide=scheme, hidden=8, embedding=8, layers=1, num_samples=2, device="cpu")
    trained = build(config, vocabulary)
    summary = alignment_summary(trained, text)
    assert ("test_prior_aer" in summary) == shown
    assert "test_posterior_aer" in summary


def test_the_sentences_on_which_schemes_differ_come_first():
    one, other = (torch.eye(5)[None], torch.eye(5).flip(0)[None])
    words = list("abcde")
    short = PairAlignment(words[:2], words[:2], None, torch.eye(2)[None])
    same, differing = (PairAlignment(words, words, None, weights) for weights in (one, other))
    assert differing_places({"soft": [short, same, same], "hard": [short, same, differing]}) == [2, 1, 0]


def test_a_claim_of_ours_stands_apart_from_the_papers():
    runs = rows(soft=(7.0, 1.2, 0.5, 0.4), marginal=(6.0, 0.8, 0.3, 0.2)) | {"soft-temporal": [{"test_ppl": 5.0}] * 3}
    paper, ours = claim_parts(runs)
    assert "paper" in paper.title
    assert "marginal perplexity" in paper.lines
    assert "words before" not in paper.lines
    assert ours.title == "Claims of ours, not of the paper"
    assert ours.lines.startswith("holds: normalising over the words before")
    assert [plot.title for plot in ours.plots] == [ours.lines.splitlines()[0]]


def test_ten_claims_of_the_papers():
    """In the order of the papers' own numbers they hold, and in the reverse one they do not."""
    names = ("test_ppl", "test_bleu", "test_bleu_k_max", "test_entropy")
    numbers = {
        "soft": (7.03, 32.31, 32.31, 1.24), "marginal": (6.33, 33.08, 32.97, 0.82),
        "hard_enum": (7.37, 31.4, 31.37, 0.05), "categorical_enum": (6.03, 33.1, 33.0, 0.54),
        "categorical_sample": (6.13, 33.09, 33.01, 0.52), "weibull": (7.0, 33.81, 33.81, 1.3),
    }  # fmt: skip

    def found(sign):
        runs = {
            row: [
                {name: sign * value + 1e-3 * place**2 * seed for name, value in zip(names, values, strict=True)}
                for seed in range(3)
            ]
            for place, (row, values) in enumerate(numbers.items())
        }
        return table_claims(runs)

    assert [claim.verdict for claim in found(1)] == ["holds"] * 10
    assert [claim.verdict for claim in found(-1)] == ["does not hold"] * 9 + ["holds"]
    assert list(found(1)[-1].differences) == [f"{row}: exact - K-max - 0.5" for row in list(numbers)[1:5]]
    two = {"soft": [{"test_ppl": 7.0}, {"test_ppl": 8.0}], "marginal": [{"test_ppl": 5.0}, {"test_ppl": 7.0}]}
    (part,) = claim_parts(two, from_scratch=True)
    assert part.title == "Claims of the papers (Deng et al., 2018; Fan et al., 2020)"
    assert claim_parts({"soft": [{"test_ppl": 1.0}]}, from_scratch=True) == []


def rows(**values):
    """Runs of three seeds, which differ by a little, in every row by something else."""
    names = ("test_ppl", "test_entropy", "test_prior_aer", "test_posterior_aer")
    return {
        row: [
            {name: value + step * seed * (1 + i) for i, (name, value) in enumerate(zip(names, numbers, strict=True))}
            for seed in range(3)
        ]
        for step, (row, numbers) in zip((0.01, 0.02, 0.03, 0.015, 0.025), values.items(), strict=False)
    }


def test_claims_hold_where_the_whole_interval_is_on_the_right_side():
    runs = rows(
        soft=(7.0, 1.2, 0.5, 0.4), marginal=(6.0, 0.8, 0.3, 0.2), hard_enum=(7.5, 0.1, 0.3, 0.2),
        categorical_enum=(6.0, 0.5, 0.3, 0.2), dirichlet=(7.6, 2.0, 0.5, 0.5),
    )  # fmt: skip
    assert [claim.verdict for claim in claims(runs)] == ["holds"] * 4
    assert "    marginal - soft: -0.9900 [-1.0148, -0.9652]" in str(claims(runs)[0])
    assert [claim.ours for claim in claims(runs)] == [False, True, False, False]  # the paper has no error rates
    assert "    posterior - soft: -18.00 [-22.97, -13.03] percentage points" in str(claims(runs)[1])
    runs["marginal"][0]["test_ppl"] = 9.0  # the interval now contains zero
    runs["weibull"] = rows(weibull=(7, 3.1, 0.3, 0.3))["weibull"]  # more entropy than dirichlet
    assert [claim.verdict for claim in claims(runs)] == ["cannot be told", "holds", "holds", "does not hold"]


def test_normalizers_are_compared_with_their_own_scheme():
    runs = {
        row: [{"test_ppl": ppl}, {"test_ppl": 2 * ppl}]
        for row, ppl in {"soft": 2.0, "soft-temporal": 1.8, "weibull": 1.5, "weibull-temporal": 1.6}.items()
    }
    (claim,) = claims(runs)
    assert {name: round(found.mean, 6) for name, found in claim.differences.items()} == {
        "soft-temporal - soft": -0.3,
        "weibull-temporal - weibull": 0.15,
    }
    assert claim.ours
    assert claim.verdict == "cannot be told"
    assert claims({row: runs[row] for row in ("soft", "weibull")}) == []


@pytest.mark.parametrize(("seeds", "count"), [(3, 1), (1, 0)])
def test_claims_need_their_schemes_and_several_seeds(seeds, count):
    runs = rows(soft=(7.0, 1.2, 0.5, 0.4), marginal=(6.0, 0.8, 0.3, 0.2))
    assert len(claims({row: found[:seeds] for row, found in runs.items()})) == count
