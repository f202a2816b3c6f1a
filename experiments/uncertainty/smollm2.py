"""Uncertainty of a real language model on SQuAD: the AUROC of its wrong answers, by kinds of uncertainty."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torchmetrics.functional.text import squad
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.cli import command_line
from experiments.data.text.squad import Question, load_squad
from experiments.files import UserError, reading, write_text
from experiments.folder import open_run, results_folder, write_environment, write_metrics
from experiments.report.report import Part, Report, publish, source_of
from experiments.report.statistics import Estimate, Row
from experiments.uncertainty.config import SmolLM2Config
from pyro_attention import AttentionGuide, LaplacePosterior, LogNormal, Soft, Weibull
from pyro_attention.analysis import decompose_uncertainty, selection_value, wrong_answer_auroc
from pyro_attention.integrations.huggingface import bayesian
from pyro_attention.integrations.huggingface.generation import Answer, draw_answer, read_answer
from pyro_attention.posterior.predictive import seeded

MODES = ("with the paragraph", "closed book")
RIGHT = 0.5  # F1 of words from which an answer counts as right
ONE_PASS = ("sequence probability", "perplexity", "mean entropy", "RAUQ")
OF_DRAWS = ("entropy", "mutual information", "sequence probability", "disagreement")
Draw = Callable[[Answer], torch.Tensor]
"""What gives the probabilities of an answer's predictions by draws, ``[S, T, vocabulary]``."""
_QUERIES = "self_attn.q_proj.weight"  # what the names of Llama's queries end with
# question, paragraph and answer, from which a small model learns to answer in few words
_EXAMPLE = (
    "Where does the Rhine begin?",
    "The Rhine is a river that begins in the Swiss Alps and flows through Germany to the North Sea.",
    "the Swiss Alps",
)


def _asked(question: str, context: str) -> str:
    """Write a question for the model, below its paragraph if there is one."""
    return f"{context}\n\nQuestion: {question}" if context else f"Question: {question}"


@dataclass(frozen=True)
class Language:
    """Bayesian decoder with its tokenizer."""

    model: Any
    tokenizer: Any

    def prompt(self, question: Question, mode: str) -> torch.Tensor:
        """Return the tokens of a question, ``[1, L]``, after a question with its answer."""
        shown, asked = (
            _asked(text, context if mode == MODES[0] else "")
            for text, context in (_EXAMPLE[:2], (question.text, question.context))
        )
        turns = [("user", shown), ("assistant", _EXAMPLE[2]), ("user", asked)]
        ids = self.tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in turns],
            add_generation_prompt=True, return_tensors="pt", return_dict=True,
        )["input_ids"]  # fmt: skip
        return torch.as_tensor(ids).to(self.model.device)


