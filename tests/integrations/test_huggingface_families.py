import re

import pytest
import torch

pytest.importorskip("transformers")

from pyro_attention import AttentionGuide, Weibull
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.probe import tensors
from tests.integrations.huggingface_table import DOCUMENT, measure
from tests.integrations.tiny_transformers import REFUSED, SUPPORTED, Family

CALLS = {"albert": (1, 2), "clip": (4, 4), "pair": (6, 6), "speech": (6, 6)}


def by_name(families: list[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=lambda family: family.name)


@by_name(SUPPORTED)
def test_soft_equals_the_original(family):
    row = measure(family)
    assert max(row.differences) <= 1e-5 * max(1.0, row.scale)  # large numbers are rounded by more
    assert (row.modules, row.calls) == CALLS.get(family.name, CALLS.get(family.reads, (2, 2)))


@by_name([family for family in SUPPORTED if family.name in ("bert", "albert", "llama", "t5", "swin", "clip")])
def test_weibull_is_random_and_has_no_mass_on_padding(family):
    model = bayesian(family.make())
    batch = family.batch(model, 2)
    run = AttentionGuide(model, Weibull(10.0)).run(**batch, return_dict=True)
    with torch.no_grad():
        before, after = tensors(model(**batch)), tensors(run.output)
    assert any((before[name] - after[name]).abs().max() > 1e-3 for name in before)
    sites = [site for site in run.trace.nodes.values() if isinstance(site.get("fn"), AttentionDistribution)]
    assert sites
    for site in sites:
        weights = site["fn"].weights(site["value"])
        assert torch.isfinite(weights).all()
        if "attention_mask" in batch and weights.size(-1) == 7:
            assert weights[0, ..., 4:].abs().max() == 0, site["name"]


@by_name(REFUSED)
def test_families_without_the_interface_are_refused_and_left_alone(family):
    model = family.make()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match="s_aux" if family.name == "gpt_oss" else f"'{model.config.model_type}'"):
        bayesian(model)
    assert model.config._attn_implementation == before
    assert not any("latent" in name for name in model.state_dict())


def test_the_committed_table_names_the_same_families_and_verdicts():
    rows = re.findall(r"^\| (\S+) \| (\w+) \| (yes|refused)", DOCUMENT.read_text(), re.MULTILINE)
    expected = [(f.name, f.cls, "yes") for f in SUPPORTED] + [(f.name, f.cls, "refused") for f in REFUSED]
    assert rows == expected
