"""Heads of a transformer whose attention was made Bayesian."""

import pytest
import torch

pytest.importorskip("transformers")

from pyro_attention import AttentionGuide, Weibull, sample_posterior
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.viewer import heads_view, write_viewer
from tests.integrations.tiny_transformers import SUPPORTED


def test_heads_of_a_bayesian_transformer(tmp_path):
    (family,) = [family for family in SUPPORTED if family.name == "bert"]
    model = family.make()
    batch = family.batch(model, 2)
    guide = AttentionGuide(bayesian(model), Weibull(concentration=10.0))
    samples = sample_posterior(guide, **batch, num_samples=5)
    tokens = [f"token{number}" for number in batch["input_ids"][0].tolist()]
    view = heads_view(samples, tokens, item=0, mask=batch["attention_mask"][0])
    assert len(view.queries) == 4  # the others are padding
    assert len(view.panels) == 4  # two layers of two heads
    torch.testing.assert_close(view.panels[3].samples.sum(-1), torch.ones(5, 4))
    write_viewer(tmp_path / "heads.html", [view], title="Heads")
