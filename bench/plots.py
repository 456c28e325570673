"""The plots: bars for who does the same work at what speed, lines over block sizes.

python -m bench.plots    draws the README's picture again, from what is in bench/results
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.contenders import ENGINE
from bench.limits import LIMIT, pieces
from bench.machine import Machine
from bench.peers import IcebergJava, IcebergRust, PycaInto, TinkStreaming
from bench.report import Results
from bench.rounds import Contest, Series
from bench.subjects import bulk, engine, grid, messages, oneshot, streams

OURS, LIMITS, PEERS = "#d1495b", "#9aa5b1", "#30638e"
INK, FAINT = "#22303c", "#d9dee3"
OUR_NAMES = (ENGINE, streams.READER, streams.WRITER, "encrypt", "decrypt", "verify_file")
LIMIT_NAMES = (
    LIMIT,
    pieces.MEMCPY,
    streams.ENGINE_BLOCKS,
    streams.ENGINE_WHOLE,
    streams.BARE_FILE,
    streams.BARE_BLOCK,
    bulk.CP,
    bulk.CAT,
)
BAR_HEIGHT = 0.27  # inches
FRONT = "AES-256 seal"
# In the README: the same OpenSSL without files, who else encrypts in blocks that can be read alone,
# and what people know them as.
FRONT_NAMES = {
    ENGINE: "ags1",
    PycaInto.name: "cryptography, bare AESGCM",
    IcebergJava.name: "Iceberg in Java (Spark)",
    TinkStreaming.name: "Tink streaming, Python",
    IcebergRust.name: "iceberg-rust",
}

Panel = tuple[str, list[Series]]


def write_plots(results: Results, folder: Path) -> list[Path]:
    """Draw what was measured; return the files written."""
    written = []
    for name, title, panels in (
        ("engine", "Large buffers in blocks of 1 MiB; one thread unless named", _engine(results)),
        ("oneshot", "Whole bytes to new bytes, AES-256", _panels(results.of(oneshot.SUBJECT))),
        ("messages", "A 4 KiB message, AES-256", _panels(results.of(messages.SUBJECT))),
        ("streams", "Streams, AES-256, blocks of 1 MiB", _panels(results.of(streams.SUBJECT))),
        ("bulk", "Files in the page cache, AES-256", _panels(results.of(bulk.SUBJECT))),
    ):
        if panels:
            path = folder / f"{name}.png"
            _bars(path, title, panels, results.machine.caption)
            written.append(path)
    for contest in results.of(engine.SUBJECT):
        if contest.name == FRONT and all(name in contest.series for name in FRONT_NAMES):
            rates = {name: contest.series[name].rate for name in FRONT_NAMES}
            written.append(_front(folder / "front.png", rates, results.machine.caption))
    if results.of(grid.SUBJECT):
        path = folder / "grid.png"
        _lines(path, results.of(grid.SUBJECT), results.machine.caption)
        written.append(path)
    return written


def front_again(results: Path) -> Path:
    """Draw the README's picture from a ``results.json``, beside it."""
    document = json.loads(results.read_text())
    (contest,) = [
        contest
        for contest in document["contests"]
        if (contest["subject"], contest["name"]) == (engine.SUBJECT, FRONT)
    ]
    series = {one["name"]: one for one in contest["series"]}
    rates = {name: series[name]["size"] / series[name]["median"] for name in FRONT_NAMES}
    return _front(results.with_name("front.png"), rates, Machine(**document["machine"]).caption)


