"""The captioning script end to end: every scheme, resuming, photographs, pictures, and bad input."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

import experiments.sequence.train
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import DEFINITIONS, batches
from experiments.captioning.figures import attention_figure, region_view, uncertainty_figure, view_caption, write_page
from experiments.captioning.model import build, load_trained
from experiments.captioning.pointing import pointing
from experiments.captioning.train import CaptioningTask
from experiments.datasets.images.digit_scenes import digit_scenes
from experiments.datasets.images.region_captions import EncodedCaptions, OneCaptionSampler, RegionCaptions
from experiments.datasets.text.batches import Batch
from experiments.datasets.text.vocabulary import train_tokenizer
from experiments.files import UserError
from experiments.run import run
from experiments.sequence.alignments import BatchAlignment, align_batch
from experiments.sequence.model import perplexity
from experiments.sequence.uncertainty import word_uncertainty
from guides.names import SchemeName
from guides.schemes import build_scheme
from models.decoding import Inference
from models.decoding.next_word import next_word_mixture
from pyro_attention import AlignmentELBO, AttentionGuide, Marginal
from pyro_attention.analysis import decompose_uncertainty
from tests.experiments.captioning.tiny_captions import SIZES, TINY, command_line, small_scenes

TASK, CAPTION = CaptioningTask(), "a seven left of a two"


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


def tiny_config(tmp_path, **options):
    return CaptioningConfig(**(TINY | {"out": tmp_path / "run"} | options))


@pytest.fixture
def finished(tmp_path):
    """A finished run."""

    def train(**options):
        config = tiny_config(tmp_path, **options)
        run(TASK, config)
        return config.out

    return train


def trained_and_data(folder):
    trained = load_trained(folder, 70)
    return trained, load_images(trained.config)["test"]


# training


@pytest.mark.parametrize("guide", get_args(SchemeName))
def test_every_scheme_trains_and_evaluates(guide, tmp_path):
    config = tiny_config(tmp_path, guide=guide, warm_start=1)
    metrics = run(TASK, config)
    assert metrics.keys() <= DEFINITIONS.keys()
    assert all(math.isfinite(value) for value in metrics.values())
    assert 1 < metrics["test_ppl"] < 400
    assert 0 <= metrics["test_entropy"] <= math.log(9) + 1e-4
    assert metrics["updates"] == 2 * SIZES["train"] / TINY["batch_size"]
    assert len((config.out / "captions.txt").read_text().splitlines()) == SIZES["test"]
    trained, data = trained_and_data(config.out)
    assert sum(p.numel() for p in trained.model.parameters()) < metrics["parameters"] or (
        not build_scheme(guide).amortised
    )
    # the same numbers from the checkpoint
    assert perplexity(trained, batches(trained, data, references=1)) == pytest.approx(metrics["test_ppl"], rel=1e-5)


@pytest.mark.parametrize("from_prior", [False, True])
def test_an_inference_network_may_start_at_the_prior(from_prior, tmp_path):
    config = tiny_config(tmp_path, guide="categorical_enum", posterior_from_prior=from_prior)
    data = load_images(config)["test"]
    words = train_tokenizer([captions[0] for captions in data.captions], size=260)
    trained = build(config, words, data.regions.size(2))
    batch = next(iter(batches(trained, data, references=1)))
    found = align_batch(trained, batch, num_samples=1)
    difference = (found.prior - found.posterior[0])[batch.target_mask].abs().max()
    assert (difference < 1e-6) == from_prior


@pytest.mark.parametrize("guide", ["soft", "weibull", "hard_sample"])
def test_a_sampled_input_feed(guide, tmp_path):
    metrics = run(TASK, tiny_config(tmp_path, guide=guide, input_feed="sampled", max_epochs=1))
    assert 1 < metrics["test_ppl"] < 400
    with pytest.raises(UserError, match="input_feed expected"):
        run(TASK, tiny_config(tmp_path / "other", guide="hard_enum", input_feed="sampled"))


def test_perplexity_is_that_of_the_log_evidence(finished):
    trained, data = trained_and_data(finished(guide="categorical_enum"))
    elbo, guide = AlignmentELBO(max_plate_nesting=2), AttentionGuide(trained.model.eval(), Marginal())
    total = count = 0
    for batch in batches(trained, data, references=5):
        total += elbo.loss(trained.model, guide, *trained.module.arguments(batch))
        count += int(batch.target_mask.sum())
    found = perplexity(trained, batches(trained, data, references=5))
    assert found == pytest.approx(math.exp(total / count), rel=1e-5)


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    config = tiny_config(tmp_path, guide="soft")
    metrics = run(TASK, config)
    monkeypatch.setattr(experiments.sequence.train, "fit_batches", None)
    assert run(TASK, replace(config, resume=True)) == metrics
    with pytest.raises(UserError, match="another configuration"):
        run(TASK, replace(config, resume=True, dropout=0.5))


def test_going_on_from_another_run_starts_with_its_network(tmp_path, finished):
    first = finished(guide="soft")
    config = tiny_config(tmp_path, out=tmp_path / "next", init_from=first, learning_rate=1e-12, max_epochs=1)
    run(TASK, config)
    before, after = (load_trained(folder, 70).model.state_dict() for folder in (first, config.out))
    assert all(name.startswith("attention.prior.") for name in after.keys() - before.keys())  # the network is new
    for name in before.keys() & after.keys():
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    with pytest.raises(UserError, match="give both runs the same sizes"):
        run(TASK, tiny_config(tmp_path, out=tmp_path / "wide", init_from=first, hidden=10))


# data


def digit_data(**sizes):
    scenes = digit_scenes(**({"train": 5, "val": 1, "test": 1} | sizes))["train"]
    return RegionCaptions(
        scenes.regions, scenes.captions, scenes.grid, scenes.canvases, "digits", "pixels", scenes=scenes
    )


def test_every_image_comes_once_an_epoch_with_a_caption_of_its_own():
    data = digit_data()
    vocabulary = train_tokenizer([caption for texts in data.captions for caption in texts], size=300)
    pairs = EncodedCaptions(data, vocabulary)
    sampler = OneCaptionSampler(pairs, sentences=2, seed=3)
    epochs = [[pair for batch in sampler.batches(epoch) for pair in batch] for epoch in range(4)]
    assert len({tuple(sorted(epoch)) for epoch in epochs}) > 1
    for epoch in epochs:
        assert sorted(pairs.image[pair] for pair in epoch) == list(range(5))
    assert sampler.batches(2) == OneCaptionSampler(pairs, sentences=2, seed=3).batches(2)
    batch = pairs[epochs[0][:2]]
    for row, pair in enumerate(epochs[0][:2]):
        image = pairs.image[pair]
        said = vocabulary.decode(batch.target_out[row].tolist())
        assert said == data.captions[image][pair - pairs.firsts[image]]
        assert torch.equal(batch.source[row], data.regions[image])
    assert batch.target_mask.sum(1).tolist() == [pairs.lengths[pair][1] for pair in epochs[0][:2]]


def test_pointing_of_known_weights(monkeypatch, finished):
    trained, _ = trained_and_data(finished(guide="hard_enum", max_epochs=1))
    data = digit_data(train=3)
    captions = [texts[0] for texts in data.captions]
    cells = [data.scenes.word_cells(image, caption) for image, caption in enumerate(captions)]
    first = next(word for word, cell in enumerate(cells[0]) if cell >= 0)  # it may have many pieces

    def looks(wrong):
        """All weight on the right cell, or on another one for one digit in the first caption; .6 in the prior."""

        def align(trained, batch: Batch, *, num_samples):
            posterior = torch.zeros(1, *batch.target_out.shape, 9)
            for row, image in enumerate(batch.indices.tolist()):
                words = trained.vocabulary.words(batch.target_out[row, : batch.target_mask[row].sum()].tolist())
                for place, word in enumerate(words):
                    cell = 0 if word is None or cells[image][word] < 0 else cells[image][word]
                    if word is not None and cells[image][word] >= 0:
                        cell = (cell + (wrong and image == 0 and word == first)) % 9
                    posterior[0, row, place, cell] = 1
            return BatchAlignment(0.6 * posterior[0] + 0.4 / 9, posterior)

        return align

    count = sum(cell >= 0 for row in cells for cell in row)
    for wrong in (False, True):
        monkeypatch.setattr("experiments.captioning.pointing.align_batch", looks(wrong))
        found = pointing(trained, data, captions)
        expected = (count - wrong) / count
        assert found["test_pointing"] == pytest.approx(expected)
        assert found["test_pointing_samples"] == found["test_pointing_prior"] == found["test_pointing"]
        assert found["test_pointing_mass"] == pytest.approx(expected)
        assert found["test_pointing_prior_mass"] == pytest.approx(0.6 * expected + 0.4 / 9)
    # a digit that is not there counts as missed
    absent = next(name for name in ("one", "two", "three", "four") if name not in " ".join(data.captions[0]))
    monkeypatch.setattr("experiments.captioning.pointing.align_batch", looks(False))
    cells[0] = [-1, -1]
    captions[0] = f"a {absent}"
    assert pointing(trained, data, captions)["test_pointing"] < 1
    assert pointing(trained, replace(data, scenes=None), captions) == {}


# pictures


@pytest.mark.parametrize("guide", ["weibull", "soft", "hard_enum", "categorical_sample", "dirichlet"])
def test_show(guide, tmp_path, finished, capsys):
    folder = finished(guide=guide, max_epochs=1)
    assert command_line("show", folder, "--images", "[0, 2]", "--html", "--out", tmp_path / "pictures") == 0
    names = {f"{guide}-{image}-{kind}.png" for image in (0, 2) for kind in ("attention", "uncertainty")}
    names |= {"captions.html"}
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == names
    assert command_line("show", folder, "--photo", "my.jpg") == 1
    assert "a photograph is not (dataset is digits)" in capsys.readouterr().err
    assert command_line("show", folder, "--images", "[99]") == 1
    assert "no test image 99" in capsys.readouterr().err
    assert command_line("show", tmp_path / "nothing") == 1
    assert "config.yaml" in capsys.readouterr().err


def test_the_pictures_show_the_weights(finished):
    trained, data = trained_and_data(finished(guide="weibull", max_epochs=1))
    view = view_caption(trained, data, 1, CAPTION, num_samples=20)
    assert view.words == [*CAPTION.split(), "(end)"]
    assert [name for name, _, _ in view.kinds] == ["prior", "posterior mean", "width of the 95% credible interval"]
    for _, _, weights in view.kinds[:2]:
        torch.testing.assert_close(weights.sum(-1), torch.ones(7))
    assert (view.kinds[2][2] < 1).all()
    figure = attention_figure(view)
    titles = [axis.get_title() for axis in figure.axes]
    assert [title for title in titles if title] == ["image", *view.words]
    assert len(titles) == 1 + 3 * (len(view.words) + 1)  # the image, panels side by side, and their scales
    heights = [bar.get_height() for bar in uncertainty_figure(view).axes[0].patches]
    assert heights == pytest.approx([*view.word.tolist(), *view.attention.tolist()], abs=1e-6)


@pytest.mark.parametrize(("guide", "count", "has_prior"), [("weibull", 200, True), ("soft", 1, False)])
def test_a_page_has_the_weights_of_every_word(guide, count, has_prior, finished, tmp_path):
    trained, data = trained_and_data(finished(guide=guide, max_epochs=1))
    view = region_view(trained, data, 1, CAPTION)
    assert view.words == [*CAPTION.split(), "(end)"]
    assert view.posterior.shape == (count, 7, data.regions.size(1))
    torch.testing.assert_close(view.posterior.sum(-1), torch.ones(count, 7))
    assert (view.prior is not None) == has_prior
    # paper is white and ink is black
    assert view.picture.equal((255 * (1 - data.pictures[1])).round().byte())
    page = write_page(trained, data, [CAPTION] * len(data), [0, 2], tmp_path / "captions.html").read_text()
    assert page.count('type="application/json"') == 3
    assert "image 2" in page


def test_negative_weights_have_no_page(finished, tmp_path):
    trained, data = trained_and_data(finished(guide="gaussian", max_epochs=1))
    with pytest.raises(UserError, match="expected 0 to 1"):
        write_page(trained, data, [CAPTION] * len(data), [0], tmp_path / "captions.html")
    assert not (tmp_path / "captions.html").exists()


def test_uncertainty_splits(finished):
    trained, data = trained_and_data(finished(guide="weibull", max_epochs=1))
    for parameter in trained.model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    batch = next(batches(trained, data, references=1))
    found = word_uncertainty(trained, batch, num_samples=7)
    torch.testing.assert_close(found.total, found.word + found.attention)
    assert (found.attention[:, 0] > 0).all()
    # the library's own split of the first word
    model = trained.model.eval()
    state = model.start(model.encode(batch.source, batch.source_mask), batch.source_mask)
    step = model.step(state, model.embed(batch.target_in[:, 0]))
    torch.manual_seed(trained.config.seed)
    log_probs, _ = next_word_mixture(model, step, Inference(family=trained.family, samples=7))
    parts = decompose_uncertainty(log_probs.exp().transpose(0, 1))
    torch.testing.assert_close(found.total[:, 0], parts.total.float(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.attention[:, 0], parts.mutual_information.float(), atol=1e-5, rtol=1e-3)


def test_soft_attention_has_no_doubt_about_where_to_look(finished):
    trained, data = trained_and_data(finished(guide="soft", max_epochs=1))
    found = word_uncertainty(trained, next(batches(trained, data, references=1)))
    assert found.attention.abs().max() < 1e-5
