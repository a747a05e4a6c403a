# The verbs of this repository. `make` alone lists them; each installs first where it has to.

# Packages are installed without bytecode (PIP, below). It is kept once it is made, also where the environment says
# otherwise, as images of containers often do: else each process would compile its imports again.
export PYTHONDONTWRITEBYTECODE :=

# Any Python from 3.11 on makes the environment: make install PYTHON=/path/to/python
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# The settings that `make ui` shows: make ui CONFIG=divorder.toml
CONFIG ?= data/demo.toml

BIN := .venv/bin
# --no-compile: a third less time, since most modules of the large packages are never imported.
PIP_INSTALL := install -qq --no-compile --no-warn-script-location
PIP := env PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip $(PIP_INSTALL)
# Says what a part of an installation does, and how long it takes.
PART := .ci/part
# What kernels are compiled with: all that this package needs but its largest packages.
COMPILED_WITH := $(shell sed -n '/^dependencies/,/^]/s/^ *"\([a-z0-9-]*\).*/\1/p' pyproject.toml | grep -vE '^(torch|transformers|dagster|backports)')
# One folder of packages a trainer: first in PYTHONPATH, they hide what .venv has of them in other versions.
TRAINERS ?= .venv/trainers
INSTALLED := $(patsubst tests/trainers/requirements-%.txt,$(TRAINERS)/%/.installed,$(wildcard tests/trainers/requirements-*.txt))
# Dagster 1.13 announces the successor of `dagster asset materialize` and `dagster dev` at each start.
DAGSTER := PYTHONWARNINGS=ignore::FutureWarning $(BIN)/dagster

.DEFAULT_GOAL := help
.PHONY: help install sample demo test test-fast test-long test-cluster trainers test-trainers lint types docs docs-links format ui clean

help: ## list the verbs
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1 - /'

install: .venv/.installed ## create .venv and install the pinned packages (nothing to do: instant)

.venv/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.11 or newer, or name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11 or does not start: name a newer one with PYTHON=..." >&2; exit 1; }
	@echo "Installing into .venv: some 2 GB in six parts, one minute to five"
	@test -x $(BIN)/python || $(PART) "1 an environment of $(PYTHON)" $(PYTHON) -m venv --without-pip .venv
	@# The pip that comes with Python 3.11 takes twice the time over pinned versions. Installed by the pip beside
	@# $(PYTHON), the new one need not replace another first; without that pip the environment gets its own.
	@$(PART) "2 pip" sh -c '$(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python $(PIP_INSTALL) \
		-c constraints.txt --upgrade pip 2>/dev/null || \
		{ $(PYTHON) -m venv .venv && $(PIP) -c constraints.txt --upgrade pip; }'
	@$(PART) "3 what kernels are compiled with" $(PIP) -c constraints.txt setuptools $(COMPILED_WITH) \
		'backports-zstd; python_version < "3.14"'
	@# What is compiled once for this processor, the cluster map's and our own kernels, beside the rest of the installation.
	@$(PART) "4 compiling umap-learn, meanwhile" \
		$(BIN)/python -c 'import dagster_divorder.core.kernels, umap' & map=$$!; \
		$(PART) "5 compiling kernels, meanwhile" $(BIN)/python -m dagster_divorder.warm & kernels=$$!; \
		$(PART) "6 torch, Dagster and the rest" $(PIP) --no-build-isolation -c constraints.txt -e '.[films]' && \
		wait $$map && wait $$kernels
	@touch $@
	@echo "Installed: make lists the verbs"

.venv/.dev: .venv/.installed
	@$(PART) "what tests and checks need" $(PIP) -c constraints.txt -e '.[dev,films]'
	@touch $@

.venv/.trainers: .venv/.installed
	@$(PART) "the trainers whose readers the tests use" $(PIP) -c constraints.txt -e '.[dev,films,trainers]'
	@touch $@

sample: install ## build the sample corpus, data/sample/docs.jsonl (there already: instant)
	@$(BIN)/python data/build_sample.py

demo: sample ## order the sample corpus with Dagster and show what it changed
	@DIVORDER_CONFIG=data/demo.toml $(DAGSTER) asset materialize --select '*' -m dagster_divorder.definitions \
		--config-json '{"loggers": {"console": {}}}'
	@DIVORDER_CONFIG=data/demo.toml $(BIN)/divorder summary

# `loadfile`: tests of one file stay together, with the fixtures that they share; the slow files come first.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m

test: .venv/.trainers ## run the tests, on all cores: some five minutes on two
	@$(PYTEST) 'not cluster'

test-fast: .venv/.trainers ## run the tests of every edit: in a minute, no command, browser or Dagster run among them
	@$(PYTEST) 'not slow and not cluster' --hypothesis-profile quick

test-long: .venv/.trainers ## run all tests with twenty times as many examples of histories, settings, kills and numbers; for a night
	@$(PYTEST) 'not cluster' --hypothesis-profile long

.venv/.cluster: .venv/.installed
	@$(PART) "Ray and an object store" $(PIP) -c constraints.txt -e '.[dev,films,cluster]'
	@touch $@

test-cluster: .venv/.cluster ## test object storage and Ray, both started here: some minutes on two cores
	@$(BIN)/python -m pytest -m cluster tests

trainers: $(INSTALLED) ## install what olmo-core, torchtitan, streaming and litdata need beside .venv (125 MB)

$(TRAINERS)/%/.installed: tests/trainers/requirements-%.txt .venv/.trainers
	@rm -rf $(@D)
	@$(PART) "$* into $(@D)" $(PIP) --no-deps --target $(@D) -r $<
	@touch $@

test-trainers: trainers ## test exports with these trainers' own samplers and writers: a minute or two on two cores
	@TRAINERS=$(TRAINERS) $(BIN)/python -m pytest tests/trainers/test_isolated.py

lint: .venv/.dev ## check style, formatting, spelling and wording
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/codespell $$(git ls-files)
	@$(BIN)/python .ci/style

types: .venv/.dev ## check the types
	@$(BIN)/mypy

.venv/.docs: .venv/.installed
	@$(PART) "what builds the site" $(PIP) -c constraints.txt -e '.[films,docs]'
	@touch $@

docs: .venv/.docs ## build the site, build/site/index.html; warnings are errors; half a minute
	@$(BIN)/python -m sphinx -q -E -W --keep-going -c docs/site -d build/doctrees . build/site
	@echo "The site: $(CURDIR)/build/site/index.html (its search works from the file)"

docs-links: .venv/.docs ## ask every link of the site to other sites whether it still answers; needs the network
	@$(BIN)/python -m sphinx -q -b linkcheck -c docs/site -d build/doctrees . build/links

format: .venv/.dev ## format the code and mend what ruff can mend
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

ui: sample ## open Dagster's UI on the demo's settings, http://127.0.0.1:3000
	@DIVORDER_CONFIG=$(CONFIG) $(DAGSTER) dev

clean: ## remove what the demo, the tests and the tools made; .venv stays
	@rm -rf data/sample data/curated data/exports data/store .dagster_home .tmp_dagster_home_* build dist
	@rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
