"""The masks of transformers: small where they can be, and added only where they say more than who attends."""

import pytest
import torch

pytest.importorskip("transformers")
from transformers import BertConfig, BertModel

from pyro_attention import AttentionGuide, Soft, Weibull
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.masks import compact_mask

LENGTH = 6
INPUTS = {
    "input_ids": torch.arange(3 * LENGTH).reshape(3, LENGTH),
    "attention_mask": (torch.arange(LENGTH) < torch.tensor([[6], [4], [2]])).long(),
}


def bert(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertModel(BertConfig(**sizes, intermediate_size=8, **options)).eval()


@pytest.mark.parametrize(("decoder", "rows"), [(False, 1), (True, LENGTH)])
def test_one_row_where_all_queries_see_the_same_keys(decoder, rows):
    """So the contextual prior is one distribution a key, and padded queries still have no part in the KL."""
    model = bayesian(bert(is_decoder=decoder))
    trace = AttentionGuide(model, Weibull()).run(**INPUTS).trace
    site = trace.nodes["encoder.layer.0.attention.self"]
    prior, present = site["infer"]["prior"], INPUTS["attention_mask"].bool()
    assert prior.layout.mask.shape == (3, 1, rows, LENGTH)
    assert prior.log_concentration.shape == (3, 2, rows, LENGTH)
    assert prior.layout.kept.any(-1).expand(3, 1, LENGTH)[:, 0].equal(present)


@pytest.mark.parametrize("value", [-1.5, torch.finfo(torch.float32).min])
def test_a_mask_of_the_users_own(value):
    """One that lowers scores, or hides some keys from some queries."""
    mask = torch.zeros(3, 1, LENGTH, LENGTH)
    mask[:, :, :2, 3:] = value
    theirs, mine = bert(), bayesian(bert())
    expected = theirs(INPUTS["input_ids"], attention_mask=mask).last_hidden_state
    run = AttentionGuide(mine, Soft()).run(INPUTS["input_ids"], attention_mask=mask)
    for output in (run.output, mine(INPUTS["input_ids"], attention_mask=mask).last_hidden_state):
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(theirs(INPUTS["input_ids"]).last_hidden_state, expected, atol=1e-3)


@pytest.mark.parametrize("present", [True, False])
def test_a_mask_that_says_nothing(present):
    mask = compact_mask(
        batch_size=2, q_length=3, kv_length=3, attention_mask=None if present else torch.zeros(2, 3, dtype=torch.bool),
        mask_function=lambda batch, head, query, key: query >= 0, allow_is_bidirectional_skip=True,
    )  # fmt: skip
    assert mask is None if present else mask.shape == (2, 1, 1, 3)
