"""The scripts of the tables and studies, end to end on tiny graphs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.files import UserError
from experiments.graph import search, studies, table, uniformity
from experiments.graph.attention import relative_attention
from experiments.graph.data import load_data
from experiments.graph.rows import GRIDS, ROWS, SEARCHED
from experiments.graph.table_report import graph_ensemble
from experiments.graph.tables import MAIN, TABLES
from experiments.graph.train import GraphConfig, load_trained
from experiments.graph.train import run as run_graph
from experiments.harness.cli import command_line, run_script
from experiments.headlines.config import HeadlineTableConfig
from pyro_attention import EdgeList
from tests.experiments.graph.tiny_graphs import write_citations


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_citations(tmp_path)
    write_citations(tmp_path, name="citeseer", classes=6)
    return tmp_path


def _table(data: Path, **options: object) -> table.TableConfig:
    sizes = {"seeds": 2, "max_epochs": 2, "num_samples": 3, "progress": False, "workers": 1}
    places = {"data_root": data, "out": data / "out", "results": data / "RESULTS.md"}
    return table.TableConfig(**({"name": "bam1"} | sizes | places | options))  # type: ignore[arg-type]


def test_table_end_to_end(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    means = table.run(_table(data, seeds=1))
    page = (data / "RESULTS.md").read_text()
    assert "`python -m experiments.table bam1 --seeds 1 --max-epochs 2 --num-samples 3`; seeds 0 to 0" in page
    printed = capsys.readouterr().out
    for row in TABLES["bam1"].rows:
        assert f"\n| {row} | " in page
        assert f"\n{row} " in printed
    assert (data / "pictures" / "bam1.png").read_bytes().startswith(b"\x89PNG")
    one = json.loads((data / "out" / "runs" / "cora-WC-0" / "metrics.json").read_text())
    assert means["cora/WC/test_mean_accuracy"] == one["test_mean_accuracy"]
    assert "\nkl_scale: total\n" in (data / "out" / "runs" / "cora-WC-0" / "config.yaml").read_text()

    # a seed is added; the first one's runs are read, not repeated
    written = (data / "out" / "runs" / "cora-WC-0" / "metrics.json").stat().st_mtime_ns
    with pytest.raises(UserError, match="--resume"):
        table.run(_table(data))
    means = table.run(_table(data, resume=True))
    assert (data / "out" / "runs" / "cora-WC-0" / "metrics.json").stat().st_mtime_ns == written
    two = json.loads((data / "out" / "runs" / "cora-WC-1" / "metrics.json").read_text())
    mean = np.mean([one["test_mean_nll"], two["test_mean_nll"]])
    assert means["cora/WC/test_mean_nll"] == pytest.approx(mean)
    assert "seeds 0 to 1" in (data / "RESULTS.md").read_text()
    # another configuration is refused, not mixed
    with pytest.raises(UserError, match="num_samples 3 instead of 4"):
        table.run(_table(data, resume=True, num_samples=4))
    # all runs go on for an epoch more, but none goes back
    assert table.run(_table(data, resume=True, max_epochs=3))["cora/WC/epochs"] == 3
    with pytest.raises(UserError, match="a run of 3 epochs, and max_epochs is 2"):
        table.run(_table(data, resume=True))


def test_normalizers_are_compared_under_the_same_guide(data: Path) -> None:
    means = table.run(_table(data, name="normalizers"))
    page = (data / "RESULTS.md").read_text()
    main = page.split("Mean ± standard deviation")[1]
    rows = {
        row: next(line for line in main.splitlines() if line.startswith(f"| {row} |")) for row in ("soft", "WC hybrid")
    }
    assert "] to WC |" in rows["WC hybrid"]
    assert " to " not in rows["soft"]
    assert "paper (" not in main
    shares = [means[f"cora/soft hybrid/hybrid_layers.{layer}"] for layer in range(2)]
    assert "cora/soft/hybrid_layers.0" not in means
    assert f"| soft hybrid | {shares[0]:.3f} ±" in main
    history = (data / "out" / "runs" / "cora-soft-hybrid-0" / "history.csv").read_text()
    assert "hybrid_layers.0_7" in history.splitlines()[0]


def test_searched_settings_are_used() -> None:
    for row, setting in SEARCHED.items():
        assert setting in GRIDS[row]
        assert TABLES["bam1"].rows[row].items() >= setting.items()
    assert GRIDS.keys() == TABLES["bam1"].rows.keys() == ROWS.keys() - {"gamma"}
    assert max(map(len, GRIDS.values())) <= 12


def test_search_end_to_end(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    grids = {"soft": [{}], "WC": [{"kl_weight": 0.1}, {"kl_weight": 0.2}]}
    monkeypatch.setattr(search, "GRIDS", grids)
    options = {"max_epochs": 2, "seeds": 2, "progress": False, "workers": 1, "data_root": data}
    options |= {"out": data / "search", "results": data / "RESULTS.md"}
    means = search.run(search.SearchConfig(name="bam1", **options))  # type: ignore[arg-type]
    assert means.keys() == {"soft", "WC kl_weight=0.1", "WC kl_weight=0.2"}
    assert capsys.readouterr().out.count("  best\n") == 3  # the head and two rows
    page = (data / "RESULTS.md").read_text()
    assert "## Settings tried (bam1, cora)" in page
    assert page.count("| best |") == 3
    runs = [json.loads(path.read_text()) for path in (data / "search" / "runs").glob("soft-*/metrics.json")]
    assert means["soft"] == pytest.approx(np.mean([found["val_accuracy"] for found in runs]))


@pytest.mark.parametrize("name", studies.STUDIES)
def test_study_end_to_end(name: studies.StudyName, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = studies.STUDIES[name]
    monkeypatch.setitem(studies.STUDIES, name, replace(study, levels=study.levels[:2]))
    if name == "label_rate":
        monkeypatch.setitem(studies.STUDIES, name, replace(study, levels=(1, 2)))
    sizes = {"seeds": 1, "max_epochs": 2, "num_samples": 2, "rows": ("soft", "WC"), "progress": False, "workers": 1}
    places = {"data_root": data, "out": data / "out", "results": data / "RESULTS.md"}
    means = studies.run(studies.StudyConfig(name=name, **(sizes | places)))  # type: ignore[arg-type]
    for column in (MAIN, *study.columns):  # where no edges are added there is no attention to them
        expected = 2 if column.metric == "noise_edge_attention" else 4
        assert sum(mean.endswith(f"/{column.metric}") for mean in means) == expected
    page = (data / "RESULTS.md").read_text()
    assert f"python -m experiments.studies {name}" in page
    assert (data / "pictures" / f"{name}-cora.png").is_file()
    with pytest.raises(UserError, match="rows 'hard'"):
        studies.run(studies.StudyConfig(name=name, rows=("hard",), **places))  # type: ignore[arg-type]


def test_uniformity_end_to_end(data: Path) -> None:
    sizes = {"datasets": ("cora",), "seeds": 1, "max_epochs": 3, "progress": False, "workers": 1}
    places = {"data_root": data, "out": data / "out", "results": data / "RESULTS.md"}
    means = uniformity.run(uniformity.UniformityConfig(**(sizes | places)))  # type: ignore[arg-type]
    assert 0 < means["cora/soft/entropy, hidden layer"] <= 1
    assert "How far learned attention is from uniform" in (data / "RESULTS.md").read_text()
    assert (data / "pictures" / "uniformity.png").is_file()


def test_ensemble_averages_probabilities(data: Path) -> None:
    options = {"dataset": "cora", "data_root": data, "guide": "soft", "max_epochs": 3, "progress": False}
    configs = [GraphConfig(**options, seed=seed, num_samples=2, out=data / f"{seed}") for seed in range(2)]  # type: ignore[arg-type]
    single = [run_graph(config) for config in configs]
    assert graph_ensemble(configs[:1]) == pytest.approx(
        {name: single[0][name] for name in graph_ensemble(configs[:1])}, abs=1e-6
    )
    trained = load_trained(configs[0])
    logits = [torch.from_numpy(np.load(data / f"{seed}" / "predictions.npz")["logits"]) for seed in range(2)]
    probabilities = torch.stack(logits).softmax(-1).mean(0)[trained.data.test_mask]
    labels = trained.data.labels[trained.data.test_mask]
    nll = -probabilities.gather(1, labels[:, None]).log().mean().item()
    assert graph_ensemble(configs)["test_mean_nll"] == pytest.approx(nll, rel=1e-5)
    (data / "1" / "predictions.npz").unlink()
    with pytest.raises(UserError, match=r"predictions\.npz is missing"):
        graph_ensemble(configs)


def test_attention_on_added_edges_is_relative_to_uniform() -> None:
    # node 0 has the in-edges 1->0 and 2->0 and its loop; 2->0 is noise and gets half of the uniform third
    graph = EdgeList.from_edge_index(torch.tensor([[1, 2], [0, 0]]), num_nodes=3, add_self_loops=True)
    weights = torch.tensor([0.5, 1 / 6, 1 / 3, 1.0, 1.0]).reshape(1, 5, 1)
    noise = torch.tensor([False, True, False, False, False])
    assert relative_attention({"layer": weights}, graph, noise) == pytest.approx(0.5)


def test_noise_reaches_the_graph_and_is_measured(data: Path) -> None:
    options = {"dataset": "cora", "data_root": data, "max_epochs": 2, "num_samples": 2, "progress": False}
    clean = load_data(GraphConfig(**options, out=data / "a"))  # type: ignore[arg-type]
    noisy_config = GraphConfig(**options, edge_noise=0.5, labels_per_class=1, feature_noise=0.5, out=data / "b")  # type: ignore[arg-type]
    noisy = load_data(noisy_config)
    assert noisy.edge_index.size(1) == 1.5 * clean.edge_index.size(1)
    assert noisy.train_mask.sum() == 7
    assert not torch.equal(noisy.features.to_dense(), clean.features.to_dense())
    assert 0 < run_graph(noisy_config)["noise_edge_attention"] < 3


STUDY = studies.StudyConfig(name="label_rate", seeds=4, rows=("soft",), out=Path("x"), workers=2)


@pytest.mark.parametrize(
    ("config", "always", "options"),
    [
        (STUDY, (), "--rows '[\"soft\"]' --seeds 4"),
        (replace(STUDY, seeds=3), ("seeds", "patience"), "--patience 100 --rows '[\"soft\"]' --seeds 3"),
        (
            HeadlineTableConfig(no_repeat=None, train_file=Path("where", "mine.jsonl")),
            ("train_file",),
            "--train-file mine.jsonl --no-repeat null",
        ),
        (GraphConfig(learnable=True, kl_weight=0.0), (), "--kl-weight 0.0 --learnable"),
        (GraphConfig(graph=Path("where", "mine.npz")), (), ""),
        (GraphConfig(graph=Path("where", "mine.npz")), ("graph",), "--graph mine.npz"),
    ],
)
def test_command_line_names_what_differs_from_the_defaults(
    config: object, always: tuple[str, ...], options: str
) -> None:
    assert command_line("script", config, always=always) == f"python -m script {options}".rstrip()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["bam1", "--seeds", "3"], 0, ""), ([], 2, "required: name"), (["bam7"], 2, "expected one of bam1, normalizers")],
)
def test_tables_are_named_by_position(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(table.TableConfig, lambda _: None, name="experiments.table", arguments=arguments) == code
    assert said in capsys.readouterr().err
