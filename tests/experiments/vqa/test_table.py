"""The table, its claims, the studies and the comparison, on tiny sizes."""

import pytest
import torch

from experiments import compare as launcher
from experiments.files import UserError
from experiments.harness.results import write_environment
from experiments.vqa import train as vqa
from experiments.vqa.ask import ask
from experiments.vqa.claims import claims
from experiments.vqa.config import AskConfig, SearchConfig, StudiesConfig, TableConfig
from experiments.vqa.rows import BLOCKS, GRIDS, IMAGES
from experiments.vqa.search import run as run_search
from experiments.vqa.studies import bootstrap_text
from experiments.vqa.studies import run as run_studies
from experiments.vqa.table import run as run_table
from tests.experiments.datasets.questions.tiny_questions import write_easy_vqa
from tests.experiments.vqa.tiny_questions import TINY, few_digits, tiny_config, tiny_options

SMALL = TINY | {"workers": 1}


def test_table_end_to_end(tmp_path, capsys):
    options = SMALL | {"out": tmp_path / "out", "results": tmp_path / "page.md", "num_samples": 2, "seeds": 2}
    first = run_table(TableConfig(blocks=("dn",), **options))
    printed = capsys.readouterr().out
    for row in BLOCKS["dn"].rows:
        assert f"\n{row}  " in printed
    assert "hybrid attention moves from its beginning" in printed
    page = (tmp_path / "page.md").read_text()
    assert "python -m experiments.vqa table" in page
    assert "69.70 / 70.01" in page
    again = run_table(TableConfig(blocks=("dn",), resume=True, **options))
    assert again == first
    with pytest.raises(UserError, match="--resume"):
        run_table(TableConfig(blocks=("dn",), **options))


@pytest.fixture
def quick_runs(tmp_path_factory, monkeypatch):
    """Trainings are not made: every row has the metrics of a tiny run, a little better with every seed."""
    folder = tmp_path_factory.mktemp("vqa")
    found = {
        (model, guide == "soft"): vqa.run(tiny_config(folder / f"{model}-{guide}", model=model, guide=guide))
        for model, guide in (("mcan", "soft"), ("mcan", "weibull"), ("bottom_up", "marginal"))
    }

    def quick(config):
        config.out.mkdir(parents=True)
        write_environment(config.out, torch.device("cpu"))
        metrics = found[config.model, config.guide == "soft" and config.model == "mcan"]
        return {name: value + 0.01 * config.seed for name, value in metrics.items()}

    monkeypatch.setattr(vqa, "run", quick)


def test_all_rows_with_noise(quick_runs, tmp_path, capsys):
    options = SMALL | {"out": tmp_path / "out", "results": tmp_path / "page.md", "seeds": 3}
    metrics = run_table(TableConfig(blocks=("bam", "va"), **options))
    page = (tmp_path / "page.md").read_text()
    assert page.count("| WC |") == 3 + 4 * len(IMAGES)
    assert page.count("| marginal |") == 3
    assert "cannot be told: WC loses less accuracy than soft" in page or "does not hold: WC loses less" in page
    assert "the most frequent answer of the training is right for" in page
    assert "| question only |" in page
    assert "soft, in noise" in capsys.readouterr().out
    assert {name.partition("/")[0] for name in metrics} == {"bam", "va"}


def test_some_rows(quick_runs, tmp_path):
    options = SMALL | {"out": tmp_path / "out", "results": tmp_path / "page.md", "seeds": 2}
    metrics = run_table(TableConfig(blocks=("bam", "va"), rows=("soft", "question only", "hard_enum"), **options))
    assert {tuple(name.split("/")[:2]) for name in metrics} == {
        ("bam", "soft"), ("bam", "question only"), ("va", "soft"), ("va", "hard_enum"),
    }  # fmt: skip


