"""The commands end to end: kinds of training, going on, files of one's own to translate and to evaluate on."""

import csv
import json
import math
from dataclasses import replace

import pytest
import torch

import experiments.sequence.model
from experiments.data.text.batches import EncodedText, train_tokenizer
from experiments.data.text.parallel_text import ParallelText
from experiments.data.text.word_rules import divide_words
from experiments.files import UserError
from experiments.nmt import evaluation
from experiments.nmt.align import aligned_pairs
from experiments.nmt.commands import evaluate_run
from experiments.nmt.config import EvaluateConfig, SearchOptions, TranslationConfig
from experiments.nmt.evaluation import (
    MEASURES,
    Translated,
    bleu,
    chrf,
    perplexity,
    translate,
    translation_uncertainty,
    uncertainty_metrics,
)
from experiments.nmt.task import foreign_texts, load_text, load_trained
from experiments.nmt.texts import batches
from experiments.sequence.model import SequenceTraining, model_arguments
from guides.schemes import build_scheme
from models.decoding.next_word import next_word_log_probs
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
from tests.experiments.nmt.tiny_text import SIZES, TINY, command_line, run, tiny_options, write_text


def tiny_config(tmp_path, **options):
    text = tmp_path / "text"
    if not text.exists():
        write_text(text)
    return TranslationConfig(**(TINY | {"text": text, "out": tmp_path / "run", "max_epochs": 1} | options))


@pytest.mark.parametrize(
    ("guide", "options"),
    [
        ("lognormal", {"objective": "evidence", "draws": 3, "learned_width": True}),
        ("dirichlet", {"warm_start": 1}),
        ("sparse_enum", {"top_k": 2, "max_epochs": 2}),
    ],
)
def test_schemes_train_and_evaluate(guide, options, tmp_path):
    config = tiny_config(tmp_path, guide=guide, **options)
    metrics = run(config)
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 400
    assert 0 <= metrics["test_entropy"] <= math.log(100)
    assert metrics["updates"] == config.max_epochs * SIZES["train"] / TINY["batch_size"]
    assert (metrics["parameters"] > metrics["network_parameters"]) == build_scheme(guide).amortized
    assert len((config.out / "translations.txt").read_text().splitlines()) == SIZES["test"]
    # the same numbers from the checkpoint
    trained = load_trained(config.out)
    text = load_text(trained.config, "test")
    assert perplexity(trained, text) == pytest.approx(metrics["test_ppl"], rel=1e-6)
    for pair in aligned_pairs(trained, text, num_samples=2):
        assert pair.posterior.sum(-1).max() <= 1 + 1e-5
    if guide == "sparse_enum":
        assert 1 <= metrics["test_support"] <= 2
        with (config.out / "history.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert all(1 <= float(row["support_alignment"]) <= 2 for row in rows)
        assert all(0 < float(row["cut_alignment"]) <= 1 for row in rows)  # an untrained network looks everywhere


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 10, "init_from": True}, "give both runs the same sizes"),
        ({"dataset": "toy", "tokenize": "nltk"}, "toy is tokenized already; leave out --tokenize nltk"),
        ({"out_of_domain": ("toy",)}, "selective_pairs is 0, so that nothing would be measured; .* --selective-pairs"),
    ],
)
def test_what_does_not_go_together(options, message, translation_run, tmp_path):
    if "init_from" in options:
        options = options | {"init_from": translation_run}
    with pytest.raises(UserError, match=message):
        run(tiny_config(tmp_path, **options))


def test_perplexity_is_that_of_the_log_evidence(translation_run):
    trained = load_trained(translation_run)
    text = load_text(trained.config, "test")
    trained.module.eval()
    elbo, guide = AlignmentELBO(max_plate_nesting=2), AttentionGuide(trained.model, Marginal())
    total = count = 0
    for batch in batches(trained, text):
        total += elbo.loss(trained.model, guide, *model_arguments(batch))
        count += int(batch.target_mask.sum())
    exact = perplexity(trained, text)
    assert exact == pytest.approx(math.exp(total / count), rel=1e-5)
    assert perplexity(trained, text, k_max=1000) == pytest.approx(exact, rel=1e-6)
    assert perplexity(trained, text, k_max=1) != pytest.approx(exact, rel=1e-6)


