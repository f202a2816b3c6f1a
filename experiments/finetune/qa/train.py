"""Fine-tune a pretrained transformer to answer questions."""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.text.squad import load_squad
from experiments.files import user_errors
from experiments.finetune.data import share_of
from experiments.finetune.pretrained import load_tokenizer
from experiments.finetune.qa.config import QaConfig
from experiments.finetune.qa.evaluation import definitions, evaluate
from experiments.finetune.qa.model import build
from experiments.finetune.qa.windows import Windows, loader_of
from experiments.finetune.training import check_model, drop_weights, fit_scored, run_name, training_metrics
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import read_metrics, write_metrics
from experiments.report.tables import metrics_table

__all__ = ["QaConfig", "run", "run_and_show", "run_folder"]


def run_folder(config: QaConfig) -> Path:
    """Folder of the run."""
    return config.out or Path("runs", "finetune", f"squad-{config.task}-{run_name(config)}")


@exclusive
def run(config: QaConfig) -> dict[str, float]:
    """Fine-tune, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json, which says what they are.

    Raises:
        UserError: Data, model, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    check_model(config)
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        questions = load_squad(
            config.task, data_root=config.data_root, train_file=config.train_file, test_file=config.test_file
        )
        open_run(folder, config)
    places = share_of(len(questions["train"]), config.train_share, seed=config.seed)
    questions["train"] = [questions["train"][place] for place in places.tolist()]
    metrics = read_metrics(folder)
    if metrics is not None:
        return metrics
    with user_errors(ValueError, OSError):
        tokenizer = load_tokenizer(config.model)
        data = {part: Windows(asked, tokenizer, config, train=part == "train") for part, asked in questions.items()}
        trained = build(config, lengths=data["train"].lengths)
    trained.module.validation = data["val"]
    loaders = (
        loader_of(data["train"], sentences=config.batch_size, seed=config.seed),
        loader_of(data["val"], sentences=64, shuffle=False),
    )
    fitted = fit_scored(config, trained, *loaders, folder=folder)
    metrics = {
        **evaluate(trained, data, folder),
        **training_metrics(trained, fitted),
        "left_out": data["train"].left_out,
        **{f"{part}_questions": len(asked) for part, asked in questions.items()},
        **{f"{part}_without_answer": sum(not one.answers for one in asked) for part, asked in questions.items()},
        **{f"{part}_windows": len(windows) for part, windows in data.items()},
    }
    write_metrics(folder, metrics, definitions(metrics))
    drop_weights(config, folder)
    return metrics


def run_and_show(config: QaConfig) -> None:
    """The script: table on the terminal."""
    print(f"{metrics_table(run(config))}\n\nsaved in {run_folder(config)}")
