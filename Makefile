# MemeCMD: `make` lists the targets. GNU make 3.81 or later.
SHELL := /bin/sh
PROFILE ?= example
SET ?=
VENV ?= .venv
PYTHON ?=
# What users name is taken from make's own words alone: WSL exports NAME, other tools read MODEL or RELEASE. It goes through the environment as it stands: neither make nor the shell reads a name as code.
NAMED := IN OUT RUN STRATEGY FIELDS GRADES RELEASE NAME MOD ENTRY MODEL PICTURES
WITHOUT_MODEL := qwen2.5-coder-1.5b
WITHOUT_STRATEGY := greedy
$(foreach name,$(NAMED),$(eval override $(name) := $(if $(filter command,$(origin $(name))),$$(value $(name)),$$(WITHOUT_$(name)))))
export PROFILE SET $(NAMED)
# Where it is set nothing that Python compiles is kept, and each notebook compiles its imports anew.
unexport PYTHONDONTWRITEBYTECODE

PY := $(VENV)/bin/python
READY := $(VENV)/.ready
MEMECMD := $(PY) -m memecmd_utils

.PHONY: help help-all reproduce templates test test-all test-paper lab local-llm doctor cost insert-memes fit-placement grading-page leaderboard library-sources paper-data collect-news verify refresh-tracked compare-tracked recordings-check site page-pictures bench coverage lint wheels strip lock clean
.DEFAULT_GOAL := help

USAGE := make TARGET [PROFILE=example|live|local|openai|paper|authors] [SET="key=value ..."]
list = awk -v mark='$(1)' 'index($$0, mark)==1{text=substr($$0,length(mark)+1); next} /^[a-z-]+:/{if(text!=""){name=$$1; sub(/:.*/,"",name); printf "  %-18s %s\n", name, text}} {text=""}' $(MAKEFILE_LIST)