def test_going_on_from_another_run_starts_with_its_network(tmp_path, translation_run, monkeypatch):
    config = tiny_config(tmp_path, guide="weibull", init_from=translation_run, learning_rate=1e-12, train_pairs=8)
    metrics = run(config)
    assert metrics["updates"] == 1
    before, after = load_trained(translation_run).model.state_dict(), load_trained(config.out).model.state_dict()
    assert before.keys() < after.keys()  # the prior network is new
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-6, rtol=0)
    assert (config.out / "vocabulary.json").read_text() == (translation_run / "vocabulary.json").read_text()
    # a finished run is not trained again
    monkeypatch.setattr(experiments.sequence.model, "fit_batches", None)
    assert run(replace(config, resume=True)) == metrics


def test_the_command_says_what_became_of_the_text_and_shows_the_first_sentences(tmp_path, capsys):
    text = write_text(tmp_path / "text")
    train = text / "train.de"
    train.write_text("zu viele Wörter " * 30 + "\n \n" + "".join(train.read_text().splitlines(keepends=True)[2:]))
    options = [*tiny_options(text), "--max-epochs", "1", "--skip-bad", "--k-max", "null"]
    assert command_line("train", *options, "--out", tmp_path / "run", "--progress") == 0
    out, err = capsys.readouterr()
    for name in ("test_ppl", "val_ppl", "more in metrics.json"):
        assert name in out
    assert "Computing in 32 bits" in err
    assert "training text: 22 pairs; left out in reading: 1 long, 1 empty\n" in err
    assert "warning: the network predicts words hardly better than their frequencies do" in err  # three updates
    assert (tmp_path / "run" / "figures" / "alignments.html").is_file()


def test_sizes_that_no_network_has_are_refused_ahead_of_the_run(tmp_path, capsys):
    assert command_line("train", "--vocabulary", 259, "--out", tmp_path / "run") == 2
    assert "--vocabulary is 259; expected a whole number of at least 260" in capsys.readouterr().err
    assert command_line("train", "--hidden", 17, "--out", tmp_path / "run") == 2
    assert "hidden is 17, expected an even number" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert len(train_tokenizer(["a"], size=260)) == 260
    with pytest.raises(ValueError, match="at least 260"):
        train_tokenizer(["a"], size=259)


# the learning rate

PLAIN = {"guide": "soft", "learning_rate": 0.002, "resume": True, "k_max": None, "beam": 1}


@pytest.fixture
def rates(monkeypatch):
    """Learning rate of every training step."""
    found, step = [], SequenceTraining.training_step

    def recorded(self, batch, batch_idx):
        found.append(self.optimizers().param_groups[0]["lr"])
        return step(self, batch, batch_idx)

    monkeypatch.setattr(SequenceTraining, "training_step", recorded)
    return found


def test_one_cycle_is_planned_over_all_epochs(tmp_path, rates):
    """It rises for a tenth of the steps and falls to nothing."""
    config = tiny_config(tmp_path, **PLAIN, schedule="one-cycle", max_epochs=4)
    run(config)
    assert len(rates) == 12
    assert rates[1] == max(rates) <= 0.002
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] < 0.002 / 100
    with pytest.raises(UserError, match="max_epochs"):
        run(replace(config, max_epochs=5))


# files of one's own


