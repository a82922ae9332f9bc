# `make run` and `make test` need nothing but Linux and Python 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: setup run test lint bench gate clean

setup: $(STAMP)

# sglang without its dependencies: they are the CUDA stack
$(STAMP): requirements/cpu.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements/dev.txt
	$(BIN)/pip install --quiet --no-deps sglang==0.5.23
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# stock SGLang and SPIN side by side on the real engine, a report in results/<name>/latest
MODEL ?= tiny-dsa
QUICKSTART_tiny-dsa := configs/quickstart.yaml
QUICKSTART_tiny-v4 := configs/quickstart-v4.yaml
run: setup
	$(BIN)/harness run $(or $(QUICKSTART_$(MODEL)),$(error MODEL must be tiny-dsa or tiny-v4))

# kernels run in Triton's interpreter, which is chosen when Triton is imported: processes of their own.
# two workers, a file to one of them, in the order that tests/conftest.py gives them
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
test: setup
	$(PYTEST) tests/kernels
	$(PYTEST) --ignore=tests/kernels

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# SPIN against stock on the CPU engine, five to eight pairs in four to six minutes on two cores. Fails
# for a regression and for a run that is not what the spec says; a machine too noisy for a verdict is
# told, not failed: docs/ci.md
gate: setup
	$(BIN)/harness run configs/ci.yaml --tolerate-noise

bench: setup
	$(BIN)/python -m benchmarks.cpu_engine
	$(BIN)/python -m benchmarks.indexer_step --device cpu --quick

clean:
	rm -rf $(VENV) build dist *.egg-info
