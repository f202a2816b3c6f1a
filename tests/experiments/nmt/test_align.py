"""Aligning files: gold links in every order, both directions, prior and posterior, the table, and bad input."""

import json
import re
import shutil

import pytest
import torch

from experiments.files import UserError
from experiments.nmt.align import COLUMNS, table_lines
from experiments.nmt.alignments import PairAlignment
from experiments.nmt.gold import GoldLinks, better_reading, read_gold
from pyro_attention.analysis import Alignment, GoldAlignment, read_pharaoh, write_pharaoh
from tests.experiments.nmt.tiny_text import command_line, tiny_options


def links_of(folder):
    return (folder / "alignments.txt").read_text()


# what is there already


@pytest.mark.parametrize("name", ["alignments.txt", "words.en", "pair-1.png", "probabilities.tsv", "alignments.html"])
def test_nothing_is_replaced_unasked(align, tmp_path, name, capsys, monkeypatch):
    monkeypatch.setattr("experiments.nmt.align.aligned_pairs", None)  # refused before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    assert align("--pictures", "1", "--table", "--html") == 1
    error = capsys.readouterr().err
    assert name in error
    assert "--overwrite" in error
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_files_that_are_given_the_wrong_way_round_are_told(align, text, tmp_path, capsys):
    options = ["--guide", "soft", "--learning-rate", "0.03", "--max-epochs", "15", "--patience", "15"]
    assert command_line("train", *tiny_options(text), *options, "--out", tmp_path / "run") == 0
    capsys.readouterr()
    warning = "were they given the wrong way round?"
    assert align(run=tmp_path / "run") == 0
    assert warning not in capsys.readouterr().err
    assert align("--overwrite", run=tmp_path / "run", source=text / "test.en", target=text / "test.de") == 0
    assert warning in capsys.readouterr().err


# words


@pytest.mark.parametrize("with_gold", [False, True])
def test_links_count_the_words_of_files_that_are_written_too_or_with_gold_links_what_blanks_separate(
    align, tmp_path, with_gold
):
    for name, line in (("a.de", "Er kam, sah."), ("a.en", "He came, saw.")):
        (tmp_path / name).write_text(f"{line}\n")
    (tmp_path / "gold").write_text("0-0 1-1 2-2\n")
    options = ["--gold", tmp_path / "gold"] if with_gold else []
    assert align(*options, source=tmp_path / "a.de", target=tmp_path / "a.en") == 0
    words = {path.name: path.read_text() for path in (tmp_path / "out").glob("words.*")}
    assert words == ({} if with_gold else {"words.de": "er kam , sah .\n", "words.en": "he came , saw .\n"})
    linked = {int(link.partition("-")[2]) for link in links_of(tmp_path / "out").split()}
    assert linked == set(range(3 if with_gold else 5))


# gold links


def error_rate(capsys):
    return re.search(r"AER \d+\.\d %, precision \d+\.\d %, recall \d+\.\d %\n", capsys.readouterr().out)[0]


def rewritten(path, *, index=0, swapped=False, out):
    """The gold links of a Pharaoh file in another order or counted from 1."""
    links = [gold.transposed() if swapped else gold for gold in read_pharaoh(path).values()]
    write_pharaoh(out, links, index=index)
    return out


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("swapped", [False, True])
def test_gold_links_in_every_order(align, text, tmp_path, capsys, index, swapped):
    assert align("--gold", text / "gold.txt", out=tmp_path / "plain") == 0
    expected = error_rate(capsys)
    gold = rewritten(text / "gold.txt", index=index, swapped=swapped, out=tmp_path / "gold")
    options = ["--gold-index", index, "--gold-order", "target-source" if swapped else "source-target"]
    assert align("--gold", gold, *options) == 0
    assert error_rate(capsys) == expected


SIZES = [(2, 4), (3, 3)]


