# Two commands set everything up: `make demo` and `make test`. `make wheel` builds what is released, into dist/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: they find modules compiled, as users do

.PHONY: demo test verify lint bench bench-gate docs notebooks wheel paper clean

demo: $(VENV)/.installed
	$(BIN)/dalembert demo --out out

test: $(VENV)/.dev $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not heavy"

verify: $(VENV)/.dev $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 --dist loadfile -m heavy
	$(BIN)/python -m tools.claims  # measures every claim: docs/claims.md

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[zarr]"
	$(BIN)/python -m compileall -q src  # also where PYTHONDONTWRITEBYTECODE would have every process compile them again
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	sh tests/browser/install.sh
	touch $@

bench: $(VENV)/.bench
	$(BIN)/python benchmarks

bench-gate: $(VENV)/.dev
	$(BIN)/python benchmarks/counts.py --ratios  # operations, and kernels against C, must not be worse than in counts.toml

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	touch $@

docs: $(VENV)/.docs build/gallery/.made
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "the site: build/site/index.html"

notebooks: $(VENV)/.installed
	$(BIN)/python docs/_blocks.py
	$(BIN)/python docs/_blocks.py build/notebooks

build/gallery/.made: $(shell find src/dalembert examples docs/tutorials docs/_gallery.py docs/_blocks.py -type f -not -name "*.pyc") | $(VENV)/.docs
	rm -rf build/gallery
	$(BIN)/python docs/_gallery.py build/gallery
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

wheel: $(VENV)/.dev
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*

paper: $(VENV)/.installed
	$(BIN)/python paper/figure.py paper/figure.png

clean:
	rm -rf $(VENV) out build dist
