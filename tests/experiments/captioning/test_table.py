"""The table of captions of photographs, end to end on tiny sizes."""

from pathlib import Path

import pytest
from experiments.captioning.rows import GRIDS, ROWS
from experiments.captioning.table import run

from experiments.captioning import data as captioning_data
from experiments.captioning.config import TableConfig
from experiments.files import UserError
from tests.experiments.captioning.tiny_captions import colour_encoder, write_flickr8k

TINY = {"base_epochs": 1, "epochs": 1, "hidden": 8, "vocabulary": 300, "num_samples": 2, "beam": 1, "size": 64}
TINY |= {"workers": 1, "progress": False, "seeds": 2, "precision": "32", "pictures": 1}


# an untrained network writes any character, and not every font has it
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.setattr(captioning_data, "mobilenet_grid", colour_encoder)
    write_flickr8k(tmp_path)
    return TINY | {"data_root": tmp_path, "out": tmp_path / "out", "results": tmp_path / "page.md"}


def test_table_end_to_end(options, tmp_path, capsys):
    options |= {"seeds": 1, "rows": ("soft", "WC")}
    metrics = run(TableConfig(**options))
    printed = capsys.readouterr().out
    for row in ("soft", "WC"):
        assert f"\n{row}  " in printed
        assert f"{row}/test_cider_d" in metrics
    assert "METEOR" in printed
    page = (tmp_path / "page.md").read_text()
    assert "python -m experiments.captioning table" in page
    assert "32.2 / 54.7 / 104.0" in page
    assert page.count("| WC | kl weight") == len(GRIDS["WC"])
    assert page.count("| best |\n") == 2  # the head, and one setting
    assert "temperature 0.5" in page
    assert "pictures/" not in page  # photographs are not for the page
    figures = {path.name for path in (tmp_path / "out" / "figures").glob("*.png")}
    assert figures == {"WC-0-attention.png", "WC-0-uncertainty.png"}
    runs = {path.name for path in (tmp_path / "out" / "runs").iterdir()}
    # the setting that is the best on the first seed is not trained again
    assert len(runs) == len({"base-0", "soft-0"}) + len(GRIDS["WC"])
    assert run(TableConfig(resume=True, **options)) == metrics
    with pytest.raises(UserError, match="--resume"):
        run(TableConfig(**options))


def test_the_best_setting_on_validation_is_taken(options, tmp_path, monkeypatch):
    """All trainings are those of soft attention; the validation perplexity says which setting is whose."""
    found = {}

    def quick(config):
        config.out.mkdir(parents=True, exist_ok=True)
        found[config.out.name] = config
        perplexity = 5.0 + 100 * abs(config.kl_weight - 0.001) + (config.concentration - 2.5) ** 2
        return {"val_ppl": perplexity, "test_cider_d": 1.0 + config.seed, "floor_bleu_1": 1.0, "floor_cider_d": 1.0}

    monkeypatch.setattr("experiments.captioning.train.run", quick)
    monkeypatch.setattr("experiments.captioning.table._pictures", lambda *_: [])
    monkeypatch.setattr("experiments.harness.sweep.hardware", lambda _: "here")
    metrics = run(TableConfig(**options))
    assert metrics["WC/test_cider_d"] == 1.5
    assert {name for name in metrics if name.endswith("/val_ppl")} == {f"{row}/val_ppl" for row in ROWS}
    for row in ("WC", "WF"):
        second = next(config for name, config in found.items() if name.startswith(row) and config.seed == 1)
        assert (second.kl_weight, second.concentration) == (0.001, 2.5)
        assert second.prior == ("contextual" if row == "WC" else "fixed")
        assert second.init_from == tmp_path / "out" / "runs" / "base-1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ("WC",)}, "rows lack soft"),
        ({"data_root": Path("nowhere")}, "Flickr8k.token.txt"),
        ({"maps": Path("none.npz")}, "none.npz is missing"),
    ],
)
def test_bad_options_of_the_table(changes, message, options, tmp_path):
    with pytest.raises(UserError, match=message):
        run(TableConfig(**(options | changes)))
    assert not (tmp_path / "out" / "runs").exists()
