"""Where the attention of nouns is, whether doubt tells bad captions, and how different several captions are."""

import numpy as np
import pytest
import torch

from experiments.captioning.diversity import set_scores
from experiments.captioning.pointing import NOUNS, MapPointing, middle
from experiments.captioning.scores import cider_d, split_words
from experiments.captioning.uncertainty import ranking
from experiments.datasets.images.captions import ImageFile
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.datasets.images.segmentation import SegmentationMaps
from experiments.datasets.text.vocabulary import train_tokenizer
from experiments.sequence.alignments import BatchAlignment


def game_on(tmp_path, captions, *, known=True):
    """A photograph of 1 x 3 cells: a dog in the first, a person in half of the second."""
    vocabulary = train_tokenizer(captions, size=300)
    file = ImageFile(tmp_path / ("a.jpg" if known else "b.jpg"))
    data = RegionCaptions(
        torch.zeros(1, 3, 2), [captions], (1, 3), torch.zeros(1, 3, 4, 4), "tiny", "none", files=[file]
    )
    points = np.zeros((1, 2, 61), int)
    points[:, :, :20], points[:, 0, 20:40] = 1, 2
    maps = SegmentationMaps(["a.jpg"], ["background", "dog", "person"], points)
    pairs = EncodedCaptions(data, vocabulary)
    return MapPointing(maps, data, pairs, vocabulary), pairs[list(range(len(pairs)))]


def test_mass_on_the_class_of_a_noun(tmp_path):
    game, batch = game_on(tmp_path, ["a dog runs", "two red cars and a man"])
    shares = {name: share for pair in (0, 1) for _, name, share in game.nouns(pair)}
    assert shares.keys() == {"dog", "person"}  # no car is in the maps
    torch.testing.assert_close(shares["dog"], torch.tensor([39 / 40, 0, 0]))
    torch.testing.assert_close(shares["person"], torch.tensor([1 / 80, 39 / 80, 0]))
    weights = torch.tensor([0.5, 0.2, 0.3]).expand(2, *batch.target_out.shape, 3).clone()
    weights[0] = torch.tensor([0.7, 0.2, 0.1])
    prior = torch.tensor([0.1, 0.8, 0.1]).expand(*batch.target_out.shape, 3)
    game.add(batch, BatchAlignment(prior, weights))
    mean = torch.tensor([0.6, 0.2, 0.2])
    found = game.metrics
    for end, values in (("", mean), ("_prior", prior[0, 0]), ("_uniform", torch.full((3,), 1 / 3)),
                        ("_centre", torch.tensor([0.0, 1.0, 0.0]))):  # fmt: skip
        expected = {name: (values @ share).item() for name, share in shares.items()}
        assert found[f"test_map_mass{end}"] == pytest.approx(sum(expected.values()) / 2)
        assert found[f"test_map_mass{end}_person"] == pytest.approx(expected["person"])
    assert found["test_map_point"] == pytest.approx((39 / 40 + 1 / 80) / 2)  # of the first cell
    assert found["test_map_point_prior"] == pytest.approx((0 + 39 / 80) / 2)  # of the second
    assert found["test_map_nouns_dog"] == found["test_map_nouns_person"] == 1
    assert "test_map_nouns_car" not in found


@pytest.mark.parametrize("known", [True, False])
def test_soft_attention_has_no_prior_and_photographs_without_maps_do_not_count(known, tmp_path):
    game, batch = game_on(tmp_path, ["a dog runs"], known=known)
    game.add(batch, BatchAlignment(None, torch.full((1, *batch.target_out.shape, 3), 1 / 3)))
    found = game.metrics
    assert bool(found) == known
    assert not any("prior" in name for name in found)
    assert found.get("test_map_mass") == pytest.approx(found.get("test_map_mass_uniform"))


def test_no_word_is_of_two_classes():
    words = [word for words in NOUNS.values() for word in words.split()]
    assert len(words) == len(set(words))


@pytest.mark.parametrize("grid", [(6, 6), (7, 7), (1, 2)])
def test_the_middle_is_symmetric(grid):
    weights = middle(grid).view(grid)
    assert weights.sum() == 1
    assert torch.equal(weights, weights.flip(0, 1))
    assert (weights > 0).sum() == (1 if grid[0] % 2 else 2) * (1 if grid[1] % 2 else 2)


CAPTIONS = ["a dog runs on grass", "two men sit", "a red car stands", "a cat sleeps"]
REFERENCES = [["a dog runs on grass"], ["two men sit there"], ["a bicycle stands"], ["nothing of it"]]


@pytest.mark.parametrize(("doubt", "correlation"), [((1, 2, 3, 4), -1), ((4, 3, 2, 1), 1)])
def test_doubt_ranks_captions(doubt, correlation):
    scores = cider_d(*split_words(CAPTIONS, REFERENCES))
    assert sorted(scores, reverse=True) == scores
    assert len(set(scores)) == 4
    found = ranking({"spread": torch.tensor(doubt, dtype=torch.float)}, CAPTIONS, REFERENCES)
    assert found["test_rank_spread"] == pytest.approx(correlation)
    surest = scores if correlation < 0 else scores[::-1]
    assert found["test_cider_d_spread_50"] == pytest.approx(100 * sum(surest[:2]) / 2)
    assert found["test_cider_d_spread_25"] == pytest.approx(100 * surest[0])


@pytest.mark.parametrize(
    ("doubt", "captions"), [(torch.zeros(4), CAPTIONS), (torch.arange(4.0), ["quite another"] * 4)]
)
def test_nothing_to_rank(doubt, captions):
    found = ranking({"spread": doubt}, captions, REFERENCES)
    assert found.keys() == {"test_cider_d_spread_50", "test_cider_d_spread_25"}


def test_equal_captions_are_not_diverse():
    same = set_scores([["a red dog runs here"] * 3], [["a dog"]])
    assert same["distinct_1"] == pytest.approx(1 / 3)
    assert same["distinct_2"] == pytest.approx(1 / 3)
    assert same["self_bleu"] == pytest.approx(100)
    other = set_scores([["a red dog runs here", "two men sit on chairs"]], [["a dog"]])
    assert other["distinct_1"] == other["distinct_2"] == 1
    assert other["self_bleu"] == 0


def test_captions_without_words():
    found = set_scores([["", ""], ["a dog", ""]], [["a dog"], ["a dog"]])
    assert found["distinct_1"] == 1
    assert found["self_bleu"] == 0
