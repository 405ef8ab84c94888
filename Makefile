# Everything on a fresh machine: `make demo` or `make test`. Both install into .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install hashes demo bench docs method-files test adversary versions lint clean

install: .venv/installed

# Everything but torch by its published hash. torch is pinned by version alone, since its CPU and CUDA builds differ, and
# comes before the package, so that nothing else can pull another build of it in.
.venv/installed: constraints.txt requirements-hashed.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements-hashed.txt
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,onnx,photos,ray,transformers]'
	touch $@

# After a change of constraints.txt: the hashes of all files that PyPI publishes for its versions.
hashes:
	$(PYTHON) tools/lock_hashes.py

demo: install
	$(BIN)/unissl demo

# About an hour; nothing else should run meanwhile. `make bench BENCH='step --quick'` for a part or a trial.
bench: install
	PYTHONPATH=benchmarks $(BIN)/python -m suite $(BENCH)

# The documentation as a site in site/; a broken link is an error.
docs: install
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	$(BIN)/python -m mkdocs build

# After adding a method: its golden curve, and its rows in the tables of README.md and docs/methods.md.
method-files: install
	$(BIN)/python tests/golden/regenerate.py
	$(BIN)/python tests/e2e/method_tables.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One thread per process and one process per core: faster than many threads on small tensors.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto

# The attacks of docs/untrusted_input.md by themselves, with the count of those held; `make test` runs them too.
adversary: install
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto -m adversary

# The tests whose result depends on the versions of torch and Python, in other environments (docs/versions.md), by turns:
# make versions ENVIRONMENTS='ENV1 ENV2', each a folder with bin/python and pytest.
VERSION_TESTS := tests/unit tests/equations tests/golden tests/parity tests/contract/test_methods.py \
  tests/e2e/test_front_door.py tests/e2e/test_export.py tests/e2e/test_whole_way.py tests/e2e/test_ctrl_c.py
versions:
	@for env in $(ENVIRONMENTS); do \
	  $$env/bin/python -c 'import platform, torch; print("torch", torch.__version__, "Python", platform.python_version())'; \
	  OMP_NUM_THREADS=1 PYTHONPATH='$(CURDIR)' $$env/bin/python -m pytest -rs --numprocesses auto $(VERSION_TESTS) || failed=1; \
	done; test -z "$$failed"

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
