"""Vectors of an encoder as evidence of links: their density, the words they belong to, and what they decide."""

import json

import pytest
import torch
from torch.distributions import Normal

from pyro_attention.aligner import Aligner, cross_fit
from pyro_attention.aligner.encoder import _Encoder, _Evidence, _log_far, _sentences

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

NAMES = [f"name{number}" for number in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An encoder that nobody has trained: the same word has nearly the same vector in both languages."""
    path = tmp_path_factory.mktemp("encoder")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *NAMES, "##s", "house", "haus", "the", "das", "two"]
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    bert = transformers.BertModel(config)
    bert.embeddings.word_embeddings.weight.data.mul_(20)  # words count more than places
    bert.save_pretrained(path)
    model = tokenizers.models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(path)
    return path


def test_similarities_are_weighed_by_their_densities():
    torch.manual_seed(0)
    links = (torch.rand(40000) < 0.2).float()
    similarity = torch.where(links > 0, 0.6, 0.1) + 0.15 * torch.randn(40000)
    evidence = _Evidence.of([similarity], [links])
    assert evidence.separation == pytest.approx(0.5 / 0.15, rel=0.02)
    linked, unlinked = (Normal(mean, evidence.variance**0.5) for mean in (evidence.linked, evidence.unlinked))
    seen = torch.tensor([-0.5, 0.1, 0.35, 0.9])
    torch.testing.assert_close(evidence.log_ratio(seen), linked.log_prob(seen) - unlinked.log_prob(seen))


def test_vectors_of_words_are_means_over_their_pieces(folder):
    """Of sentences of other lengths too, and of one that is longer than what is read together."""
    encoder = _Encoder(folder)
    assert encoder.middle == [1, 2]
    sentences = [["name1"], ["house", "name2s", "the"], NAMES * 5]
    found = encoder.vectors(sentences, [1, 2])
    assert [len(vectors) for vectors in found] == [1, 3, 150]
    numbers = [
        2,
        encoder.tokenizer.vocab["house"],
        *(encoder.tokenizer.vocab[piece] for piece in ("name2", "##s", "the")),
        3,
    ]
    with torch.no_grad():
        states = encoder.model(torch.tensor([numbers]), output_hidden_states=True).hidden_states
    alone = torch.stack([states[1][0], states[2][0]], 1)
    torch.testing.assert_close(found[1], torch.stack([alone[1], alone[2:4].mean(0), alone[4]]))
    # a window of the first 120 words, of which the last 20 are read again with what follows
    torch.testing.assert_close(found[2][:100], encoder.vectors([(NAMES * 5)[:120]], [1, 2])[0][:100])
    torch.testing.assert_close(found[2][100:], encoder.vectors([(NAMES * 5)[80:]], [1, 2])[0][20:])


@pytest.mark.parametrize("most", [512, 24, 7])
def test_every_word_has_a_vector(folder, most, monkeypatch):
    """Also where words have more pieces than the encoder reads together."""
    monkeypatch.setattr("pyro_attention.aligner.encoder._PIECES", most)
    encoder = _Encoder(folder)
    sentences = [["name2sssssssss"] * 9, NAMES * 9, [*NAMES, "name3" + "s" * 40, *NAMES] * 3, []]
    for sentence, vectors in zip(sentences[:3], encoder.vectors(sentences[:3], [1]), strict=True):
        assert len(vectors) == len(sentence)
        assert (vectors.abs().sum((1, 2)) > 0).all()


def test_windows_fit_into_the_positions_of_the_encoder(folder, tmp_path):
    """Also where its tokenizer does not say how many there are, as that of the fixture."""
    small = transformers.BertConfig.from_pretrained(folder, max_position_embeddings=20)
    transformers.BertModel(small).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    encoder = _Encoder(tmp_path)
    assert encoder.tokenizer.model_max_length > 10**6
    (vectors,) = encoder.vectors([NAMES * 2], [1])
    assert len(vectors) == 60
    assert (vectors.abs().sum((1, 2)) > 0).all()


def test_an_encoder_links_words_that_the_text_does_not_tell(folder):
    """Names that the training has not seen, in the other order, among some that it has."""
    order = torch.Generator().manual_seed(0)
    rows = [torch.randperm(20, generator=order)[:4].tolist() for _ in range(60)]
    source = [[NAMES[name] for name in row] for row in rows]
    target = [[NAMES[name] for name in row[::-1]] for row in rows]
    aligner = Aligner.fit(source, target)
    new = [[NAMES[20 + number], NAMES[21 + number]] for number in range(9)]
    source, target = [*source, *new, []], [*target, *(pair[::-1] for pair in new), ["the"]]
    found = aligner(source, target, encoder=folder)
    assert [str(pair.alignment) for pair in found[60:]] == ["0-1 1-0"] * 9 + [""]
    text_alone = aligner(source, target, strings=False)[60:]
    assert sum(str(pair.alignment) == "0-1 1-0" for pair in text_alone) < 5
    parts = cross_fit(source, target, parts=2, encoder=folder)
    assert [pair.source for pair in parts] == source
    with pytest.raises(ValueError, match="expected one of them"):
        aligner(source, target, encoder=folder, similarity=[torch.zeros(3, 3)])


@pytest.fixture
def copied(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_weights_that_do_not_fit_are_refused(copied):
    """All under other names, one missing, one of another shape: transformers would draw them, and align by chance."""
    from safetensors.torch import load_file, save_file

    path = copied / "model.safetensors"
    weights = load_file(path)
    name = "encoder.layer.1.attention.self.query.weight"
    variants = {
        "renamed": {f"other.{key}": tensor for key, tensor in weights.items()},
        "missing": {key: tensor for key, tensor in weights.items() if key != name},
        "of another shape": weights | {name: torch.zeros(5, 5)},
    }
    for variant, tensors in variants.items():
        save_file(tensors, path, {"format": "pt"})
        with pytest.raises(ValueError, match=f"encoder in {copied} cannot be loaded") as error:
            _Encoder(copied)
        assert ("are missing, such as" in str(error.value)) == (variant != "of another shape"), variant
    save_file({key: tensor for key, tensor in weights.items() if "pooler" not in key}, path, {"format": "pt"})
    _Encoder(copied)  # models that were pretrained without a pooler have none
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=f"encoder in {copied} cannot be loaded"):
        _Encoder(copied)


def test_attention_by_code_from_elsewhere_is_refused(copied):
    path = copied / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_attn_implementation": "someone/kernels"}))
    with pytest.raises(ValueError, match="asks for the attention 'someone/kernels'"):
        _Encoder(copied)


@pytest.mark.parametrize(("file", "message"), [("tokenizer.json", "no tokenizer"), ("config.json", "no config.json")])
def test_a_folder_that_lacks_something(folder, tmp_path, file, message):
    for path in folder.iterdir():
        if path.name != file:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=message):
        _Encoder(tmp_path)


def test_links_of_documents_lie_near_those_of_the_words_alone():
    """A passage that was moved is where its words are, and a sentence has no places that are far."""
    order = [*range(40, 80), *range(40)]
    links = torch.zeros(80, 80)
    links[torch.arange(80), order] = 1
    factors = _log_far(links).exp()
    assert factors[links > 0].eq(1).all()
    assert factors[20, 50:71].eq(1).all()  # target word 20 is source word 60
    assert factors[20, :48].allclose(torch.tensor(0.02))
    assert _log_far(links[:60]).eq(0).all()


def test_long_texts_are_read_by_sentence():
    text = ["a", "b", "?"] * 50 + ["end"]
    assert [list(sentence) for sentence in _sentences(text)] == [["a", "b", "?"]] * 50 + [["end"]]
    assert list(_sentences(text[:60])) == [text[:60]]
    assert list(_sentences(["a"] * 300)) == [["a"] * 300]
