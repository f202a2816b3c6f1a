import pyro
import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers")

import transformers

from pyro_attention import AttentionELBO, AttentionGuide, Soft, check_model, predict
from pyro_attention.integrations.huggingface import ELBOModel, bayesian, deterministic
from tests.integrations.tiny_transformers import SUPPORTED

FAMILIES = {family.name: family for family in SUPPORTED}
IDS = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]])


def head(cls: str, family: str = "bert", **options):
    torch.manual_seed(0)
    made = getattr(transformers, cls)
    return bayesian(made(made.config_class(**FAMILIES[family].options, **options)).eval())


def normal(logits, target):
    return 0.5 * (logits - target).square().sum() + target.numel() * 0.5 * torch.log(torch.tensor(2 * torch.pi))


def cross_entropy(logits, target):
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="sum")


def one_number(logits, target):
    return normal(logits.squeeze(-1), target)


def several(logits, target):
    return functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")


MASKED = torch.tensor([[1, -100, 2, -100], [-100, 0, -100, 1], [2, 2, -100, -100]])
NUMBERS, SEVERAL = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([[1.0, 0, 0], [1, 1, 0], [0, 0, 0]])
CASES = [
    ("BertForSequenceClassification", {"num_labels": 3}, torch.tensor([0, 2, 1]), cross_entropy),
    ("BertForSequenceClassification", {"num_labels": 3}, torch.tensor([[0], [2], [1]]), cross_entropy),
    (
        "BertForSequenceClassification",
        {"num_labels": 1},
        NUMBERS,
        lambda logits, target: normal(logits[..., 0], target),
    ),
    ("BertForSequenceClassification", {"num_labels": 3, "problem_type": "regression"}, SEVERAL, normal),
    (
        "BertForSequenceClassification",
        {"num_labels": 3},
        SEVERAL,
        several,
    ),
    ("BertForTokenClassification", {"num_labels": 3}, MASKED, cross_entropy),
    ("BertForMaskedLM", {}, MASKED, cross_entropy),
    ("BertForNextSentencePrediction", {}, torch.tensor([0, 1, 1]), cross_entropy),
]


@pytest.mark.parametrize(("cls", "options", "labels", "expected"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_loss_of_a_head(cls, options, labels, expected):
    model = head(cls, **options)
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)
    torch.testing.assert_close(loss, expected(model(input_ids=IDS).logits, labels))
    assert check_model(model, AttentionGuide(model, Soft()), input_ids=IDS, labels=labels).problems == ()


def test_next_tokens_are_those_of_transformers():
    model = head("GPT2LMHeadModel", "gpt2")
    labels = IDS.masked_fill(IDS > 16, -100)
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)
    torch.testing.assert_close(loss, model(input_ids=IDS, labels=labels).loss * (labels[:, 1:] != -100).sum())


@pytest.mark.parametrize("name", ["Bart", "T5"])
def test_decoders_read_the_labels(name):
    model = head(f"{name}ForConditionalGeneration", name.lower())
    labels = torch.tensor([[5, 6, 7], [8, 9, -100], [5, -100, -100]])
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)
    torch.testing.assert_close(loss, model(input_ids=IDS, labels=labels).loss * (labels != -100).sum())


def test_choices():
    model = head("BertForMultipleChoice")
    ids = IDS.unsqueeze(1).expand(3, 2, 4).contiguous()
    labels = torch.tensor([0, 1, 1])
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=ids, labels=labels)
    torch.testing.assert_close(loss, model(input_ids=ids, labels=labels).loss * 3)


def test_answers():
    model = head("BertForQuestionAnswering")
    guide = AttentionGuide(model, Soft())
    ends = {
        "start_positions": torch.tensor([0, 1, 4]),
        "end_positions": torch.tensor([2, 1, 4]),
    }  # 4 is outside
    loss = AttentionELBO()(model, guide)(input_ids=IDS, **ends)
    output = model(input_ids=IDS)
    expected = cross_entropy(output.start_logits[:2], ends["start_positions"][:2])
    expected = expected + cross_entropy(output.end_logits[:2], ends["end_positions"][:2])
    torch.testing.assert_close(loss, expected)
    mean = predict(guide, input_ids=IDS, num_samples=1).mean
    torch.testing.assert_close(mean, torch.stack([output.start_logits, output.end_logits], 1))
    with pytest.raises(ValueError, match="expected start_positions and end_positions"):
        AttentionELBO()(model, guide)(input_ids=IDS, start_positions=ends["start_positions"])


def test_images():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**FAMILIES["vit"].options, num_labels=3)
    model = bayesian(transformers.ViTForImageClassification(config).eval())
    inputs = {"pixel_values": torch.randn(3, 3, 8, 8), "labels": torch.tensor([0, 1, 2])}
    loss = AttentionELBO()(model, AttentionGuide(model, Soft()))(**inputs)
    torch.testing.assert_close(loss, model(**inputs).loss * 3)


def test_a_likelihood_of_the_user():
    made = transformers.BertModel(transformers.BertConfig(**FAMILIES["bert"].options)).eval()
    guide = AttentionGuide(bayesian(made), Soft())
    with pytest.raises(ValueError, match=r"the likelihood of BertModel is not known.* likelihood=f"):
        ELBOModel(made, guide)

    def first_state(output, labels):
        target = pyro.distributions.Normal(output.last_hidden_state[:, 0, 0], 1.0)
        pyro.sample("labels", target, obs=labels["labels"])

    deterministic_again = deterministic(made)
    guide = AttentionGuide(bayesian(deterministic_again, likelihood=first_state), Soft())
    loss = ELBOModel(made, guide)(input_ids=IDS, labels=NUMBERS)["loss"]
    torch.testing.assert_close(loss, normal(made(input_ids=IDS).last_hidden_state[:, 0, 0], NUMBERS) / 3)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0, 1, 3]), ValueError, r"labels lie in 0 \.\. 3, expected classes 0 \.\. 2; .*num_labels="),
        (torch.tensor([0, 1]), ValueError, r"labels have shape \(2,\), expected \(3,\)"),
    ],
)
def test_labels_that_do_not_fit(labels, error, message):
    model = head("BertForSequenceClassification", num_labels=3)
    with pytest.raises(error, match=message):
        AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=labels)


def test_numbers_for_classes():
    model = head("BertForTokenClassification", num_labels=3)
    with pytest.raises(TypeError, match=r"labels are torch.float32, expected integers"):
        AttentionELBO()(model, AttentionGuide(model, Soft()))(input_ids=IDS, labels=torch.zeros(3, 4))
