#!/bin/bash
# Builds ags1 for the fuzzer. By hand, in build/fuzz (a copy of the tree); OSS-Fuzz sets OUT, and
# has its own compiler flags and its own way to pack a target. CC has to be a clang.
set -eu
cd "$(dirname "$0")/../.."
: "${PYTHON:=python3}" "${CC:=clang}"
rm -rf build/fuzz/ags1 build/fuzz/tests
mkdir -p build/fuzz
tar -cf - --exclude='*.so' --exclude=__pycache__ ags1 include tests setup.py build_openssl.py \
    pyproject.toml | tar -xf - -C build/fuzz
cd build/fuzz
AGS1_BUILD=fuzz CC=$CC LDSHARED="$CC -shared" \
    "$PYTHON" -W ignore setup.py --quiet build_ext --inplace

if [ -n "${OUT:-}" ]; then
    for target in tests/fuzz/fuzz_*.py; do
        name=$(basename "$target" .py)
        compile_python_fuzzer "$target" --paths "$PWD" --paths "$PWD/tests" \
            --paths "$PWD/tests/fuzz" --collect-submodules ags1
        zip -qj "$OUT/${name}_seed_corpus.zip" "tests/fuzz/corpus/${name#fuzz_}"/*
        cp "tests/fuzz/${name}.dict" "$OUT/" 2>/dev/null || true
    done
fi
