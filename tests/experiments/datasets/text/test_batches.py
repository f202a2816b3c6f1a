import pickle

import lightning
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.datasets.text.batches import BucketSampler, EncodedText, batch_loader
from experiments.datasets.text.toy_translation import toy_translation
from experiments.datasets.text.vocabulary import BEGIN, END, PAD, train_tokenizer
from experiments.harness.callbacks import SamplerEpoch

TOY = toy_translation(0, train=200, val=1, test=1)["train"]
VOCABULARY = train_tokenizer(TOY.source + TOY.target, size=400)
DATA = EncodedText(TOY, VOCABULARY)

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True, database=None)

lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=80)
options = st.fixed_dictionaries(
    {"sentences": st.integers(1, 20), "pool": st.integers(1, 5), "shuffle": st.booleans(), "seed": st.integers(0, 9)}
)


# which pairs make a batch


@PROPERTY
@given(lengths, options, st.integers(0, 5))
def test_every_pair_once_an_epoch_within_the_limits(lengths, options, epoch):
    sampler = BucketSampler(lengths, **options)
    sampler.set_epoch(epoch)
    found = list(sampler)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    assert found == sampler.batches(epoch)
    assert all(0 < len(batch) <= options["sentences"] for batch in found)


@PROPERTY
@given(lengths, options, st.integers(0, 5), st.integers(2, 5))
def test_processes_share_out_every_batch(lengths, options, epoch, ranks):
    if len(lengths) < ranks:
        return
    whole = BucketSampler(lengths, **options | {"sentences": ranks * options["sentences"]}).batches(epoch)
    samplers = [BucketSampler(lengths, **options) for _ in range(ranks)]
    for rank, sampler in enumerate(samplers):
        sampler.share(rank, ranks)
        sampler.set_epoch(epoch)
    parts = list(zip(*samplers, strict=True))  # as many batches everywhere
    assert len(parts) == len(samplers[0])
    assert all(max(map(len, part)) - min(map(len, part)) <= 1 for part in parts)
    together = [sorted(place for one in part for place in one) for part in parts]
    assert sorted(place for batch in together for place in batch) == list(range(len(lengths)))
    # those of one process with larger batches, but for one that is too small to be divided
    kept = [sorted(batch) for batch in whole if len(batch) >= ranks]
    assert together[:-1] == kept[:-1]
    assert set(kept[-1]) <= set(together[-1])
    assert all(part for one in parts for part in one)


@PROPERTY
@given(lengths, options, st.integers(0, 5))
def test_order_is_a_function_of_seed_and_epoch(lengths, options, epoch):
    first = BucketSampler(lengths, **options)
    for earlier in range(epoch):
        first.set_epoch(earlier)
        list(first)
    first.set_epoch(epoch)
    # resumed: a new sampler, which has not seen the earlier epochs
    second = pickle.loads(pickle.dumps(BucketSampler(lengths, **options)))
    second.set_epoch(epoch)
    assert list(first) == list(second) == first.batches(epoch)
    assert first.epoch == second.epoch == epoch


def test_epochs_and_seeds_differ():
    orders = [BucketSampler(DATA.lengths, sentences=8, seed=seed).batches(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(first != second for i, first in enumerate(orders) for second in orders[:i])
    # also in what makes a batch
    parts = [
        {frozenset(batch) for batch in BucketSampler(DATA.lengths, sentences=8, pool=3).batches(e)} for e in (0, 1)
    ]
    assert len(parts[0] & parts[1]) < len(parts[0]) / 2


def test_lengths_are_similar():
    def padding(batches):
        widths = [max(DATA.lengths[i][0] for i in batch) * len(batch) for batch in batches]
        return sum(widths) / sum(source for source, _ in DATA.lengths) - 1

    plain = [list(range(start, start + 8)) for start in range(0, len(DATA), 8)]
    assert padding(BucketSampler(DATA.lengths, sentences=8).batches(0)) < 0.1 < 0.3 < padding(plain)


def test_without_shuffling_in_order_of_length():
    sampler = BucketSampler([(3, 3), (1, 9), (1, 2), (2, 2)], sentences=3, shuffle=False)
    assert list(sampler) == sampler.batches(7) == [[2, 1, 3], [0]]


# what a batch holds


@PROPERTY
@given(st.lists(st.integers(0, len(DATA) - 1), min_size=1, max_size=10))
def test_batch(indices):
    batch = DATA[indices]
    assert batch.indices.tolist() == indices
    assert len(batch) == len(indices)
    for tensor, mask in [
        (batch.source, batch.source_mask),
        (batch.target_in, batch.target_mask),
        (batch.target_out, batch.target_mask),
    ]:
        assert tensor.dtype == torch.int64
        assert mask.dtype == torch.bool
        assert tensor.shape == mask.shape
        assert (tensor[~mask] == PAD).all()
        assert (tensor[mask] != PAD).all()
        assert mask.any(0).all()  # no column of padding only
        assert (mask.long().diff(dim=1) <= 0).all()  # padding comes last
    lengths = zip(batch.source_mask.sum(1).tolist(), batch.target_mask.sum(1).tolist(), strict=True)
    assert list(lengths) == [DATA.lengths[i] for i in indices]
    for row, index in enumerate(indices):
        source, *target = (
            tensor[row][mask[row]].tolist()
            for tensor, mask in [
                (batch.source, batch.source_mask),
                (batch.target_in, batch.target_mask),
                (batch.target_out, batch.target_mask),
            ]
        )
        assert VOCABULARY.decode(source) == TOY.source[index]
        assert target[0] == [BEGIN, *VOCABULARY.encode(TOY.target[index])]
        assert target[1] == [*VOCABULARY.encode(TOY.target[index]), END]


# loaders


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


class SaveAfterEpoch(lightning.Callback):
    def __init__(self, path, epoch):
        self.path, self.epoch = path, epoch

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            trainer.save_checkpoint(self.path)


def trained(folder, epochs, callbacks=(), checkpoint=None):
    module, sampler = Recorder(), BucketSampler(DATA.lengths, seed=1, pool=2, sentences=30)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[SamplerEpoch(sampler), *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, batch_loader(DATA, sampler), ckpt_path=checkpoint)
    trainer.save_checkpoint(folder / "end.ckpt")
    return module.seen, sampler


def test_lightning_sets_the_epoch_and_resumes(tmp_path):
    inside = tmp_path / "inside.ckpt"
    whole, sampler = trained(tmp_path, 4, [SaveAfterEpoch(inside, 1)])
    assert whole == [(epoch, batch) for epoch in range(4) for batch in sampler.batches(epoch)]
    first, _ = trained(tmp_path, 2)
    for checkpoint in (inside, tmp_path / "end.ckpt"):
        rest, _ = trained(tmp_path / "rest", 4, checkpoint=checkpoint)
        assert first + rest == whole
