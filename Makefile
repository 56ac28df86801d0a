# Each target does its own set-up: it needs only make and Python >= 3.11.
# `make PYTHON=/path/to/python3.12 test` picks another interpreter.

.DEFAULT_GOAL := help
.PHONY: help demo test check bench setup clean

PYTHON ?= $(shell for p in python3 python python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help:
	@echo "make demo    real models through the suite, the gate and the report; about three minutes"
	@echo "make test    all tests"
	@echo "make check   lint, format and types"
	@echo "make bench   speed and memory against transformers"

demo: $(STAMP)
	$(BIN)/evalgate demo

test: $(STAMP)
	$(BIN)/python -m pytest -q --numprocesses auto --dist loadfile

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	for script in benchmarks/*.py; do $(BIN)/python "$$script" || exit 1; done

setup: $(STAMP)

# Installed again when the dependencies change. -qq: pip says only what went wrong.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 on PATH: install one, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "installing into $(VENV) (once; a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
