"""The commands of the README and of the site, with options that make them tiny, and what they promise to leave.

A command may stand here once for every chain that needs it. Its placeholders (RUN, DIR, FOLDER, FILE, my.txt, ...) are
names of files and folders: an earlier command of its chain makes them, or ``tests/pages/data.py``.

This list is the test that each command of every task runs: ``tests/test_commands_of_pages.py`` executes it and checks
the exit code, the files, that every metric is finite and explained in docs/metrics.md, and that what is published can
be read. A new command gets a line here; tests beside it are for what its numbers *mean*.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A command.

    Args:
        line: As it stands on a page.
        more: Options behind it.
        leaves: Patterns of files that are there afterwards.
        prints: Parts of what it prints.
        undefined: Patterns of metrics that may have no value at this size, such as a correlation of equal numbers.
    """

    line: str
    more: str = ""
    leaves: tuple[str, ...] = ()
    prints: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()


def run_files(folder: str, *more: str) -> tuple[str, ...]:
    """What a training leaves, as docs/commands.md says it."""
    names = ("metrics.json", "config.yaml", "history.csv", "checkpoints/best.safetensors", *more)
    return tuple(f"{folder}/{name}" for name in names)


def drawn(folder: str) -> tuple[str, ...]:
    """The same of one that draws pictures."""
    return run_files(folder, "figures/*.png")


def looked_at(folder: str) -> tuple[str, ...]:
    """The same of one that writes a page of alignments."""
    return run_files(folder, "figures/alignments.html")


# one training at a time, of the first seed
COMPARISON = "--seeds 1 --workers 1 --no-progress"
STUDY = f"{COMPARISON} --results results"
TRAINING = "--max-epochs 1 --num-samples 2 --no-progress"
TEXT = f"{TRAINING} --vocabulary 300 --embedding 8 --hidden 8 --layers 1 --batch-size 8 --beam 2"
CAPTIONS = f"{TRAINING} --vocabulary 300 --embedding 8 --hidden 8 --batch-size 8 --beam 2"
PHOTOGRAPHS = f"{CAPTIONS} --size 32 --encoder-epochs 1"
QUESTIONS = "--hidden 8 --heads 2 --batch-size 32 --max-epochs 1 --num-samples 2"
GRAPH = "python -m experiments.graph"
TINY = "--max-epochs 2 --num-samples 2"
TWO_ROWS = f"{TINY} --rows [soft,WC]"
FOUR_GRAPHS = """--levels '["texas", "chameleon_filtered", "squirrel_filtered", "actor"]'"""
GAT = f"""heterophilous --architecture gat {FOUR_GRAPHS} --rows '["soft", "WC"]'"""
CORA = f"{TINY} --levels [cora]"
HEADLINES = f"{TRAINING} --vocabulary 280 --width 8 --heads 2 --length 40 --headline-length 12 --batch-size 8 --beam 2"
PIECES = "--vocabulary 270 --width 8 --max-epochs 1 --num-samples 2"
BERT = f"{TRAINING} --length 20 --batch-size 8"
SOFT_AND_WC = "--rows [soft,WC] --max-epochs 1 --num-samples 2"
QUESTION_ROWS = f"{SOFT_AND_WC} --train-share 0.5"
SMALL = "--hidden 8 --embedding 8 --vocabulary 300 --num-samples 2"
TRANSLATIONS = f"--max-epochs 1 {SMALL} --beam 1"
DEMO_FILES = tuple(f"runs/table/translation-toy*/{name}" for name in ("metrics.json", "report.md", "alignments.html"))
SCENES = f"--max-epochs 1 {SMALL}"
CAPTIONED = f"{SCENES} --beam 1"

NMT, CAPTIONING, VQA, FINETUNE, ALIGNERS = (
    f"python -m experiments.{name}" for name in ("nmt", "captioning", "vqa", "finetune", "aligners")
)
QUESTIONS_TRAIN = f"{VQA} train --dataset digits --model mcan --guide weibull --out RUN"
SOFT_ROWS = """--rows '["softmax, soft", "hybrid, soft"]'"""


