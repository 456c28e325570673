"""The fuzz targets without the fuzzer: each input of the corpus, and some of hypothesis."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

FOLDER = Path(__file__).parent / "fuzz"
CORPUS = FOLDER / "corpus"
sys.path.insert(0, str(FOLDER))
TARGETS = {path.stem: importlib.import_module(path.stem) for path in FOLDER.glob("fuzz_*.py")}
targets = pytest.mark.parametrize("target", sorted(TARGETS))


def corpus(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.joinpath(target[5:]).iterdir())]


def run_all(target: str) -> int:
    inputs = corpus(target)
    for data in inputs:
        TARGETS[target].TestOneInput(data)
    return len(inputs)


@targets
def test_the_corpus_has_no_finding(target: str) -> None:
    assert run_all(target)


@targets
def test_random_input_has_no_finding(target: str) -> None:
    @settings(max_examples=100, database=None)
    @given(st.binary(max_size=300) | st.sampled_from(corpus(target)).flatmap(edited))
    def search(data: bytes) -> None:
        TARGETS[target].TestOneInput(data)

    search()


def edited(data: bytes) -> st.SearchStrategy[bytes]:
    """Draw ``data`` with a few bytes replaced."""
    place = st.integers(0, len(data))
    pieces = st.tuples(place, place, st.binary(max_size=8))
    return pieces.map(lambda cut: data[: cut[0]] + cut[2] + data[cut[1] :])


@pytest.mark.parametrize("target", ["fuzz_oneshot", "fuzz_stream", "fuzz_reader", "fuzz_writer"])
def test_a_wrong_answer_is_a_finding(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import reference

    # Reference and reader no longer agree: on what is refused, and on what there is.
    real = reference.pattern, reference.decrypt, reference.encrypt
    monkeypatch.setattr(reference, "decrypt", lambda *a: real[1](*a) + b"x")
    monkeypatch.setattr(reference, "encrypt", lambda text, *a: real[2](text + b"x", *a))
    with pytest.raises(AssertionError):
        run_all(target)


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 1 << 20
    assert max(sizes) < 8 << 10
    assert {path.name for path in CORPUS.iterdir()} == {target[5:] for target in TARGETS}
