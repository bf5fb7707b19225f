# `make bench` and `make test` set up everything they need in .venv. `make browser` adds a Chromium, with which
# `make test` tests the pages too: Playwright's own, else the one in an npm package.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHROMIUM := @sparticuz/chromium@147.0.0

.PHONY: bench test lint docs install browser clean

bench: $(STAMP)
	$(BIN)/meta500 bench

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Strict: a broken link, an unknown name or anything that a browser would load from elsewhere is an error.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

install: $(STAMP)

browser: $(STAMP)
	$(BIN)/python tests/browser.py || $(BIN)/playwright install chromium || $(MAKE) $(VENV)/chromium/chromium

# The package unpacks its Chromium into the temporary folder, which is the target's folder here.
$(VENV)/chromium/chromium:
	mkdir -p $(@D)
	npm install --silent --no-audit --no-fund --prefix $(@D) $(CHROMIUM)
	cd $(@D) && TMPDIR="$$PWD" node --input-type=module \
	  --eval 'import chromium from "@sparticuz/chromium"; console.log(await chromium.executablePath())'
	rm -rf $(@D)/node_modules

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("meta500 needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs,test,mpi]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info runs
