# `make help` lists the commands. Each one sets up what it needs in .venv first.

Q ?= Why is the sky blue? Answer in two sentences.
export Q

PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help ask check check-slow lint format clean

help:
	@echo 'make ask           set up, then get an answer from the starter model with no network (Q="..." asks something else)'
	@echo 'make check         set up, then pass the tests: ruff, mypy, import contracts, pytest'
	@echo 'make check-slow    the long lanes: soak, chaos, client matrix, fresh clone'
	@echo 'make lint          ruff only'
	@echo 'make format        let ruff rewrite the code'
	@echo 'make clean         remove .venv, build output and caches'

ask: .venv/installed-starter
	@.venv/bin/edgecloud --offline ask -m smollm2 "$$Q"

check: .venv/installed-dev lint
	$(PY) -m pytest

check-slow: .venv/installed-dev
	@.ci/packages
	$(PY) -m pytest -m slow

lint: .venv/installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: .venv/installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# The stamps: a change of what is to be installed installs again, anything else does not.
.venv/installed-starter: pyproject.toml .ci/setup
	@.ci/setup starter

.venv/installed-dev: pyproject.toml constraints.txt .ci/setup
	@.ci/setup dev
