import signal
import sys
from collections.abc import Iterator
from unittest.mock import patch

import pyro
import pytest
import torch

from pyro_attention.families.base import FAMILIES, PRIORS
from pyro_attention.normalizers import NORMALIZERS

# It registers a family when it is imported, which doctests would do.
collect_ignore = ["families/inverse_gamma.py"]

# The tests run in several processes; one thread in each keeps them from fighting over the cores.
torch.set_num_threads(1)

# Where SIGINT is ignored (nohup, some CI systems), processes that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def clean_state() -> Iterator[None]:
    """Give every test an empty parameter store, registries of its own, the same seed and Pyro's validation."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)  # seeds random, numpy and torch too
    own = patch.dict(FAMILIES), patch.dict(PRIORS), patch.dict(NORMALIZERS)
    with own[0], own[1], own[2], pyro.validation_enabled(True):
        yield
    # The doctests of the package do not run this fixture.
    pyro.clear_param_store()


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are missing stay missing."""
    for name in ("graphs.load", "text.parallel"):
        module = sys.modules.get(f"experiments.data.{name}")
        if module is not None:  # tests of the library do without its import
            monkeypatch.setattr(module, "ADDRESS", "file:///nowhere")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
