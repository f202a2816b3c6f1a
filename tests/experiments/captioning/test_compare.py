"""The comparison on captioning, end to end."""

import pytest
from experiments.captioning.compare import SCHEMES, CompareCaptions, run
from experiments.compare import main

from experiments.files import UserError
from experiments.harness.results import read_metrics
from tests.experiments.captioning.tiny_captions import small_scenes, write_flickr8k

TINY = {"seeds": 2, "base_epochs": 1, "epochs": 1, "hidden": 8, "vocabulary": 300, "num_samples": 2, "beam": 1}
TINY |= {"workers": 1, "progress": False}


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


def test_compare_end_to_end(tmp_path, capsys):
    page = tmp_path / "RESULTS.md"
    config = CompareCaptions(out=tmp_path / "out", results=page, **TINY)
    metrics = run(config)
    printed = capsys.readouterr().out
    for scheme in SCHEMES:
        assert f"\n{scheme}  " in printed
        assert f"{scheme}/test_bleu_1" in metrics
    assert "random training images" in printed
    assert "--task captioning" in page.read_text()
    assert read_metrics(tmp_path / "out") == pytest.approx(metrics)
    figures = {path.stem.partition("-")[0] for path in (tmp_path / "out" / "figures").glob("*.png")}
    assert figures == {"weibull", "hard_enum"}
    assert (tmp_path / "out" / "report.html").read_text().count("data:image/png;base64,") == 4
    with pytest.raises(UserError, match="--resume"):
        run(config)


def test_schemes_can_be_added_later(tmp_path):
    options = TINY | {"out": tmp_path / "out", "seeds": 1}
    first = run(CompareCaptions(schemes=("soft",), **options))
    both = run(CompareCaptions(schemes=("soft", "weibull"), resume=True, **options))
    assert both.keys() > first.keys()
    assert all(both[name] == value for name, value in first.items())


def test_photographs_from_the_beginning(tmp_path, capsys):
    write_flickr8k(tmp_path)
    options = [
        "--dataset",
        "flickr8k",
        "--data-root",
        str(tmp_path),
        "--size",
        "32",
        "--schemes",
        '["soft", "weibull"]',
    ]
    options += ["--base-epochs", "0", "--epochs", "1", "--seeds", "1", "--hidden", "8", "--vocabulary", "300"]
    options += ["--workers", "1", "--no-progress", "--out", str(tmp_path / "out")]
    assert main(["--task", "captioning", *options, "--results", str(tmp_path / "page.md")]) == 0
    printed = capsys.readouterr().out
    assert "from the beginning" in printed
    assert "2 x 2 regions; 3 test images" in " ".join(printed.split())
    assert "captioning-flickr8k" in (tmp_path / "page.md").read_text()
    assert not list((tmp_path / "out" / "runs").glob("base*"))


def test_the_options_are_the_tasks_own(capsys):
    assert main(["--task", "captioning", "--ibm", "1"]) == 2
    assert "ibm" in capsys.readouterr().err
