"""A text in files, in chunks: the same counts as in memory, whatever the chunks and whoever reads them."""

import numpy as np
import pytest
import torch

from experiments.data.text.parallel import toy_translation
from pyro_attention.aligner import Aligner
from pyro_attention.aligner._chunk_files import Room, Workers, _count_words, write_chunks
from pyro_attention.aligner._ensemble import Ensemble

FIELDS = ("translation", "null", "jumps")
PLENTY = 10**9


@pytest.fixture(scope="module")
def pairs():
    text = toy_translation(train=300, val=1, test=1)["train"]
    pairs = [(s.split(), t.split()) for s, t in zip(text.source, text.target, strict=True)]
    return [*pairs[:100], ([], ["the"]), (["das"], []), *pairs[100:]]


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def tables(ensemble):
    return [
        getattr(direction, field)
        for member in ensemble.members
        for model in member
        for direction in model
        for field in FIELDS
    ]


def trained(pairs, folder, chunk, **options):
    room = Room(PLENTY, PLENTY, chunk)
    return Ensemble.fit_chunks(write_chunks(pairs, folder, room=room, known={}, **options), progress=False)


@pytest.mark.parametrize("chunk", [1000, 100, 37])
@pytest.mark.parametrize("parts", [1, 2])
def test_chunks_of_any_size_give_the_parameters_of_the_text_in_memory(pairs, tmp_path, double, chunk, parts):
    expected = Ensemble.fit(*zip(*pairs, strict=True), {}, parts=parts, progress=False)
    ensemble = trained(pairs, tmp_path / "chunks", chunk, parts=parts)
    assert np.array_equal(ensemble.pairs.keys, expected.pairs.keys)
    assert len(ensemble.members) == parts
    for table, right in zip(tables(ensemble), tables(expected), strict=True):
        torch.testing.assert_close(table, right, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_processes_give_exactly_the_parameters_of_one(pairs, tmp_path):
    pytest.importorskip("joblib")
    one = trained(pairs, tmp_path / "one", 50)
    two = trained(pairs, tmp_path / "two", 50, workers=Workers(2))
    assert all(map(torch.equal, tables(two), tables(one)))


@pytest.mark.slow
def test_a_dask_cluster_gives_exactly_the_parameters_of_one_process(pairs, tmp_path):
    pytest.importorskip("joblib")
    distributed = pytest.importorskip("distributed")
    one = trained(pairs, tmp_path / "one", 50)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        two = trained(pairs, tmp_path / "two", 50, workers=Workers(cluster=cluster.scheduler_address))
    assert all(map(torch.equal, tables(two), tables(one)))


@pytest.mark.parametrize("chunk", [1000, 40])
def test_where_memory_has_room_for_fewer_pairs_of_words_the_likeliest_stay(pairs, tmp_path, chunk):
    """As many at most, those of the largest shares of all, whatever the chunks; a known one stays in any case."""
    whole = write_chunks(pairs, tmp_path / "whole", room=Room(PLENTY, PLENTY, 50), known={}).pairs
    counts = dict.fromkeys(whole.keys.tolist(), 0)
    first, second = (
        {word: number for number, word in enumerate(dict.fromkeys(w for pair in pairs for w in pair[side]))}
        for side in (0, 1)
    )
    totals = [np.zeros(len(words)) for words in (first, second)]
    for source, target in pairs:
        for s in source:
            totals[0][first[s]] += 1
        for t in target:
            totals[1][second[t]] += 1
        for s in source:
            for t in target:
                counts[first[s] * (len(second) + 2) + second[t]] += 1
    totals = [total / total.sum() for total in totals]

    def share(key):
        return counts[key] / min(totals[0][key // (len(second) + 2)], totals[1][key % (len(second) + 2)])

    shares = sorted(map(share, counts), reverse=True)
    most = len(counts) // 3
    rarest = min(counts, key=share)
    words = [list(first)[rarest // (len(second) + 2)], list(second)[rarest % (len(second) + 2)]]
    text = write_chunks(pairs, tmp_path / "some", room=Room(most, PLENTY, chunk), known={(words[0], words[1]): 1.0})
    kept = set(text.pairs.keys.tolist())
    assert rarest in kept
    assert len(kept) <= most + 1
    assert kept - {rarest} == {key for key in counts if share(key) > shares[most] * (1 + 1e-9)} - {rarest}
    ensemble = Ensemble.fit_chunks(text, progress=False)
    assert all(table.isfinite().all() for table in tables(ensemble))


def test_where_memory_has_room_for_fewer_words_the_most_frequent_stay(pairs, tmp_path):
    room = Room(PLENTY, 10, 50)
    vocabularies, number = _count_words(pairs, room, {("quatsch", "nonsense"): 1.0})
    assert number == len(pairs)
    assert all(0 < len(vocabulary.words) <= 11 for vocabulary in vocabularies)
    assert "quatsch" in vocabularies[0].words
    ensemble = Ensemble.fit_chunks(write_chunks(pairs, tmp_path / "few", room=room, known={}), progress=False)
    assert all(table.isfinite().all() for table in tables(ensemble))


def test_more_parts_have_room_for_fewer_pairs_of_words():
    one, two = (Room.of(3000, parts) for parts in (1, 2))
    assert one.words == two.words
    assert one.word_pairs / two.word_pairs == pytest.approx(140 / 110, rel=1e-5)
    with pytest.raises(ValueError, match="parts is 0"):
        Aligner.fit_stream([(["das"], ["the"])], "nowhere", parts=0)


def test_an_aligner_of_a_stream_is_that_of_the_text_in_memory(pairs, tmp_path):
    source, target = zip(*pairs, strict=True)
    assert len(pairs) >= 50  # so there are two halves
    expected = Aligner.fit(source, target)(source, target)
    aligner = Aligner.fit_stream(pairs, tmp_path)
    links = [pair.links for pair in aligner.align_stream(pairs, block=70)]
    assert [pair.source for pair in aligner.align_stream(pairs)] == [pair.source for pair in expected]
    for table, pair in zip(links, expected, strict=True):
        torch.testing.assert_close(table, pair.links, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("pairs", "options", "error", "message"),
    [
        ([([], ["a"])], {}, ValueError, "no pair with words on both sides"),
        (iter([(["a"], ["b"])]), {}, TypeError, "can be read once"),
        ([("das haus", ["b"])], {}, TypeError, "source has the text 'das haus'"),
        ([(["a"], ["b"])], {"max_memory": 500}, ValueError, "500 MB of memory are too few"),
        ([(["a"], ["b"])], {"known": {("a", "b"): -1.0}}, ValueError, "-1.0 times"),
    ],
)
def test_bad_streams(tmp_path, pairs, options, error, message):
    with pytest.raises(error, match=message):
        Aligner.fit_stream(pairs, tmp_path, **options)


def test_a_folder_of_the_user_is_left_as_it_is(tmp_path):
    """Chunks of an earlier text are replaced, and nothing else is."""
    few = [(["das", "Haus"], ["the", "house"])] * 3
    for _ in range(2):
        Aligner.fit_stream(few, tmp_path)
    (tmp_path / "chunks" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"chunks holds thesis.tex, which is no chunk .* choose another folder"):
        Aligner.fit_stream(few, tmp_path)
    assert (tmp_path / "chunks" / "thesis.tex").read_text() == "mine"
