"""Commands of the README and of the site that ``tests/pages/commands.py`` leaves to another test, or to nobody."""

__all__ = ["ELSEWHERE", "NOT_RUN"]

PARALLEL = "tests/experiments/harness/test_parallel.py::"
LISTENS = PARALLEL + "test_the_cluster_of_the_page_listens_to_this_machine_alone"
CLUSTER = PARALLEL + "test_a_table_from_a_cluster_is_that_of_this_process"
RANKS = "tests/experiments/harness/test_ranks.py::test_torchrun_and_slurm_start_the_same_training"
ON_A_GPU = "tests/experiments/benchmarks/test_suite.py::test_fused_attention_on_a_gpu"
INSTALLED = "tests/test_wheel.py::test_wheel_holds_only_the_library_and_imports_without_extras"
CI = ".github/workflows/ci.yml::make "

ELSEWHERE: dict[str, str] = {
    "make demo": "Makefile::$(BIN)/python -m experiments.nmt table compare --resume",  # which stands above
    "make test": f"{CI}lint test",
    "make install": f"{CI}lint test",  # which begin with it
    "make lint": f"{CI}lint test",
    "make docs": f"{CI}docs",
    "make bench": "tests/experiments/benchmarks/test_suite.py::test_suite",
    "pip install .": INSTALLED,
    "python -m experiments.benchmarks --name fused_attention": ON_A_GPU,
    "python -m dask scheduler --host 127.0.0.1 --port 8786 --no-dashboard --dashboard-address 127.0.0.1:0": LISTENS,
    "python -m dask worker tcp://127.0.0.1:8786 --host 127.0.0.1 --no-dashboard --dashboard-address 127.0.0.1:0 "
    "--nthreads 1 --nworkers 2": LISTENS,
    "python -m experiments.graph table bam1 --cluster tcp://127.0.0.1:8786": CLUSTER,
    "python -m experiments.graph table bam1 --out /shared/bam1 --cluster tcp://sweep-scheduler:8786": CLUSTER,
    "torchrun --standalone --nproc-per-node 2 -m experiments.nmt train --out RUN --devices 2": RANKS,
    "srun --kill-on-bad-exit=1 python -m experiments.nmt train --out RUN --devices 4 --num-nodes 2 --resume": RANKS,
}
"""Commands that another test runs, or CI: its file, and what stands there."""

NOT_RUN: dict[str, str] = {
    "git clone https://github.com/pyro-attention/pyro-attention": "nothing is published there yet",
    "cd pyro-attention": "the folder of the clone",
    "pip install '.[align]'": "needs a network",
    "pip install '.[analysis]'": "needs a network",
    "pip install '.[transformers]'": "needs a network",
    "pip install '.[triton]'": "needs a network",
    "pip install -e '.[experiments,cluster]'": "needs a network",
    'pip install "accelerate>=1.1"': "needs a network",
    "pip install arviz": "needs a network",
    "pip install tensorboard": "needs a network",
    "make constraints": "needs a network",
    "make test-all": "runs this",
    "python -m experiments...": "stands for all of them",
    "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m experiments.nmt train "
    "--out RUN --devices 4 --num-nodes 2": "needs two machines, as its page says",
}
"""Commands that nothing runs, and why."""
