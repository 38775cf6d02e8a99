# MemeCMD: `make` lists the targets. GNU make 3.81 or later.
SHELL := /bin/sh
PROFILE ?= example
SET ?=
RELEASE ?=
ZIP ?=
IN ?=
OUT ?=
MOD ?=
STRATEGY ?= greedy
FIELDS ?=
DIALOGUES ?=
BENCH ?=
MODEL ?= qwen2.5-coder-1.5b
VENV ?= .venv
PYTHON ?=
PEER ?= .venv-peer
export PROFILE SET

PY := $(VENV)/bin/python
READY := $(VENV)/.ready
STAGES := 01_library_build 02_annotation 03_dialogue_generation 04_retrieval 04b_learned_placement\
          05_evaluation 05b_studies 06_figures
TEMPLATE_STAGES := 07_template_memes 08_meme_text_retrieval
# What a notebook runs on: the nouns, the machinery, and the rooms that it uses; a change elsewhere does not run it.
files = $(shell find $(1) -name '*.py' -o -name '*.j2' -o -name '*.txt' 2>/dev/null)
NOUNS := $(call files,memecmd_utils/core memecmd_utils/prompts memecmd_utils/runs.py memecmd_utils/schemas.py memecmd_utils/settings.py)
rooms = $(call files,$(addprefix memecmd_utils/,$(1)))
CORPUS := $(wildcard data/example/*.* data/example/recordings/*/* data/example/recordings/*/*/* data/paper/*)

.PHONY: help help-all reproduce test test-all test-paper lab local-llm doctor cost insert-memes fit-placement study-placement evaluate-mod leaderboard library-sources collect-news verify refresh-tracked compare-tracked recordings-check site page-pictures bench coverage bench-peer lint strip lock clean stages templates template-stages
.DEFAULT_GOAL := help

USAGE := make TARGET [PROFILE=example|local|openai|paper] [SET="key=value ..."]
list = awk -v mark='$(1)' 'index($$0, mark)==1{text=substr($$0,length(mark)+1); next} /^[a-z-]+:/{if(text!=""){name=$$1; sub(/:.*/,"",name); printf "  %-18s %s\n", name, text}} {text=""}' $(MAKEFILE_LIST)

