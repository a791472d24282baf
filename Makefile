# Everything happens in .venv, which `make setup` makes; nothing else needs to be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test quick rows tables check bench format clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(READY) ## make .venv and install workflows-mcp with its development tools

# An unfinished .venv is made again from the start: its Python may be too old.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "$(PYTHON) is Python %d.%d, \
	and workflows-mcp needs 3.11 or later. If you have one: make setup PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv $(if $(wildcard $(READY)),,--clear )$(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)

demo: $(READY) ## run the example workflow and print its outputs
	@$(BIN)/workflows-mcp run examples/release-notes.yaml --input project=demo

test: $(READY) ## run all tests
	$(BIN)/python -m pytest -n 3 -m "not alone"
	$(BIN)/python -m pytest -m alone

QUICK := architecture plan machine expressions dialects answers settings policy

quick: $(READY) ## lint, types and the fast tests, in under 90 seconds
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 3 -m "not slow and not alone" $(QUICK:%=tests/%)

rows: $(READY) ## list the rows of docs/features.md with the number of tests that prove each
	@PYTHONPATH=tests $(BIN)/python -m support.rows

tables: $(READY) ## write the tables of keys in docs/*-dialect.md
	@PYTHONPATH=tests $(BIN)/python -m support.key_tables

check: $(READY) ## lint, formatting, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

bench: $(READY) ## measure, in one run: steps, commits, start, Shell overhead, reactive state
	$(BIN)/python -m bench

format: $(READY) ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
