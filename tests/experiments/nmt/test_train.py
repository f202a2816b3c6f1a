"""The translation script end to end: every scheme, resuming, files, and bad input."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import experiments.sequence.train
from experiments.files import UserError
from experiments.nmt.alignments import aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import DEFINITIONS, perplexity
from experiments.nmt.model import batches, load_trained
from experiments.sequence.model import model_arguments
from guides.names import SchemeName
from guides.schemes import build_scheme
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
from tests.experiments.nmt.tiny_text import SIZES, TINY, command_line, run, tiny_options, write_text

ROOT = Path(__file__).parents[3]


def tiny_config(tmp_path, **options):
    text = tmp_path / "text"
    if not text.exists():
        write_text(text)
    return TranslationConfig(**(TINY | {"text": text, "out": tmp_path / "run"} | options))


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """A finished run of categorical_enum."""
    tmp_path = tmp_path_factory.mktemp("trained")
    config = tiny_config(tmp_path)
    run(config)
    return config.out


@pytest.mark.parametrize("guide", get_args(SchemeName))
def test_every_scheme_trains_and_evaluates(guide, tmp_path):
    config = tiny_config(tmp_path, guide=guide, warm_start=1)
    metrics = run(config)
    assert metrics.keys() <= DEFINITIONS.keys()
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 300
    assert 0 <= metrics["test_entropy"] <= math.log(100)
    assert metrics["updates"] == 2 * SIZES["train"] / TINY["batch_size"]
    assert (metrics["parameters"] > metrics["network_parameters"]) == build_scheme(guide).amortised
    assert len((config.out / "translations.txt").read_text().splitlines()) == SIZES["test"]
    saved = json.loads((config.out / "metrics.json").read_text())
    assert all("sacrebleu" in saved["definitions"][name] for name in ("test_bleu", "test_chrf"))
    # the same numbers from the checkpoint
    trained = load_trained(config.out)
    assert perplexity(trained, load_text(trained.config, "test")) == pytest.approx(metrics["test_ppl"], rel=1e-6)


@pytest.mark.parametrize("guide", ["marginal", "categorical_sample", "dirichlet"])
@pytest.mark.parametrize("jumps", [False, True])
def test_a_prior_of_the_places(guide, jumps, tmp_path):
    """As the table of aligners trains them."""
    options = {"prior_from": "place", "words_from": "context", "encoder": "words", "diagonal": True, "null_word": True}
    config = tiny_config(tmp_path, guide=guide, jumps=jumps, **options)
    metrics = run(config)
    assert 1 < metrics["test_ppl"] < 300
    trained = load_trained(config.out)
    text = load_text(config, "test")
    assert perplexity(trained, text) == pytest.approx(metrics["test_ppl"], rel=1e-6)
    for pair in aligned_pairs(trained, text, num_samples=2):
        assert pair.posterior.sum(-1).max() <= 1 + 1e-5


@pytest.mark.parametrize("options", [{"prior_from": "place"}, {"jumps": True, "words_from": "context"}])
@pytest.mark.parametrize("guide", ["soft", "weibull"])
def test_attention_weights_need_a_prior_that_knows_the_words(guide, options, tmp_path):
    with pytest.raises(UserError, match=f"guide {guide} does not go with"):
        run(tiny_config(tmp_path, guide=guide, **options))


@pytest.mark.parametrize("guide", ["sparse_marginal", "sparse_enum"])
def test_sparse_alignments_say_how_many_keys_they_have(guide, tmp_path):
    config = tiny_config(tmp_path, guide=guide, top_k=2)
    assert 1 <= run(config)["test_support"] <= 2
    with (config.out / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(1 <= float(row["support_alignment"]) <= 2 for row in rows)
    assert all(0 < float(row["cut_alignment"]) <= 1 for row in rows)  # an untrained network looks everywhere
    trained = load_trained(config.out)
    text = load_text(trained.config, "test")
    assert 1 < perplexity(trained, text, k_max=1) < 300
    for pair in aligned_pairs(trained, text, num_samples=1):
        torch.testing.assert_close(pair.posterior.sum(-1), torch.ones(1, len(pair.target)))


@pytest.mark.parametrize("guide", ["soft", "weibull", "hard_sample"])
def test_a_sampled_input_feed(guide, tmp_path):
    metrics = run(tiny_config(tmp_path, guide=guide, input_feed="sampled", max_epochs=1))
    assert 1 < metrics["test_ppl"] < 400
    with pytest.raises(UserError, match="input_feed expected"):
        run(tiny_config(tmp_path / "other", guide="categorical_enum", input_feed="sampled"))


def test_perplexity_is_that_of_the_log_evidence(trained_folder):
    trained = load_trained(trained_folder)
    text = load_text(trained.config, "test")
    trained.module.eval()
    elbo, guide = AlignmentELBO(max_plate_nesting=2), AttentionGuide(trained.model, Marginal())
    total = count = 0
    for batch in batches(trained, text):
        total += elbo.loss(trained.model, guide, *model_arguments(batch))
        count += int(batch.target_mask.sum())
    assert perplexity(trained, text) == pytest.approx(math.exp(total / count), rel=1e-5)


def test_fewer_pairs(tmp_path):
    config = tiny_config(tmp_path, train_pairs=8, test_pairs=3, max_epochs=1)
    assert run(config)["updates"] == 1
    assert len((config.out / "translations.txt").read_text().splitlines()) == 3


@pytest.mark.parametrize(("k_max", "same"), [(1000, True), (1, False)])
def test_k_max_of_all_words_changes_nothing(trained_folder, k_max, same):
    trained = load_trained(trained_folder)
    text = load_text(trained.config, "test")
    found = perplexity(trained, text, k_max=k_max)
    assert (found == pytest.approx(perplexity(trained, text), rel=1e-6)) == same


def test_going_on_from_another_run_starts_with_its_network(tmp_path, trained_folder):
    config = tiny_config(tmp_path, guide="weibull", init_from=trained_folder, learning_rate=1e-12, max_epochs=1)
    run(config)
    before, after = load_trained(trained_folder).model.state_dict(), load_trained(config.out).model.state_dict()
    assert before.keys() < after.keys()  # the prior network is new
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=0)
    for name in ("vocabulary.json",):
        assert (config.out / name).read_text() == (trained_folder / name).read_text()


@pytest.mark.parametrize(("finished", "message"), [(True, "give both runs the same sizes"), (False, "missing")])
def test_going_on_needs_a_network_of_the_same_sizes_and_a_finished_run(tmp_path, trained_folder, finished, message):
    with pytest.raises(UserError, match=message):
        run(tiny_config(tmp_path, init_from=trained_folder if finished else tmp_path, hidden=10))


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    config = tiny_config(tmp_path)
    metrics = run(config)
    monkeypatch.setattr(experiments.sequence.train, "fit_batches", None)
    assert run(replace(config, resume=True)) == metrics
    with pytest.raises(UserError, match="another configuration"):
        run(replace(config, resume=True, dropout=0.5))


# files


def test_translate_a_file(trained_folder, tmp_path):
    file = tmp_path / "new.de"
    file.write_text("die Frau lacht .\nein völlig neues Wort 漢字\n")
    assert command_line("translate", trained_folder, file) == 0
    assert len((tmp_path / "new.en").read_text().splitlines()) == 2
    # the order of the lines is that of the file
    first = (tmp_path / "new.en").read_text().splitlines()
    file.write_text("ein völlig neues Wort 漢字\ndie Frau lacht .\n")
    command_line("translate", trained_folder, file, "--out", tmp_path / "turned")
    assert (tmp_path / "turned").read_text().splitlines() == first[::-1]


def test_what_is_left_out_of_the_training_text_is_told(tmp_path, capsys):
    config = tiny_config(tmp_path, max_epochs=1, progress=True, skip_bad=True)
    train = config.text / "train.de"
    train.write_text("zu viele Wörter " * 30 + "\n \n" + "".join(train.read_text().splitlines(keepends=True)[2:]))
    metrics = run(config)
    assert (metrics["train_pairs"], metrics["train_left_out"]) == (SIZES["train"] - 2, 2)
    assert "training text: 22 pairs; left out in reading: 1 long, 1 empty\n" in capsys.readouterr().err


@pytest.mark.parametrize("guide", ["soft", "marginal", "weibull"])
def test_train_draws_the_first_sentences(guide, tmp_path, capsys):
    options = [*tiny_options(write_text(tmp_path / "text")), "--max-epochs", "1", "--guide", guide, "--k-max", "null"]
    assert command_line("train", *options, "--out", tmp_path / "run") == 0
    out, err = capsys.readouterr()
    assert all(name in out for name in ("test_ppl", "val_ppl_unigram", "test_relative_entropy", "test_most_frequent"))
    assert "warning: the network predicts words hardly better than their frequencies do" in err  # three updates
    assert len(list((tmp_path / "run" / "figures").glob("pair-*.png"))) == 3


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        (["--k-max", "1", "--beam", "1"], 0, "perplexity"),
        (["--samples", "3"], 1, "error: samples is 3, expected 0"),  # sums over alignments are exact
    ],
)
def test_evaluate_with_other_options(trained_folder, capsys, options, code, part):
    assert command_line("evaluate", trained_folder, *options) == code
    assert part in "".join(capsys.readouterr())


def test_translate_by_posterior_samples(tmp_path):
    config = tiny_config(tmp_path, guide="weibull", max_epochs=1)
    run(config)
    file = tmp_path / "new.de"
    file.write_text("die Frau lacht .\n")
    assert command_line("translate", config.out, file, "--samples", "4") == 0
    assert len((tmp_path / "new.en").read_text().splitlines()) == 1


# bad input


def assert_one_line(capsys, *parts):
    error = capsys.readouterr().err
    for part in parts:
        assert part in error
    assert error.strip().count("\n") == 0, error


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (lambda folder: (folder / "train.de").write_text("eins\n"), ["train.de", "1 lines"]),
        (lambda folder: (folder / "val.de").write_text("\n" * SIZES["val"]), ["val.de", "line 1", "empty"]),
        (lambda folder: (folder / "train.en").write_bytes(b"\xff\n" * SIZES["train"]), ["train.en", "line 1", "UTF-8"]),
        (lambda folder: (folder / "test.en").unlink(), ["test.en", "missing"]),
    ],
)
def test_bad_text(spoil, parts, tmp_path, capsys):
    text = write_text(tmp_path / "text")
    spoil(text)
    assert command_line("train", *tiny_options(text), "--out", tmp_path / "run") == 1
    assert_one_line(capsys, *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--guide", "soft_attention"], "guide"),
        (["--dataset", "multi30k", "--source", "xx"], "xx"),
        (["--source", "fr"], "toy"),
        (["--dataset", "own"], "--text"),
        (["--vocabulary", "10"], "size"),
        (["--hidden", "7", "--max-epochs", "1"], "memory"),
    ],
)
def test_bad_options(arguments, part, tmp_path, capsys):
    assert command_line("train", *arguments, "--out", tmp_path / "run") in (1, 2)
    assert_one_line(capsys, part)


def test_bad_files(trained_folder, tmp_path, capsys):
    folder, file = str(trained_folder), tmp_path / "new.de"
    file.write_text("gut\n")
    assert command_line("translate", folder, file, "--out", file) == 1
    assert_one_line(capsys, "--out")
    assert file.read_text() == "gut\n"
    (tmp_path / "new.en").write_text("good\n")
    gold = tmp_path / "gold.txt"
    gold.write_text("0-5\n")
    files = [str(file), str(tmp_path / "new.en"), "--out", str(tmp_path / "out")]
    assert command_line("align", folder, *files, "--gold", gold) == 1
    assert_one_line(capsys, "gold.txt", "line 1", "0-5")
    assert command_line("translate", tmp_path, file) == 1
    assert_one_line(capsys, "config.yaml")


def test_a_checkpoint_of_another_vocabulary(trained_folder, tmp_path, capsys):
    config = tiny_config(tmp_path, vocabulary=310)
    run(config)
    before = (trained_folder / "checkpoints" / "best.safetensors").read_bytes()
    (config.out / "checkpoints" / "best.safetensors").write_bytes(before)
    file = tmp_path / "new.de"
    file.write_text("gut\n")
    assert command_line("translate", config.out, file) == 1
    assert_one_line(capsys, "vocabulary")