@pytest.mark.parametrize(
    ("lines", "options", "parts"),
    [
        ("0-0 3-1\n2-2\n", {}, ["line 1: link 3-1", "2 source and 4 target words", "with --gold-order target-source"]),
        ("1-1 2-4\n3-3\n", {}, ["line 1: link 2-4", "--gold-index 1"]),
        ("4-2 1-1\n3-3\n", {}, ["line 1: link 4-2", "--gold-index 1 --gold-order target-source"]),
        ("0-0\n0-2\n", {"index": 1}, ["line 1: link 0-0 has a word 0", "--gold-index 0"]),
        ("0-0\n7-7\n", {}, ["line 2: link 7-7", "is it of this text?"]),
        ("1 1 4 S\n2 0 0 P\n", {"index": 0}, ["sentence 1: link 1-4", "is it of this text?"]),
        ("0001 2 4\n", {"order": "target-source"}, ["sentence 1: link 2-4", "with --gold-order source-target"]),
        ("0-0\n", {}, ["has 1 sentences, the text 2"]),
        ("0-0\n0-0\n0-0\n", {}, ["has 3 sentences, the text 2"]),
        ("1 1 1\n3 1 1\n", {}, ["has a sentence 3", "from 1 to 2"]),
        ("x 1 1\n", {}, ["has a sentence x"]),
        ("0-0\nzwei\n", {}, ["line 2", "'zwei' is no link"]),
        ("\n\n", {}, ["holds no links"]),
        (b"0-0\n\xff\n", {}, ["expected UTF-8"]),
    ],
)
def test_gold_links_that_do_not_fit(tmp_path, lines, options, parts):
    path = tmp_path / "gold"
    path.write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    with pytest.raises(UserError) as info:
        read_gold(path, SIZES, **options)
    message = str(info.value)
    for part in (str(path), *parts):
        assert part in message
    for python in ("index=", "target_first", "lengths"):
        assert python not in message


@pytest.mark.parametrize("name", ["7", "0001"])
def test_sentence_names(tmp_path, name):
    (tmp_path / "gold").write_text("7\t0-0\n9\t1p2\n" if name == "7" else "0001 1 1\n0002 2 3 P\n")
    found = read_gold(tmp_path / "gold", SIZES)
    assert [str(links) for links in found.links] == ["0-0", "1p2"]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_reading_that_agrees_much_better_is_named(swapped):
    links = [Alignment(frozenset((i, (i + 1) % 30) for i in range(30)), 30, 30)]
    gold = [GoldAlignment(part.links) for part in links]
    turned = [part.transposed() for part in gold]
    warning = better_reading(
        links, GoldLinks(*((turned, {"--gold-order x": gold}) if swapped else (gold, {"x": turned})))
    )
    assert (warning is not None) == swapped
    assert warning is None or "with --gold-order x the AER would be 0.0 % instead of 100.0 %" in warning


def test_the_command_warns_of_a_better_reading(align, tmp_path, capsys):
    assert align(out=tmp_path / "first") == 0
    # what the network itself finds, swapped; the sentences are as long on both sides
    sentence = "die frau lacht und der mann ruft heute wieder laut"
    for name in ("a.de", "a.en"):
        (tmp_path / name).write_text(f"{sentence}\n" * 20)
    files = {"source": tmp_path / "a.de", "target": tmp_path / "a.en"}
    assert align(**files, out=tmp_path / "second") == 0
    gold = rewritten(tmp_path / "second" / "alignments.txt", swapped=True, out=tmp_path / "gold")
    capsys.readouterr()
    assert align("--gold", gold, **files, out=tmp_path / "third") == 0
    assert "with --gold-order target-source the AER would be 0.0 % instead of " in capsys.readouterr().err
    assert align("--gold", gold, "--gold-order", "target-source", **files, out=tmp_path / "fourth") == 0
    assert "warning" not in capsys.readouterr().err


def test_results_stay_when_something_else_is_wrong(align, text, tmp_path):
    assert align() == 0
    found = links_of(tmp_path / "out")
    (tmp_path / "gold").write_text("0-99\n" * 6)
    assert align("--gold", tmp_path / "gold", "--overwrite") == 1
    assert links_of(tmp_path / "out") == found


