# Every target works in a .venv that it makes itself; a fresh clone needs only python3 (>= 3.10) and make.
PYTHON ?= python3
VENV ?= .venv
PEER_VENV ?= .venv-peer
PEER26_VENV ?= .venv-peer26
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
PYTEST_WORKERS ?= 2

.PHONY: env demo test test-peer bench lint clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@echo "Installing into $(VENV): minutes, most of them for torch, which judges the tests"
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e '.[test]'
	touch $@

$(PEER_VENV)/.ready: pyproject.toml tests/peer/requirements.txt
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER_VENV)/bin/python -m pip install -q --upgrade pip
	$(PEER_VENV)/bin/python -m pip install -q "$(TORCH)"
	$(PEER_VENV)/bin/python -m pip install -q -r tests/peer/requirements.txt
	touch $@

$(PEER26_VENV)/.ready: pyproject.toml tests/peer/requirements-26.txt
	$(PYTHON) -m venv $(PEER26_VENV)
	$(PEER26_VENV)/bin/python -m pip install -q --upgrade pip
	$(PEER26_VENV)/bin/python -m pip install -q "$(TORCH)"
	$(PEER26_VENV)/bin/python -m pip install -q -r tests/peer/requirements-26.txt
	touch $@

demo: env
	$(BIN)/python -m tools.demo

test: env lint
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m 'not peer' tests

test-peer: env $(PEER_VENV)/.ready
	MSFORMAT_PEER_PYTHON=$(abspath $(PEER_VENV))/bin/python $(BIN)/python -m pytest -m peer tests/peer

# Several minutes a tool: BENCH=--quick takes fewer steps of less.
bench: env $(PEER_VENV)/.ready $(PEER26_VENV)/.ready
	$(BIN)/python -m tools.bench $(BENCH)
	$(BIN)/python -m tools.bench_capture --peer $(PEER_VENV)/bin/python --peer26 $(PEER26_VENV)/bin/python $(BENCH)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(PEER_VENV) $(PEER26_VENV) demo-out build dist *.egg-info
