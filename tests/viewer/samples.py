"""Views for the tests: random posterior samples with a diagonal, and words that look like markup."""

import torch

from pyro_attention.viewer import AlignmentView, RegionView

MARKUP = "<img src=x onerror=alert(1)></script><b>"


def draws(rows, columns, count=30, *, seed=0):
    """Samples ``[S, M, N]``, largest near the diagonal."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.arange(rows).mul(columns).div(rows, rounding_mode="floor")
    near = 4 * torch.nn.functional.one_hot(places, columns).float()
    return (near + torch.randn(count, rows, columns, generator=generator)).softmax(-1)


def pair(number=0, *, source="das kleine Haus steht .", target="the small house stands .", **options):
    """A sentence pair by two schemes, the first of which has a prior and samples."""
    source, target = source.split(), target.split()
    samples = draws(len(target), len(source), seed=number)
    return AlignmentView(
        title=f"Pair {number + 1}", source=source, target=target, languages=("German", "English"),
        posterior={"weibull": samples, "soft": draws(len(target), len(source), 1, seed=number + 1)[0]},
        prior={"weibull": torch.full((len(target), len(source)), 1 / len(source))}, **options,
    )  # fmt: skip


def caption():
    """A caption of a picture of 2 x 3 regions."""
    picture = torch.arange(48, dtype=torch.uint8).view(6, 8)
    return RegionView(words=["a", "dog"], picture=picture, grid=(2, 3), posterior=draws(2, 6))
