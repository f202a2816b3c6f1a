"""Configuration of the site. ``make docs`` builds it into build/site; nothing is fetched from a network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import api_pages  # noqa: E402
import mathml  # noqa: E402
import matplotlib  # noqa: E402

import pyro_attention  # noqa: E402
from experiments.report.pages import write_tables  # noqa: E402

matplotlib.use("agg")

project = "pyro_attention"
author = "The pyro_attention founders"
copyright = f"2026, {author}"
release = pyro_attention.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["tutorials"]  # sphinx-gallery makes the pages of gallery/ out of them
suppress_warnings = ["config.cache"]

html_theme = "furo"
html_title = f"pyro_attention {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
pygments_style = "friendly"
highlight_language = "bash"  # of blocks that name none

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False  # a method without a docstring does what its base class says
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

copybutton_prompt_text = ">>> "


def reset(gallery_conf: dict[str, object], fname: str) -> None:  # noqa: ARG001
    """Begin every tutorial with the same seeds and without parameters of the one before."""
    import pyro

    pyro.clear_param_store()
    pyro.set_rng_seed(0)


sphinx_gallery_conf = {
    "examples_dirs": ["tutorials"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("matplotlib", "conf.reset"),
    "capture_repr": (),  # what a tutorial wants to show, it prints
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "remove_config_comments": True,
    "image_srcset": ["2x"],
}


def setup(app: object) -> None:
    """Write the pages of the reference and of the tables, and add the renderer of formulas."""
    api_pages.write(HERE / "api")
    write_tables(HERE / "results" / "tables")
    mathml.add_to(app)