help:
	@echo '$(USAGE)'; echo; $(call list,## ); echo; echo '  make help-all      the rest: sources, recordings, tracked results, benchmarks'

#+ List all targets
help-all:
	@echo '$(USAGE)'; echo; $(call list,## ); echo; $(call list,#+ )

# Where nothing is asked of a model, dialogues are made beside the library; else one stage at a time has the engine,
# the endpoint's rate and the live line for itself.
## Make the dataset, every table and every figure of PROFILE (the main job)
reproduce: $(READY)
	@[ -x $(PY) ] || exit 0; run=$$($(PY) -m memecmd_utils resolve) || exit $$?; \
	settled="data/processed/$$run/profile.yaml"; \
	if $(MAKE) -q --no-print-directory stages RUN="$$run" 2>/dev/null; then echo "nothing to do: run $$run is up to date"; \
	else $(PY) -m memecmd_utils hold "$$run" $(MAKE) -j$$(($$(grep -c '^mode: recorded' "$$settled") + 1)) --no-print-directory stages RUN="$$run"; fi && \
	$(PY) -m memecmd_utils summary "$$run"

# Apart from the main job: another paper, other data, English. What is found or fetched is written down, and the
# notebooks run anew when that changes.
## Make CM50 and measure CLIP on memes (SET="imgflip=DIR cm50=DIR memecap=DIR figmemes=DIR": folders you have)
templates: $(READY)
	@[ -x $(PY) ] || exit 0; run=$$($(PY) -m memecmd_utils resolve --templates) && $(PY) -m memecmd_utils fetch templates "$$run" && \
	if $(MAKE) -q --no-print-directory template-stages RUN="$$run" 2>/dev/null; then echo "nothing to do: run $$run is up to date"; \
	else $(PY) -m memecmd_utils hold "$$run" $(MAKE) --no-print-directory template-stages RUN="$$run"; fi

## Run the tests, but for the slow ones
test: $(READY)
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow"

#+ Run all tests, also kills, whole runs, browsers and real models
test-all: $(READY)
	$(PY) -m pytest -n 2 --dist loadfile

# Every file with a test that needs torch, lpips, bert-score or optuna; a test looks that none is missing.
PAPER_TESTS := test_paper_models test_paper_profile test_paper_templates \
  core/encoders/test_clip mtrclip/test_tuning mtrclip/test_loss mtrclip/test_meme_text_run mtrclip/test_models \
  cm50/test_matching cm50/test_metrics cm50/test_tables evaluation/test_benchmark
#+ Test the models of PROFILE=paper and of make templates on tiny weights; VENV=DIR is an environment made from requirements-paper.lock
test-paper:
	MEMECMD_REQUIRE_PAPER=1 HF_HUB_OFFLINE=1 $(PY) -m pytest -q $(PAPER_TESTS:%=tests/%.py)

## Open JupyterLab on the notebooks
lab: $(READY)
	@[ "$$(id -u)" != 0 ] || echo "you are root, which JupyterLab refuses unless it is told --allow-root, as is done now: whoever has its address and token may do anything on this machine"
	$(PY) -m jupyterlab --notebook-dir=notebooks $$([ "$$(id -u)" != 0 ] || echo --allow-root)

## Install the engine and the weights for PROFILE=local (MODEL=qwen2.5-coder-1.5b or gemma-3-270m)
local-llm: $(READY)
	$(PY) -m memecmd_utils fetch local-llm $(MODEL)

## Check Python, packages, fonts, models and keys
doctor: $(READY)
	@$(PY) -m memecmd_utils doctor

## Print calls, tokens, money and hours of PROFILE before it runs
cost: $(READY)
	@$(PY) -m memecmd_utils cost

## Put memes into your own chats: IN=chat.csv OUT=with_memes.csv [RUN=example STRATEGY=greedy|learned FIELDS=text=...]
insert-memes: $(READY)
	@$(PY) -m memecmd_utils insert-memes "$(IN)" "$(OUT)" --strategy "$(STRATEGY)" --run "$(RUN)" --fields "$(FIELDS)"

#+ Fit learned placement on a run's graded memes: [RUN=example GRADES=grades.csv with dialogue_id,turn,meme_id,grade]
fit-placement: $(READY)
	@$(PY) -m memecmd_utils fit-placement "$(GRADES)" --run "$(RUN)"
#+ Study what learned placement needs (its parts, features, graded dialogues; new memes): writes data/example/placement_study.json
study-placement: $(READY)
	@$(PY) -m memecmd_utils study-placement --run "$(RUN)"

#+ Measure retrieval on your copy of MOD: MOD=file or folder [RUN=... DIALOGUES=100]
evaluate-mod: $(READY)
	@$(PY) -m memecmd_utils evaluate-mod "$(MOD)" --run "$(RUN)" $(if $(DIALOGUES),--dialogues "$(DIALOGUES)")

#+ Score your ranking of memes beside the package's: ENTRY="my.trec my.py embedder" [NAME=... RUN=example GRADES=... RELEASE=DIR MOD=...]
leaderboard: $(READY)
	@$(PY) -m memecmd_utils leaderboard $(ENTRY) --name "$(NAME)" --run "$(RUN)" --grades "$(GRADES)" --release "$(RELEASE)" --mod "$(MOD)"

#+ Fetch the paper's repositories of images (ZIP=PATH: the images of emo-visual-data)
library-sources: $(READY)
	@$(PY) -m memecmd_utils fetch library "$(ZIP)"

#+ Collect news for PROFILE from its feeds; run it on several days to gather more
collect-news: $(READY)
	@$(PY) -m memecmd_utils fetch news

## Check the release of PROFILE, or the one in RELEASE=DIR, against its manifest
verify: $(READY)
	@$(PY) -m memecmd_utils verify "$(RELEASE)"

#+ Copy the example run's numbers and pictures into reports/ for the README
refresh-tracked: $(READY)
	@$(PY) -m memecmd_utils tracked refresh

#+ Compare the example run with the tracked numbers, placements and pictures
compare-tracked: $(READY)
	@$(PY) -m memecmd_utils tracked compare

#+ Verify the tracked recordings and those of PROFILE, line by line
recordings-check: $(READY)
	@$(PY) -m memecmd_utils recordings check

#+ Put the page of PROFILE's run and its notebooks into one folder for any static host
site: $(READY)
	@$(PY) -m memecmd_utils site

#+ Take the READMEs' pictures of the example's page (maintainers; needs Chromium)
page-pictures: $(READY)
	MEMECMD_REQUIRE_BROWSER=1 $(PY) tests/bench/page_pictures.py

# Last, so that a table is there early.
LONG := tests/bench/bench_library.py tests/bench/bench_full_size.py
#+ Measure speed (tests/bench, an hour or two) into reports/bench.md; BENCH=tests/bench/bench_panel.py measures a part again
bench: $(READY)
	@mkdir -p reports/bench; $(if $(BENCH),,rm -f reports/bench/*.json;) status=0; \
	for file in $(or $(BENCH),$(filter-out $(LONG),$(wildcard tests/bench/bench_*.py)) $(LONG)); do \
	  json="reports/bench/$$(basename "$$file" .py).json"; rm -f "$$json"; \
	  MEMECMD_PEER_PYTHON="$(abspath $(wildcard $(PEER)/bin/python))" $(PY) -m pytest "$$file" \
	    --benchmark-only --benchmark-json="$$json" || status=$$?; \
	  $(PY) tests/bench/speed_table.py reports/bench.md reports/bench/*.json || status=$$?; \
	done; exit $$status

#+ Simulate how often intervals hold the truth, with few dialogues too, into reports/coverage.md (a minute or two)
coverage: $(READY)
	$(PY) tests/bench/coverage.py reports/coverage.md

#+ Install another generator in an environment of its own, for make bench to compare with
bench-peer: $(READY)
	$(PY) -m venv "$(PEER)" && "$(PEER)/bin/python" -m pip install -q "distilabel[openai]==1.5.3" requests beautifulsoup4

#+ Check style, import rules, types of nouns and faces, and that what is imported is declared
lint: $(READY)
	$(PY) -m ruff check . && $(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports
	$(PY) -m mypy
	$(PY) -m deptry memecmd_utils

#+ Take outputs and counts out of the notebooks, keeping cell tags
strip: $(READY)
	$(VENV)/bin/nbstripout --keep-id --drop-empty-cells notebooks/*.ipynb

#+ Resolve the dependencies anew (maintainers)
lock: $(READY)
	$(PY) -m pip install -q uv && $(VENV)/bin/uv pip compile --universal --generate-hashes --python-version 3.11 \
	  --extra dev --no-header --quiet pyproject.toml -o requirements.lock
	$(VENV)/bin/uv pip compile --universal --generate-hashes --python-version 3.11 --extra dev --extra paper --extra metrics --extra search --extra exchange \
	  -c requirements.lock --no-header --quiet pyproject.toml -o requirements-paper.lock

## Delete runs and reports; keeps recordings, sources and tracked files
clean:
	find data/processed data/interim reports -mindepth 1 -maxdepth 1 -type d ! -path reports/bench -exec rm -rf {} +
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .benchmarks

# An environment that a class shares is read-only and was not made from this checkout: it is used as it is, with
# the package and the folders of this checkout. Whoever sets it up puts a file .shared into it.
ifneq ($(wildcard $(VENV)/.shared),)
export PYTHONPATH := $(CURDIR)
MADE_FROM :=
else
MADE_FROM := requirements.lock pyproject.toml
endif

# The first Python that starts and is new enough; a shim that only prints an error does not count.
$(READY): $(MADE_FROM)
	@set -e; found=; for candidate in $(if $(PYTHON),"$(PYTHON)",python3.12 python3.11 python3.13 python3); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "no Python 3.11 or later with venv found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$found ($$("$$found" -c 'import platform; print(platform.python_version())')), a minute or two ..."; \
	"$$found" -m venv "$(VENV)"; \
	$(PY) -m pip install -q --disable-pip-version-check -r requirements.lock; \
	$(PY) -m pip install -q --disable-pip-version-check --no-deps -e .; \
	touch $@

stages: $(STAGES:%=reports/$(RUN)/%.ipynb)

# One rule for all notebooks: the notebook, what it runs on, the corpus, the resolved profile; then the order of stages.
reports/$(RUN)/%.ipynb: notebooks/%.ipynb $(NOUNS) $(CORPUS) data/processed/$(RUN)/profile.yaml
	@$(PY) -m memecmd_utils run $* "$(RUN)"

reports/$(RUN)/01_library_build.ipynb: $(call rooms,library html/contact_sheet.html.j2)
reports/$(RUN)/02_annotation.ipynb: $(call rooms,annotation library)
reports/$(RUN)/03_dialogue_generation.ipynb: $(call rooms,dialogue)
reports/$(RUN)/04_retrieval.ipynb: $(call rooms,chats dialogue panel retrieval html)
reports/$(RUN)/04b_learned_placement.ipynb: $(call rooms,evaluation surveys) $(wildcard data/example/untouched/*)
reports/$(RUN)/05_evaluation.ipynb: $(call rooms,dialogue evaluation retrieval surveys html)
reports/$(RUN)/05b_studies.ipynb: $(call rooms,studies)
reports/$(RUN)/06_figures.ipynb: $(call rooms,annotation release report) $(wildcard data/example/untouched/*)
reports/$(RUN)/07_template_memes.ipynb: $(call rooms,annotation cm50 release surveys html)
reports/$(RUN)/08_meme_text_retrieval.ipynb: $(call rooms,mtrclip)

reports/$(RUN)/02_annotation.ipynb: reports/$(RUN)/01_library_build.ipynb
reports/$(RUN)/04_retrieval.ipynb: reports/$(RUN)/02_annotation.ipynb reports/$(RUN)/03_dialogue_generation.ipynb
reports/$(RUN)/04b_learned_placement.ipynb: reports/$(RUN)/04_retrieval.ipynb
reports/$(RUN)/05_evaluation.ipynb: reports/$(RUN)/04b_learned_placement.ipynb
reports/$(RUN)/05b_studies.ipynb: reports/$(RUN)/05_evaluation.ipynb
reports/$(RUN)/06_figures.ipynb: reports/$(RUN)/05b_studies.ipynb

# What a stage reads from outside (pictures, news, ratings, weights ...) was written down by `resolve`, which also
# makes the file new where something is gone that the stage wrote.
$(foreach stage,$(STAGES) $(TEMPLATE_STAGES),$(eval reports/$(RUN)/$(stage).ipynb: $(wildcard data/processed/$(RUN)/inputs/$(stage).json)))

template-stages: $(TEMPLATE_STAGES:%=reports/$(RUN)/%.ipynb)

$(TEMPLATE_STAGES:%=reports/$(RUN)/%.ipynb): data/processed/$(RUN)/template_sources.json
reports/$(RUN)/08_meme_text_retrieval.ipynb: reports/$(RUN)/07_template_memes.ipynb
