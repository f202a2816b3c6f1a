"""Comparison of kinds of uncertainty of a fine-tuned transformer: rows of one budget of passes, on GLUE and SQuAD."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from experiments.cli import command_line
from experiments.data.storage import read_arrays
from experiments.files import UserError, expected_one_of
from experiments.folder import open_run, write_environment, write_metrics
from experiments.parallel import run_all
from experiments.report.report import Part, Report, publish, results_folder, source_of
from experiments.report.statistics import Difference, Estimate, Row
from experiments.training import resolve_device
from experiments.uncertainty.config import CompareConfig, Domain, GlueTaskName, PairConfig, SpanConfig, TaskName
from experiments.uncertainty.networks import PairNetworkTask
from experiments.uncertainty.scores import HIGHER, METRICS, Array, Prediction, Scores, predict_from, resampled_scores
from experiments.uncertainty.spans import SpanNetworkTask, load_windows, predict_spans
from guides.rows import ROWS
from pyro_attention.analysis import fit_temperature

DOMAINS: Mapping[GlueTaskName, Domain] = {"sst2": "headlines", "cola": "sst2", "rte": "mrpc", "mrpc": "rte"}
"""Where the sentences of each task of GLUE come from that are out of domain."""
TITLES: Mapping[str, str] = {
    "sst2": "SST-2", "cola": "CoLA", "rte": "RTE", "mrpc": "MRPC", "headlines": "headlines", "squad": "SQuAD",
}  # fmt: skip
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "soft": {**ROWS["soft"]},
    "lognormal": {**ROWS["LC"], "scale": 0.1},
    "weibull": {**ROWS["WC"], "concentration": 10.0},
    "evidence": {**ROWS["evidence"]},
    "lora": {**ROWS["soft"], "adapter_rank": 8, "learning_rate": 1e-3},
}
"""Options of the networks; soft ones and those with LoRA are members of ensembles, too."""
Networks = PairConfig | SpanConfig


@dataclass(frozen=True)
class Method:
    """A row: which predictions of which networks it takes.

    Attributes:
        training: Networks, by their name in TRAININGS.
        kind: Kind of their predictions.
        passes: Passes of a network for one prediction; 0 stands for the budget.
        of_library: Whether a user has it from this library; the output layer's is a LaplacePosterior of that layer.
        scaled: Divide logits by a temperature that validation examples choose.
        ensemble: Average the networks of all members.
        of_spans: Whether SQuAD, whose texts are long, has the row, too.
    """

    training: str
    kind: str
    passes: int = 0
    of_library: bool = False
    scaled: bool = False
    ensemble: bool = False
    of_spans: bool = True


METHODS: Mapping[str, Method] = {
    "soft attention": Method("soft", "mean", passes=1),
    "temperature": Method("soft", "mean", passes=1, scaled=True),
    "MC dropout": Method("soft", "mc_dropout"),
    "ensemble": Method("soft", "mean", ensemble=True),
    "ensemble of LoRA": Method("lora", "mean", ensemble=True, of_spans=False),
    "Laplace, output layer": Method("soft", "last_layer", passes=1, of_library=True),
    "Laplace, score network": Method("soft", "score_network", of_library=True, of_spans=False),
    "random weights, no training": Method("soft", "width", of_library=True),
    "LogNormal, ELBO": Method("lognormal", "attention", of_library=True, of_spans=False),
    "Weibull, ELBO": Method("weibull", "attention", of_library=True),
    "LogNormal, evidence": Method("evidence", "attention", of_library=True, of_spans=False),
}
"""Rows of the table; the first one is what the others are compared with."""
BASELINE = next(iter(METHODS))


def chosen_methods(config: CompareConfig, task: TaskName) -> dict[str, Method]:
    """Return a task's rows that are asked for, soft attention among them; UserError where one is unknown."""
    for row in config.rows:
        if row not in METHODS:
            raise UserError(f"rows '{row}': {expected_one_of(METHODS, row)}")
    asked = (BASELINE, *(config.rows or METHODS))
    return {row: method for row, method in METHODS.items() if row in asked and (task != "squad" or method.of_spans)}


def kinds_of(training: str, *, task: TaskName, member: bool) -> tuple[str, ...]:
    """Return the predictions that a task's rows take of a network, whichever rows are asked for.

    Args:
        training: Name of the network in TRAININGS.
        task: The task.
        member: Whether it is one of the seeds beyond the rows' own, that ensembles alone have.
    """
    methods = [method for method in METHODS.values() if method.training == training]
    kinds = [
        method.kind for method in methods
        if (method.ensemble or not member) and (task != "squad" or method.of_spans)
    ]  # fmt: skip
    return tuple(dict.fromkeys(kinds))


