import pytest
import torch


@pytest.fixture
def double():
    """Compute in float64 from seed 0, so that exact sums agree to many digits."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
