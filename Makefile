# `make repro` and `make test` are all that a reviewer needs; `make help` lists the rest.
# Plain enough for macOS's GNU make 3.81.

# A Python that can make .venv; tools/make_env.py looks further if this one is not 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || command -v python)
VENV := .venv/bin
# Options for one call: make test ARGS="-k cost -x"
ARGS ?=
# The file browser opens in notebooks/, with the whole project above it.
NOTEBOOK := $(if $(wildcard notebooks/explore.ipynb),notebooks/explore.ipynb,--ServerApp.preferred_dir=$(CURDIR)/notebooks)

# What a stage starts by name (dvc, jupyter, python) is .venv's.
export PATH := $(CURDIR)/$(VENV):$(PATH)
export DVC_NO_ANALYTICS := 1
# vLLM's timed_trace prompts come from Python's hash(), which is salted unless this is set.
export PYTHONHASHSEED := 0

# No windows where pictures go to files. Not for `lab`, where the notebook's own backend draws.
RUN := MPLBACKEND=Agg $(VENV)/python
# Settings that keep JupyterLab from asking about news.
LAB_CONFIG := $(CURDIR)/tools/jupyter$(if $(JUPYTER_CONFIG_PATH),:$(JUPYTER_CONFIG_PATH))

.PHONY: help env repro measure remeasure sharegpt campaign test lab notebooks lint format lock doctor bench clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

env: ## make .venv from the locks, once (HETGPU_NO_ENGINE=1 leaves the engine out)
	@"$(PYTHON)" tools/make_env.py

repro: env ## recompute every table, figure, value and the report, and compare with the committed ones
	@$(RUN) -m hetgpu repro $(ARGS)
	@$(RUN) -m hetgpu measure

measure: env ## run vLLM on this machine (a few minutes, once); `make remeasure` runs it again
	@$(RUN) -m hetgpu measure $(ARGS)

remeasure: env ## forget this machine's runs and measure again
	rm -rf data/traces/local
	@$(RUN) -m hetgpu measure $(ARGS)

sharegpt: env ## fetch the authors' data set (ShareGPT, 0.7 GB) for measuring with it
	@$(RUN) -m hetgpu sharegpt

campaign: env ## the full experiment, for the record: data/traces/measured (35 minutes on two cores)
	@$(RUN) -m hetgpu campaign

test: env ## run the tests
	$(RUN) -m pytest tests $(ARGS)

lab: env ## open the notebooks in JupyterLab
	JUPYTER_CONFIG_PATH="$(LAB_CONFIG)" $(VENV)/python -m jupyterlab $(NOTEBOOK) $(ARGS)

notebooks: env ## run every notebook and keep its outputs
	$(VENV)/python -m hetgpu notebooks --write $(ARGS)

lint: env ## style, format and types
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy

format: env ## mend what lint can mend by itself
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .

lock: ## solve the lock files anew (ARGS=--upgrade takes newer versions)
	"$(PYTHON)" tools/lock.py $(ARGS)

doctor: env ## what this machine can do
	@$(VENV)/python -m hetgpu doctor $(ARGS)

bench: env ## the measures behind what the README says of speed
	$(RUN) benchmarks/bench_simulate.py $(ARGS)
	$(RUN) benchmarks/bench_repro.py

clean: ## remove caches and scratch; .venv, data and results stay
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis hetgpu.egg-info
	find hetgpu tests tools notebooks benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	find notebooks -name .ipynb_checkpoints -prune -exec rm -rf {} + 2>/dev/null || true
