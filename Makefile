# Every target works in a .venv that it makes itself; a fresh clone needs only python3 (>= 3.10) and make.
PYTHON ?= python3
VENV ?= .venv
PEER_VENV ?= .venv-peer
PEER26_VENV ?= .venv-peer26
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
MS27_VENV ?= .venv-ms27
MINDTORCH_VENV ?= .venv-mindtorch
MINDSPORE ?= mindspore==2.10.0
MINDSPORE27 ?= mindspore==2.7.1
PYTEST_WORKERS ?= 2

.PHONY: env demo docs test test-browser test-mindspore test-mindspore-27 test-mindtorch test-peer test-peer-26 test-matrix mutation fuzz bench bench-capture lint clean

env: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@echo "Installing into $(VENV): minutes, most of them for torch, which judges the tests"
	$(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -e '.[test,huggingface,lightning]'
	touch $@

# Apart from env, so that the demo does not wait for it. Python 3.13 has no MindSpore: its tests are left out there.
$(VENV)/.mindspore: $(VENV)/.ready
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
		echo "Installing $(MINDSPORE) into $(VENV): 800 MB"; $(BIN)/python -m pip install -q "$(MINDSPORE)"; \
	else echo "No $(MINDSPORE) for this Python: the tests of capture.mindspore are left out"; fi
	touch $@

# The engine is needed by nothing else.
$(VENV)/.fuzz: $(VENV)/.ready
	$(BIN)/python -m pip install -q -e '.[fuzz]'
	touch $@

$(MS27_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(MS27_VENV)
	$(MS27_VENV)/bin/python -m pip install -q --upgrade pip
	$(MS27_VENV)/bin/python -m pip install -q "$(MINDSPORE27)" 'numpy<2'
	$(MS27_VENV)/bin/python -m pip install -q -e '.[test]' 'numpy<2'
	touch $@

# mindnlp brings the mindtorch, and wants an older MindSpore.
$(MINDTORCH_VENV)/.ready: pyproject.toml tests/mindtorch/requirements.txt
	$(PYTHON) -m venv $(MINDTORCH_VENV)
	$(MINDTORCH_VENV)/bin/python -m pip install -q --upgrade pip
	$(MINDTORCH_VENV)/bin/python -m pip install -q -r tests/mindtorch/requirements.txt
	$(MINDTORCH_VENV)/bin/python -m pip install -q -e . 'numpy<2'
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

# The site, into build/site; a broken link or a page that is in no menu ends it.
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# torch and MindSpore bring libraries that do not agree: two processes.
test: env lint test-mindspore
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m 'not peer and not browser and not installed' --ignore=tests/capture/mindspore --ignore=tests/capture/mindtorch tests

# MindSpore with numpy 2, which is not what it was built for; test-mindspore-27 is the pair that agrees.
test-mindspore: $(VENV)/.mindspore
	@if $(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("mindspore") is None)'; then \
		$(BIN)/python -m pytest -n $(PYTEST_WORKERS) tests/capture/mindspore tests/capture/mindtorch; \
	else echo "MindSpore is not installed: tests/capture/mindspore is left out"; fi

test-mindspore-27: $(MS27_VENV)/.ready
	$(MS27_VENV)/bin/python -m pytest -n $(PYTEST_WORKERS) tests/capture/mindspore tests/capture/mindtorch

test-mindtorch: $(MINDTORCH_VENV)/.ready
	$(MINDTORCH_VENV)/bin/python -m pytest tests/mindtorch

test-peer: env $(PEER_VENV)/.ready
	MSFORMAT_PEER_PYTHON=$(abspath $(PEER_VENV))/bin/python $(BIN)/python -m pytest -m peer tests/peer

# The same with msprobe 26.2.0, in one more environment.
test-peer-26: env $(PEER26_VENV)/.ready
	MSFORMAT_PEER26_PYTHON=$(abspath $(PEER26_VENV))/bin/python $(BIN)/python -m pytest -m peer -k 26_2_0 tests/peer

# Old and odd environments, one after the other: gigabytes and an hour, or a few of them with ROWS='oldest python-3.13'.
test-matrix: env
	$(BIN)/python -m tools.matrix --workers $(PYTEST_WORKERS) $(ROWS)

# Guards are taken out one after the other, in a copy of the tree: the tests must notice. MUTATION='--only journal' takes a few.
mutation: env
	$(BIN)/python -m tools.mutation $(MUTATION)

# All readers and the state machine of the writer; FUZZ='--seconds 600' takes longer, FUZZ='pt npy --keep' a few. See docs/fuzzing.md.
fuzz: env $(VENV)/.fuzz
	$(BIN)/python -m tools.fuzz $(FUZZ)

# BENCH=--quick takes under five minutes; BENCH='--write docs/benchmarks.md' puts the tables there.
bench: env $(PEER_VENV)/.ready
	$(BIN)/python -m tools.bench --peer $(PEER_VENV)/bin/python $(BENCH)

# Capture alone, at every level, against both releases of msprobe: an hour, or minutes with BENCH=--quick.
bench-capture: env $(PEER_VENV)/.ready $(PEER26_VENV)/.ready
	$(BIN)/python -m tools.bench_capture --peer $(PEER_VENV)/bin/python --peer26 $(PEER26_VENV)/bin/python $(BENCH)

# Pages in a real browser: Debian's chromium, or whatever is called so. Left out with a word where there is none.
test-browser: env
	$(BIN)/python -m pytest -m browser tests/browser

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-matrix $(MINDTORCH_VENV) $(MS27_VENV) $(PEER_VENV) $(PEER26_VENV) demo-out build dist *.egg-info
