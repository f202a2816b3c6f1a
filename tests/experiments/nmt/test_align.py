"""Alignments of a trained network, by one direction or both, and of files: gold links, the table and the page."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from experiments.data.text.batches import Vocabulary
from experiments.data.text.parallel_text import ParallelText
from experiments.nmt.align import (
    COLUMNS,
    PairAlignment,
    aligned_pairs,
    alignment_metrics,
    table_lines,
)
from experiments.nmt.evaluation import perplexity
from experiments.nmt.task import build, load_text, load_trained
from experiments.nmt.texts import batches, read_gold
from experiments.sequence.alignments import align_batch, has_posterior_gap
from experiments.sequence.model import model_arguments
from pyro_attention.analysis import Alignment, alignment_error_rate, hard_alignment, read_pharaoh
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.families.gaussian import FixedGaussianPrior
from tests.analysis.random_inputs import aligned
from tests.experiments.nmt.tiny_text import command_line


@pytest.fixture(scope="module")
def config(translation_run):
    return load_trained(translation_run, device="cpu").config


@pytest.fixture
def vocabulary(translation_run):
    return Vocabulary.load(translation_run / "vocabulary.json")


@pytest.mark.parametrize("scheme", ["categorical_enum", "marginal", "sparse_enum", "weibull"])
def test_the_posterior_gap_is_what_the_bound_leaves_of_the_evidence(config, vocabulary, scheme):
    trained = build(replace(config, guide=scheme), vocabulary)
    for parameter in trained.module.parameters():  # as far from the prior as from the posterior
        parameter.data.normal_(std=0.5)
    text = load_text(config, "test")
    gold = None
    if scheme in ("marginal", "weibull"):
        gold = [aligned("0-0", *map(len, words)) for words in text.word_pairs()]
    summary = alignment_metrics(trained, replace(text, alignments=gold))
    # the prior of weibull sees the source alone
    assert ("test_prior_aer" in summary, "test_posterior_aer" in summary) == (scheme == "marginal", gold is not None)
    if gold is not None:
        assert "test_posterior_gap" not in summary
        return
    pairs = list(batches(trained, text))
    loss = sum(trained.module.objective(*model_arguments(batch)).item() for batch in pairs)
    words = sum(int(batch.target_mask.sum()) for batch in pairs)
    gap = loss / words - math.log(perplexity(trained, text))
    assert gap > 0.05
    assert summary["test_posterior_gap"] == pytest.approx(gap, rel=1e-3)


def test_the_exact_posterior_is_that_of_a_network_without_inference_network(config, vocabulary):
    inferring, summing = (build(replace(config, guide=guide), vocabulary) for guide in ("categorical_enum", "marginal"))
    summing.model.load_state_dict(inferring.model.state_dict())
    batch = next(batches(inferring, load_text(config, "test")))
    found, expected = (align_batch(trained, batch, num_samples=1, exact=True) for trained in (inferring, summing))
    torch.testing.assert_close(found.exact, expected.posterior[0])
    assert (found.exact - found.posterior[0]).abs().max() > 0.01
    assert expected.exact is None
    assert align_batch(inferring, batch, num_samples=1).exact is None  # only where it is asked for
    assert has_posterior_gap(inferring)
    assert not has_posterior_gap(summing)


@pytest.mark.parametrize("from_prior", [False, True])
def test_an_inference_network_may_start_at_the_prior(config, vocabulary, from_prior):
    trained = build(replace(config, posterior_from_prior=from_prior), vocabulary)
    batch = next(batches(trained, load_text(config, "test")))
    found = align_batch(trained, batch, num_samples=1)
    difference = (found.prior - found.posterior[0])[batch.target_mask].abs().max()
    assert (difference < 1e-6) == from_prior


@pytest.fixture
def text(translation_run):
    return translation_run.parent / "text"


@pytest.fixture
def align(translation_run, text, tmp_path):
    """Align the test text; the exit code."""

    def align(*options, run=translation_run, source=text / "test.de", target=text / "test.en", out=tmp_path / "out"):
        return command_line("align", run, source, target, "--out", out, *options)

    return align


def links_of(folder):
    return (folder / "alignments.txt").read_text()


def table_of(folder):
    head, *rows = (line.split("\t") for line in (folder / "probabilities.tsv").read_text().splitlines())
    assert tuple(head) == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


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

TEXT = ParallelText(["a b", "a b c"], ["x y z w", "x y z"], "text", ("de", "en"))


@pytest.mark.parametrize("lines", ["0p0 1-3\n2-0\n", "0001 2 4 S\n0001 1 1 P\n0002 3 1\n"])
def test_gold_links_in_both_formats(tmp_path, lines):
    (tmp_path / "gold").write_text(lines)
    assert [str(links) for links in read_gold(tmp_path / "gold", TEXT)] == ["0p0 1-3", "2-0"]


def test_gold_links_that_do_not_fit_leave_the_results_of_before(align, text, tmp_path, capsys):
    assert align("--gold", text / "gold.txt") == 0
    found, printed = links_of(tmp_path / "out"), capsys.readouterr().out
    links = [Alignment(one.sure, 99, 99) for one in read_pharaoh(tmp_path / "out" / "alignments.txt").values()]
    rate = alignment_error_rate(links, list(read_pharaoh(text / "gold.txt").values())).aer
    assert f"AER {100 * rate:.1f} %, precision" in printed
    for lines, part in {"0-99\n" * 6: "expected source-target links, counted from 0", "7 1 1\n": "sentence 7"}.items():
        (tmp_path / "gold").write_text(lines)
        assert align("--gold", tmp_path / "gold", "--overwrite") == 1
        assert part in capsys.readouterr().err
    assert align() == 1  # nothing is replaced unasked
    assert "--overwrite" in capsys.readouterr().err
    assert links_of(tmp_path / "out") == found


# the exact posterior, the table and the page


def test_links_by_the_exact_posterior(align, translation_run, reverse_run, text, tmp_path):
    trained = load_trained(translation_run, device="cpu")
    pairs = aligned_pairs(trained, load_text(trained.config, "test"), num_samples=1, exact=True)
    assert align("--exact", "--table", "--gold", text / "gold.txt") == 0
    assert links_of(tmp_path / "out") == "".join(f"{hard_alignment(pair.exact)}\n" for pair in pairs)
    for row in table_of(tmp_path / "out"):
        pair, place = pairs[int(row["line"]) - 1], (int(row["target"]), int(row["source"]))
        assert float(row["posterior"]) == pytest.approx(pair.exact[place].item(), abs=1e-4)
        assert float(row["prior"]) == pytest.approx(pair.prior[place].item(), abs=1e-4)
        assert (row["source_word"], row["low"], row["high"]) == (pair.source[place[1]], "", "")
    # not the inference network's
    assert max((pair.exact - pair.posterior[0]).abs().max() for pair in pairs) > 0.01
    page = (tmp_path / "out" / "alignments.html").read_text()
    index, view = (json.loads(re.search(f'id="viewer-{name}">(.*?)</script>', page)[1]) for name in ("index", "2"))
    assert [one["title"] for one in index["views"]] == [f"Pair {number}" for number in range(1, 7)]
    assert (view["source"], [panel["name"] for panel in view["panels"]]) == (pairs[2].source, ["prior", "posterior"])
    assert view["gold"]
    soft = load_trained(reverse_run, device="cpu")
    pairs = aligned_pairs(soft, load_text(soft.config, "test"), num_samples=1, exact=True)
    turned = {"source": text / "test.en", "target": text / "test.de", "run": reverse_run, "out": tmp_path / "soft"}
    assert align("--exact", **turned) == 0
    assert links_of(tmp_path / "soft") == "".join(f"{hard_alignment(pair.exact)}\n" for pair in pairs)
    assert max((pair.exact - pair.posterior[0]).abs().max() for pair in pairs) > 0.01


@pytest.mark.parametrize("prior", [DirichletPrior(), FixedGaussianPrior()], ids=["dirichlet", "gaussian"])
def test_weights_that_cannot_be_summed_out(prior, align, tmp_path, capsys, monkeypatch):
    def load(run, *, device):
        trained = load_trained(run, device=device)
        trained.model.attention.prior = prior
        return trained

    monkeypatch.setattr("experiments.nmt.commands.load_trained", load)
    assert align("--exact") == 1
    assert "whose weights cannot be summed out; leave out --exact" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_intervals_of_samples_in_the_table():
    samples = torch.linspace(0, 1, 11).view(11, 1, 1)
    pair = PairAlignment(["a", "b"], ["x"], None, torch.cat([samples, 1 - samples], -1))
    _, *rows = table_lines([pair], [Alignment(frozenset({(1, 0)}), 2, 1)], level=0.8)
    assert rows == ["1\t0\t0\ta\tx\t\t0.5000\t0.1000\t0.9000\t0", "1\t1\t0\tb\tx\t\t0.5000\t0.1000\t0.9000\t1"]


def test_unlikely_links_are_left_out_of_the_table_unless_chosen():
    pair = PairAlignment(
        ["a", "b", "c"], ["x"], torch.tensor([[0.5, 0.005, 0.495]]), torch.tensor([[[0.995, 0.005, 0]]])
    )
    for links, words in (({(1, 0)}, ["a", "b", "c"]), (set(), ["a", "c"])):
        _, *rows = table_lines([pair], [Alignment(frozenset(links), 3, 1)])
        assert [row.split("\t")[3] for row in rows] == words
