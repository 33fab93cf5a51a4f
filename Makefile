# `make run` needs nothing but Python 3.11 and make; the stamps let it run a second time at once and offline.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
TEST_HOW := -n 2 --dist worksteal
export MINICLAW_PROJECT := $(CURDIR)

.PHONY: help run test check course format docs bench chaos soak peers conformance clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/'

$(RUN_STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	touch $@

$(DEV_STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	touch $(RUN_STAMP) $@

run: $(RUN_STAMP) ## install into .venv and serve; ARGS="--port 9000" passes arguments on
	@$(BIN)/miniclaw serve $(ARGS) || test $$? -eq 130

test: $(DEV_STAMP) ## run all tests; ARGS="-k name" passes arguments on, COVERAGE=1 measures what they run
ifdef COVERAGE
	$(BIN)/coverage erase
	PYTHONWARNDEFAULTENCODING=1 $(BIN)/coverage run -m pytest $(TEST_HOW) $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report $(if $(ARGS),,--fail-under=90)
else
	PYTHONWARNDEFAULTENCODING=1 $(BIN)/python -m pytest $(TEST_HOW) $(ARGS)
endif

check: $(DEV_STAMP) ## lint, format check, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/course.py --types
	$(BIN)/python scripts/sync_docs.py --check

course: $(DEV_STAMP) ## check every chapter of the course by itself; ARGS="--fresh" in new environments, ARGS="1 2" only some
	$(BIN)/python scripts/course.py $(ARGS)

format: $(DEV_STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(RUN_STAMP) ## write docs/configuration.md from the settings
	$(BIN)/python scripts/configuration.py

bench: $(DEV_STAMP) ## measure everything and write bench/RESULTS.md; ARGS="turn gateway" only some
	$(BIN)/python bench/run.py $(ARGS)

chaos: $(DEV_STAMP) ## 200 conversations through ten kills, and 20 through fifty; then many gateways on Redis
	$(BIN)/python scripts/chaos.py --sessions 200 --messages 5 --kills 10 $(ARGS)
	$(BIN)/python scripts/chaos.py --sessions 20 --messages 40 --kills 50 $(ARGS)
	$(BIN)/python scripts/chaos.py --redis $(ARGS)

soak: $(DEV_STAMP) ## 50 people for 20 minutes with kills: memory, descriptors, answers; ARGS="--minutes 2" for less
	$(BIN)/python scripts/soak.py $(ARGS)

peers: ## let the platforms' own SDKs judge what we sign, encrypt and serve
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install -q --disable-pip-version-check lark-oapi slack_bolt slack_sdk standardwebhooks wechatpy pytest pytest-asyncio pytest-timeout
	.venv-peers/bin/pip install -q --disable-pip-version-check -e .
	.venv-peers/bin/python -m pytest peers -q -p no:cacheprovider -W ignore $(ARGS)

conformance: $(RUN_STAMP) ## let the official MCP suite and SDKs judge our server and client; ARGS="--only server" for a part
	$(BIN)/python scripts/conformance.py $(ARGS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .venv-peers .venv-mcp .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage* day*/.venv day*/.mypy_cache day*/.pytest_cache day*/.coverage*
