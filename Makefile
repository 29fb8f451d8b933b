# `make help` lists the targets. Needs Python >= 3.11 with venv, and make; everything else is installed into $(VENV).

PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo
EPOCHS ?= 15
BATCH ?= 32
PYTEST_ARGS ?= --numprocesses auto --dist worksteal
BENCH_ARGS ?=

BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help venv demo stories test test-all test-fast test-torch test-exporters lint format bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1)' || \
		{ echo "error: $(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of dependencies: installing again is needed only when pyproject.toml changed.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

venv: $(VENV)/.dev ## Create the environment with everything development needs
	@echo "Ready: . $(BIN)/activate"

demo: $(VENV)/.demo ## Train a convolutional network on the UCI digits, then check it with ONNX Runtime
	$(BIN)/python examples/digits.py $(DEMO)
	$(BIN)/onnxc train $(DEMO)/digits.onnx --data $(DEMO)/train.npz --eval $(DEMO)/test.npz \
		--epochs $(EPOCHS) --batch $(BATCH) --out $(DEMO)/trained.onnx
	$(BIN)/python examples/evaluate.py $(DEMO)/trained.onnx $(DEMO)/test.npz --at-least 0.97

stories: $(VENV)/.demo ## Run the stories of docs/stories.md: five networks on real data, a few minutes
	@for story in fine_tuning regression autoencoder sunspots text; do \
		echo; echo "== examples/stories/$$story.py"; \
		$(BIN)/python -m examples.stories.$$story $(DEMO)/stories || exit 1; done

test: $(VENV)/.dev ## Run the tests, of exhaustive sweeps a part (docs/tests.md)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(VENV)/.dev ## Run all tests, with the whole of the sweeps
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m ""

test-fast: $(VENV)/.dev ## Run the tests that take less than a few seconds each
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not exhaustive"

test-torch: $(VENV)/.dev $(VENV)/.bench ## Compare gradients and optimizers with PyTorch (large download)
	$(BIN)/python -m pytest tests/against_torch

test-exporters: $(VENV)/.dev $(VENV)/.exporters ## Train exports of PyTorch, Keras and scikit-learn (large download)
	$(BIN)/python -m pytest tests/exporters

lint: $(VENV)/.dev ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev ## Mend style and format where that needs no thought
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.bench ## Measure the step against PyTorch and JAX (large download; BENCH_ARGS: see docs/benchmarks.md)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean: ## Remove the environment and what the demo and the tools wrote
	rm -rf $(VENV) $(DEMO) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache benchmarks/results