def _front(path: Path, rates: dict[str, float], caption: str) -> Path:
    """Draw a few bars that can be read where a page is 800 pixels wide, or a telephone."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7.6, 2.8))
    values = [rate / 1e9 for rate in rates.values()]
    axis.barh(range(len(rates)), values, color=[_colour(name) for name in rates], height=0.66)
    axis.set_yticks(range(len(rates)), [FRONT_NAMES[name] for name in rates], fontsize=14)
    axis.invert_yaxis()
    axis.set_xlim(0, max(values) * 1.2)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    for place, value in enumerate(values):
        axis.text(value + max(values) * 0.015, place, f"{value:.1f} GB/s", va="center", fontsize=14)
    title = "Encrypting with AES-256-GCM in blocks of 1 MiB, one thread"
    _finish(plt, figure, path, title, "\n".join(caption.split(" · ", 1)))
    return path


def _panels(contests: Sequence[Contest]) -> list[Panel]:
    return [
        (contest.name, [series for series in contest.series.values() if series.seconds])
        for contest in contests
    ]


def _engine(results: Results) -> list[Panel]:
    """The four contests of everybody, with the other limits and cold Java put beside them."""
    contests = {
        contest.name: contest
        for subject in (engine.SUBJECT, pieces.SUBJECT)
        for contest in results.of(subject)
    }
    panels = []
    for bits in (256, 128):
        for verb in ("seal", "open"):
            name = f"AES-{bits} {verb}"
            if name not in contests:
                continue
            series = list(contests[name].series.values())
            for extra in (f"{name}, cold", f"AES-{bits} threads {verb}"):
                if extra in contests:
                    series += contests[extra].series.values()
            if sweep := contests.get(name + pieces.BY_PIECE):
                series += (sweep.series[pieces.IN_CACHE], sweep.series[pieces.MEMCPY])
            shown = [one for one in series if one.seconds and one.name != engine.ONE_THREAD]
            panels.append((name, sorted(shown, key=lambda one: -one.rate)))
    return panels


def _bars(path: Path, title: str, panels: Sequence[Panel], caption: str) -> None:
    plt = _pyplot()
    # The streams come in threes, by the size of their pieces.
    columns = 3 if len(panels) > 6 else min(2, len(panels))
    rows = -(-len(panels) // columns)
    heights = [
        max(len(series) for _, series in panels[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    figure, axes = plt.subplots(
        rows,
        columns,
        squeeze=False,
        figsize=(
            (6.2 if columns < 3 else 5.2) * columns,
            1.1 + sum(0.75 + BAR_HEIGHT * height for height in heights),
        ),
        gridspec_kw={"height_ratios": [height + 1 for height in heights]},
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (name, series) in zip(axes.flat, panels, strict=False):
        _bar_panel(axis, name, series)
    _finish(plt, figure, path, title, caption)


def _bar_panel(axis: Any, name: str, series: Sequence[Series]) -> None:
    by_size = series[0].size > 0
    values = [one.rate / 1e9 if by_size else one.each * 1e6 for one in series]
    axis.barh(range(len(series)), values, color=[_colour(one.name) for one in series], height=0.72)
    axis.set_yticks(range(len(series)), [one.name for one in series])
    axis.invert_yaxis()
    axis.set_xlim(0, max(values) * 1.18)
    for place, value in enumerate(values):
        axis.text(value + max(values) * 0.012, place, _figure(value), va="center", fontsize=8)
    axis.set_title(f"{name}, {'GB/s' if by_size else 'µs (less is better)'}")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color=FAINT, linewidth=0.7)


def _lines(path: Path, contests: Sequence[Contest], caption: str) -> None:
    plt = _pyplot()
    key_sizes = sorted({contest.name.split()[0] for contest in contests})
    figure, axes = plt.subplots(
        2, len(key_sizes), squeeze=False, sharex=True, sharey="row", figsize=(12.4, 6.6)
    )
    for row, verb in enumerate(("seal", "open")):
        for column, key_size in enumerate(key_sizes):
            chosen = [
                contest
                for contest in contests
                if contest.name.startswith(f"{key_size} ") and contest.name.endswith(f" {verb}")
            ]
            axis = axes[row][column]
            labels = [
                contest.name.removeprefix(f"{key_size} ").removesuffix(f" blocks {verb}")
                for contest in chosen
            ]
            for name in (LIMIT, PycaInto.name, ENGINE):
                points = [
                    (place, contest.series[name].rate / 1e9)
                    for place, contest in enumerate(chosen)
                    if name in contest.series and contest.series[name].seconds
                ]
                if points:
                    axis.plot(
                        *zip(*points, strict=True), "o-", color=_colour(name), label=name, ms=4
                    )
            axis.set_xticks(range(len(labels)), labels, rotation=30)
            axis.set_ylim(bottom=0)
            axis.set_title(f"{key_size} {verb}")
            axis.grid(color=FAINT, linewidth=0.7)
        axes[row][0].set_ylabel("GB/s")
    axes[0][0].legend(frameon=False, fontsize=8)
    _finish(plt, figure, path, "The engine by block size, kept buffers, one thread", caption)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 9.5,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.axisbelow": True,
            "axes.edgecolor": FAINT,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.spines.left": False,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )
    return pyplot


def _finish(plt: Any, figure: Any, path: Path, title: str, caption: str) -> None:
    # In inches from the edges, so that a tall figure has no more margin than a low one.
    height = figure.get_figheight()
    figure.text(0.01, 1 - 0.12 / height, title, ha="left", va="top", fontsize=13)
    figure.text(0.01, 0.1 / height, caption, ha="left", va="bottom", fontsize=7.5, alpha=0.75)
    figure.tight_layout(rect=(0, 0.32 / height, 1, 1 - 0.42 / height))
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _colour(name: str) -> str:
    if name.startswith(LIMIT_NAMES):
        return LIMITS
    return OURS if name.startswith(OUR_NAMES) else PEERS


def _figure(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


if __name__ == "__main__":
    print(front_again(Path(__file__).parent / "results" / "results.json"))
