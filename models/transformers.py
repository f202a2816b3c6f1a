"""Pretrained transformers as Pyro models: class or grade of sentences, span of an answer, choice of an option."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

_IMPOSSIBLE = -1e4  # logit of probability 0


class PairModel(nn.Module):
    r"""Pyro model of a pretrained transformer, with the class or the grade of each example as site ``labels``.

    .. math:: p(y, S \mid x) = p(S \mid x) \prod_b \mathrm{Categorical}(y_b; \mathrm{softmax}(f(x_b, S_b)))
              \quad\text{or}\quad p(S \mid x) \prod_b \mathrm{Normal}(y_b; f(x_b, S_b), 1)

    S are the weights of the latent attention of the network, if it has any. The B examples lie in the plate
    ``examples``. The logits f are those of the network's head. With ``pair`` they come from a new output layer with
    dropout, which reads the mean last states u and v of both sentences as (u, v, |u - v|).

    Args:
        network: A network of Hugging Face with a head for classification.
        pair: Use the new output layer for sentence pairs.

    Source: Fan et al. (2020), Bayesian Attention Modules, table 5, for latent attention in pretrained networks;
    Reimers and Gurevych (2019), Sentence-BERT, section 3, for pairs.
    """

    def __init__(self, network: Any, *, pair: bool = False) -> None:
        super().__init__()
        self.network, self.head = network, None
        if pair:
            config = network.config
            self.network = network.base_model
            self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(3 * config.hidden_size, config.num_labels))

    def forward(self, inputs: dict[str, Tensor], labels: Tensor | None = None) -> Tensor:
        """Observe or draw labels ``[B]``, and return logits ``[B, classes]`` or mean grades ``[B, 1]``."""
        with pyro.plate("examples", inputs["input_ids"].size(0), dim=-1):
            logits: Tensor = self._logits(inputs).float()
            if logits.size(-1) > 1:
                pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)
            else:
                pyro.sample("labels", dist.Normal(logits[..., 0], 1.0), obs=labels)
        return logits

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        output = self.network(**inputs, return_dict=True)
        if self.head is None:
            return torch.as_tensor(output.logits)
        states = output.last_hidden_state
        real = inputs["attention_mask"].to(states.dtype)
        second = real * inputs["token_type_ids"]
        u, v = _mean(states, real - second), _mean(states, second)
        return torch.as_tensor(self.head(torch.cat([u, v, (u - v).abs()], -1)))


def _mean(states: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean ``[B, width]`` over the N tokens of states ``[B, N, width]``."""
    return (states * weights.unsqueeze(-1)).sum(-2) / weights.sum(-1, keepdim=True).clamp(min=1)


class SpanModel(nn.Module):
    r"""Pyro model of a pretrained transformer, with first and last token of an answer as sites ``start`` and ``end``.

    .. math:: p(s, e, S \mid x) = p(S \mid x) \prod_b \mathrm{softmax}(f_1(x_b, S_b))_{s_b}\,
              \mathrm{softmax}(f_2(x_b, S_b))_{e_b}

    S are the weights of the latent attention of the network, if it has any. The B windows of text lie in the plate
    ``examples``.

    Args:
        network: A network of Hugging Face with a head for question answering.

    Source: Devlin et al. (2019), BERT, section 4.2; Fan et al. (2020), Bayesian Attention Modules, table 5.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, inputs: dict[str, Tensor], allowed: Tensor, start: Tensor | None = None, end: Tensor | None = None
    ) -> Tensor:
        """Observe or draw start and end ``[B]``, and return their logits ``[B, 2, N]``.

        Tokens that are not ``allowed`` ``[B, N]`` have probability 0.
        """
        with pyro.plate("examples", len(allowed), dim=-1):
            output = self.network(**inputs, return_dict=True)
            logits = torch.stack([output.start_logits, output.end_logits], 1).float()
            logits = logits.masked_fill(~allowed[:, None], _IMPOSSIBLE)
            pyro.sample("start", dist.Categorical(logits=logits[:, 0]), obs=start)
            pyro.sample("end", dist.Categorical(logits=logits[:, 1]), obs=end)
        return logits


class ChoiceModel(nn.Module):
    r"""Pyro model of a pretrained transformer, with the right one of the options of each question as site ``answer``.

    .. math:: p(y, S \mid x) = p(S \mid x) \prod_b \mathrm{softmax}\big(f(x_{b1}, S_{b1}), \dots,
              f(x_{bC}, S_{bC})\big)_{y_b}

    A text :math:`x_{bc}` is a passage with a question and one of its options. S are the weights of the latent
    attention of the network, if it has any. All texts of a batch lie in the plate ``texts``, and the B questions in the
    plate ``questions``.

    Args:
        network: A network of Hugging Face with a head for classification that has one output, the score f.

    Source: Ding et al. (2020), Attention that does not Explain Away, appendix C.1; Radford et al. (2018), Improving
    Language Understanding by Generative Pre-Training, section 3.3.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: dict[str, Tensor], options: Tensor, answer: Tensor | None = None) -> Tensor:
        """Observe or draw the answers ``[B]``, and return the scores of all options ``[..., B, C]``.

        Args:
            inputs: Arguments of the network for all texts, question after question and option after option.
            options: True at the options of a question, False behind the last one, ``[B, C]``; False has probability 0.
            answer: Indices of the right options ``[B]``; drawn when omitted.
        """
        with pyro.plate("texts", inputs["input_ids"].size(0), dim=-1):
            scores = self.network(**inputs, return_dict=True).logits[..., 0].float()
        logits = scores.new_full((*scores.shape[:-1], *options.shape), _IMPOSSIBLE)
        logits[..., options] = scores
        with pyro.plate("questions", len(options), dim=-1):
            pyro.sample("answer", dist.Categorical(logits=logits), obs=answer)
        return logits