def test_translations_stand_in_the_order_of_the_lines_and_bad_lines_become_empty(translation_run, tmp_path, capsys):
    lines = [b"die Frau lacht .", b"", b"wort " * 300, b"gr\xfcn", "ein völlig neues Wort 漢字".encode()]
    file, turned = tmp_path / "new.de", tmp_path / "turned.de"
    file.write_bytes(b"\n".join(lines) + b"\n")
    turned.write_bytes(b"\n".join([lines[4], lines[0]]))
    assert command_line("translate", translation_run, file) == 0
    error = capsys.readouterr().err
    for part in ("line 2 is empty", "line 3 has 300 words; expected 200 at most", "line 4 is not UTF-8"):
        assert f"new.de: {part}" in error
    first, *empty, second = (tmp_path / "new.en").read_text().splitlines()
    assert empty == [""] * 3
    assert command_line("translate", translation_run, turned) == 0
    assert (tmp_path / "turned.en").read_text().splitlines() == [second, first]
    assert command_line("translate", translation_run, turned, "--max-length", 1, "--overwrite") == 0
    assert "turned.de: line 2 was cut at the largest length" in capsys.readouterr().err
    for options, part in (([], "--overwrite"), (["--out", file, "--overwrite"], "name another file by --out")):
        assert command_line("translate", translation_run, file, *options) == 1
        assert part in capsys.readouterr().err


def test_evaluation_on_files_is_that_of_the_same_text(translation_run, capsys):
    text = translation_run.parent / "text"
    files = {"source_file": text / "test.de", "target_file": text / "test.en"}
    found = evaluate_run(EvaluateConfig(run=translation_run, **files, sum_over="all"))
    trained = json.loads((translation_run / "metrics.json").read_text())
    expected = {"perplexity": trained["test_ppl"], "BLEU": trained["test_bleu"], "chrF": trained["test_chrf"]}
    assert found == pytest.approx(expected, rel=1e-6)
    assert "--sum-over" not in capsys.readouterr().out
    assert command_line("evaluate", translation_run, "--sum-over", "3", "--k-max", "1") == 0
    assert "sums over the 3 most probable alignments" in capsys.readouterr().out
    assert command_line("evaluate", translation_run, "--source-file", text / "test.de") == 1
    assert "--target-file" in capsys.readouterr().err


def test_the_search_of_a_trained_network_has_another_length_penalty(translation_run, monkeypatch):
    given, search = [], evaluation.sequence.search
    monkeypatch.setattr(
        evaluation.sequence, "search", lambda *parts, **options: given.append(options) or search(*parts, **options)
    )
    for penalty in (None, 0.0):
        evaluate_run(EvaluateConfig(run=translation_run, length_penalty=penalty))
    assert {options.get("length_penalty", "as in training") for options in given} == {"as in training", 0.0}


RAW = {"de": "Er kam, sah (z.B.) Rom.", "en": 'He didn\'t go, "today".'}


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, "er kam , sah ( z.b. ) rom ."),
        ({"lowercase": False, "tokenize": "none"}, "Er kam, sah (z.B.) Rom."),
    ],
)
def test_own_text_is_divided_into_words_and_scored_as_it_is_written(tmp_path, options, source):
    for language, line in RAW.items():
        (tmp_path / f"test.{language}").write_text(f"{line}\n")
    config = TranslationConfig(dataset="own", text=tmp_path, **options)
    assert load_text(config, "test").source == [source]
    text = ParallelText(["x"], [divide_words(RAW["en"], config.words)], "toys", ("de", "en"))
    for score in (bleu, chrf):
        assert score([Translated(RAW["en"], cut=False)], text, config).score == pytest.approx(100)
        same = score([Translated(RAW["en"].upper(), cut=False)], text, config).score == pytest.approx(100)
        assert same == config.lowercase


