# Targets of the Makefile that take long or need much. A workflow runs most of them each week.
.PHONY: fuzz forged filters mutants corpus cluster engines histories commits model connect bench-peers debug sanitize fips freethreaded aarch64

# Needs clang: see tests/fuzz/README.md. `make fuzz FUZZ="--seconds 600 stream"`.
fuzz: dev $(VENV)/.with-fuzz
	PYTHON=$(BIN)/python tests/fuzz/build.sh
	$(BIN)/python tests/fuzz/run.py $(FUZZ)

# A million structures that no writer of Parquet makes, as we read them and as Arrow does.
forged: native
	AGS1_TEST_FORGED=$${AGS1_TEST_FORGED:-1000000} $(PYTEST) tests/iceberg/formats/test_parquet_ends.py

# 1,200,000 filters over 2,000 histories of tables, against plain Python rows. An hour.
filters: native
	AGS1_TEST_FILTERS=$${AGS1_TEST_FILTERS:-1200000} $(PYTEST) tests/iceberg/read/test_filter_histories.py

# Faults put into the code one by one, each of which a test has to notice.
mutants: dev
	$(BIN)/python tests/mutation/run.py $(MUTANTS)

# Every implementation that can be built here over the corpus of test vectors: Java (Maven) and
# iceberg-rust (cargo; some ten minutes the first time). Writes tests/vectors/corpus/RESULTS.md.
corpus: native jvm $(VENV)/.with-interop
	cd tests && $(BIN)/python -m interop.corpus

# Against a real S3 server (Go), HDFS (Maven) and a server of Spark Connect, on a standalone cluster of
# several users (root only), on other versions of PySpark, and against iceberg-rust: minutes, and the
# first time many.
cluster: native jvm $(VENV)/.with-interop
	$(BIN)/python -m pytest -m cluster

# Flink, Comet and Spark 4.0 over the plug-in (hundreds of megabytes the first time), and Python's and Spark's
# writers that are killed.
engines: native jvm $(VENV)/.with-interop
	$(BIN)/python -m pytest -m cluster tests/interop/test_engines.py

# Random histories that Python and Spark make in turn, 100 in each of two catalogs.
histories: export SPARK_SUBMIT_OPTS ?= $(ARCHIVED)
histories: native jvm $(VENV)/.with-interop $(CLASSES)
	AGS1_TEST_HISTORIES=$${AGS1_TEST_HISTORIES:-100} $(BIN)/python -m pytest -m interop \
		tests/interop/test_plugin_histories.py

# Files and their sidecars in 20,000 drawn orders of the requests of several processes; jobs and their
# ledger in 1,000.
model: export AGS1_TEST_MODEL ?= 20000
model: dev
	$(BIN)/python -m pytest tests/files/fsspec/test_model.py
	AGS1_TEST_MODEL=$$((AGS1_TEST_MODEL / 20)) $(BIN)/python -m pytest tests/spark/test_model.py

# 10,000 commits of eight threads in each of four catalogs, 100 in each test: what was acknowledged is
# there. An hour.
commits: export SPARK_SUBMIT_OPTS ?= $(ARCHIVED)
commits: native jvm $(VENV)/.with-interop $(CLASSES)
	AGS1_TEST_COMMITS=$${AGS1_TEST_COMMITS:-10000} $(BIN)/python -m pytest \
		-m "interop or cluster" -k "what_threads_commit and (sql or rest or hive)" \
		tests/interop/test_plugin_commits.py

# The bulk and table jobs on a session of Spark Connect instead of a classic one. In one process:
# PySpark's server on this machine always has port 15002.
connect: export SPARK_SUBMIT_OPTS ?= $(ARCHIVED)
connect: native $(VENV)/.with-interop $(CLASSES)
	AGS1_TEST_SPARK=connect $(BIN)/python -m pytest \
		tests/spark/test_jobs.py tests/spark/test_jobs_remote.py tests/spark/test_tables.py

bench-peers: native $(VENV)/.with-bench $(VENV)/.with-peers
	$(BIN)/python -m bench.compare $(BENCH)

# Another kind of build lives in a copy of the tree, so that the one in place stays as it is. Without
# libstdc++ at the start, AddressSanitizer ends the process when Arrow throws an exception.
sanitize: CHECKED := LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
debug sanitize: dev
	@rm -rf build/$@/ags1 build/$@/tests && mkdir -p build/$@
	@tar -cf - --exclude='*.so' --exclude=__pycache__ ags1 bench docs include tests setup.py \
		build_openssl.py pyproject.toml | tar -xf - -C build/$@
	@echo "== compiling the extensions for $@ in build/$@"
	@cd build/$@ && AGS1_BUILD=$@ $(NATIVE)
	cd build/$@ && AGS1_BUILD=$@ PYTHONPATH="$(CURDIR)/build/$@" $(CHECKED) \
		$(PYTEST) $(TESTS)

# On an OpenSSL with its FIPS provider, which is built once (two minutes).
fips: dev
	@rm -rf build/$@/ags1 build/$@/tests && mkdir -p build/$@
	@tar -cf - --exclude='*.so' --exclude=__pycache__ ags1 bench docs include tests setup.py \
		build_openssl.py pyproject.toml | tar -xf - -C build/$@
	@echo "== building OpenSSL's FIPS provider, and the extensions in build/$@"
	@prefix="$$($(BIN)/python tests/fips/build.py 2>build/$@/openssl.log)" \
		|| { tail build/$@/openssl.log; exit 1; }; cd build/$@ && AGS1_OPENSSL="$$prefix" $(NATIVE)
	cd build/$@ && PYTHONPATH="$(CURDIR)/build/$@" AGS1_TEST_FIPS=1 \
		$(PYTEST) $(TESTS) tests/engine tests/keys \
		tests/iceberg/formats/test_parquet_writer.py tests/iceberg/formats/test_parquet_view.py \
		tests/test_parquet.py

# On CPython without the GIL, and on arm64 under qemu's user mode. Both need a Debian machine.
freethreaded aarch64: native
	$(BIN)/python tests/platforms/run.py $@ $(ON)
