"""Commands of the README and of the site that ``tests/pages/commands.py`` leaves to another test, or to nobody."""

__all__ = ["ELSEWHERE", "NOT_RUN"]

INSTALLED = "tests/test_wheel.py::test_wheel_holds_only_the_library_and_imports_without_extras"
DASK = "a test starts a cluster from Python and trains on it"
GPU = "tests/experiments/benchmarks/test_gpu.py::"
SMOLLM2 = "tests/experiments/uncertainty/test_smollm2.py::"
COMPARE = "tests/experiments/uncertainty/test_compare.py::"
CI = ".github/workflows/ci.yml::make "

ELSEWHERE: dict[str, str] = {
    "make demo": "tests/pages/commands.py::make demo",
    "make test": f"{CI}lint test",
    "make install": f"{CI}lint test",  # which begin with it
    "make lint": f"{CI}lint test",
    "make docs": f"{CI}docs",
    "make test-lowest": f"{CI}test-lowest",
    "python -m experiments.benchmarks gpu --device cpu --out runs/cpu": f"{GPU}test_command_of_a_gpu",
    "python -m experiments.benchmarks gpu --out runs/gpu": f"{GPU}test_command_of_a_gpu",
    "python -m pytest tests/blocked/test_counter_noise.py": "tests/blocked/test_counter_noise.py::def test_avalanche",
    "python -m pytest tests/blocked/test_fused_attention.py -m slow -k compiles": (
        "tests/blocked/test_fused_attention.py::compiles"
    ),
    "make bench": "tests/experiments/benchmarks/test_suite.py::test_suite",
    "pip install .": INSTALLED,
    "python -m experiments.uncertainty smollm2 FOLDER": f"{SMOLLM2}def test_the_command",
    "python -m experiments.uncertainty compare FOLDER": f"{COMPARE}def test_every_row_is_scored_on_every_task",
}
"""Commands that another test runs, or CI: its file, and what stands there."""

NOT_RUN: dict[str, str] = {
    "git clone https://github.com/pyro-attention/pyro-attention": "nothing is published there yet",
    "cd pyro-attention": "the folder of the clone",
    "pip install '.[align]'": "needs a network",
    "pip install '.[align,transformers]'": "needs a network",
    "pip install '.[analysis]'": "needs a network",
    "pip install '.[plots]'": "needs a network",
    "pip install '.[transformers]'": "needs a network",
    "pip install '.[triton]'": "needs a network",
    "pip install -e '.[experiments,cluster]'": "needs a network",
    'pip install "accelerate>=1.1"': "needs a network",
    "pip install arviz": "needs a network",
    "make constraints": "needs a network",
    "make test-all": "runs this",
    "python -m experiments...": "stands for all of them",
    'python -m experiments.vqa ask RUN "QUESTION"': "another question is asked by the list",
    "python -m dask scheduler --host 127.0.0.1 --port 8786 --no-dashboard --dashboard-address 127.0.0.1:0": DASK,
    "python -m dask worker tcp://127.0.0.1:8786 --host 127.0.0.1 --no-dashboard --dashboard-address 127.0.0.1:0 "
    "--nthreads 1 --nworkers 2": DASK,
    "python -m experiments.graph table bam1 --cluster tcp://127.0.0.1:8786": DASK,
    "python -m experiments.graph table bam1 --out /shared/bam1 --cluster tcp://sweep-scheduler:8786": DASK,
}
"""Commands that nothing runs, and why."""
