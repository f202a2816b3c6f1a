"""Studies of translation, end to end at a tiny size, and the claims that are checked."""

import json
import re
from functools import partial

import pytest
import torch

from experiments.data.text import parallel
from experiments.data.text.parallel import toy_translation
from experiments.folder import saved_options
from experiments.nmt.calibration import link_calibration
from experiments.nmt.config import TranslationConfig
from experiments.nmt.studies import claim_parts, claims, table, uncertainty_parts
from experiments.options import StudyOptions
from experiments.report.report import read_results
from pyro_attention.analysis import GoldAlignment

TINY = {"train_pairs": 16, "test_pairs": 6, "hidden": 8, "embedding": 8, "vocabulary": 300, "num_samples": 2, "beam": 1}


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Run a study on a small corpus: the report that it publishes."""
    monkeypatch.setattr(parallel, "toy_corpus", partial(toy_translation, train=32, val=4, test=6))

    def study(name, *, changes=None, **options):
        given = {"seeds": 1, "workers": 1, "progress": False, "out": tmp_path / "out", "results": tmp_path / "results"}
        table(StudyOptions(name=name, changes=TINY | {"max_epochs": 1} | (changes or {}), **given | options))
        (path,) = (tmp_path / "results").glob("*.json")
        return read_results(path)[0]

    return study


def test_the_comparison(study, tmp_path, capsys):
    rows = ("soft", "dirichlet")
    report = study("compare", changes={"k_max": 2, "selective_pairs": 5}, rows=rows)
    printed, warned = capsys.readouterr()
    assert "warning: soft, 0: the network predicts words hardly better than their frequencies do" in warned
    assert "IBM Model 1" in printed
    assert "pyro-align" in printed
    assert not any("minus soft" in part.text for part in report.parts)  # of one seed nothing can be told
    heads = {"perplexity", "K-max BLEU", "AER prior %", "AER posterior %", "entropy"}
    assert heads <= {*report.parts[0].rows[0]}
    (ranks,) = (part for part in report.parts if part.text.startswith("Rank correlation (Spearman's)"))
    assert [row["scheme"] for row in ranks.rows] == [*rows]
    assert ranks.rows[0]["by attention"] == "-"  # of soft attention there is no such doubt
    out = tmp_path / "out"
    page = (out / "alignments.html").read_text()
    view = json.loads(re.search('id="viewer-0">(.*?)</script>', page)[1])
    assert [panel["group"] for panel in view["panels"] if panel["name"] == "posterior"] == [*rows]
    # every scheme goes on from soft attention, at half the learning rate
    saved = {path.name: saved_options(path) for path in (out / "runs").iterdir()}
    assert saved["dirichlet-0"]["init_from"] == str(out / "runs" / "base-0")
    assert saved["base-0"]["learning_rate"] == 2 * saved["dirichlet-0"]["learning_rate"]
    assert saved["dirichlet-0"]["posterior_from_prior"]
    assert "posterior_from_prior" not in saved["soft-0"]  # which has no inference network


def test_statements_on_known_links():
    """By hand: two words with links, one of them with two, of which the set of mass .9 holds one; and one without."""
    weights = torch.tensor([[0.6, 0.35, 0.05], [0.02, 0.95, 0.03], [1.0, 0.0, 0.0]])
    found = link_calibration([weights], [GoldAlignment(frozenset({(0, 0), (2, 0), (0, 1)}))])
    assert found["coverage"] == (0.5 + 0) / 2
    assert found["mass"] == pytest.approx((0.95 + 0.95) / 2)
    assert found["size"] == (2 + 1) / 2
    assert found["aer"] == pytest.approx(1 - 2 / 6)  # one of three links is right
    assert found["ece"] == pytest.approx((abs(0.6 - 1) + abs(0.95 - 0)) / 2)


def rows(names, numbers):
    """Runs of three seeds, which differ by a little, in every row and number by something else."""
    return {
        row: [
            {
                name: value + 1e-3 * seed * place**2 * (1 + i)
                for i, (name, value) in enumerate(zip(names, values, strict=True))
            }
            for seed in range(3)
        ]
        for place, (row, values) in enumerate(numbers.items())
    }


def test_a_scheme_without_a_correlation_has_no_difference_from_soft():
    """Where all of its translations, or all of its certainties, are equal."""
    full = {f"{name} by log probability": 0.5 for name in ("BLEU at 50%", "BLEU at 100%", "rank correlation")}
    runs = {"soft": [full, full], "weibull": [{name: full[name] for name in list(full)[:2]}] * 2}
    _, bleu, correlation = uncertainty_parts(runs, TranslationConfig(selective_pairs=4))
    assert [row["BLEU of the surest half minus soft"] for row in bleu.rows][1].mean == 0
    assert [row["rank correlation minus soft"] for row in correlation.rows] == ["", "-"]


def test_ten_claims_of_the_papers():
    """In the order of the papers' own numbers they hold, and in the reverse one they do not."""
    names = ("test_ppl", "test_bleu", "test_bleu_k_max", "test_entropy")
    numbers = {
        "soft": (7.03, 32.31, 32.31, 1.24), "marginal": (6.33, 33.08, 32.97, 0.82),
        "hard_enum": (7.37, 31.4, 31.37, 0.05), "categorical_enum": (6.03, 33.1, 33.0, 0.54),
        "categorical_sample": (6.13, 33.09, 33.01, 0.52), "weibull": (7.0, 33.81, 33.81, 1.3),
    }  # fmt: skip
    found = claims(rows(names, numbers), real_text=True)
    assert [claim.verdict for claim in found] == ["holds"] * 10
    assert list(found[-1].differences) == [f"{row}: exact - K-max - 0.5" for row in list(numbers)[1:5]]
    reverse = {row: [-value for value in values] for row, values in numbers.items()}
    found = claims(rows(names, reverse), real_text=True)
    assert [claim.verdict for claim in found] == ["does not hold"] * 9 + ["holds"]


def test_claims_hold_where_the_whole_interval_is_on_the_right_side_and_ours_stand_apart():
    names = ("test_ppl", "test_entropy", "test_prior_aer", "test_posterior_aer")
    numbers = {
        "soft": (7.0, 1.2, 0.5, 0.4), "marginal": (6.0, 0.8, 0.3, 0.2), "hard_enum": (7.5, 0.1, 0.3, 0.2),
        "categorical_enum": (6.0, 0.5, 0.3, 0.2), "dirichlet": (7.6, 2.0, 0.5, 0.5),
        "soft-temporal": (6.9, 1.1, 0.5, 0.4),
    }  # fmt: skip
    runs = rows(names, numbers)
    assert claims({row: found[:1] for row, found in runs.items()}) == []
    paper, ours = claim_parts(runs)
    assert [row["verdict"] for row in paper.rows] == ["holds"] * 11
    assert [row["difference"] for row in ours.rows] == ["posterior - prior", "posterior - soft", "soft-temporal - soft"]
    assert ours.rows[1]["number"].mean == pytest.approx(-16.4)  # percentage points
    assert paper.rows[0]["number"].mean == pytest.approx(-0.999)
    runs["marginal"][0]["test_ppl"] = 9.0  # the interval now contains zero
    runs["weibull"] = rows(names, {"weibull": (7, 3.1, 0.3, 0.3)})["weibull"]  # more entropy than dirichlet
    verdicts = ["no clear difference", "holds", "does not hold", "holds", "holds"]
    assert [claim.verdict for claim in claims(runs)] == verdicts