# what some studies leave or print beside their numbers
PICTURES = {"python -m experiments.pretrain table pretraining-english": ("results/pictures/*.png",)}
PRINTED = {f"{NMT} table alignment-europarl_de_en --data-root DIR": ("IBM Model 1", "pyro-align", "AER posterior %")}


def study(line: str, more: str) -> Step:
    """A study that trains many networks and publishes their numbers."""
    leaves = ("results/*.json", "runs/*/*/metrics.json", "runs/*/*/report.md")
    return Step(line, f"{STUDY} {more}", leaves + PICTURES.get(line, ()), PRINTED.get(line, ()))


# commands that stand alone
STUDIES = (
    (f"{NMT} table translation-multi30k", f"{TRANSLATIONS} --rows [soft,marginal]"),
    (f"{NMT} table translation-multi30k-from-scratch",
     f"--rows [soft,marginal] {TRANSLATIONS} --selective-pairs 2 --out-of-domain [tatoeba]"),
    (f"{NMT} table translation-toy-normalizers", TRANSLATIONS),
    (f"{NMT} table coverage-translation", f"{TRANSLATIONS} --rows [soft,evidence]"),
    (f"{NMT} table alignment-europarl_de_en --data-root DIR", f"{TRANSLATIONS} --rows [soft,marginal] --precision 32"),
    (f"{CAPTIONING} table compare-flickr8k", f"{CAPTIONED} --rows [soft,weibull] --size 32"),
    (f"{CAPTIONING} table flickr8k --encoder-weights mobilenet_v2_imagenet.safetensors",
     f"{CAPTIONED} --rows [soft,WC] --batch-size 8 --size 64"),
    (f"{CAPTIONING} search flickr8k",
     f"{CAPTIONED} --rows [WC] --batch-size 8 --size 64 --encoder-weights mobilenet_v2_imagenet.safetensors"),
    (f"{CAPTIONING} table kl-estimators", f"{SCENES} --rows [soft,weibull]"),
    (f"{VQA} table vqa-digits", f"{QUESTIONS} --rows [soft,WC]"),
    (f"""{CAPTIONING} table flickr8k --rows '["soft", "WC", "evidence"]' --beam 1 --encoder-weights """
     "mobilenet_v2_imagenet.safetensors --images 600 --max-epochs 10 --num-samples 4",
     f"{CAPTIONED} --rows [soft,evidence] --batch-size 8 --size 64"),
    (f"{VQA} table vqa-evidence-digits", QUESTIONS),
    (f"{VQA} table vqa-easy_vqa", f"{QUESTIONS} --rows [soft] --encoder-epochs 1"),
    (f"{VQA} table vqa-alignments-easy_vqa", f"{QUESTIONS} --rows [soft] --encoder-epochs 1"),
    (f"""{VQA} table vqa-daquar --rows '["soft", "question only"]'""", f"{QUESTIONS} --encoder own --encoder-epochs 1"),
    (f"{VQA} table vqa-alignments-digits", f"{QUESTIONS} --rows [soft,marginal]"),
    (f"{VQA} table vqa-views-digits", QUESTIONS),
    (f"{VQA} table vqa-views-heads-digits", QUESTIONS),
    (f"{VQA} table vqa-views-heads-vqa_v2", f"{QUESTIONS} --blind --data-root DIR"),
    (f"{VQA} search vqa-digits", QUESTIONS),
    (f"""{VQA} table vqa-vqa_v2 --blind --rows '["soft", "WC"]' --data-root DIR""", f"{QUESTIONS} --layers 1"),
    (f"{VQA} table vqa-alignments-vqa_v2 --data-root DIR", f"{QUESTIONS} --blind --rows [soft,marginal]"),
    (f"{VQA} table vqa-views-vqa_v2", f"{QUESTIONS} --blind --data-root DIR"),
    ("python -m experiments.pretrain table pretraining-order --data-root DIR",
     f"{PIECES} --heads 2 --batch-size 8 --dataset toy --sentences 40 --rows '[\"softmax, soft\"]'"),
    (f"{VQA} table vqa-studies-digits", f"{QUESTIONS} --levels '[\"1\"]'"),
    (f"{VQA} table vqa-studies-digits --levels '[\"0.1\", \"1\"]'", QUESTIONS),
    (f"{GRAPH} table bam1 --seeds 10", CORA),
    (f"{GRAPH} table normalizers", CORA),
    (f"{GRAPH} table normalizers --seeds 5", CORA),
    (f"{GRAPH} table heterophilous {FOUR_GRAPHS} --seeds 10", TWO_ROWS),
    (f"{GRAPH} table heterophilous --levels '[\"minesweeper\"]' --seeds 3", TWO_ROWS),
    (f"{GRAPH} table {GAT} --seeds 10", TINY),
    (f"{GRAPH} table edge_noise-minesweeper", TINY),
    (f"{GRAPH} table label_rate-minesweeper", f"{TINY} --levels '[\"2\"]'"),
    (f"{GRAPH} search bam1 --levels '[\"cora\"]'", f"{TINY} --rows [soft,WC]"),
    (f"{GRAPH} table label_rate-cora", f"{TINY} --levels '[\"2\"]'"),
    (f"{GRAPH} table edge_noise-cora", TINY),
    (f"{GRAPH} table uniformity", CORA),
    ("python -m experiments.coverage table coverage-noise",
     "--items 3000 --max-epochs 1 --num-samples 200 --draws 4 --rows '[\"soft, one noise\", \"soft\", \"MC dropout\", "
     "\"ensemble of five\", \"ELBO, learned width\", \"evidence, one width\", \"evidence\", \"evidence, Weibull\"]'"),
    ("python -m experiments.coverage table coverage-models",
     "--items 300 --max-epochs 1 --num-samples 200 --levels '[\"poisson\"]'"),
    ("python -m experiments.coverage table coverage-ignorance",
     "--repeats 100 --num-samples 200 --levels '[\"30\"]'"),
    ("python -m experiments.neural_process table neural-process",
     "--rows '[\"soft\", \"soft, evidence\"]' --steps 20 --max-epochs 1 --functions 20 --num-samples 2"),
    ("python -m experiments.headlines table headlines", f"{HEADLINES} --precision 32 {SOFT_ROWS}"),
    ("python -m experiments.pretrain table pretraining-english", f"{PIECES} --finetune-epochs 1 {SOFT_ROWS}"),
    (f"{FINETUNE} table glue --model all-MiniLM-L6-v2", f"--model FOLDER --levels [mrpc] {SOFT_AND_WC}"),
    (f"""{FINETUNE} table glue --model all-MiniLM-L6-v2 --levels '["mrpc"]' --rows '["soft", "evidence"]'""",
     f"--model FOLDER {TRAINING}"),
    (f"""{FINETUNE} table glue --model all-MiniLM-L6-v2 --levels '["mrpc", "rte"]' --rows '["soft", "WC"]' --seeds 5""",
     f"--model FOLDER --levels [mrpc] {SOFT_AND_WC}"),
    (f"{FINETUNE} table glue --model FOLDER", f"--levels [rte] {SOFT_AND_WC}"),
    (f"""{FINETUNE} table glue-sst2 --rows '["soft"]' --seeds 1""", f"--model FOLDER {TRAINING}"),
    (f"{FINETUNE} table label_noise-sst2 --seeds 2", f"--model FOLDER --levels [0%,30%] {SOFT_AND_WC}"),
    (f"{FINETUNE} table out_of_domain-sst2 --seeds 2", f"--model FOLDER {SOFT_AND_WC}"),
    (f"{FINETUNE} table train_share-stsb --seeds 2", f"--model FOLDER --levels [25%,100%] {SOFT_AND_WC}"),
    (f"""{FINETUNE} search glue --model FOLDER --levels '["rte"]'""", f"{TRAINING} --rows [WC]"),
    (f"{FINETUNE} qa-table squad-v1 --model all-MiniLM-L6-v2 --rows '[\"soft\"]' --seeds 1 --train-share 0.25",
     f"--model FOLDER {QUESTION_ROWS}"),
    (f"{FINETUNE} qa-table squad-v1 --model FOLDER --data-root DIR", QUESTION_ROWS),
    (f"{FINETUNE} qa-table squad-v1 --model FOLDER", QUESTION_ROWS),
    (f"{FINETUNE} race-table race --model FOLDER", QUESTION_ROWS),
    (f"{FINETUNE} race-table race --model FOLDER --data-root DIR", QUESTION_ROWS),
)  # fmt: skip

