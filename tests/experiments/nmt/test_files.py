"""Files of the user's own: translating them, evaluating on them, and what becomes of their words."""

import json
import shutil

import pytest
import yaml

from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.datasets.text.word_rules import divide_words, join_words
from experiments.files import UserError
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.evaluation import Translated, bleu, chrf
from experiments.nmt.files import EvaluateConfig, evaluate_run
from experiments.nmt.model import read_config
from experiments.sequence import evaluation as sequence_evaluation
from tests.experiments.nmt.tiny_text import command_line, tiny_options, write_text

SENTENCES = ["die Frau lacht .", "ein Hund ruft ."]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "new.de"
    path.write_text("".join(f"{line}\n" for line in SENTENCES))
    return path


# what is there already


@pytest.mark.parametrize("out", [[], ["--out", "named.txt"]], ids=["beside the file", "named"])
def test_translations_replace_no_file_unasked(translation_run, file, out, capsys, monkeypatch):
    monkeypatch.chdir(file.parent)
    there = file.parent / (out[1] if out else "new.en")
    there.write_text("my own reference\n")
    assert command_line("translate", translation_run, file, *out) == 1
    assert there.read_text() == "my own reference\n"
    error = capsys.readouterr().err
    assert there.name in error
    assert "--overwrite" in error
    assert command_line("translate", translation_run, file, *out, "--overwrite") == 0
    assert len(there.read_text().splitlines()) == 2


@pytest.mark.parametrize("name", ["", "new.de/out.txt"], ids=["a folder", "inside of a file"])
def test_translations_need_a_place(translation_run, file, name, capsys, monkeypatch):
    monkeypatch.setattr("experiments.nmt.files.translate", None)  # refused before
    out = file.parent / name
    assert command_line("translate", translation_run, file, "--out", out, "--overwrite") == 1
    assert str(out) in capsys.readouterr().err


# lines that can not be translated, and translations that are cut


def test_bad_lines_become_empty_lines(translation_run, file, tmp_path, capsys):
    lines = [SENTENCES[0].encode(), b"", b"wort " * 300, b"gr\xfcn", SENTENCES[1].encode()]
    bad = tmp_path / "bad.de"
    bad.write_bytes(b"\n".join(lines) + b"\n")
    assert command_line("translate", translation_run, file) == 0
    capsys.readouterr()
    assert command_line("translate", translation_run, bad) == 0
    first, second = (tmp_path / "new.en").read_text().splitlines()
    assert (tmp_path / "bad.en").read_text().split("\n") == [first, "", "", "", second, ""]
    error = capsys.readouterr().err
    for part in ("line 2 is empty", "line 3 has 300 words; expected 200 at most", "line 4 is not UTF-8"):
        assert f"bad.de: {part}" in error
    assert error.count("its translation is an empty line") == 3


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_nothing_to_translate(translation_run, tmp_path, content, capsys):
    file = tmp_path / "new.de"
    file.write_text(content)
    assert command_line("translate", translation_run, file) == 1
    assert "new.de has no sentence to translate" in capsys.readouterr().err
    assert not (tmp_path / "new.en").exists()


def test_the_search_gets_its_options_and_cuts_are_said(translation_run, file, capsys, monkeypatch):
    asked, search = [], sequence_evaluation.beam_search

    def recorded(*arguments, **options):
        asked.append((options["max_length"], options["no_repeat"]))
        return search(*arguments, **options)

    monkeypatch.setattr(sequence_evaluation, "beam_search", recorded)
    assert command_line("translate", translation_run, file, "--max-length", "1", "--no-repeat", "2") == 0
    error = capsys.readouterr().err
    for line in (1, 2):
        assert f"new.de: the translation of line {line} was cut at 1 word pieces; --max-length" in error
    assert command_line("evaluate", translation_run, "--max-length", "1") == 0
    assert "6 of 6 translations were cut at 1 word pieces" in capsys.readouterr().out
    assert asked == [(1, 2), (1, None)]


# evaluation on files


