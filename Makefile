# Every target prepares its own environment; nothing else needs to be installed first.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench format

help:
	@echo "make demo    train on an unreliable fleet and show the result"
	@echo "make test    run the tests"
	@echo "make check   formatting, lint, types and tests, as CI does"
	@echo "make bench   time this engine against a plain loop, pfl-research and Flower"
	@echo "make setup   prepare .venv only"
	@echo "make format  rewrite the code in the project's format"

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "FedSaddle needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch .venv/ready

demo: setup
	@if $(BIN)/fedsaddle data mnist; then $(BIN)/fedsaddle run auc-mnist-small; \
	else echo "MNIST is out of reach; the small digits that come with scikit-learn do instead"; $(BIN)/fedsaddle run auc-digits; fi

test: setup
	$(BIN)/python -m pytest -n auto

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: setup
	$(BIN)/fedsaddle data mnist
	$(BIN)/python -m benchmarks

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