def network_configs(config: CompareConfig, folder: Path) -> dict[tuple[str, str, int], Networks]:
    """Return the options of every network by task, training and seed, task by task."""
    shared = {
        name: getattr(config, name)
        for name in ("model", "max_epochs", "val_items", "test_items", "widths", "prior_scales")
    } | {"precision": "bf16-mixed", "keep_weights": False, "num_samples": config.members}
    configs = dict[tuple[str, str, int], Networks]()
    for task in config.tasks:
        counts = dict[str, int]()
        for method in chosen_methods(config, task).values():
            count = config.members if method.ensemble else config.seeds
            counts[method.training] = max(count, counts.get(method.training, 0))
        for name, seed in ((name, seed) for name, count in counts.items() for seed in range(count)):
            options = {
                **config.for_runs(), **shared, **TRAININGS[name], "seed": seed, "out": folder / task / name / str(seed),
                "kinds": kinds_of(name, task=task, member=seed >= config.seeds),
            }  # fmt: skip
            if task == "squad":
                configs[task, name, seed] = SpanConfig(**options, train_items=config.train_questions)
            else:
                train_items = config.cola_items if task == "cola" else config.train_items
                configs[task, name, seed] = PairConfig(
                    **options, train_items=train_items, task=task, domain=DOMAINS[task],
                    pooling="pair" if task in ("rte", "mrpc") else "head",
                )  # fmt: skip
    return configs


def train_network(config: Networks) -> dict[str, float]:
    """Train a network that is not there yet, and return its metrics."""
    return PairNetworkTask().run(config) if isinstance(config, PairConfig) else SpanNetworkTask().run(config)