def load_language(config: SmolLM2Config) -> Language:
    """Load the model in single precision, with priors without parameters, as nothing is trained."""
    with reading(f"model {config.model}", "a folder of Hugging Face with a language model and its tokenizer"):
        model: Any = AutoModelForCausalLM.from_pretrained(config.model, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(config.model, local_files_only=True)
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    return Language(bayesian(model.to(device), prior="gamma_fixed"), tokenizer)


def query_posterior(language: Language, questions: Sequence[Question], mode: str) -> LaplacePosterior:
    """Return a Laplace posterior of the queries of the last layer, by the given answers to some questions.

    A posterior of the output layer, which has as many outputs as the vocabulary has tokens, would need a matrix with
    the square of its millions of weights.
    """
    names = [name for name, _ in language.model.named_parameters() if name.endswith(_QUERIES)]
    if not names:
        raise UserError(
            f"the model is a {type(language.model).__name__}, expected one with the layers of Llama ({_QUERIES}), "
            f"as a Laplace posterior is put on their queries"
        )

    def loss(tokens: torch.Tensor, given: int) -> torch.Tensor:
        logits = language.model(input_ids=tokens).logits[0, given - 1 : -1]
        return torch.nn.functional.cross_entropy(logits.float(), tokens[0, given:], reduction="sum")

    items = []
    for question in questions:
        prompt = language.prompt(question, mode)
        answer = language.tokenizer(question.answers[0].text, add_special_tokens=False, return_tensors="pt")
        items.append((torch.cat([prompt, answer["input_ids"].to(prompt.device)], 1), prompt.size(1)))
    return LaplacePosterior(language.model, names[-1], loss, items, curvature="fisher")


def draw_queries(
    guide: AttentionGuide, posterior: LaplacePosterior, prior_scale: float, num_samples: int, answer: Answer
) -> torch.Tensor:
    """Return the probabilities of an answer's predictions by draws of the posterior, ``[S, T, vocabulary]``.

    The given text is that of the mean, and a draw holds for all tokens of the answer.

    Args:
        guide: Guide without noise.
        posterior: Posterior of the queries.
        prior_scale: Standard deviation of its prior.
        num_samples: Number of draws S.
        answer: Result of :func:`read_answer`.
    """
    posterior.prior_scale, draws = prior_scale, list[torch.Tensor]()
    with seeded(0):
        for _ in range(num_samples):
            with posterior:
                draws.append(draw_answer(guide, answer, num_samples=1))
    return torch.cat(draws)


def draws_of(language: Language, posterior: LaplacePosterior, config: SmolLM2Config) -> dict[str, dict[str, Draw]]:
    """Return what draws, by kind, and by width of the weights or standard deviation of the prior."""

    def of_weights(family: Any) -> Draw:
        return partial(draw_answer, AttentionGuide(language.model, family), num_samples=config.num_samples, seed=0)

    soft = AttentionGuide(language.model, Soft())
    return {
        "LogNormal": {f"{scale:g}": of_weights(LogNormal(scale=scale)) for scale in config.scales},
        "Weibull": {f"{value:g}": of_weights(Weibull(value)) for value in config.concentrations},
        "Laplace": {
            f"{scale:g}": partial(draw_queries, soft, posterior, scale, config.num_samples)
            for scale in config.prior_scales
        },
    }


def f1_score(text: str, question: Question) -> float:
    """Return the F1 of words by the official evaluation of SQuAD, the largest over all answers."""
    answers = [answer.text for answer in question.answers]
    truth: Any = {"id": "", "answers": {"text": answers, "answer_start": [0] * len(answers)}}
    return squad({"id": "", "prediction_text": text}, truth)["f1"].item() / 100


def one_pass(answer: Answer) -> dict[str, float]:
    """Return uncertainties that need no draws."""
    return {
        "sequence probability": -answer.log_probs.sum().item(),
        "perplexity": -answer.log_probs.mean().item(),
        "mean entropy": answer.entropy.mean().item(),
        "RAUQ": answer.rauq,
    }


def of_draws(probabilities: torch.Tensor, answer: Answer) -> dict[str, float]:
    """Return uncertainties of draws ``[S, T, vocabulary]``."""
    parts = decompose_uncertainty(probabilities)
    tokens = answer.tokens.expand(len(probabilities), -1)
    chosen = probabilities.mean(0).gather(-1, answer.tokens[:, None])
    return {
        "entropy": parts.total.mean().item(),
        "mutual information": parts.mutual_information.mean().item(),
        "sequence probability": -chosen.log().sum().item(),
        "disagreement": (probabilities.argmax(-1) != tokens).float().mean().item(),
    }


def ask(
    language: Language, question: Question, mode: str, drawn: Mapping[str, Mapping[str, Draw]], config: SmolLM2Config
) -> dict[str, Any]:
    """Answer a question, and measure its uncertainty by everything that is drawn; times are processor seconds."""
    start = time.process_time()
    prompt = language.prompt(question, mode)
    options = {"max_new_tokens": config.max_new_tokens, "pad_token_id": language.tokenizer.pad_token_id}
    answer = read_answer(AttentionGuide(language.model, Soft()), prompt, **options)
    text = language.tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
    record: dict[str, Any] = {
        "mode": mode, "id": question.id, "answer": text, "f1": f1_score(text, question), "tokens": len(answer.tokens),
        "given": prompt.size(1), "one pass": one_pass(answer), "seconds": time.process_time() - start, "draws": {},
    }  # fmt: skip
    for kind, members in drawn.items():
        record["draws"][kind] = {}
        for width, draw in members.items():
            start = time.process_time()
            measures = of_draws(draw(answer), answer)
            record["draws"][kind][width] = measures | {"seconds": time.process_time() - start}
    return record


def answers(
    language: Language, questions: Sequence[Question], mode: str, drawn: Mapping[str, Mapping[str, Draw]],
    path: Path, config: SmolLM2Config,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the record of every question; a new one is added to the file at once."""
    records = {record["id"]: record for record in _records(path)}
    with path.open("a", encoding="utf-8") as file:
        left = [question for question in questions if question.id not in records]
        for question in tqdm(left, desc=f"{path.stem}", disable=None if config.progress else True):
            records[question.id] = ask(language, question, mode, drawn, config)
            file.write(json.dumps(records[question.id]) + "\n")
            file.flush()
    return [records[question.id] for question in questions]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Read the records of a file; a last line that was cut off, as by a kill, is removed, and asked again."""
    if not path.exists():
        return
    whole, newline, cut_off = path.read_text(encoding="utf-8").rpartition("\n")
    if cut_off:
        write_text(path, whole + newline)
    yield from map(json.loads, whole.splitlines())


def choose(records: Sequence[Mapping[str, Any]], kind: str) -> tuple[str, str]:
    """Return the width and measure of a kind of draws that find wrong answers best on the tuning questions."""
    right = torch.tensor([record["f1"] >= RIGHT for record in records])
    scores = {
        (width, measure): wrong_answer_auroc(
            torch.tensor([record["draws"][kind][width][measure] for record in records]), right
        )
        for width in records[0]["draws"][kind]
        for measure in OF_DRAWS
    }
    return max(scores, key=lambda name: scores[name])


def pick(questions: Sequence[Question], count: int) -> list[Question]:
    """Return so many questions, always the same ones."""
    order = torch.randperm(len(questions), generator=torch.Generator().manual_seed(0)).tolist()
    return [questions[index] for index in order[:count]]


def auroc_against(
    values: Sequence[float], baseline: Sequence[float], right: torch.Tensor, *, resamples: int
) -> Estimate:
    """Return the AUROC of wrong answers by values minus that by a baseline, with a paired bootstrap over questions."""
    scores = [torch.tensor(column, dtype=torch.float64) for column in (values, baseline)]
    generator, differences = torch.Generator().manual_seed(0), list[float]()
    while len(differences) < resamples:
        draw = torch.randint(len(right), (len(right),), generator=generator)
        if 0 < right[draw].sum() < len(right):
            auroc, of_baseline = (wrong_answer_auroc(column[draw], right[draw]) for column in scores)
            differences.append(auroc - of_baseline)
    low, high = torch.tensor(differences, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    auroc, of_baseline = (wrong_answer_auroc(column, right) for column in scores)
    return Estimate(auroc - of_baseline, low=low, high=high, digits=3)


def table(
    mode: str, records: Sequence[Mapping[str, Any]], chosen: Mapping[str, tuple[str, str]], config: SmolLM2Config
) -> tuple[list[Row], dict[str, float]]:
    """Return the rows and metrics of a mode: how well each uncertainty finds its wrong answers, and its seconds."""
    right = torch.tensor([record["f1"] >= RIGHT for record in records])
    read = [record["seconds"] for record in records]
    columns: dict[str, tuple[list[float], list[float]]] = {
        name: ([record["one pass"][name] for record in records], read) for name in ONE_PASS
    }
    for kind, (width, measure) in chosen.items():
        draws = [record["draws"][kind][width] for record in records]
        seconds = [reading + draw["seconds"] for reading, draw in zip(read, draws, strict=True)]
        columns[f"{kind}({width}), {measure}"] = [draw[measure] for draw in draws], seconds
    rows: list[Row] = []
    metrics = {f"{mode}/accuracy": right.double().mean().item()}
    for name, (values, seconds) in columns.items():
        value = selection_value(torch.tensor(values, dtype=torch.float64), right, num_resamples=config.resamples)
        auroc, area = (
            Estimate(part.value, low=part.low, high=part.high, digits=3) for part in (value.auroc, value.area)
        )
        price = sum(seconds) / len(seconds)
        rows.append({
            "questions": mode, "uncertainty": name, "AUROC of wrong answers": auroc,
            "minus RAUQ": auroc_against(values, columns["RAUQ"][0], right, resamples=config.resamples),
            "risk-coverage area": area,
            "processor seconds": Estimate(price, digits=2),
        })  # fmt: skip
        metrics |= {
            f"{mode}/{name}/auroc": auroc.mean,
            f"{mode}/{name}/area": area.mean,
            f"{mode}/{name}/seconds": price,
        }
    return rows, metrics


def run(config: SmolLM2Config) -> dict[str, float]:
    """Ask the questions, choose the widths, print the tables, and write metrics, report and results/."""
    path = config.out or Path("runs", "uncertainty-smollm2")
    with open_run(path, config, free=("questions", "resamples", "results")) as folder:
        return ask_questions(config, folder)


def ask_questions(config: SmolLM2Config, folder: Path) -> dict[str, float]:
    """Run the command in its folder, which this process holds."""
    parts = load_squad(data_root=config.data_root)
    language = load_language(config)
    rows, metrics, texts = list[Row](), dict[str, float](), list[str]()
    for number, mode in enumerate(MODES):
        posterior = query_posterior(language, pick(parts["train"], config.curvature), mode)
        widths = draws_of(language, posterior, config)
        tuning = answers(
            language, pick(parts["val"], config.tuning), mode, widths, folder / f"tuning-{number}.jsonl", config
        )
        hits = sum(record["f1"] >= RIGHT for record in tuning)
        if hits in (0, len(tuning)):
            texts.append(
                f"{mode.capitalize()}: {hits} of {len(tuning)} tuning answers are right, so no width was chosen; the "
                f"first one and its entropy are taken."
            )
            chosen = {kind: (next(iter(members)), OF_DRAWS[0]) for kind, members in widths.items()}
        else:
            chosen = {kind: choose(tuning, kind) for kind in widths}
        drawn = {kind: {width: widths[kind][width]} for kind, (width, _) in chosen.items()}
        names = "-".join(f"{kind}{width}" for kind, (width, _) in chosen.items())
        tested = answers(
            language,
            pick(parts["test"], config.questions),
            mode,
            drawn,
            folder / f"test-{number}-{names}.jsonl",
            config,
        )
        hits = sum(record["f1"] >= RIGHT for record in tested)
        texts.append(f"{mode.capitalize()}: {hits} of {len(tested)} answers are right.")
        if 0 < hits < len(tested):
            new_rows, new_metrics = table(mode, tested, chosen, config)
            rows, metrics = rows + new_rows, metrics | new_metrics
        else:
            texts.append("All are of one kind, so no uncertainty can tell them apart.")
    write_metrics(folder, metrics)
    write_environment(folder, language.model.device)
    text = (
        f"{config.questions} questions of SQuAD's development file, asked with their paragraph and without; an answer "
        f"is right where its F1 of words is {RIGHT:g} or more. {' '.join(texts)} AUROC: how often a wrong answer is "
        f"less sure than a right one, .5 is chance. Intervals of 95 %: bootstrap over the questions. Width and measure "
        f"of the draws ({config.num_samples} an answer) were chosen on {config.tuning} questions of other articles. "
        f"The given text is read once at the mean weights, and the weights of the answer's tokens are drawn. Laplace: "
        f"draws of the queries of the last layer, around which {config.curvature} answers of other articles say how "
        f"sure they are, with the standard deviation of the prior."
    )
    report = Report("Wrong answers of a language model", "uncertainty-smollm2", [Part(text=text, rows=rows, labels=2)])
    source = source_of([folder], command_line("experiments.uncertainty smollm2 FOLDER", config))
    report.write(folder, source)
    publish(results_folder(config), report, source)
    return metrics