def test_evaluation_on_files_is_that_of_the_same_text(translation_run, capsys):
    text = translation_run.parent / "text"
    files = {"source_file": text / "test.de", "target_file": text / "test.en"}
    found = evaluate_run(EvaluateConfig(run=translation_run, **files))
    assert found == evaluate_run(EvaluateConfig(run=translation_run))
    assert found.keys() == {"perplexity", "BLEU", "chrF"}
    assert "chrF: nrefs:1|case:lc" in capsys.readouterr().out


def test_an_exact_search_gives_the_bleu_of_the_training(translation_run, capsys):
    """By default it sums over the most probable alignments alone, and says so."""
    found = evaluate_run(EvaluateConfig(run=translation_run, sum_over="all"))
    trained = json.loads((translation_run / "metrics.json").read_text())
    assert (found["BLEU"], found["chrF"]) == (trained["test_bleu"], trained["test_chrf"])
    assert "--sum-over" not in capsys.readouterr().out
    assert command_line("evaluate", translation_run, "--sum-over", "3") == 0
    assert "sums over the 3 most probable alignments" in capsys.readouterr().out


def test_evaluation_is_written_as_json(translation_run, tmp_path, capsys):
    out, sized = tmp_path / "new" / "scores.json", ["--max-length", "1"]
    assert command_line("evaluate", translation_run, "--out", out, *sized) == 0
    written = json.loads(out.read_text())
    definitions = written.pop("definitions")
    assert written.keys() == definitions.keys() == {"perplexity", "BLEU", "chrF", "sentences", "cut"}
    assert written == evaluate_run(EvaluateConfig(run=translation_run, max_length=1)) | {"sentences": 6, "cut": 6}
    assert definitions["BLEU"].startswith("sacrebleu nrefs:1")
    capsys.readouterr()
    out.write_text("my own\n")
    assert command_line("evaluate", translation_run, "--out", out) == 1
    assert "scores.json is there already" in capsys.readouterr().err
    assert out.read_text() == "my own\n"
    assert command_line("evaluate", translation_run, "--out", out, *sized, "--overwrite") == 0
    assert json.loads(out.read_text())["cut"] == 6


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda folder: (folder / "b.en").write_text("one\n"), ["b.en: 1 lines, but 2", "line 2 has no partner"]),
        (lambda folder: (folder / "b.en").write_text("one\n\n"), ["b.en: line 2 is empty", "from both files"]),
        (lambda folder: (folder / "b.en").unlink(), ["b.en is missing"]),
        (lambda folder: (folder / "b.en").write_bytes(b"one\ntw\xf6\n"), ["b.en: line 2 is not UTF-8", "both files"]),
        (lambda folder: [(folder / name).write_text("") for name in ("a.de", "b.en")], ["are empty"]),
    ],
    ids=["no partner", "empty on one side", "missing", "another encoding", "nothing"],
)
@pytest.mark.parametrize("command", ["evaluate", "align"])
def test_pairs_of_files_that_do_not_go_together(translation_run, tmp_path, change, parts, command, capsys):
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    (tmp_path / "b.en").write_text("one\ntwo\n")
    change(tmp_path)
    files = [tmp_path / "a.de", tmp_path / "b.en"]
    if command == "evaluate":
        files = ["--source-file", files[0], "--target-file", files[1]]
    assert command_line(command, translation_run, *files) == 1
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error
    assert "skip" not in error  # these commands have no such option


def test_one_file_is_not_enough(translation_run, file, capsys):
    assert command_line("evaluate", translation_run, "--source-file", file) == 1
    assert "--target-file" in capsys.readouterr().err


# words


RAW = {"de": "Er kam, sah (z.B.) Rom.", "en": 'He didn\'t go, "today".'}


@pytest.fixture
def raw(tmp_path):
    """A folder of raw text."""
    for split in ("train", "val", "test"):
        for language, line in RAW.items():
            (tmp_path / f"{split}.{language}").write_text(f"{line}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ({}, "er kam , sah ( z.b. ) rom ."),
        ({"lowercase": False}, "Er kam , sah ( z.B. ) Rom ."),
        ({"tokenize": "none"}, "er kam, sah (z.b.) rom."),
    ],
)
def test_own_text_is_divided_into_words(raw, options, source):
    config = TranslationConfig(dataset="own", text=raw, **options)
    assert all(load_text(config, split).source == [source] for split in ("train", "val", "test"))