help:
	@echo '$(USAGE)'; echo; $(call list,## ); echo; echo '  make help-all      the rest: sources, recordings, tracked results, benchmarks'

#+ List all targets
help-all:
	@echo '$(USAGE)'; echo; $(call list,## ); echo; $(call list,#+ )

## Make the dataset, all tables and all figures of PROFILE (start here: about two minutes on an idle laptop)
reproduce: $(READY)
	@$(MEMECMD) reproduce --release "$$RELEASE"

## Make CM50 and measure CLIP on memes (SET="imgflip=DIR published=DIR memecap=DIR figmemes=DIR": folders you have)
templates: $(READY)
	@$(MEMECMD) reproduce --templates

## Run all tests except the slow ones
test: $(READY)
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow"

#+ Run all tests, including kills, whole runs, browsers and real models
test-all: $(READY)
	$(PY) -m pytest -n 2 --dist worksteal

#+ Test the models of PROFILE=paper and of make templates on tiny weights (VENV=DIR: an environment made from requirements-paper.lock)
test-paper:
	MEMECMD_REQUIRE_PAPER=1 HF_HUB_OFFLINE=1 $(PY) -m pytest -q -n 2 --dist loadfile -m paper

## Open JupyterLab on the notebooks
lab: $(READY)
	@[ "$$(id -u)" != 0 ] || echo "you are root, so JupyterLab starts with --allow-root: anyone with its address and token can do anything on this machine"
	$(PY) -m jupyterlab --notebook-dir=notebooks $$([ "$$(id -u)" != 0 ] || echo --allow-root)

## Install engine and weights for PROFILE=local (MODEL=qwen2.5-coder-1.5b or gemma-3-270m)
local-llm: $(READY)
	$(MEMECMD) fetch local-llm -- "$$MODEL"

## Say what this machine lacks for PROFILE: models, keys, addresses, prices
doctor: $(READY)
	@$(MEMECMD) doctor

## Estimate the calls, tokens, money and hours of PROFILE; no call is made
cost: $(READY)
	@$(MEMECMD) cost

## Put memes into your own chats: IN=chat.csv OUT=with_memes.csv [RUN=example STRATEGY=greedy|learned|reranked FIELDS=text=...]
insert-memes: $(READY)
	@$(MEMECMD) insert-memes --strategy "$$STRATEGY" --run "$$RUN" --fields "$$FIELDS" -- "$$IN" "$$OUT"

#+ Fit learned placement on a run's graded memes: [RUN=example GRADES=grades.csv with dialogue_id,turn,meme_id,grade]
fit-placement: $(READY)
	@$(MEMECMD) fit-placement --run "$$RUN" -- "$$GRADES"

#+ Make a page to grade memes in a run's chats by key (0, 1, 2); it gives the table that fit-placement takes [RUN=example]
grading-page: $(READY)
	@$(MEMECMD) grading-page --run "$$RUN"

#+ Score your ranking of memes next to the package's (train on split example, test on both untouched): ENTRY="my.trec my.py" [NAME=... RUN=example GRADES=... RELEASE=DIR MOD=...]
leaderboard: $(READY)
	@$(MEMECMD) leaderboard --name "$$NAME" --run "$$RUN" --grades "$$GRADES" --release "$$RELEASE" --mod "$$MOD"

#+ Fetch the paper's image repositories
library-sources: $(READY)
	@$(MEMECMD) fetch library

## Fetch the paper's own data for PROFILE=authors (PICTURES=1: its pictures, too; RELEASE=DIR: look at a clone that you have)
paper-data: $(READY)
	@$(MEMECMD) fetch paper-data $(if $(PICTURES),--pictures) -- "$$RELEASE"

#+ Collect news for PROFILE from its feeds; run it on several days to gather more
collect-news: $(READY)
	@$(MEMECMD) fetch news

## Check the release of PROFILE, or the one in RELEASE=DIR, against its checksums
verify: $(READY)
	@$(MEMECMD) verify -- "$$RELEASE"

#+ Copy the example run's numbers and pictures into reports/ for the README, and CITATION.cff to where it is repeated
refresh-tracked: $(READY)
	@$(PY) .ci/tracked.py refresh && $(PY) .ci/citation.py

#+ Compare the example run with the tracked numbers, placements and pictures
compare-tracked: $(READY)
	@$(PY) .ci/tracked.py compare

#+ Verify the tracked recordings and those of PROFILE, line by line
recordings-check: $(READY)
	@$(PY) .ci/recordings.py check

#+ Put PROFILE's run, lessons, leaderboard, data card and glossary into reports/<run>/site (PICTURES=1: memes without a licence, too)
site: $(READY)
	@$(MEMECMD) site $(if $(PICTURES),--pictures)

#+ Take the READMEs' screenshots of the example's page (maintainers; needs Chromium)
page-pictures: $(READY)
	PYTHONPATH=tests/helpers MEMECMD_REQUIRE_BROWSER=1 $(PY) .ci/page_pictures.py

#+ Measure speed and write reports/bench.md (some minutes); BENCH=slider measures one part again, BENCH=paper_size all stages at the paper's size
bench: $(READY)
	$(PY) .ci/measure.py $(BENCH)

#+ Simulate how often intervals hold the truth, and write reports/coverage.md (a minute or two)
coverage: $(READY)
	$(PY) .ci/coverage.py reports/coverage.md

#+ Check style, import rules, types of the records, and that every import is declared
lint: $(READY)
	$(PY) -m ruff check . && $(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy
	$(PY) -m deptry memecmd_utils

# Pure Python and published as sources only; and what Linux on arm64 compiles at the set-up, with a C compiler.
SOURCES := jieba jsonpath-rw rouge-score
ON_ARM := pytrec-eval-terrier
#+ Check that every package of the lock has a wheel on Linux and macOS for Python 3.11 to 3.14; nothing is installed
wheels: $(READY)
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; for platform in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu aarch64-apple-darwin; do \
	  sources="$(SOURCES)"; [ $$platform != aarch64-unknown-linux-gnu ] || sources="$$sources $(ON_ARM)"; \
	  for python in 3.11 3.12 3.13 3.14; do \
	    MACOSX_DEPLOYMENT_TARGET=14.0 $(VENV)/bin/uv pip install -q --dry-run --only-binary :all: $$(printf -- '--no-binary %s ' $$sources) \
	      --python-platform $$platform --python-version $$python --target "$$folder" -r requirements.lock; \
	    echo "$$platform, Python $$python: a wheel for everything"; done; done

#+ Remove outputs and counts from the notebooks, keep cell tags
strip: $(READY)
	$(VENV)/bin/nbstripout --keep-id --drop-empty-cells notebooks/*.ipynb

#+ Resolve the dependencies again (maintainers)
lock: $(READY)
	$(PY) -m pip install -q uv && $(VENV)/bin/uv pip compile --universal --generate-hashes --python-version 3.11 \
	  --extra dev --no-header --quiet pyproject.toml -o requirements.lock
	$(VENV)/bin/uv pip compile --universal --generate-hashes --python-version 3.11 --extra dev --extra paper \
	  -c requirements.lock --no-header --quiet pyproject.toml -o requirements-paper.lock

## Delete runs and reports; keep recordings, sources and tracked files
clean:
	find data/processed data/interim reports -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .benchmarks

# An environment that a class shares is read-only and was not made from this checkout: it is used as it is, with
# the package and the folders of this checkout. Whoever sets it up puts a file .shared into it.
ifneq ($(wildcard $(VENV)/.shared),)
export PYTHONPATH := $(CURDIR)
MADE_FROM :=
else
MADE_FROM := requirements.lock pyproject.toml
endif

# The first Python that starts and is new enough; a shim that only prints an error does not count. Its pip puts pip
# and uv into the environment (ensurepip takes two seconds longer and serves where there is none). uv fills it from
# the package index that pip is configured with; where it cannot be had or fails, pip does. The lock is complete, so
# nothing is resolved again.
UV := uv==0.13.9
# `pip config get` reads one of pip's files, `list` what counts of all of them.
pip_has = $$(printf '%s\n' "$$configured" | sed -nE -e 's/\\n/ /g' -e "s/^(global|install)[.]$(1)='(.*)'/\2/p" | tail -n 1)
# What every notebook imports is compiled beside what comes next, on the second core.
WARM_UP = $(PY) -c 'import ipykernel.kernelapp, matplotlib.backends.backend_agg, memecmd_utils.report' >/dev/null 2>&1
$(READY): $(MADE_FROM)
	@set -e; found=; for candidate in $(if $(PYTHON),"$(PYTHON)",python3.12 python3.11 python3.13 python3.14 python3); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "no Python 3.11 or later with venv found: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$found ($$("$$found" -c 'import platform; print(platform.python_version())')), under a minute ..."; \
	"$$found" -m venv "$(VENV)" --without-pip; export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	"$$found" -m pip --python $(PY) install -q --no-compile pip $(UV) 2>/dev/null || \
	  { $(PY) -m ensurepip --default-pip >/dev/null && $(PY) -m pip install -q $(UV) || true; }; \
	configured=$$($(PY) -m pip config list 2>/dev/null) || true; \
	index="$${PIP_INDEX_URL:-$(call pip_has,index-url)}"; more="$${PIP_EXTRA_INDEX_URL:-$(call pip_has,extra-index-url)}"; \
	export UV_DEFAULT_INDEX="$${index:-https://pypi.org/simple}" UV_INDEX="$$more" UV_INDEX_STRATEGY=unsafe-best-match; \
	if $(VENV)/bin/uv pip install -q --python $(PY) --no-deps --require-hashes -r requirements.lock && \
	  { $(WARM_UP) & } && $(VENV)/bin/uv pip install -q --python $(PY) --no-deps -e .; then :; \
	else echo "uv did not fill the environment: pip does, which takes some minutes" >&2; \
	  $(PY) -m pip install -q -r requirements.lock; \
	  $(PY) -m pip install -q --no-deps -e .; fi; \
	touch $@