# both directions


@pytest.mark.parametrize("other", ["same direction", "other words"])
def test_the_other_network_must_be_of_the_other_direction(
    align, translation_run, reverse_run, other, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("experiments.nmt.align.aligned_pairs", None)  # refused before
    run = translation_run
    if other == "other words":
        run = tmp_path / "other"
        shutil.copytree(reverse_run, run)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("tokenize: nltk", "tokenize: none"))
    assert align("--reverse", run) == 1
    error = capsys.readouterr().err
    part = "translates from de to en; expected a network from en to de" if run == translation_run else "--tokenize none"
    assert f"--reverse {run}" in error
    assert part in error


# the page


def test_a_page_with_two_networks(align, translation_run, text, tmp_path, capsys):
    shutil.copytree(translation_run, tmp_path / "other")
    assert align("--html", "--compare", f"[{tmp_path / 'other'}]", "--gold", text / "gold.txt") == 0
    path = tmp_path / "out" / "alignments.html"
    assert str(path) in capsys.readouterr().out
    page = path.read_text()
    index, view = (json.loads(re.search(f'id="viewer-{name}">(.*?)</script>', page)[1]) for name in ("index", "2"))
    assert [one["title"] for one in index["views"]] == [f"Pair {number}" for number in range(1, 7)]
    assert view["source"] == (text / "test.de").read_text().splitlines()[2].lower().split()
    names = [(panel["group"], panel["name"]) for panel in view["panels"]]
    assert names == [
        (f"categorical_enum ({folder})", name) for folder in ("run", "other") for name in ("prior", "posterior")
    ]
    ours, theirs = view["panels"][1], view["panels"][3]
    assert ours["mean"] == theirs["mean"]
    assert view["gold"]


@pytest.mark.parametrize("other", ["no page", "other direction", "other letters"])
def test_networks_that_cannot_stand_on_one_page(
    align, translation_run, reverse_run, other, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("experiments.nmt.align.aligned_pairs", None)  # refused before
    run, html = reverse_run, () if other == "no page" else ("--html",)
    if other == "other letters":
        run = tmp_path / "other"
        shutil.copytree(translation_run, run)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("lowercase: true", "lowercase: false"))
    assert align(*html, "--compare", f"[{run}]") == 1
    parts = {
        "no page": "--compare is about the page of --html",
        "other direction": "was trained with source en",
        "other letters": "was trained with lowercase False",
    }
    assert parts[other] in capsys.readouterr().err


def test_a_page_of_a_long_text_has_its_first_pairs(align, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("experiments.nmt.align.MOST_PAIRS", 4)
    assert align("--html") == 0
    assert "alignments.html has the first 4 of 6 pairs" in capsys.readouterr().out
    assert (tmp_path / "out" / "alignments.html").read_text().count('type="application/json"') == 5


# prior, posterior and the table


def test_links_by_the_prior(align, reverse_run, text, tmp_path, capsys):
    assert align("--weights", "prior", "--table") == 0
    rows = [line.split("\t") for line in (tmp_path / "out" / "probabilities.tsv").read_text().splitlines()]
    assert tuple(rows[0]) == COLUMNS
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows[1:]]
    # the links of the table are those of the file, and of each target word's most probable by the prior
    chosen = [(row["line"], f"{row['source']}-{row['target']}") for row in table if row["link"] == "1"]
    lines = links_of(tmp_path / "out").splitlines()
    assert sorted(chosen) == sorted((str(n), link) for n, line in enumerate(lines, 1) for link in line.split())
    for row in table:
        if row["link"] == "1":
            rivals = [r["prior"] for r in table if (r["line"], r["target"]) == (row["line"], row["target"])]
            assert float(row["prior"]) == max(map(float, rivals))
        assert row["low"] == row["high"] == ""  # the posterior is exact
    sentence = (text / "test.de").read_text().splitlines()[0].lower().split()
    assert all(row["source_word"] == sentence[int(row["source"])] for row in table if row["line"] == "1")
    # soft attention has none
    files = {"source": text / "test.en", "target": text / "test.de", "run": reverse_run, "out": tmp_path / "soft"}
    assert align("--weights", "prior", **files) == 1
    assert "--weights posterior" in capsys.readouterr().err
    assert not (tmp_path / "soft").exists()


