# Two commands are enough on a machine with Python and make:
#   make quickstart    real text in, a Hugging Face model out (a few minutes on two cores)
#   make test          the test suite
# Each target makes .venv from requirements.lock first, if it is not there yet.

PYTHON ?= python3
VENV ?= .venv
# A text folder of your own instead of the plays: make quickstart TEXT=/path/to/folder
TEXT ?=
# Another folder for the quickstart's results: make quickstart OUT=/path/to/folder
OUT ?= quickstart
# More arguments for pytest: make test ARGS="tests/composer -k time"
ARGS ?=

# Packages are installed without bytecode, which is three times as fast; Python writes what it needs.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-slow check format bench docs lock clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## Make .venv from requirements.lock (the other targets do it by themselves)

# Plain pip, no resolver: everything is pinned; DeepSpeed compiles its kernels when they are used. The second line adds the CUDA packages that torch
# asks for on a GPU machine; elsewhere it finds nothing to do.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	DS_BUILD_OPS=0 $(PIP) install --quiet --no-compile --no-deps --requirement requirements.lock
	$(PIP) install --quiet --no-compile --constraint requirements.lock torch
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	$(PIP) check
	@touch $@

quickstart: $(INSTALLED)  ## Train, resume, evaluate, export and sample a small model on real text
	$(BIN)/python scripts/misc/quickstart.py --out "$(OUT)" $(if $(TEXT),--text "$(TEXT)")

test: $(INSTALLED)  ## Run the tests (ARGS="..." for pytest)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

test-slow: $(INSTALLED)  ## Run the tests marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not gpu" $(ARGS)

check: $(INSTALLED)  ## Format, lint, types, lock file, pages and house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/python scripts/misc/lock.py --check
	$(BIN)/python scripts/misc/recipe_reference.py --check
	$(BIN)/python -m pytest -q tests/house

format: $(INSTALLED)  ## Format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## Run the benchmarks
	$(BIN)/python benchmarks/run.py

docs: $(INSTALLED)  ## Write the pages that are made from the code
	$(BIN)/python scripts/misc/recipe_reference.py

lock:  ## Resolve all packages anew and write requirements.lock
	$(PYTHON) scripts/misc/lock.py

clean:  ## Remove .venv and what the quickstart made
	rm -rf $(VENV) quickstart
