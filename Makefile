# `make` lists the targets. Every path is relative, so a checkout may sit in a folder with spaces in its name.
.DEFAULT_GOAL := help
.PHONY: help pilot test lint check format bench slurm-demo clean distclean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CODE := pilotkit tests benchmarks .ci

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'Variables: ARGS="hardware=h100 ..." for pilot, PYTEST_ARGS="-k name" for test and check, PYTHON=python3.12 for a new .venv'

pilot: $(INSTALLED) ## Install on first use, then run every stage on this machine; ARGS are passed on
	@$(BIN)/python -m pilotkit stage=all $(ARGS)

# Tests of one file stay together and in order (tests/conftest.py), files start as they are listed: the long ones first.
# Clusters wait for most of their time: whole runs go on beside them.
SIDE_BY_SIDE := -n auto --dist loadscope --no-loadscope-reorder
JUNIT_FILE = $(if $(JUNIT),--junitxml='$(JUNIT)/$(1).xml')

test: $(INSTALLED) ## Every test that needs no GPU, slowest named
	@status=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not gpu" --durations=10 $(call JUNIT_FILE,quick) $(PYTEST_ARGS) \
		tests/torch tests/browser tests/unit || status=$$?; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not gpu" --durations=10 $(call JUNIT_FILE,whole) $(PYTEST_ARGS) \
		tests/slurm tests/runs || status=$$?; \
	exit $$status

lint: $(INSTALLED) ## Format, lint, types, layers: what CI asks first
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

# The unit tests include the driver with a torch that raises on import.
check: lint ## lint and the unit tests: before every commit
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) --durations=5 $(call JUNIT_FILE,check) $(PYTEST_ARGS) tests/unit

format: $(INSTALLED) ## Rewrite the code in the project's format
	@$(BIN)/ruff check --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

bench: $(INSTALLED) ## Measure again what docs/performance.md claims
	@$(BIN)/python benchmarks/bench_compose.py
	@$(BIN)/python benchmarks/bench_records.py
	@$(BIN)/python benchmarks/bench_finish.py
	@$(BIN)/python benchmarks/lock_trials.py
	@$(BIN)/python benchmarks/bench_meter.py

slurm-demo: $(INSTALLED) ## A private Slurm cluster on this machine, a small sweep on it, its page, and the cluster down again
	@$(BIN)/python tests/slurm/demo.py

clean: ## Remove build leftovers and caches
	@rm -rf build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	@find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## clean, and also outputs/, multirun/ and .venv
	@rm -rf outputs multirun $(VENV)

# The stamp carries the time of the last whole installation: one that broke off is done again.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here: install Python 3.10 to 3.13, or name one with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1): pilotkit needs Python 3.10 to 3.13, name one with make PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { echo "Making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing pilotkit and its dependencies into $(VENV) (torch is large: minutes on the first time)"
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@touch $@
