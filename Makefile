# `make run` and `make test` work from a fresh clone; `make help` lists the rest.
PYTHON ?= python3.11
VENV   := .venv
PY     := $(VENV)/bin/python
READY  := $(VENV)/.installed
RUN    ?= --dataset=mnist --eps=3 --preset=quick
PAPER  ?= results/paper-mini
SWEEP  ?=
DATA   ?=

.PHONY: help run test test-all lint bazel-test doctor bench paper-mini lock clean

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# The checks stand before the install, so that a wrong Python fails in one line, not in pip's pages.
$(READY): requirements.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found. Install Python 3.11, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), and TensorFlow Federated 0.87 needs Python 3.11: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3.11-venv" >&2; exit 1; }
	@[ "$$(uname -sm)" = "Linux x86_64" ] || { echo "error: TensorFlow Federated's worker runs on Linux x86-64 only, and this is $$(uname -sm)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PY) -m pip install --quiet --compile --no-deps -r requirements.txt || { echo "error: the install failed: see pip's lines above, then run make again" >&2; exit 1; }
	@touch $@

run: $(READY)    ## the main job: RUN="--dataset=... --eps=..." changes it
	$(PY) -m experiments.main $(RUN) --fallback_dataset=digits

test: $(READY)   ## the tests that need no network and minutes at most
	$(PY) -m pytest -n auto --dist loadfile -m "not network and not statistical"

test-all: $(READY) ## every test: downloads, statistics
	$(PY) -m pytest

lint: $(READY)   ## ruff (lint and format) and mypy
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

bazel-test: $(READY) ## the same tests as bazel targets
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bazel test //...

doctor: $(READY) ## what this machine can run, and what is wrong
	$(PY) -m experiments.doctor

bench: $(READY)  ## what a round costs beside its clients' training
	$(PY) -m experiments.bench round

# The sweep measures the machine and says how long it will take. A run that failed (exit code 1) is
# told by the report, too; an interrupted sweep ends here, and goes on with the same command.
paper-mini: $(READY) ## the paper's comparison in small: sweep, figures, report; DATA="--data_dir=...", SWEEP="--datasets=mnist" for a part
	@echo "First the sweep, which says how long it will take; then the figures, about as long as a dozen of its runs; then the report."
	@$(PY) -m experiments.sweep experiments/sweeps/paper_mini.toml --output_dir=$(PAPER) $(SWEEP) $(DATA); code=$$?; \
	[ $$code -le 1 ] || exit $$code; \
	$(PY) -m experiments.figures --figure=all --sweep=$(PAPER) --output_dir=$(PAPER)/figures $(DATA) && \
	$(PY) -m experiments.report $(PAPER) && exit $$code

lock: $(READY)   ## remake requirements.txt from requirements.in
	$(PY) -m pip install --quiet --target $(VENV)/uv uv
	{ sed -n '/^# /p;/^#$$/p;/^[^#]/q' requirements.txt; \
	  $(VENV)/uv/bin/uv pip compile --quiet --upgrade --no-header --no-emit-index-url --no-emit-find-links --python-version 3.11 requirements.in; } > requirements.new
	mv requirements.new requirements.txt

clean:           ## remove the environment and what the tests left
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis bazel-*
