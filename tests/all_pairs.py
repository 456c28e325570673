"""Parameters of tests in which each value of one meets each value of every other, without all
products of three and more."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def all_pairs(**values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test so that each pair of values of two parameters occurs. The two parameters
    with the most values have all their products, and the others take turns beside them."""
    by_size = sorted(values, key=lambda name: len(values[name]), reverse=True)
    sizes = [len(values[name]) for name in by_size]
    rows = [
        (i, j, *((i + turn * j) % size for turn, size in enumerate(sizes[2:], 1)))
        for i, j in itertools.product(*map(range, sizes[:2]))
    ]
    for (a, size), (b, other) in itertools.combinations(enumerate(sizes), 2):
        assert len({(row[a], row[b]) for row in rows}) == size * other, (by_size[a], by_size[b])
    places = [by_size.index(name) for name in values]
    named = [
        [values[name][row[at]] for name, at in zip(values, places, strict=True)] for row in rows
    ]
    return pytest.mark.parametrize(tuple(values), named)
