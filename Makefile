# Every target works from a fresh clone with nothing but Python 3.11 and the package registries.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN ?= runs/digits
# what `make run` fits; shorten it with FIT="--epochs 4 --collect 2". The paper's prior scale of 0.09 leaves most units
# without use on so few rows. Samples of 320 epochs were worth 3 independent ones (validation): these are of 2,000
FIT ?= --hidden 50 --prior student-t:scale=1 --epochs 3000 --collect 250

.PHONY: test-browser setup run test quick check bench bench-quality bench-tables study calibrate mutate figures docs wheel torture setup-browser

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

run: setup
	$(BIN)/doubly fit --data digits $(FIT) --out $(RUN) --overwrite
	$(BIN)/doubly evaluate $(RUN) --split test
	$(BIN)/doubly sample $(RUN) -n 100 --out $(RUN)/samples.png
	$(BIN)/doubly report $(RUN)

# a worker that has nothing left takes over half of the other's tests, so that both end together
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: check
	$(PYTEST)

# pages in Chromium, which make setup-browser installs
test-browser: setup
	DOUBLY_BROWSER=1 $(BIN)/python -m pytest tests/test_report_browser.py tests/test_serve_page.py

# while one works: all but what tests/slow.txt lists
quick: check
	$(PYTEST) -m "not slow"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/kernels.py --record
	$(BIN)/python benchmarks/steps.py --record
	$(BIN)/python benchmarks/bounds.py --record
	$(BIN)/python benchmarks/adaptive.py --record
	$(BIN)/python benchmarks/growth.py --record

# for the tests of pages in a browser, which are skipped where these are absent; needs root, and npm for axe-core
setup-browser: setup
	apt-get update && apt-get install -y chromium chromium-driver
	npm install --prefix .browser axe-core@4.14.0

# run folders: every I/O call stopped or failed, bits flipped, files of data damaged; shorten it with TORTURE="--every 9"
torture: setup
	$(BIN)/python tests/torture.py $(TORTURE)

# go on after an interruption with QUALITY=--resume
bench-quality: setup
	$(BIN)/python benchmarks/quality.py $(QUALITY)

# Missing cells of tables against simpler ways; goes on where it was stopped. The tables of files lie in $DOUBLY_DATA.
bench-tables: setup
	$(BIN)/python benchmarks/tables.py $(TABLES)
	$(BIN)/python benchmarks/binary_tables.py
	$(BIN)/python benchmarks/tables.py --page

# what each setting does; goes on by itself after an interruption
study: setup
	$(BIN)/python benchmarks/study.py --data digits
	$(BIN)/python benchmarks/study.py --data caltech-silhouettes

# simulation-based calibration of every estimator and sampler; goes on by itself, and draws docs/reports/calibration.svg
calibrate: setup
	$(BIN)/python benchmarks/calibrate.py $(CASES)

# small bugs are planted one by one, and the tests must see them; some of them with MUTATE="--only sgld"
mutate: setup
	$(BIN)/python tests/mutate.py $(MUTATE)

# the paper's figures, from the runs of doubly reproduce
figures: setup
	$(BIN)/python benchmarks/figures.py

# registry, glossary, and the site of all pages: open site/index.html
docs: $(VENV)/.installed-docs
	$(BIN)/python docs/registry.py
	$(BIN)/python docs/glossary.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

# a wheel in dist/; once setuptools is there, without a network
wheel: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt "setuptools>=77"
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
