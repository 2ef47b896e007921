# Two commands set everything up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test verify lint bench clean

demo: $(VENV)/.installed
	$(BIN)/dalembert demo --out out

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m "not heavy"

verify: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m heavy

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	touch $@

clean:
	rm -rf $(VENV) out build dist
