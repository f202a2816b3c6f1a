"""The comparison on translation: end to end, its claims, and the choice of the task."""

import json
import math
import re
from functools import partial
from typing import get_args

import pytest
import torch

from experiments.compare import main
from experiments.datasets.text.readers import toy
from experiments.datasets.text.toy_translation import toy_translation
from experiments.datasets.text.vocabulary import train_tokenizer
from experiments.files import UserError
from experiments.harness.folder import saved_options
from experiments.harness.results import read_metrics
from experiments.nmt.alignments import PairAlignment, alignment_summary
from experiments.nmt.claims import claim_parts, claims, table_claims
from experiments.nmt.compare import COLUMNS, SCHEMES, CompareTranslations, run
from experiments.nmt.config import TranslationConfig
from experiments.nmt.evaluation import batches
from experiments.nmt.figures import differing_places
from experiments.nmt.model import build
from experiments.nmt.selective import MEASURES
from experiments.report.claims import Verdict
from experiments.report.columns import summary_rows

TINY = {"seeds": 2, "base_epochs": 1, "hidden": 8, "vocabulary": 300, "num_samples": 2, "beam": 1, "workers": 1}


@pytest.fixture
def small_corpus(monkeypatch):
    monkeypatch.setattr(toy, "toy_corpus", partial(toy_translation, 0, train=32, val=4, test=6))


@pytest.mark.usefixtures("small_corpus")
def test_compare_end_to_end(tmp_path, capsys):
    page = tmp_path / "RESULTS.md"
    config = CompareTranslations(out=tmp_path / "out", progress=False, results=page, k_max=2, **TINY)
    metrics = run(config)
    printed, warned = capsys.readouterr()
    assert "warning: soft, seed 0: the network predicts words hardly better than their frequencies do" in warned
    for scheme in SCHEMES:
        assert f"\n{scheme}  " in printed
    assert sum(printed.count(f"\n{verdict}: ") for verdict in get_args(Verdict)) == 4
    assert "IBM Model 1" in printed
    assert "K-max BLEU" in page.read_text()
    assert "--seeds 2" in page.read_text()
    assert read_metrics(tmp_path / "out") == pytest.approx(metrics)
    names = {"categorical_enum", "marginal", "dirichlet", "weibull", "agreement"}
    assert {path.stem for path in (tmp_path / "out" / "figures").glob("*.png")} == names
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("data:image/png;base64,") == len(names)
    # what was found comes first, and the best of every column is marked
    assert report.index('<p class="lead">Of 8 rows, ') < report.index("<table") < report.index("<h2>")
    best = min(SCHEMES, key=lambda scheme: metrics[f"{scheme}/test_ppl"])
    assert re.search(rf'<th scope="row">{best}</th><td><strong>', report)
    assert report.count('<svg class="plot"') >= 6
    views = json.loads(re.search('id="viewer-index">(.*?)</script>', report)[1])["views"]
    assert len(views) == 6
    view = json.loads(re.search('id="viewer-0">(.*?)</script>', report)[1])
    assert [panel["group"] for panel in view["panels"] if panel["name"] == "posterior"] == list(SCHEMES)
    assert view["names"] == {"target": "en", "source": "de"}
    with pytest.raises(UserError, match="--resume"):
        run(config)


@pytest.mark.usefixtures("small_corpus")
def test_what_uncertainty_is_worth_is_measured_once_and_added_to_a_comparison(tmp_path, capsys, monkeypatch):
    page = tmp_path / "RESULTS.md"
    options = {"out": tmp_path / "out", "results": page, "schemes": ("soft", "marginal"), "ibm": 0, "progress": False}
    run(CompareTranslations(**TINY | options | {"base_epochs": 0}))
    assert "rank correlation" not in page.read_text().lower()
    again = CompareTranslations(**TINY | options | {"base_epochs": 0}, selective=True, selective_pairs=5, resume=True)
    run(again)
    text = page.read_text()
    assert "--selective" in text
    assert "the first 5 sentence pairs" in text
    measured = read_metrics(tmp_path / "out" / "selective" / "marginal-1")
    assert measured["BLEU at 100% by entropy"] == measured["BLEU at 100% by length"]
    _, _, ranks = text.partition("Rank correlation (Spearman's)")
    heads = ["scheme", *(f"by {measure}" for measure in MEASURES), "rank correlation minus soft"]
    assert re.search(r"^\|.*\|$", ranks, re.MULTILINE)[0] == f"| {' | '.join(heads)} |"
    assert re.search(r"^\| soft \|.*\|$", ranks, re.MULTILINE)[0].split(" | ")[3] == "-"
    monkeypatch.setattr("experiments.nmt.selective_table.measured", None)  # not again
    run(again)
    assert page.read_text() == text
    assert "marginal-1" not in capsys.readouterr().err