@pytest.mark.parametrize("line", ["wort " * 200_000, "w" * 1_000_000], ids=["words", "letters"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_a_file_without_line_ends_is_no_sentence(tmp_path, line, split):
    """It would hang in the network: training pairs are left out for their length, others are refused by their line."""
    for language in ("de", "en"):
        for name in ("train", split):
            (tmp_path / f"{name}.{language}").write_text(f"ein Satz .\n{line}\n")
    config = TranslationConfig(dataset="own", text=tmp_path)
    assert load_text(config, "train").skipped == {"long": 1}
    message = rf"{split}\.de: line 2 has \d+ (words|letters); expected (1000|50000) at most"
    with pytest.raises(ValueError, match=message):
        load_text(config, split)
    assert len(load_text(replace(config, skip_bad=True), split)) == 1


# what uncertainty is worth


@pytest.fixture(scope="module")
def trained(translation_run):
    return load_trained(translation_run, device="cpu")


def test_uncertainty_of_a_translation_by_its_words(trained):
    text = load_text(trained.config, "test")
    translations = translate(trained, text)
    found = translation_uncertainty(trained, text, translations)
    assert list(found) == [*MEASURES]
    data = EncodedText(text, trained.vocabulary)
    data.targets = [torch.tensor(one.tokens, dtype=torch.int64) for one in translations]
    for place in range(len(text)):
        batch, parts = data[[place]], []
        source, mask, target_in, target_out, _ = model_arguments(batch)
        state = trained.model.start(trained.model.encode(source, mask), mask)
        for step, wanted in zip(trained.model.steps(state, target_in), target_out[0].tolist(), strict=True):
            log_probs = next_word_log_probs(trained.model, step)[0].double()
            parts.append((-log_probs[wanted], torch.special.entr(log_probs.exp()).sum()))
        expected = torch.tensor(parts).mean(0).tolist()
        measured = [found["log probability"][place].item(), found["entropy"][place].item()]
        assert measured == pytest.approx(expected, rel=1e-4)
    assert found["length"].tolist() == [len(ids) for ids in EncodedText(text, trained.vocabulary).sources]
    assert (found["attention"] >= 0).all()
    assert (found["attention"] <= found["entropy"] + 1e-6).all()


def test_scores_at_coverage_and_text_from_elsewhere(trained):
    text = load_text(trained.config, "test").first(4)
    numbers = uncertainty_metrics(trained, text, foreign_texts(trained.config, ("toy",)), 4)
    translations = translate(trained, text, SearchOptions())
    certain = translation_uncertainty(trained, text, translations)["entropy"].argsort()[:2].tolist()
    half = bleu([translations[place] for place in certain], text.chosen(certain), trained.config).score
    assert numbers["BLEU at 50% by entropy"] == pytest.approx(half)
    whole = bleu(translations, text, trained.config).score
    assert [numbers[f"BLEU at 100% by {measure}"] for measure in MEASURES] == pytest.approx([whole] * 4)
    assert 0 <= numbers["auroc of toy by entropy"] <= 1
    assert all(map(math.isfinite, numbers.values()))


def test_rank_correlation_is_1_where_certainty_and_score_agree(trained, monkeypatch):
    text = load_text(trained.config, "test").first(3)
    right = [Translated(sentence, cut=False, tokens=(5,)) for sentence in text.target]
    worse = right[1]._replace(text=right[1].text[: len(right[1].text) // 2])
    monkeypatch.setattr(evaluation, "translate", lambda *args, **options: [right[0], worse, worse._replace(text="#")])
    doubts = {"entropy": torch.tensor([0.0, 1.0, 5.0]), "length": torch.tensor([3.0, 2.0, 1.0])}
    monkeypatch.setattr(evaluation, "translation_uncertainty", lambda *_: doubts | {"attention": torch.zeros(3)})
    numbers = uncertainty_metrics(trained, text, {}, 3)
    assert numbers["rank correlation by entropy"] == pytest.approx(1)
    assert numbers["rank correlation by length"] == pytest.approx(-1)
    assert "rank correlation by attention" not in numbers  # it is the same everywhere
    assert numbers["chrF at 25% by entropy"] == pytest.approx(100)