CHAINS: dict[str, list[Step]] = {
    "coverage": [
        Step("python -m experiments.coverage train --toy correlated --draws 64",
             "--items 300 --max-epochs 1 --num-samples 200 --draws 4"),
    ],
    "make demo": [
        Step(f"""{NMT} table compare --rows '["soft", "weibull", "marginal"]' --resume""",
             f"{COMPARISON} {TRANSLATIONS}", DEMO_FILES, ("marginal", "pyro-align")),
        Step("python -m experiments.coverage table coverage-noise --rows '[\"soft, one noise\", \"MC dropout\", "
             "\"ELBO, Weibull k = 10, KL .001\", \"evidence\"]' --seeds 1 --num-samples 200 --resume",
             "--items 3000 --max-epochs 1 --draws 4", ("runs/table/coverage*/report.md",)),
    ],
    "compare": [Step(f"{NMT} table compare", f"{COMPARISON} {TRANSLATIONS} --rows [soft,dirichlet]", DEMO_FILES)],
    "aligners without a network": [
        Step(f"{ALIGNERS} --dataset europarl_de_en --pairs 20000 --data-root DIR", "", (), ("pyro-align",)),
        Step(f"{ALIGNERS} --dataset europarl_de_en --pairs 5000 --joined 20 --data-root DIR", "--joined 2", (),
             ("pyro-align",)),
        Step(f"{ALIGNERS} --dataset hansards_fr_en --pairs 20000 --data-root DIR", "--dataset toy --pairs 50", (),
             ("pyro-align",)),
        Step(f"{ALIGNERS} --dataset drawn-order", "--pairs 50 --aligners '[\"pyro-align\"]'", (), ("pyro-align",)),
    ],
    "compare captioning": [
        Step(f"{CAPTIONING} table compare", f"{COMPARISON} {CAPTIONED}",
             ("runs/table/captioning-digits*/report.md",)),
    ],
    "list": [Step("python -m experiments", "", (), ("compare", "nmt"))],
    "own translation": [
        Step(f"{NMT} train --dataset own --text FOLDER --guide categorical_enum --hidden 128 --vocabulary 2000 "
             "--out RUN", TEXT, looked_at("RUN")),
        Step(f"{NMT} align RUN some.de some.en --out alignments --table", "",
             ("alignments/alignments.txt", "alignments/probabilities.tsv", "alignments/alignments.html")),
        Step(f"{NMT} translate RUN new.de", "", ("new.en",)),
        Step(f"{NMT} evaluate RUN --k-max 5", "", (), ("perplexity", "BLEU")),
        Step(f"{NMT} evaluate RUN --source-file a.de --target-file a.en", "", (), ("perplexity", "BLEU")),
    ],
    "generated text": [
        Step(f"{NMT} train --dataset toy --guide categorical_enum --out runs/toy", TEXT, looked_at("runs/toy")),
    ],
    "published sizes": [
        Step(f"{NMT} train --config experiments/nmt/paper/iwslt14.yaml --guide marginal --out RUN",
             f"--dataset toy {TEXT} --decoder-width 8 --attention-width 8", looked_at("RUN")),
        Step(f"""{NMT} readings '["RUN"]' --k-max '[1, 2, 5, 10]'""", "--draws 2 --pairs 2 --results results",
             ("results/readings-toy.json", "runs/nmt/readings/report.md"), ("K = 5", "marginal")),
    ],
    "alignments in a browser": [
        Step(f"{NMT} train --dataset toy --guide marginal --out RUN", TEXT, looked_at("RUN")),
        Step(f"{NMT} align RUN some.de some.en --out alignments", "", ("alignments/alignments.html",)),
    ],
    "own photographs": [
        Step(f"{CAPTIONING} train --dataset coco --guide weibull --data-root DIR --out RUN", PHOTOGRAPHS,
             run_files("RUN")),
        Step(f"{CAPTIONING} show RUN --images '[3]'", "", ("RUN/figures/captions.html",)),
        Step(f"{CAPTIONING} show RUN --photo my.jpg", "", ("RUN/figures/captions.html",)),
        Step(f"{CAPTIONING} show RUN", "", ("RUN/figures/captions.html",)),
    ],
    "flickr8k": [
        Step(f"{CAPTIONING} train --dataset flickr8k --guide weibull --data-root DIR --out RUN", PHOTOGRAPHS,
             run_files("RUN")),
    ],
    "questions about digits": [
        Step(QUESTIONS_TRAIN, f"{QUESTIONS} --no-progress", run_files("RUN")),
        Step(f'{VQA} ask RUN "what digit is left of the seven" --image 3', "", ("RUN/figures/asked.png",),
             ("probability",)),
    ],
    "questions about a photograph": [
        Step(QUESTIONS_TRAIN, f"{QUESTIONS} --no-progress --dataset daquar --encoder-epochs 1", run_files("RUN")),
        Step(f'{VQA} ask RUN "what is on the desk" --photo my.jpg', "", ("RUN/figures/asked.png",), ("probability",)),
    ],
    "cora": [
        Step(f"{GRAPH} train --dataset cora --guide weibull --prior contextual --out runs/cora",
             f"{TRAINING}", drawn("runs/cora")),
    ],
    "own graph": [
        Step(f"{GRAPH} train --graph my_graph.npz --guide weibull --prior contextual --max-epochs 100 --out runs/mine",
             f"{TRAINING}", drawn("runs/mine")),
    ],
    "two clusters": [
        Step("python -m experiments.mode_collapse", "--seeds 1 --steps 1 --results results",
             ("results/mode-collapse.json", "results/pictures/mode_collapse.png", "runs/**/metrics.json")),
    ],
    "known reasons": [
        Step("python -m experiments.reasons table causal-edges",
             f"{STUDY} --steps 25 --nodes 60 --explainer-epochs 2",
             ("results/causal-edges*.json", "results/pictures/causal_edges.png", "runs/**/explanations.npz")),
        Step("python -m experiments.reasons table real-edges",
             f"{STUDY} --steps 25 --explainer-epochs 2 --data-root DIR", ("results/real-edges*.json",)),
        Step("python -m experiments.reasons table bags", f"{STUDY} --steps 2 --levels '[\"50\"]'",
             ("results/bags*.json",)),
    ],
    "a network that names instances": [
        Step("python -m experiments.reasons train --problem bags --guide marginal", "--steps 2 --bags 10 --out RUN",
             ("RUN/metrics.json", "RUN/config.yaml", "RUN/environment.json")),
    ],
    "pretraining": [
        Step("python -m experiments.pretrain train --dataset english --normalizer hybrid --finetune-epochs 4 "
             "--data-root DIR --out PRETRAINED",
             f"{PIECES} --heads 2 --batch-size 8 --no-progress --finetune-epochs 1", run_files("PRETRAINED")),
        Step(f"{FINETUNE} glue rte --model PRETRAINED --length 64 --learning-rate 1e-3 --data-root DIR --out RUN",
             f"{TRAINING} --batch-size 8", run_files("RUN")),
    ],
    "a table of pretraining": [
        Step("python -m experiments.pretrain table pretraining-order --data-root DIR --out TABLE",
             f"{STUDY} {PIECES} --heads 2 --batch-size 8 --dataset toy --sentences 40 --length 64 --rows "
             "'[\"softmax, soft\", \"hybrid, soft\"]'", ("TABLE/metrics.json", "TABLE/runs/hybrid-soft-0/config.yaml")),
        study(f"{FINETUNE} table glue-pretrained --model TABLE",
              "--levels [sst2,rte] --rows [softmax,hybrid] --max-epochs 1"),
        study(f"{FINETUNE} qa-table squad-v1-pretrained --model TABLE", "--rows [softmax,hybrid] --max-epochs 1"),
        study(f"{FINETUNE} race-table race-pretrained --model TABLE", "--rows [softmax,hybrid] --max-epochs 1"),
    ],
    "pretraining on generated sentences": [
        Step("python -m experiments.pretrain train --normalizer hybrid",
             f"{PIECES} --heads 2 --batch-size 8 --no-progress --out RUN", run_files("RUN")),
    ],
    "headlines": [
        Step("python -m experiments.headlines train --normalizer hybrid --guide weibull --data-root DIR --out RUN",
             HEADLINES, run_files("RUN")),
        Step("python -m experiments.headlines summarize RUN FILE", "", ("FILE.headlines",)),
    ],
    "where it helps": [Step("python -m experiments.pages", "", (), ("where_it_helps.md",))],
    "glue": [
        Step(f"{FINETUNE} glue rte --model FOLDER --guide weibull --data-root DIR --precision bf16-mixed --out RUN",
             BERT, run_files("RUN")),
        Step(f"{FINETUNE} predict RUN my.txt", "", ("my.txt.tsv",)),
    ],
    "squad": [
        Step(f"{FINETUNE} qa --model FOLDER --data-root DIR --out RUN", f"{BERT} --stride 8", run_files("RUN")),
        Step(f"{FINETUNE} predict RUN questions.txt", "--num-samples 2", ("questions.txt.jsonl",)),
    ],
    "race": [
        Step(f"{FINETUNE} race --model FOLDER --data-root DIR --out RUN", BERT, run_files("RUN")),
        Step(f"{FINETUNE} predict RUN passage.json", "--num-samples 2", ("passage.json.jsonl",)),
    ],
    "race, default folders": [
        Step(f"{FINETUNE} race --model FOLDER", BERT, run_files("runs/**")),
    ],
    "squad, default folders": [
        Step(f"{FINETUNE} qa --model FOLDER", f"{BERT} --stride 8", run_files("runs/**")),
    ],
    "versions": [
        Step('python -c "import pyro_attention, pyro, torch; '
             'print(pyro_attention.__version__, pyro.__version__, torch.__version__)"'),
    ],
    "architecture": [Step("python -m tests.test_architecture", "", (), ("boxes",))],
}  # fmt: skip
CHAINS |= {line: [study(line, more)] for line, more in STUDIES}
CHAINS["benchmark"] = [
    Step("python -m experiments.benchmarks --name enumeration", "--rounds 1 --out bench", ("bench/speed-*.json",)),
    Step(
        "python -m experiments.benchmarks --name predictions --threads 1",
        "--rounds 1 --out predictions",
        ("predictions/speed-*.json",),
    ),
    Step("python -m experiments.benchmarks --name evidence --threads 1", "--rounds 1 --out draws", ("draws/*.json",)),
]

# One tiny training of every task, and what reads it, in each run of the tests; all other chains are slow.
QUICK = (
    "list",
    "generated text",
    "flickr8k",
    "questions about digits",
    "own graph",
    "glue",
    "squad, default folders",
    "race, default folders",
    "pretraining on generated sentences",
    "headlines",
    "coverage",
    "a network that names instances",
    "python -m experiments.neural_process table neural-process",
    "two clusters",
)