def test_search(quick_runs, tmp_path, capsys):
    losses = run_search(SearchConfig(**SMALL, out=tmp_path / "out", results=tmp_path / "page.md", seeds=2))
    assert len(losses) == sum(map(len, GRIDS.values()))
    printed = capsys.readouterr().out
    assert printed.count("  best\n") == 1 + 2  # the head, and a setting a row
    assert "kl weight 0.0001" in printed
    assert "python -m experiments.vqa search" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": ()}, "blocks is empty"),
        ({"blocks": ("bam",), "rows": ("soft", "WX")}, "rows 'WX': expected one of soft"),
        ({"blocks": ("bam",), "rows": ("WC, in noise", "soft")}, "of block bam are compared with 'soft, in noise'"),
        ({"blocks": ("va", "dn"), "rows": ("soft",)}, "block dn has none of these rows"),
        ({"dataset": "daquar"}, "block dn needs several"),
        ({"blocks": ("va",), "resume": True, "overwrite": True}, "overwrite"),
    ],
)
def test_bad_options_of_the_table(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run_table(TableConfig(**SMALL, out=tmp_path / "out", results=tmp_path / "page.md", **options))


def bam(noisy, pavpu):
    """Metrics of three seeds: accuracy with noise, .7 without, and a PAvPU."""
    return [
        {f"test_accuracy/mean{end}": accuracy if end else 0.7 for end in IMAGES.values()}
        | {f"test_pavpu_05/{kind}{end}": certain for kind in ("mc_dropout", "both") for end in IMAGES.values()}
        for accuracy, certain in zip(noisy, pavpu, strict=True)
    ]


@pytest.mark.parametrize(
    ("noisy", "pavpu", "verdicts"),
    [
        ((0.55, 0.56, 0.55), (0.80, 0.81, 0.80), ["holds", "holds"]),
        ((0.45, 0.46, 0.45), (0.60, 0.61, 0.60), ["does not hold", "does not hold"]),
        ((0.40, 0.60, 0.51), (0.69, 0.71, 0.70), ["cannot be told", "cannot be told"]),
    ],
)
def test_claims_on_noise_and_certainty(noisy, pavpu, verdicts):
    soft = bam((0.5, 0.5, 0.5), (0.7, 0.7, 0.7))
    assert [claim.verdict for claim in claims({"bam": {"soft": soft, "WC": bam(noisy, pavpu)}})] == verdicts


@pytest.mark.parametrize(("shift", "verdict"), [(0.1, "holds"), (-0.1, "does not hold"), (0.0, "cannot be told")])
def test_claims_on_one_number(shift, verdict):
    spread = (-0.01, 0.0, 0.012)
    low, high = [{"test_nll/mean": 1 + one - shift} for one in spread], [{"test_nll/mean": 1.0} for _ in spread]
    (nll,) = claims({"va": {"marginal": low, "soft": high}})
    plain = [{"test_accuracy/mean": 0.5} for _ in spread]
    doubly = [{"test_accuracy/mean": 0.5 + one + shift} for one in spread]
    hybrid = [{"hybrid_view.1": 0.5 + one + shift, "hybrid_view.2": 0.5 + one + shift} for one in spread]
    found = claims({"dn": {"softmax": plain, "doubly_normalized": doubly, "hybrid": hybrid}})
    assert [claim.verdict for claim in (nll, *found)] == [verdict] * 3


def test_one_seed_has_no_claims():
    assert claims({"va": {"marginal": [{"test_nll/mean": 1.0}], "soft": [{"test_nll/mean": 2.0}]}}) == []


def test_studies(tmp_path, capsys):
    page = tmp_path / "page.md"
    options = SMALL | {"out": tmp_path / "out", "results": page, "num_samples": 2, "seeds": 2, "learning_rate": 0.01}
    metrics = run_studies(StudiesConfig(shares=(1.0,), **options))
    printed = capsys.readouterr().out
    assert "soft: ensemble of 2 seeds" in printed
    assert "WC: attention and dropout" in printed
    assert "Questions about what is not in the scene" in page.read_text()
    assert metrics["soft/1.0/train_questions"] == len(few_digits(1)["train"])
    (tmp_path / "out" / "runs" / "WC-1-0" / "predictions.npz").unlink()
    with pytest.raises(UserError, match=r"predictions\.npz is missing"):
        run_studies(StudiesConfig(shares=(1.0,), resume=True, **options))


@pytest.mark.parametrize("shares", [(), (0.0, 1.0), (0.5,)])
def test_studies_need_shares(shares, tmp_path):
    with pytest.raises(UserError, match="shares"):
        run_studies(StudiesConfig(shares=shares, out=tmp_path))


def test_bootstrap_intervals():
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(400, generator=generator) < 0.4
    chance, perfect = torch.rand(400, generator=generator), wrong.double()
    assert bootstrap_text([(perfect + 0.1 * chance, wrong)]) == "1.000 [1.000, 1.000]"
    low, high = map(float, bootstrap_text([(chance, wrong)]).partition(" ")[2].strip("[]").split(", "))
    assert low < 0.5 < high
    # the standard error of an area of .5 is sqrt((m + n + 1) / (12 m n))
    positive = wrong.sum().item()
    error = (401 / (12 * positive * (400 - positive))) ** 0.5
    assert (high - low) / (2 * 1.96) == pytest.approx(error, rel=0.25)
    assert bootstrap_text([(chance, torch.zeros(400, dtype=torch.bool))]) == "-"


def test_compare(tmp_path, capsys):
    arguments = ["--task", "vqa", *tiny_options(), "--seeds", "1", "--workers", "1", "--pictures", "1"]
    assert launcher.main([*arguments, "--out", str(tmp_path / "out"), "--results", str(tmp_path / "page.md")]) == 0
    printed = capsys.readouterr().out
    for scheme in ("soft", "weibull", "lognormal"):
        assert f"\n{scheme}  " in printed
        assert (tmp_path / "out" / "figures" / f"{scheme}-0.png").is_file()
    assert "--task vqa" in (tmp_path / "page.md").read_text()


def test_compare_on_photographs(tmp_path, capsys):
    write_easy_vqa(tmp_path)
    options = [
        "--dataset",
        "easy_vqa",
        "--data-root",
        str(tmp_path),
        "--encoder-epochs",
        "1",
        "--schemes",
        '["weibull"]',
    ]
    options += [*tiny_options(), "--seeds", "1", "--workers", "1", "--pictures", "1", "--out", str(tmp_path / "out")]
    assert launcher.main(["--task", "vqa", *options]) == 0
    assert (tmp_path / "out" / "figures" / "weibull-0.png").is_file()
    assert "mass on relevant" not in capsys.readouterr().out
    run = tmp_path / "out" / "runs" / "weibull-0"
    assert ask(AskConfig(run=run, question="Is there a red shape?", place=5, num_samples=3)).weights.shape == (3, 16)
