"""SQuAD in the comparison: networks that answer questions of SQuAD 1.1, and questions of 2.0 without an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.data.text.squad import Question, load_squad, load_unanswerable
from experiments.files import UserError
from experiments.finetune.model import load_tokenizer
from experiments.finetune.questions import QaTask, Windows, all_scores, best_answers, best_spans
from experiments.uncertainty.config import SpanConfig
from experiments.uncertainty.last_layer import SpanLayerPosterior
from experiments.uncertainty.networks import (
    IMPOSSIBLE,
    PARTS,
    Batches,
    Compared,
    Logits,
    NetworkTask,
    best_on_validation,
    check_layers,
    in_order,
    inputs_of,
    inputs_to,
)
from experiments.uncertainty.scores import Prediction
from models.transformers import SpanModel
from pyro_attention.posterior.predictive import seeded

LAST_LAYER_DRAWS = 20  # of the output layer, each with the logits of all tokens


def load_windows(config: SpanConfig, *, parts: Sequence[str] = ("train", *PARTS)) -> dict[str, Windows]:
    """Load some questions of every part as tokens, the same ones for every seed; in "domain" none has an answer.

    A question with its paragraph is one window: longer ones are left out.
    """
    tokenizer = load_tokenizer(config.model)
    questions = load_squad(data_root=config.data_root, train_file=config.train_file, test_file=config.test_file)
    questions["domain"] = load_unanswerable(data_root=config.data_root, test_file=config.test_file)
    sizes = {"train": config.train_items, "val": config.val_items, "test": config.test_items}
    return {
        part: _whole_windows(questions[part], tokenizer, config, count=sizes.get(part, config.test_items), part=part)
        for part in parts
    }


def _whole_windows(
    questions: Sequence[Question], tokenizer: Any, config: SpanConfig, *, count: int, part: str
) -> Windows:
    """Return the first questions of a random order that have one window, with the answer in it if there is one."""
    order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(0)).tolist()
    chosen = list[Question]()
    for start in range(0, len(order), count):  # few are left out, so few are read
        windows = Windows([questions[index] for index in order[start : start + count]], tokenizer, config)
        numbers = np.bincount([window.question for window in windows.windows])
        for window in windows.windows:
            if numbers[window.question] == 1:
                chosen.append(windows.questions[window.question])
        if len(chosen) >= count:
            break
    if not chosen:
        raise UserError(
            f"no question of the {part} part has at most {config.length} tokens with its paragraph; pass more by length"
        )
    return Windows(chosen[:count], tokenizer, config)


class SpanNetworkTask(NetworkTask, QaTask):
    """Fine-tuning of one network of the comparison on SQuAD 1.1."""

    config = SpanConfig
    batch_items = 16  # draws hold several matrices of tokens by tokens for each of them, head and layer

    def wrap(self, config: Any, network: Any) -> SpanModel:
        check_layers(config.model, network)
        return super().wrap(config, network)

    def load(self, config: Any) -> dict[str, Windows]:
        return load_windows(config)

    def last_layer(self, trained: Compared, batches: Batches) -> tuple[Logits, float]:
        layer: Any = trained.module.objective.model.network.qa_outputs

        def read(part: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            """Yield features and possible tokens of every batch."""
            for batch in batches[part]:
                given = inputs_of(batch)
                with inputs_to(layer) as inputs:
                    trained.module.outputs(*given)
                yield inputs[0].cpu(), given[1].cpu()

        posterior = SpanLayerPosterior(layer, read("train"))
        features = {part: [*read(part)] for part in PARTS}

        def draw(scale: float, parts: Sequence[str]) -> Logits:
            with seeded(trained.config.seed):
                layers = posterior.sample(prior_scale=scale, num_samples=LAST_LAYER_DRAWS)
            return {
                part: in_order(
                    [
                        torch.einsum("btd,skd->sbkt", given, layers).masked_fill(~allowed[:, None], IMPOSSIBLE)
                        for given, allowed in features[part]
                    ],
                    batches[part],
                    dim=1,
                )
                for part in parts
            }

        return best_on_validation(trained.config.prior_scales, draw, batches["val"])


def predict_spans(test: torch.Tensor, domain: torch.Tensor, windows: Mapping[str, Windows]) -> Prediction:
    """Return the prediction of logits ``[S, questions, 2, T]`` of the test questions and of those without an answer.

    An answer is right where it matches one of the given ones exactly, by the official evaluation; its confidence is the
    probability of its first token times that of its last one.
    """
    logits = {"test": test, "domain": domain}
    batches = {part: windows[part][0, range(len(windows[part]))] for part in logits}
    spans = {part: best_spans(logits[part], batch) for part, batch in batches.items()}
    entropies = [spans[part].entropy.double().numpy() for part in logits]
    information = [spans[part].mutual_information.double().numpy() for part in logits] if len(test) > 1 else []
    texts = best_answers(windows["test"], [spans["test"]]).texts
    exact, _ = all_scores(texts, windows["test"].questions)
    mean = test.softmax(-1).mean(0)
    truth = torch.stack([batches["test"].first, batches["test"].last], 1)
    log_probs = mean.gather(-1, truth[..., None])[..., 0].double().clamp_min(1e-12).log().sum(-1)
    return Prediction(
        _array(spans["test"].score.double().exp()), exact == 1, _array(log_probs), *entropies, *information
    )


def _array(values: torch.Tensor) -> NDArray[np.float64]:
    return np.asarray(values.numpy(), dtype=np.float64)
