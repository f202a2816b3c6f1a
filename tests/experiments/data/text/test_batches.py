"""Batches: which pairs make one, what it holds, and that a resumed training goes on with the same ones."""

import pickle

import lightning
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.callbacks import SamplerEpoch
from experiments.data.text.batches import BEGIN, END, PAD, BucketSampler, EncodedText, batch_loader, train_tokenizer
from experiments.data.text.parallel import toy_translation

TOY = toy_translation(train=200, val=1, test=1)["train"]
VOCABULARY = train_tokenizer(TOY.source + TOY.target, size=400)
DATA = EncodedText(TOY, VOCABULARY)

PROPERTY = settings(max_examples=15, deadline=None, derandomize=True, database=None)
lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80)
options = st.fixed_dictionaries(
    {"sentences": st.integers(1, 20), "pool": st.integers(1, 5), "shuffle": st.booleans(), "seed": st.integers(0, 9)}
)


@PROPERTY
@given(lengths, options, st.integers(0, 5))
def test_every_pair_once_an_epoch_in_an_order_of_seed_and_epoch(lengths, options, epoch):
    first = BucketSampler(lengths, **options)
    for earlier in range(epoch + 1):
        first.set_epoch(earlier)
        found = list(first)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert all(0 < len(batch) <= options["sentences"] for batch in found)
    # resumed: a new sampler, which has not seen the earlier epochs
    second = pickle.loads(pickle.dumps(BucketSampler(lengths, **options)))
    second.set_epoch(epoch)
    assert found == list(second) == first.batches(epoch)


def test_epochs_and_seeds_differ_also_in_what_makes_a_batch():
    orders = [
        {frozenset(batch) for batch in BucketSampler(DATA.lengths, sentences=8, pool=3, seed=seed).batches(epoch)}
        for seed in (0, 1) for epoch in (0, 1)
    ]  # fmt: skip
    assert all(len(first & second) < len(first) / 2 for i, first in enumerate(orders) for second in orders[:i])


def test_lengths_are_similar():
    def padding(batches):
        widths = [max(DATA.lengths[i][0] for i in batch) * len(batch) for batch in batches]
        return sum(widths) / sum(source for source, _ in DATA.lengths) - 1

    plain = [list(range(start, start + 8)) for start in range(0, len(DATA), 8)]
    assert padding(BucketSampler(DATA.lengths, sentences=8).batches(0)) < 0.1 < 0.3 < padding(plain)


def test_batch():
    indices = [5, 0, 9, 9, 31]
    batch = DATA[indices]
    assert batch.indices.tolist() == indices
    lengths = zip(batch.source_mask.sum(1).tolist(), batch.target_mask.sum(1).tolist(), strict=True)
    assert list(lengths) == [DATA.lengths[i] for i in indices]
    parts = [batch.source, batch.target_in, batch.target_out]
    for row, index in enumerate(indices):
        source, read, said = (tensor[row][tensor[row] != PAD].tolist() for tensor in parts)
        ids = VOCABULARY.encode(TOY.target[index])
        assert VOCABULARY.decode(source) == TOY.source[index]
        assert (read, said) == ([BEGIN, *ids], [*ids, END])
        assert batch.target_in[row, : len(read)].tolist() == read  # padding comes last
    assert batch.source_mask.equal(batch.source != PAD)
    assert batch.target_mask.equal(batch.target_out != PAD)


class Recorder(lightning.LightningModule):
    """Writes down which pairs it has seen."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch):
        self.seen.append((self.current_epoch, batch.indices.tolist()))
        self.log("loss", self.weight)  # takes the size of the batch from it
        return self.weight * batch.source_mask.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trained(folder, epochs, checkpoint=None):
    module, sampler = Recorder(), BucketSampler(DATA.lengths, seed=1, pool=2, sentences=30)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", default_root_dir=folder, callbacks=[SamplerEpoch(sampler)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, batch_loader(DATA, sampler), ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / "end.ckpt")
    return module.seen, sampler


def test_lightning_sets_the_epoch_and_resumes(tmp_path):
    first, _ = trained(tmp_path, 2)
    rest, sampler = trained(tmp_path / "rest", 4, tmp_path / "end.ckpt")
    assert first + rest == [(epoch, batch) for epoch in range(4) for batch in sampler.batches(epoch)]
