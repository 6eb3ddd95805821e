# Everything runs from one virtual environment, .venv, which the stamps keep up to date: a target that
# has nothing to do starts at once. `make install PYTHON=/path/to/python3.12` picks an interpreter,
# `make demo STORE=neo4j` the store, `make test-neo4j NEO4J_VERSION=2026.09.0` the server's version.

.PHONY: help install demo test test-neo4j lint clean
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.stamp-base
RAY := $(VENV)/.stamp-ray
NEO4J := $(VENV)/.stamp-neo4j
DEV := $(VENV)/.stamp-dev
STORE ?= sqlite
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

help:
	@echo "make install     the kgray command, in $(BIN)/kgray"
	@echo "make demo        the examples, asked at several moments; STORE=neo4j: on a server that it starts"
	@echo "make test        all tests but the slow ones"
	@echo "make test-neo4j  those on a Neo4j server; NEO4J_VERSION=2026.09.0: on that one"
	@echo "make lint        ruff, mypy, import-linter"
	@echo "make clean       remove .venv and the demo's folder"

install: $(BASE)

$(BASE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { python=$$(./.ci/find-python "$(PYTHON)") && "$$python" -m venv $(VENV); }
	@$(PIP) --editable .
	@touch $@

$(RAY): $(BASE)
	@$(PIP) --editable '.[ray]'
	@touch $@

$(NEO4J): $(BASE)
	@$(PIP) --editable '.[neo4j]'
	@touch $@

# Whole: the tests run what there is, and mypy reads the types of all of it.
$(DEV): $(BASE)
	@$(PIP) --editable '.[dev,neo4j,ray]'
	@touch $@

ifeq ($(STORE),neo4j)
demo: $(RAY) $(NEO4J)
	@./.ci/on-neo4j $(BIN)/python examples/demo.py
else ifeq ($(STORE),sqlite)
demo: $(RAY)
	@$(BIN)/python examples/demo.py
else
demo:
	@echo "STORE=$(STORE) is no store: sqlite, neo4j" >&2; exit 1
endif

# Two workers; what cannot run beside itself, such as Ray, shares one of them (tests/conftest.py). What is
# skipped is told with its reason: a Neo4j server or Ray that is missing must be seen.
test: $(DEV)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -rs

test-neo4j: $(DEV)
	@$(if $(NEO4J_VERSION),NEO4J_VERSION=$(NEO4J_VERSION) )$(BIN)/python -m pytest -n 2 --dist loadgroup -rs -m 'neo4j and not slow'

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) .demo