def test_named_data_sets_are_read_as_they_are():
    assert TranslationConfig(dataset="multi30k").words == "none"
    assert TranslationConfig(dataset="multi30k").tokenize is None
    assert TranslationConfig(dataset="own").tokenize == "nltk"
    with pytest.raises(UserError, match="toy is tokenised already; leave out --tokenize nltk"):
        load_text(TranslationConfig(dataset="toy", tokenize="nltk"), "test")


@pytest.mark.parametrize("line", [*RAW.values(), "Wer? Ich!", "3.5 % of $1,000"])
def test_words_are_joined_again(line):
    joined = join_words(divide_words(line, "nltk"), "nltk")
    assert joined.replace(" ", "") == line.replace(" ", "")
    assert divide_words(joined, "nltk") == divide_words(line, "nltk")


def test_the_choice_is_kept_with_the_run(translation_run, tmp_path):
    saved = yaml.safe_load((translation_run / "config.yaml").read_text())
    assert saved.pop("tokenize") == "nltk"
    assert read_config(translation_run).words == "nltk"
    # a run of before there was a choice
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    assert read_config(tmp_path).words == "none"


def test_what_becomes_of_own_text_is_said(tmp_path, capsys):
    options = [*tiny_options(write_text(tmp_path / "text")), "--max-epochs", "1"]
    assert command_line("train", *options, "--out", tmp_path / "run") == 0
    printed = capsys.readouterr().out
    for part in ("--no-lowercase", "--tokenize none"):
        assert part in printed


@pytest.mark.parametrize("lowercase", [True, False])
def test_scores_compare_sentences_as_they_are_written(lowercase):
    config = TranslationConfig(dataset="own", lowercase=lowercase)
    text = ParallelText(["x"], [divide_words(RAW["en"], "nltk")], "toys", ("de", "en"))
    for score in (bleu, chrf):
        assert score([Translated(RAW["en"], cut=False)], text, config).score == pytest.approx(100)
        same = score([Translated(RAW["en"].upper(), cut=False)], text, config).score == pytest.approx(100)
        assert same == lowercase


# panics of the tokenizer library


def test_a_panic_of_the_tokenizer_library_names_the_file(translation_run, file, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(translation_run, run)
    content = json.loads((run / "vocabulary.json").read_text())
    content["model"]["continuing_subword_prefix"] = "a prefix longer than any piece is"
    (run / "vocabulary.json").write_text(json.dumps(content))
    assert command_line("translate", run, file) == 1
    error = capsys.readouterr().err
    for part in (str(run / "vocabulary.json"), "replace it by an intact copy"):
        assert part in error
    assert error.strip().count("\n") == 0


def damaged(change):
    content = json.loads(train_tokenizer(["a b"], size=260).text)
    change(content)
    return json.dumps(content)


UNKNOWN_MARK = {"SpecialToken": {"id": "missing", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [UNKNOWN_MARK], "pair": [], "special_tokens": {}}
CUT = {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("post_processor", TEMPLATE, "no tokenizer"), ("truncation", CUT, "comes back as")],
    ids=["panics at use", "forgets text"],
)
def test_damage_that_shows_at_use_is_found_when_loading(field, value, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(damaged(lambda content: content.update({field: value})))


def test_ctrl_c_is_no_damage(monkeypatch):
    def interrupted(text):
        raise KeyboardInterrupt

    text = train_tokenizer(["a b"], size=260).text
    monkeypatch.setattr("experiments.datasets.text.vocabulary.Tokenizer.from_str", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        Vocabulary(text)


def test_a_vocabulary_has_no_more_pieces_than_its_text_gives():
    texts = ["der Hund ruft", "der Hund"] * 9
    assert train_tokenizer(texts, size=10**18) == train_tokenizer(texts, size=4000)
