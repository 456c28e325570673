# Everything runs in $(VENV), made on first use with $(PYTHON): `make test PYTHON=python3.13`.
# AGS1_OPENSSL picks the libcrypto (see build_openssl.py). `make test TESTS=` leaves nothing out;
# pyproject.toml says what the marks mean.
PYTHON ?= python3
VENV ?= .venv
TESTS ?= -m quick
# How many processes the tests run in: one more than CPUs, because many tests wait for others.
JOBS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal \
	--override-ini tmp_path_retention_policy=failed
NATIVE := $(BIN)/python -W ignore setup.py --quiet build_ext --inplace
# The extensions are there already (native). compat: a path entry, found also from the folder above,
# whose "ags1" is this checkout.
EDITABLE = AGS1_BUILD=none PYTHONWARNINGS=ignore $(PIP) --no-build-isolation \
	--config-settings editable_mode=compat --editable
export PATH := $(BIN):$(PATH)
# Without bytecode, each process of the tests would compile ags1 and the tests again.
unexport PYTHONDONTWRITEBYTECODE
# Keep test files in /dev/shm when it has 8 GiB free: on a disk the tests take a sixth longer.
MEMORY := $(shell test "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 8388608 \
	2>/dev/null && echo /dev/shm)

CLASSES := $(VENV)/spark.jsa
# How Java runs in the tests on Spark: see the file.
JVM := @$(CURDIR)/tests/spark/jvm.options
ARCHIVED := $(JVM) -XX:SharedArchiveFile=$(abspath $(CLASSES))

.NOTPARALLEL:
.PHONY: native dev with jvm demo pipeline test interop peers bench bench-smoke docs lint wheel clean

dev: native $(VENV)/.with-test

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "ags1 needs Python 3.10 or newer: make PYTHON=python3.12")'
	@echo "== making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip 'setuptools>=77' 'Cython>=3.3,<3.4'
	@touch $@

# Always asked: setup.py knows best what is out of date, and needs a second to see that nothing is.
native: $(VENV)/.made
	@echo "== compiling the extensions (the first time: OpenSSL too, one to three minutes)"
	@$(NATIVE)

$(VENV)/.with-%: pyproject.toml | native
	@echo "== installing ags1 in place, with its $* dependencies"
	@$(EDITABLE) '.[$*]'
	@touch $@

$(CLASSES): $(VENV)/.with-interop tests/spark_classes.py
	@echo "== archiving the classes of Spark in $@"
	@SPARK_SUBMIT_OPTS="$(JVM) -XX:ArchiveClassesAtExit=$(abspath $@) -Xlog:disable" \
		$(BIN)/python tests/spark_classes.py >$@.log 2>&1 || { cat $@.log; exit 1; }

# The dependencies of several targets in one call of pip: `make with KINDS=lint,bench`.
comma := ,
with: native
	@echo "== installing ags1 in place, with its $(KINDS) dependencies"
	@$(EDITABLE) '.[$(KINDS)]'
	@touch $(patsubst %,$(VENV)/.with-%,$(subst $(comma), ,$(KINDS)))

# The plug-in for Iceberg's Java runtime, from JDK 17 and Maven. A wheel that is built later has it.
jvm: jvm/target/.made
jvm/target/.made: jvm/pom.xml $(shell find jvm/src -name '*.java')
	@echo "== building the plug-in for Iceberg's Java runtime"
	@rm -f jvm/target/ags1-iceberg-*.jar
	@mvn --batch-mode --quiet --file jvm/pom.xml package
	@rm -rf ags1/spark/jars && mkdir -p ags1/spark/jars && cp jvm/target/ags1-iceberg-*.jar ags1/spark/jars
	@touch $@

demo: native $(VENV)/.with-demo
	@$(BIN)/python -m bench.demo

# On Spark, which needs Java 17; the first time, also Maven.
pipeline: native jvm $(VENV)/.with-interop
	@$(BIN)/python -m bench.pipeline_demo

test: export PYTEST_DEBUG_TEMPROOT ?= $(MEMORY)
test: dev
	$(PYTEST) $(TESTS)

# Against the released Java and Spark (JDK 17, Maven) and a real Vault (Go): minutes the first time.
# In three processes, each with Spark sessions of its own. They take the files folder by folder, because
# each folder has its own Spark: by number of tests, xdist's order, files of two folders alternate.
interop: export SPARK_SUBMIT_OPTS ?= $(ARCHIVED)
interop: export PYTEST_DEBUG_TEMPROOT ?= $(MEMORY)
interop: native jvm $(VENV)/.with-interop $(CLASSES)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder \
		-m "(interop or spark) and not cluster"

# PyIceberg's own tests. pip fetches them once.
peers: export PYTEST_DEBUG_TEMPROOT ?= $(MEMORY)
peers: dev $(VENV)/.with-peer-tests
	$(BIN)/python -m pytest -m peers

bench: native $(VENV)/.with-bench
	$(BIN)/python -m pytest bench $(BENCH)

bench-smoke: export SPARK_SUBMIT_OPTS ?= $(ARCHIVED)
bench-smoke: native $(VENV)/.with-bench
	$(BIN)/python -m pytest bench --smoke -q $(BENCH)

# The site, in build/site. A page that is not found, or that would fetch something, is an error.
docs: native $(VENV)/.with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: native $(VENV)/.with-lint
	ruff check .
	ruff format --check .
	cython-lint ags1 include
	mypy
	@# The program of a user, alone: with it, mypy would find the modules of tests/.
	mypy tests/iceberg/test_types.py
	basedpyright
	lint-imports --no-cache

# The wheel is built from the source distribution, so that both are known to be whole.
wheel: native $(VENV)/.with-release
	@rm -rf build/wheel dist
	AGS1_OPENSSL=vendored $(BIN)/python -m build --outdir build/wheel
	auditwheel repair --wheel-dir dist build/wheel/*.whl
	@cp build/wheel/*.tar.gz dist/
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	AGS1_WHEEL="$$(ls -d $(CURDIR)/dist/*.whl)" $(BIN)/python -m pytest tests/test_build.py

# What is heavy and rare: other engines, builds and machines, mutants.
-include tests/rare.mk

clean:
	rm -rf $(VENV) build dist jvm/target ags1/spark/jars *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find ags1 -name '*.so' -delete
