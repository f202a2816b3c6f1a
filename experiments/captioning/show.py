"""Draw where the network of a run looks at each word of its captions, also of a photograph of one's own."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from experiments.captioning.config import ShowConfig
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import describe
from experiments.captioning.figures import caption_sections, write_page
from experiments.captioning.model import load_trained, read_config
from experiments.datasets.images.captions import open_photograph
from experiments.datasets.images.region_captions import own_photograph
from experiments.files import UserError, read_text, user_errors

__all__ = ["show"]


def show(config: ShowConfig) -> list[Path]:
    """Draw the pictures: their files. The caption of a photograph of one's own is printed, too.

    Raises:
        UserError: No such run or image, or a photograph that cannot be read.
    """
    image = None if config.photo is None else _opened(config.photo, config)
    with user_errors(ValueError, OSError, ImportError):
        run = read_config(config.run, device=config.device)
        data = load_images(run, train_encoder=image is None)["test"]
        captions = read_text(config.run / "captions.txt", "train the run again").splitlines()
    trained = load_trained(config.run, data.regions.size(2), device=config.device)
    name, places = str(trained.config.guide), config.images
    if image is not None:
        with user_errors(ValueError):
            data, name, places = own_photograph(image, data, device=trained.device), f"{name}-photo", (0,)
        captions = describe(trained, data)
        print(captions[0])
    for place in places:
        if place >= len(data):
            raise UserError(f"there is no test image {place}; expected numbers from 0 to {len(data) - 1}")
    with user_errors(ValueError, OSError):  # photographs are opened again
        folder = config.out or config.run / "figures"
        sections = caption_sections(trained, data, captions, places, folder, name=name)
        files = [section.picture for section in sections if section.picture is not None]
        if config.html:
            files.append(write_page(trained, data, captions, places, folder / "captions.html"))
    print("\n".join(map(str, files)))
    return files


def _opened(photo: Path, config: ShowConfig) -> Image.Image:
    """A photograph of one's own, ahead of the data, which take longer to read."""
    if read_config(config.run).dataset == "digits":
        raise UserError(
            f"--photo {photo}: the run describes scenes of handwritten digits, which a photograph is not (dataset is "
            f"digits); show its test scenes by --images, or train on flickr8k or coco"
        )
    with user_errors(ValueError, OSError):
        return open_photograph(photo)