def predicted(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of predictions.npz in the folder of a network."""
    return read_arrays(folder / "predictions.npz", "make it again by --overwrite")


Predict = Callable[[Array, Array], Prediction]  # of logits [S, items, ..., classes] of test and domain


def predictor(task: TaskName, config: CompareConfig, folder: Path) -> Predict:
    """Return what makes predictions out of logits of the test items and of those out of domain."""
    if task == "squad":
        networks = network_configs(replace(config, tasks=(task,)), folder)
        windows = load_windows(cast(SpanConfig, next(iter(networks.values()))), parts=("test", "domain"))
        return lambda test, domain: predict_spans(torch.from_numpy(test), torch.from_numpy(domain), windows)
    labels = predicted(folder / task / METHODS[BASELINE].training / "0")["labels_test"]
    return lambda test, domain: predict_from(softmax(test, axis=-1), softmax(domain, axis=-1), labels)


def predictions_of(
    method: Method, networks: Sequence[Mapping[str, NDArray[Any]]], predict: Predict
) -> list[Prediction]:
    """Return the predictions of a row, one a seed; of an ensemble one alone.

    Args:
        method: The row.
        networks: Arrays of its networks, by seed; of an ensemble those of its members.
        predict: Makes a prediction out of logits.
    """
    logits = [[_logits(method, arrays, part) for part in ("test", "domain")] for arrays in networks]
    if method.ensemble:
        logits = [[np.concatenate(parts) for parts in zip(*logits, strict=True)]]
    return [predict(*parts) for parts in logits]


def _logits(method: Method, arrays: Mapping[str, NDArray[Any]], part: str) -> Array:
    logits = arrays[f"{method.kind}_{part}"].astype(np.float64)
    if method.scaled:
        val, labels = (torch.from_numpy(arrays[name]) for name in (f"{method.kind}_val", "labels_val"))
        # first and last token of an answer are two items here
        logits /= fit_temperature(val.double().flatten(1, -2), labels.flatten()).temperature
    return np.asarray(logits)


def price(method: Method, members: int) -> str:
    """Say how many passes a prediction takes, and how many trainings."""
    if method.ensemble:
        return f"{members}, and {members} trainings"
    return str(method.passes or members)


def task_parts(
    task: TaskName, config: CompareConfig, folder: Path
) -> tuple[list[Row], list[Row], dict[str, float], dict[str, dict[str, Difference]]]:
    """Return the rows of a task, their differences to soft attention, its metrics, and these differences by row."""
    methods, predictions = chosen_methods(config, task), dict[str, list[Prediction]]()
    predict = predictor(task, config, folder)
    for row, method in methods.items():
        seeds = range(config.members if method.ensemble else config.seeds)
        predictions[row] = predictions_of(
            method, [predicted(folder / task / method.training / str(seed)) for seed in seeds], predict
        )
    scores = resampled_scores(predictions, resamples=config.resamples)
    rows, differences, metrics = list[Row](), list[Row](), dict[str, float]()
    by_row = dict[str, dict[str, Difference]]()
    for row, method in methods.items():
        estimates = {metric: estimate(scores[row], metric) for metric in METRICS if metric in scores[row].by_seed}
        metrics |= {f"{task}/{row}/{metric}": cell.mean for metric, cell in estimates.items()}
        cells = {metric: estimates.get(metric, "-") for metric in METRICS}
        rows.append({"task": TITLES[task], "row": row, "passes": price(method, config.members), **cells})
        if row != BASELINE:
            by_row[row] = {metric: difference(scores[row], scores[BASELINE], metric, task) for metric in estimates}
            compared = {metric: by_row[row].get(metric, "-") for metric in METRICS}
            differences.append({"task": TITLES[task], "row": row, **compared})
    return rows, differences, metrics, by_row


def estimate(scores: Scores, metric: str) -> Estimate:
    """Return the mean over the seeds with its interval over the test items."""
    low, high = np.quantile(scores.resampled[metric], (0.025, 0.975)).tolist()
    values = tuple(scores.by_seed[metric].tolist())
    return Estimate(float(np.mean(values)), low=low, high=high, digits=3, count=len(values), values=values)


def difference(scores: Scores, baseline: Scores, metric: str, task: str) -> Difference:
    """Return the difference to soft attention, which is bold where interval and seeds are all on one side of zero.

    Soft attention has no draws: what draws say is compared with its entropy.
    """
    other = metric if metric in baseline.by_seed else "AUROC, entropy"
    low, high = np.quantile(scores.resampled[metric] - baseline.resampled[other], (0.025, 0.975)).tolist()
    by_seed = scores.by_seed[metric] - baseline.by_seed[other]  # an ensemble has one value for all seeds
    is_clear = (low > 0 and by_seed.min() > 0) or (high < 0 and by_seed.max() < 0)
    return Difference(
        float(scores.by_seed[metric].mean() - baseline.by_seed[other].mean()), low, high, digits=3, metric=metric,
        against=BASELINE, data=task, over="items", better="higher" if metric in HIGHER else "lower",
        bold=bool(is_clear),
    )  # fmt: skip


def summary_rows(
    differences: Mapping[TaskName, Mapping[str, Mapping[str, Difference]]],
) -> Iterator[Row]:
    """Yield for every row at how many tasks it is clearly better and clearly worse than soft attention, by metric."""
    for row, method in METHODS.items():
        if not any(row in by_row for by_row in differences.values()):
            continue
        cells = {}
        for metric in METRICS:
            of_tasks = [by_row[row][metric] for by_row in differences.values() if metric in by_row.get(row, {})]
            signs = [_sign(difference, metric) for difference in of_tasks]
            cells[metric] = f"+{signs.count(1)} -{signs.count(-1)} of {len(signs)}" if signs else "-"
        yield {"row": row, "of this library": "yes" if method.of_library else "no", **cells}


def _sign(difference: Difference, metric: str) -> int:
    """Whether a row is clearly better (1), clearly worse (-1), or neither."""
    if not difference.bold:
        return 0
    return 1 if (difference.low > 0) == (metric in HIGHER) else -1


def best_rows(metrics: Mapping[str, float], title: str, tasks: Sequence[TaskName]) -> Iterator[Row]:
    """Yield for every metric the best row by its mean over the tasks, and the best one of this library."""
    for metric in METRICS:
        means = {
            row: float(np.mean([metrics[f"{task}/{row}/{metric}"] for task in tasks]))
            for row in METHODS
            if tasks and all(f"{task}/{row}/{metric}" in metrics for task in tasks)
        }
        if not means:
            continue
        sign = -1 if metric in HIGHER else 1
        order = sorted(means, key=lambda row: sign * means[row])
        of_library = next((row for row in order if METHODS[row].of_library), "-")
        yield {
            "tasks": title,
            "metric": metric,
            "best row": order[0],
            "value": f"{means[order[0]]:.3f}",
            "best row of this library": of_library,
            "its value": f"{means[of_library]:.3f}" if of_library in means else "-",
            BASELINE: f"{means[BASELINE]:.3f}" if BASELINE in means else "-",
        }


TEXT = (
    "Means over {config.seeds} networks, ensembles of {config.members}. {config.max_epochs} epochs; temperature, "
    "widths and priors of Laplace were chosen by the NLL of {config.val_items} validation examples at most. Budget: "
    "{config.members} passes for a prediction; soft attention, the temperature and the Laplace posterior of the output "
    "layer take one. Intervals of 95 %: bootstrap over the test examples, the networks as they are; a resample makes "
    "the ECE larger, so its intervals lie too high. Risk-coverage area: mean error over all coverages, most confident "
    "first. AUROC: how often an item out of domain has the larger entropy or mutual information, .5 is chance. "
    "LogNormal and Weibull weights under the ELBO are in all layers. Random weights without training: LogNormal around "
    "the weights of the trained network."
)
GLUE_TEXT = (
    " GLUE: trained on {config.train_items} examples at most (CoLA: {config.cola_items}), tested on "
    "{config.test_items} at most and as many out of domain ({domains}). Weights of the evidence are in the last layer. "
    "Laplace of the score network: the queries of the last layer, with the curvature of {curvature_items} of the "
    "training examples, so that it is wider than a posterior given all of them."
)
SQUAD_TEXT = (
    " SQuAD: trained on {config.train_questions} questions of 1.1 at most; tested on {config.test_items} with an "
    "answer and, out of domain, as many of 2.0 without one. A question and its paragraph have {length} tokens at most. "
    "Accuracy: exact match with one of the given answers; NLL: of first and last token of the first one."
)


def compare(config: CompareConfig) -> dict[str, float]:
    """Train the networks that are not there yet, print the tables, and write metrics, report and results/."""
    for task in config.tasks:
        chosen_methods(config, task)  # unknown rows are refused before anything is written
    path = config.out or Path("runs", "uncertainty-compare")
    with open_run(path, config, free=("tasks", "rows", "resamples")) as folder:
        return compare_tasks(config, folder)


def compare_tasks(config: CompareConfig, folder: Path) -> dict[str, float]:
    """Run the command in its folder, which this process holds."""
    run_all(
        train_network, network_configs(config, folder), workers=config.workers, cluster=config.cluster,
        progress=config.progress,
    )  # fmt: skip
    rows, different, metrics = list[Row](), list[Row](), dict[str, float]()
    by_task = dict[TaskName, Mapping[str, Mapping[str, Difference]]]()
    for task in config.tasks:
        of_task, differences, values, by_task[task] = task_parts(task, config, folder)
        rows, different, metrics = rows + of_task, different + differences, metrics | values
    write_metrics(folder, metrics)
    write_environment(folder, resolve_device(config.device))
    glue = [task for task in config.tasks if task != "squad"]
    domains = ", ".join(f"{TITLES[task]}: {TITLES[DOMAINS[task]]}" for task in glue)
    text = "".join(
        part.format(
            config=config, domains=domains, curvature_items=PairConfig.curvature_items, length=SpanConfig.length
        )
        for part in (TEXT, GLUE_TEXT if glue else "", SQUAD_TEXT if "squad" in config.tasks else "")
    )
    count = sum(len(of_row) for by_row in by_task.values() for of_row in by_row.values())
    parts = [
        Part(text=text, rows=rows, labels=2),
        Part(
            "Differences to soft attention",
            f"Paired over the test examples. Bold: the 95 % interval leaves out zero, and the difference has the same "
            f"sign with every seed. They are not corrected for their number, {count}, so some are bold by chance. "
            f"Mutual information is compared with the entropy of soft attention.",
            different,
            labels=2,
        ),
        Part(
            "Clear differences",
            "Number of tasks at which a row is clearly better (+) and clearly worse (-) than soft attention.",
            [*summary_rows(by_task)],
            labels=2,
        ),
        Part(
            "Best rows",
            "By the mean over the tasks of GLUE, and of SQuAD.",
            [*best_rows(metrics, "GLUE", glue), *best_rows(metrics, "SQuAD", [*{*config.tasks} - {*glue}])],
            labels=2,
        ),
    ]
    report = Report(
        f"Kinds of uncertainty of {Path(config.model).name}", f"uncertainty-{Path(config.model).name}", parts
    )
    source = source_of([folder], command_line("experiments.uncertainty compare FOLDER", config))
    report.write(folder, source)
    publish(results_folder(config), report, source)
    return metrics
