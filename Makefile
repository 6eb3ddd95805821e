# Everything runs from one virtual environment, .venv, which the stamps keep up to date: a target that
# has nothing to do starts at once. `make install PYTHON=/path/to/python3.12` picks an interpreter.

.PHONY: help install demo test lint clean
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.stamp-base
DEV := $(VENV)/.stamp-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

help:
	@echo "make install  the kgray command, in $(BIN)/kgray"
	@echo "make demo     the examples, asked at several moments"
	@echo "make test     all tests but the slow ones"
	@echo "make lint     ruff, mypy, import-linter"
	@echo "make clean    remove .venv and the demo's folder"

install: $(BASE)

$(BASE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { python=$$(./.ci/find-python "$(PYTHON)") && "$$python" -m venv $(VENV); }
	@$(PIP) --editable .
	@touch $@

$(DEV): $(BASE)
	@$(PIP) --editable '.[dev]'
	@touch $@

demo: $(BASE)
	@$(BIN)/python examples/demo.py

test: $(DEV)
	@$(BIN)/python -m pytest

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) .demo
