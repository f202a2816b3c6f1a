"""
Make a pretrained transformer Bayesian
======================================

``bayesian(model)`` gives random weights to every attention of a model of Hugging Face's transformers. The parameters
stay, and under the guide ``Soft()`` the outputs stay, too.

This page builds a tiny BERT with random parameters, because a site is built without a network. With a pretrained model
you replace one line; it is shown below.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification

# %%
# A model and a few sentences
# ---------------------------
#
# With a pretrained model you would write, for example,
# ``AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)`` and take its tokenizer. Here each word
# is its own number.

torch.manual_seed(0)
sentences = ["a good film", "a bad film", "good", "bad", "a very good film", "not a good film", "not bad", "very bad"]
labels = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0])
vocabulary = ["[PAD]", *sorted({word for sentence in sentences for word in sentence.split()})]


def tokenize(texts: list[str]) -> dict[str, torch.Tensor]:
    ids = [torch.tensor([vocabulary.index(word) for word in text.split()]) for text in texts]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"input_ids": padded, "attention_mask": (padded > 0).long()}


sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), num_labels=2, **sizes))
before = model.eval()(**tokenize(sentences)).logits

# %%
# Make it Bayesian
# ----------------
#
# The call changes the model in place. Without a guide it still computes the same numbers.

from pyro_attention.integrations.huggingface import bayesian

model = bayesian(model)
after = model(**tokenize(sentences)).logits
print(f"largest difference: {(after - before).abs().max():.1e}")

# %%
# Train
# -----
#
# The classification head says what is observed: with labels, the model is a Pyro model with the site ``labels``. The KL
# is a sum over all weights of all layers, so its weight is small. The concentration of 10 is a regularizer that you
# choose, as a rate of dropout is: the width of the weights is not learned.

from pyro_attention import AttentionELBO, AttentionGuide, Weibull

guide = AttentionGuide(model, Weibull(concentration=10.0))
loss = AttentionELBO(kl_weight=1e-4)(model, guide)
optimizer = torch.optim.AdamW(loss.parameters(), lr=2e-3)
model.train()
for step in range(60):
    optimizer.zero_grad()
    value = loss(**tokenize(sentences), labels=labels)
    value.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1}: {value.item():.3f}")

# %%
# Predict with uncertainty
# ------------------------
#
# ``predict`` puts the attention noise into the predictions, whatever the training mode of the model. The interval holds
# nine of ten draws: it goes from their 5 % to their 95 % quantile. The second sentence has a word order that was not
# trained on.

from pyro_attention import predict

new = ["a good film", "film good a not very"]
prediction = predict(
    guide, **tokenize(new), num_samples=100, transform=lambda logits: logits.softmax(-1), quantiles=[0.05, 0.95], seed=0
)
for text, mean, low, high in zip(
    new, prediction.mean[:, 1], prediction.quantiles[0.05][:, 1], prediction.quantiles[0.95][:, 1], strict=True
):
    print(f"{text!r}: positive with probability {mean:.2f}, 90 % interval {low:.2f} to {high:.2f}")

# %%
# The network is just as certain of the second sentence, which makes no sense. Attention noise says how much the weights
# change a prediction; it does not say whether a sentence is unlike those that were trained on.

# %%
# Look at the attention of a head
# -------------------------------
#
# Every attention layer is one site, named by its path in the model.

import matplotlib.pyplot as plt

from pyro_attention import sample_posterior
from pyro_attention.analysis import credible_intervals

sentence = "not a good film"
samples = sample_posterior(guide, **tokenize([sentence]), num_samples=200, seed=0)
print(list(samples))
name = list(samples)[-1]
bands = credible_intervals(samples[name][:, 0, 0], level=0.9)  # the first head: [200, queries, keys]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for axis, values, title in ((axes[0], bands.mean, "mean weight"), (axes[1], bands.width, "width of the 90 % interval")):
    image = axis.imshow(values, cmap="Blues", vmin=0)
    axis.set_xticks(range(4), sentence.split())
    axis.set_yticks(range(4), sentence.split())
    axis.set_title(title)
    figure.colorbar(image, ax=axis, shrink=0.8)

# %%
# ``model.save_pretrained(folder)`` saves parameters and priors as safetensors, and
# ``bayesian(AutoModelForSequenceClassification.from_pretrained(folder))`` loads them. ``deterministic(model)`` gives
# the original model back. The page :doc:`/how_to/transformer` tells more, and :doc:`/huggingface` lists the families
# of models that were tried.
#
# Your turn
# ---------
#
# How much noise is too much? Change ``Weibull(concentration=10.0)`` to ``Weibull(concentration=1.0)``, and look at the
# loss after 60 steps, at the probabilities, and at the widths of the intervals.