def test_intervals_of_samples_in_the_table():
    samples = torch.linspace(0, 1, 11).view(11, 1, 1)
    pair = PairAlignment(["a", "b"], ["x"], None, torch.cat([samples, 1 - samples], -1))
    _, *rows = table_lines([pair], [Alignment(frozenset({(1, 0)}), 2, 1)], level=0.8)
    assert rows == ["1\t0\t0\ta\tx\t\t0.5000\t0.1000\t0.9000\t0", "1\t1\t0\tb\tx\t\t0.5000\t0.1000\t0.9000\t1"]


@pytest.mark.parametrize(("links", "words"), [({(1, 0)}, ["a", "b", "c"]), (set(), ["a", "c"])])
def test_unlikely_links_are_left_out_of_the_table_unless_chosen(links, words):
    posterior = torch.tensor([[[0.995, 0.005, 0.0]]])
    pair = PairAlignment(["a", "b", "c"], ["x"], torch.tensor([[0.5, 0.005, 0.495]]), posterior)
    _, *rows = table_lines([pair], [Alignment(frozenset(links), 3, 1)])
    assert [row.split("\t")[3] for row in rows] == words


# probabilities of both directions


def test_probabilities_of_both_directions(align, reverse_run, tmp_path):
    """The table has the product by which the links were chosen."""
    options = ["--reverse", reverse_run, "--symmetrise", "product", "--method", "threshold", "--threshold", "0.02"]
    assert align(*options, "--table") == 0
    rows = [line.split("\t") for line in (tmp_path / "out" / "probabilities.tsv").read_text().splitlines()[1:]]
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    assert {row["link"] for row in table} == {"0", "1"}
    for row in table:
        assert (float(row["posterior"]) > 0.02) == (row["link"] == "1") or row["posterior"] == "0.0200"
        assert row["prior"] == ""  # soft attention, of the other direction, has none
    assert links_of(tmp_path / "out").count("-") == sum(row["link"] == "1" for row in table)


def test_what_is_chosen_where_nothing_is_said(align, reverse_run, tmp_path):
    both, found = ["--reverse", reverse_run], []
    for options in (both, [*both, "--symmetrise", "geometric", "--method", "mbr"], [], ["--method", "argmax"]):
        assert align(*options, "--overwrite") == 0
        found.append(links_of(tmp_path / "out"))
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize("combine", ["product", "geometric", "mean"])
def test_combined_probabilities_have_no_most_probable_link(align, reverse_run, combine, tmp_path, capsys):
    assert align("--reverse", reverse_run, "--symmetrise", combine, "--method", "argmax") == 1
    assert (
        f"--symmetrise {combine} combines probabilities; expected --method mbr or threshold" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sentence", "undivided"),
    [
        ("今天天气很好我们一起去公园散步吧", True),
        ("今天 天气 很 好 我们 一起 去 公园 散步 吧", False),
        ("เขาไปโรงเรียนทุกวันตอนเช้า", True),
        ("わたしはきのうほんをよみました", True),
        ("Donaudampfschifffahrtsgesellschaft fährt", False),
    ],
)
def test_languages_without_blanks(align, sentence, undivided, tmp_path, capsys):
    for name, line in (("a.de", sentence), ("a.en", "nice day")):
        (tmp_path / name).write_text(f"{line}\n", encoding="utf-8")
    assert align(source=tmp_path / "a.de", target=tmp_path / "a.en") == int(undivided)
    error = capsys.readouterr().err
    assert ("a.de: line 1 has" in error and "expected one token a word" in error) == undivided
