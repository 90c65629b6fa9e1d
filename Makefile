# Every target prepares its own environment; nothing else needs to be installed first.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := pip install --quiet --disable-pip-version-check
NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "FedSaddle needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-portable check docs bench format

# The tests whose outcome could depend on how a processor rounds: those that compare bits or numbers that were written
# down, and those that compare two ways to compute. Of experiments that are alike but for the data, one.
BITS := $(addprefix tests/, test_by_hand.py test_convolutions.py test_golden.py \
	test_runs.py::test_killed_at_random_moments_and_resumed_it_writes_the_same_bytes \
	test_flower.py::test_all_nine_equal_the_simulator_bit_for_bit test_flower.py::test_tasks_with_data_equal_the_simulator)
WAYS := $(addprefix tests/, test_engine.py test_exact.py test_identities.py test_replay.py test_tapes.py compile)
ALIKE := -k "not cifar10 and not celeba and not gan-fashion and not steady"

help:
	@echo "make demo    train on an unreliable fleet and show the result"
	@echo "make test    run the tests"
	@echo "make test-portable   those that depend on arithmetic, as older processors compute"
	@echo "make check   formatting, lint, types and tests, as CI does"
	@echo "make docs    build the documentation's site, and check every link on it"
	@echo "make bench   time this engine against a plain loop, pfl-research and Flower"
	@echo "make setup   prepare .venv only"
	@echo "make format  rewrite the code in the project's format"

setup: .venv/ready

.venv/ready: requirements.lock pyproject.toml
	@$(NEW_ENOUGH)
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP_INSTALL) -r requirements.lock
	$(BIN)/$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch .venv/ready

# CI has DEMO="--rounds 20": all of it, for a shorter time.
demo: setup
	@if $(BIN)/fedsaddle data mnist; then $(BIN)/fedsaddle run auc-mnist-small $(DEMO); \
	else echo "MNIST is out of reach; the small digits that come with scikit-learn do instead"; $(BIN)/fedsaddle run auc-digits $(DEMO); fi

test: setup
	$(BIN)/python -m pytest -n auto

# What PyTorch, oneDNN and MKL do on a processor with AVX2 at most, and on one that has not even that. MKL heeds its own
# variable on Intel's processors only, where its products are then, as elsewhere, those that depend on alignment.
# `make test` has compared all ways to compute as this processor does, so they are compared on one other kind.
test-portable: setup
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 $(BIN)/python -m pytest -n auto $(BITS) $(ALIKE)
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE $(BIN)/python -m pytest -n auto $(BITS) $(WAYS) $(ALIKE)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

# An environment of its own: the site is made from the source as text, without PyTorch.
docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "the site is in site/index.html; with its search: .venv-docs/bin/mkdocs serve"

.venv-docs/ready: requirements-docs.lock
	@$(NEW_ENOUGH)
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/$(PIP_INSTALL) --no-deps -r requirements-docs.lock
	@touch .venv-docs/ready

bench: setup
	$(BIN)/fedsaddle data mnist
	$(BIN)/python -m benchmarks

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
