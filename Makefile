# Settings, from the environment or the command line:
#   PYTHON      the interpreter that makes .venv (3.11 or newer)
#   TORCH_SPEC  the torch to install, e.g. torch==2.13.0
#   PIP_ARGS    extra arguments to every pip install, e.g. an --extra-index-url with CPU wheels
PYTHON ?= python3
TORCH_SPEC ?= torch
PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CONSTRAINTS := $(VENV)/constraints.txt
# Named after TORCH_SPEC, so that asking for another torch installs it.
STAMP := $(VENV)/.installed-$(shell printf '%s' '$(TORCH_SPEC)' | cksum | cut -d' ' -f1)

ifneq ($(shell command -v uv 2>/dev/null),)
CREATE_VENV = uv venv --python "$$(command -v $(PYTHON))" $(VENV)
PIP_INSTALL = uv pip install --python $(BIN)/python $(PIP_ARGS)
else
CREATE_VENV = $(PYTHON) -m venv $(VENV)
PIP_INSTALL = $(BIN)/python -m pip install $(PIP_ARGS)
endif

.PHONY: help demo test test-all lint bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## compare the kinds of attention on a small task
	$(BIN)/python -m experiments.compare --resume

test: $(STAMP) ## run the tests, without the slow ones
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: $(STAMP) ## run all tests
	$(BIN)/python -m pytest -n auto

lint: $(STAMP) ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(STAMP) ## run the benchmarks, or one: make bench NAME=graph_attention
	$(BIN)/python -m experiments.benchmarks $(if $(NAME),--name $(NAME))

clean: ## remove caches and build products; .venv stays
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# torchvision pins one release of torch. The constraint makes pip choose the torchvision
# that goes with the torch already here, instead of replacing that torch. A CUDA build of
# torchvision still cannot load beside a CPU build of torch, and Lightning, which needs no
# torchvision, fails to import when it finds one that is broken: then it is better gone.
$(STAMP): pyproject.toml | $(BIN)/python
	rm -f $(VENV)/.installed-*
	$(PIP_INSTALL) "$(TORCH_SPEC)"
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(CONSTRAINTS)
	$(PIP_INSTALL) -c $(CONSTRAINTS) -e '.[experiments,dev]'
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/python -m pip uninstall -y torchvision
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo >&2 "Python 3.11 or newer is needed: set PYTHON (now $(PYTHON))"; exit 1; }
	rm -rf $(VENV)
	$(CREATE_VENV) || { rm -rf $(VENV); exit 1; }
