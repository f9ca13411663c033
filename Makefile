# `make demo` and `make test` set everything up by themselves; a second call reinstalls nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs

.PHONY: demo demo-sites test test-slow test-all check bench docs clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo      run DoCoM and the baselines on the synthetic problem (a table and a figure)"
	@echo "make demo-sites four sites with real keys on this machine; one is killed and started again (about a minute)"
	@echo "make test      lint, types, layers and the test suite"
	@echo "make test-slow the long tests only"
	@echo "make test-all  everything: make test and the long tests"
	@echo "make check     ruff, mypy --strict, import-linter"
	@echo "make docs      the documentation site; open site/index.html"
	@echo "make bench     the simulator beside plain PyTorch steps; rewrites benchmarks/results and the tables of docs"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $(DOCS_STAMP)

demo: $(STAMP)
	$(BIN)/docom demo

demo-sites: $(STAMP)
	$(BIN)/docom site demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	$(BIN)/docom bench --json benchmarks/results/cpu.json
	$(BIN)/python benchmarks/tables.py

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

test: check
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow"

test-slow: $(DOCS_STAMP)
	$(BIN)/pytest -n 2 --dist loadgroup -m slow

test-all: check $(DOCS_STAMP)
	$(BIN)/pytest -n 2 --dist loadgroup

clean:
	rm -rf $(VENV) build dist site src/*.egg-info
