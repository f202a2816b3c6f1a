# Settings, from the environment or the command line:
#   PYTHON       the interpreter that makes .venv (3.11 or newer)
#   CONSTRAINTS  exact versions that were tested together; empty (CONSTRAINTS=) installs the newest of everything
#   TORCH_SPEC   the torch to install in place of the one in the constraints, e.g. torch==2.13.0
#   TORCH_INDEX  the index that torch is taken from, such as PyTorch's own of wheels for CPUs
#   PIP_ARGS     extra arguments to every pip install
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
TORCH_SPEC ?=
TORCH_INDEX ?=
PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# What pip is told: the constraints, with the torch that is installed in place of theirs.
PINNED := $(VENV)/constraints.txt
# Named after the settings, so that asking for other versions installs them.
STAMP := $(VENV)/.installed-$(shell printf '%s' '$(TORCH_SPEC) $(CONSTRAINTS)' | cksum | cut -d' ' -f1)
# The tests need more packages than the demo, and the site more than the tests.
DEV_STAMP := $(STAMP)-dev
DOCS_STAMP := $(STAMP)-docs

ifneq ($(shell command -v uv 2>/dev/null),)
CREATE_VENV = uv venv --python "$$(command -v $(PYTHON))" $(VENV)
PIP_INSTALL = uv pip install --python $(BIN)/python $(PIP_ARGS)
else
CREATE_VENV = $(PYTHON) -m venv $(VENV)
PIP_INSTALL = $(BIN)/python -m pip install $(PIP_ARGS)
endif

.PHONY: help install demo test test-all test-lowest tested-lowest lint docs figures bench constraints clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(DEV_STAMP) ## only install, into .venv

demo: $(STAMP) ## align a generated text, and count how often intervals of attention weights are right
	@echo "The demo takes about three minutes on two cores. Part 1 of 2: schemes of the papers translate a generated text;"
	@echo "how well do they find its links, and how well does pyro-align?"
	$(BIN)/python -m experiments.nmt table compare --rows '["soft", "weibull", "marginal"]' --resume
	@echo "Part 2 of 2: how often do 90 % intervals of attention weights hold the true weights?"
	$(BIN)/python -m experiments.coverage table coverage-noise --rows '["soft, one noise", "MC dropout", "ELBO, Weibull k = 10, KL .001", "evidence"]' --seeds 1 --num-samples 200 --resume
	@echo "Coverage is the share of true weights inside their 90 % interval: .9 is right."
	@echo "The evidence learns how wide the noise of each query is; dropout and a width that is chosen do not know it."
	@echo "Whether intervals of your own model can be believed: docs/how_to/check_an_interval.md"

test: $(DEV_STAMP) ## run the tests, without the slow ones
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: $(DEV_STAMP) ## run all tests
	$(BIN)/python -m pytest -n auto

test-lowest: ## run the tests of the library with the lower bounds of all packages, in .venv-lowest
	$(MAKE) VENV=.venv-lowest CONSTRAINTS=constraints-lowest.txt TORCH_SPEC= tested-lowest

# Old packages warn of new ones, which is no matter of ours; nor of tests that tests run.
tested-lowest: $(DEV_STAMP)
	PYTEST_ADDOPTS="-W default" $(BIN)/python -m pytest -n auto -m "not slow" \
		--ignore tests/experiments --ignore tests/pages --ignore tests/test_commands_of_pages.py tests pyro_attention

lint: $(DEV_STAMP) ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(DOCS_STAMP) ## build the site into build/site: pages, reference, tutorials
	$(BIN)/python -m sphinx -W --keep-going -q docs build/site
	@echo "build/site/index.html"

figures: $(DEV_STAMP) ## draw the figures of the README and of the site anew
	$(BIN)/python docs/figures/draw.py

bench: $(DEV_STAMP) ## run the benchmarks, or one: make bench NAME=graph_attention
	$(BIN)/python -m experiments.benchmarks $(if $(NAME),--name $(NAME))

constraints: ## write constraints.txt anew: the newest versions, in an environment of their own
	$(MAKE) VENV=.venv-newest CONSTRAINTS= TORCH_SPEC= .venv-newest/.frozen
	rm -rf .venv-newest

# The packages that come with one platform's torch stay out: torch itself asks for them by exact version.
$(VENV)/.frozen: $(DOCS_STAMP)
	$(BIN)/python -m pip list --format=freeze --exclude-editable | \
		grep -viE '^(pip|setuptools|wheel|triton|cuda-|nvidia-)' > constraints.new
	{ sed '/^[^#]/d' constraints.txt; cat constraints.new; } > constraints.next
	mv constraints.next constraints.txt
	rm constraints.new

clean: ## remove caches and build products; .venv stays
	rm -rf build dist docs/api docs/gallery docs/sg_execution_times.rst .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# torchvision pins one release of torch, so pip is told which torch is here already: it then chooses
# the torchvision that goes with it, instead of replacing that torch. A CUDA build of torchvision
# cannot load beside a CPU build of torch, and Lightning, which needs no torchvision, fails to import
# when it finds one that is broken: then it is better gone.
$(STAMP): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	rm -f $(VENV)/.installed-*
	cat /dev/null $(CONSTRAINTS) $(if $(TORCH_SPEC),| sed -e '/^torch==/d' -e '/^torchvision==/d') > $(PINNED)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c $(PINNED) "$(or $(TORCH_SPEC),torch)" $(if $(TORCH_INDEX),torchvision)
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> $(PINNED)
	$(PIP_INSTALL) -c $(PINNED) -e '.[experiments]'
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/python -m pip uninstall -y torchvision
	touch $@

$(DEV_STAMP): $(STAMP)
	$(PIP_INSTALL) -c $(PINNED) -e '.[dev]'
	touch $@

$(DOCS_STAMP): $(DEV_STAMP)
	$(PIP_INSTALL) -c $(PINNED) -e '.[docs]'
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo >&2 "Python 3.11 or newer is needed: set PYTHON (now $(PYTHON))"; exit 1; }
	rm -rf $(VENV)
	$(CREATE_VENV) || { rm -rf $(VENV); exit 1; }