@pytest.mark.parametrize("option", [{"out_of_domain": ("europarl_de_en",)}, {"selective_pairs": 5}])
def test_options_of_selective_without_it(option):
    with pytest.raises(UserError, match=f"{next(iter(option))} is for selective; pass --selective"):
        run(CompareTranslations(**option))


@pytest.mark.parametrize(("scheme", "shown"), [("weibull", False), ("marginal", True)])
def test_a_prior_that_sees_the_source_alone_has_no_error_rate(scheme, shown):
    text = toy_translation(0, train=4, val=1, test=3)["test"]
    vocabulary = train_tokenizer([*text.source, *text.target], size=260)
    config = TranslationConfig(guide=scheme, hidden=8, embedding=8, layers=1, num_samples=2, device="cpu")
    trained = build(config, vocabulary)
    summary = alignment_summary(trained, text, batches(trained, text))
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


@pytest.mark.usefixtures("small_corpus")
def test_schemes_can_be_added_later(tmp_path, capsys):
    options = TINY | {"out": tmp_path / "out", "progress": False, "seeds": 1, "ibm": 0}
    first = run(CompareTranslations(schemes=("soft",), **options))
    both = run(CompareTranslations(schemes=("soft", "weibull"), resume=True, **options))
    assert both.keys() > first.keys()
    assert all(both[name] == value for name, value in first.items())
    assert "hold" not in capsys.readouterr().out  # one seed has no interval


@pytest.mark.usefixtures("small_corpus")
def test_every_scheme_from_the_beginning(tmp_path, capsys):
    schemes = ("soft", "categorical_enum", "dirichlet")
    options = TINY | {
        "base_epochs": 0,
        "epochs": 2,
        "ibm": 0,
        "k_max": 2,
        "schemes": schemes,
        "precision": "bf16-mixed",
        "max_words": 20,
    }
    page = tmp_path / "page.md"
    run(CompareTranslations(out=tmp_path / "out", results=page, progress=False, **options))
    assert "<!-- begin translation-toy-from-scratch -->" in page.read_text()
    printed = capsys.readouterr().out
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Translation: toy, every scheme from the beginning" in report
    assert "Every scheme is trained from the beginning, for 2 epochs at most." in report
    assert sum(printed.count(f"\n{verdict}: ") for verdict in get_args(Verdict)) == 2
    folders = {path.name for path in (tmp_path / "out" / "runs").iterdir()}
    assert folders == {f"{scheme}-{seed}" for scheme in schemes for seed in range(2)}
    saved = {name[:-2]: saved_options(tmp_path / "out" / "runs" / name) for name in folders if name.endswith("-0")}
    assert {(options["precision"], options["max_words"]) for options in saved.values()} == {("bf16-mixed", 20)}
    assert [saved[scheme]["warm_start"] for scheme in schemes] == [0, 0, 1]
    assert [saved[scheme]["posterior_from_prior"] for scheme in schemes] == [False, False, True]
    assert not any(options["init_from"] for options in saved.values())
    assert "which starts at q = p after that" in report


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


def test_the_table_leaves_out_what_nobody_has():
    (row,) = summary_rows("scheme", {"soft": [{"test_ppl": 7.0}, {"test_ppl": 8.0}]}, COLUMNS)
    assert row == {"scheme": "soft", "perplexity": f"7.500 ± {math.sqrt(0.5):.3f}"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--task", "graph", "--beam", "3"], "beam"),
        (["--task=graph", "--dataset", "toy"], "dataset"),
        (["--kl-weight", "-1", "--out", "nowhere"], "kl"),
        (["--base-epochs", "-1", "--out", "nowhere"], "base-epochs"),
        (["--task", "painting"], "painting"),
    ],
)
def test_the_task_decides_on_the_options(arguments, part, capsys):
    assert main(arguments) == 2
    assert part in capsys.readouterr().err


@pytest.mark.usefixtures("small_corpus")
def test_normalizers_are_rows_of_their_own(tmp_path, capsys):
    page = tmp_path / "RESULTS.md"
    options = TINY | {"seeds": 1, "ibm": 0, "schemes": ("soft", "marginal"), "normalizers": ("softmax", "hybrid")}
    metrics = run(CompareTranslations(out=tmp_path / "out", progress=False, results=page, **options))
    assert 0.3 < metrics["soft-hybrid/temporal_share"] < 0.7
    assert metrics["marginal-hybrid/test_ppl"] != metrics["marginal/test_ppl"]
    assert "soft/temporal_share" not in metrics
    histories = {path.parent.name: path.read_text().splitlines()[0] for path in tmp_path.glob("out/runs/*/history.csv")}
    assert {name for name, head in histories.items() if "temporal_share" in head} == {
        name for name in histories if "hybrid" in name
    }
    assert "temporal share" in capsys.readouterr().out
    assert "translation-toy-normalizers" in page.read_text()
    assert "Rows hybrid: a trained mixture" in page.read_text()
    assert "--normalizers" in page.read_text()
