# SPDX-License-Identifier: Apache-2.0
"""The plots of the report as SVG text; None if matplotlib is not installed.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish; in addition every line has
its own marker.  The output is deterministic: ids are salted with a constant, there is no date, and the
layout uses a font that is part of matplotlib.
"""

import io
import math

try:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
except ImportError:
    plt = None

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, INK = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#56B4E9",
    "#CC79A7",
    "#1b1f24",
)
SOFT, RULE = "#57606a", "#d8dee4"
CYCLE = ((BLUE, "o"), (VERMILION, "s"), (GREEN, "^"), (ORANGE, "D"), (PURPLE, "v"), (SKY, "P"), (INK, "X"))
WIDTH = 8.6  # inches width of a figure; the page is slightly wider

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "cairn",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def available():
    return plt is not None


def drawing(draw):
    """Runs draw() in the style of the report and returns its figure as SVG text."""

    def wrapped(*args, **kwargs):
        if plt is None:
            return None
        with plt.rc_context({k: v for k, v in STYLE.items() if k in matplotlib.rcParams}):
            figure = draw(*args, **kwargs)
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.04)
            plt.close(figure)
        return out.getvalue().replace("'DejaVu Sans'", "Inter, 'Helvetica Neue', Arial, 'DejaVu Sans'")

    return wrapped


def tick_bytes(value, _=None):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g} B"


def tick_plain(value, _=None):
    return f"{value:,.0f}".replace(",", "\u202f") if value >= 10 else f"{value:g}"


def powers(axis, values, text, all_of_them=False):
    """Sets major ticks at the values that occur, thinned to fit unless all are requested; no minor ticks."""
    values = sorted(set(values))
    while len(values) > 8 and not all_of_them:
        values = values[::-2][::-1]
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(text))


def apart(values, share=0.4):
    """From sorted values on a logarithmic axis, the first, the last, and those not close to another one."""
    first, last = math.log(values[0]), math.log(values[-1])
    out = [v for v in values[1:-1] if min(math.log(v) - first, last - math.log(v)) >= share * (last - first)]
    return sorted({values[0], *out[:1], values[-1]})


def log_ticks(axes, low, high):
    ticks = [m * 10**e for e in range(0, 9) for m in (1, 2, 5) if low * 0.99 <= m * 10**e <= high * 1.01]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(tick_plain))


def end_labels(axes, ends, gap=11):
    """Names at the ends of lines, moved apart (in points) where they would overlap."""
    scale = 72 / axes.figure.dpi
    ends = sorted(
        ([axes.transData.transform((x, y))[1] * scale, x, y, name, colour] for x, y, name, colour in ends),
        key=lambda e: e[0],
    )
    place = [e[0] for e in ends]
    for _ in range(100):
        for i in range(1, len(place)):
            if place[i] - place[i - 1] < gap - 0.01:
                middle = (place[i] + place[i - 1]) / 2
                place[i - 1], place[i] = middle - gap / 2, middle + gap / 2
    right = max(x for _, x, _, _, _ in ends)
    for y_points, (own, x, y, name, colour) in zip(place, ends):
        axes.annotate(
            name,
            (x, y),
            xytext=(7, y_points - own),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
            bbox=dict(facecolor="white", edgecolor="none", pad=0.8) if x < right else None,
        )


def reference(axes, value, text, series):
    """A dotted horizontal line at a reference value, with its name where no other line is near."""
    axes.axhline(value, color=SOFT, linewidth=1.1, linestyle=(0, (1, 2)), zorder=1)
    width, _ = axes.figure.get_size_inches()
    share = 0.07 * len(text) / width

    def clearance(place):
        """Least distance from a line, or the name at its end, to the text at place, in shares of the axes' height."""
        (left, side), gap = place, 1.0
        at = middle + 0.04 * side
        for name, data in series:
            points = list(axes.transAxes.inverted().transform(axes.transData.transform(data)))
            points.append(points[-1] + [0.02 + 0.08 * len(name) / width, 0])
            for (x1, y1), (x2, y2) in zip(points, points[1:]):
                for step in range(9):
                    x, y = x1 + (x2 - x1) * step / 8, y1 + (y2 - y1) * step / 8
                    if left - 0.02 <= x <= left + share + 0.02:
                        gap = min(gap, abs(y - at))
        return gap

    axes.get_xlim(), axes.get_ylim()  # computes the limits that the transforms below use
    middle = axes.transAxes.inverted().transform(axes.transData.transform((1, value)))[1]
    places = [(0.005 + (0.99 - share) * k / 8, side) for side in (1, -1) for k in range(9)]
    left, side = max(places, key=clearance)
    axes.annotate(
        text,
        (left, value),
        xycoords=("axes fraction", "data"),
        xytext=(2, 2 * side),
        textcoords="offset points",
        va="bottom" if side > 0 else "top",
        color=SOFT,
        fontsize=8.5,
    )


def canvas(width, height):
    """Axes of this size in inches; labels around them enlarge the drawing."""
    figure, axes = plt.subplots(figsize=(width, height))
    figure.subplots_adjust(0, 0, 1, 1)
    return figure, axes


@drawing
def lines(series, xlabel, ylabel, xtext=tick_plain, references=(), points=(), ticks=None):
    """series: [(name, [(x, y)])], with x on a log-2 axis or, if ticks are given, a linear one.

    points: [(x, y, text)], values of the source.
    """
    longest = max(len(name) for name, _ in series)
    figure, axes = canvas(WIDTH - 0.75 - 0.075 * longest, 2.6)
    if ticks is None:
        axes.set_xscale("log", base=2)
    xs = [x for _, data in series for x, _ in data] + [x for x, _, _ in points]
    ends = []
    for (name, data), (colour, marker) in zip(series, CYCLE):
        axes.plot([x for x, _ in data], [y for _, y in data], color=colour, marker=marker)
        ends.append((*data[-1], name, colour))
    for x, y, text in points:
        axes.plot(
            [x], [y], marker="o", markersize=9, markerfacecolor="none", markeredgecolor=INK, linestyle="none"
        )
        axes.annotate(
            text, (x, y), xytext=(-6, -8), textcoords="offset points", fontsize=8.5, va="top", ha="right"
        )
    top = max(
        [y for _, data in series for _, y in data] + [r[0] for r in references] + [p[1] for p in points]
    )
    axes.set_ylim(0, top * 1.12)
    for value, text in references:
        reference(axes, value, text, series)
    powers(axes.xaxis, ticks or xs, xtext, all_of_them=ticks is not None)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y")
    figure.canvas.draw()
    end_labels(axes, ends)
    return figure


@drawing
def panels(groups, xlabel, ylabel, xtext=tick_bytes, dashed=(), per_row=4, height=2.0):
    """Small multiples with shared log axes: [(title, [(name, [(x, y)])])]; a name has the same colour in all."""
    names = list(dict.fromkeys(name for _, series in groups for name, _ in series))
    look = dict(zip(names, CYCLE))
    num_cols = min(per_row, len(groups))
    num_rows = math.ceil(len(groups) / num_cols)
    tall = height * num_rows
    figure, grid = plt.subplots(
        num_rows,
        num_cols,
        figsize=((WIDTH - 0.7) * num_cols / per_row, tall),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    figure.subplots_adjust(0, 0, 1, 1, wspace=0.08, hspace=0.4)
    ys = [y for _, series in groups for _, data in series for _, y in data]
    xs = sorted({x for _, series in groups for _, data in series for x, _ in data})
    low, high = min(ys) / 1.3, max(ys) * 1.3
    for axes, (title, series) in zip(grid.flat, groups):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for name, data in series:
            colour, marker = look[name]
            axes.plot(
                [x for x, _ in data],
                [y for _, y in data],
                color=colour,
                marker=marker,
                markersize=4,
                linewidth=1.5,
                linestyle="--" if name in dashed else "-",
            )
        axes.set_title(title)
        axes.set_ylim(low, high)
        log_ticks(axes, low, high)
        powers(axes.xaxis, apart(xs), xtext)
        axes.tick_params(axis="x", labelsize=8)
        for tick, side in zip(axes.get_xticklabels(), ("left", *["center"] * (len(apart(xs)) - 2), "right")):
            tick.set_ha(side)
        axes.grid(axis="y")
    for axes in list(grid.flat)[len(groups) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel(xlabel)
    for axes in grid[:, 0]:
        axes.set_ylabel(ylabel)
    handles = [
        plt.Line2D(
            [],
            [],
            color=look[n][0],
            marker=look[n][1],
            markersize=4,
            linestyle="--" if n in dashed else "-",
            label=n,
        )
        for n in names
    ]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1 + 0.2 / tall), ncol=min(len(names), 6)
    )
    return figure


@drawing
def bars(rows, xlabel, marks=(), colours=None, text="{:.0f}"):
    """Horizontal bars [(name, value, kind)], coloured by kind; marks: [(value, text)], lines across all bars."""
    kinds = list(dict.fromkeys(kind for _, _, kind in rows))
    colour = colours or dict(zip(kinds, (BLUE, SKY, ORANGE, GREEN, PURPLE)))
    longest = max(len(name) for name, _, _ in rows)
    figure, axes = canvas(WIDTH - 0.4 - 0.075 * longest, 0.27 * len(rows) + 0.1)
    place = list(range(len(rows)))[::-1]
    axes.barh(place, [v for _, v, _ in rows], color=[colour[k] for _, _, k in rows], height=0.66)
    top = max([v for _, v, _ in rows] + [m for m, _ in marks])
    for y, (_, value, _) in zip(place, rows):
        axes.annotate(text.format(value), (value, y), xytext=(4, 0), textcoords="offset points", va="center")
    for value, name in marks:
        axes.axvline(value, color=INK, linewidth=1.1, linestyle=(0, (1, 2)))
        axes.annotate(
            name,
            (value, len(rows) - 0.45),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=8.5,
            va="bottom",
        )
    axes.set_yticks(place, [n for n, _, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, top * 1.1)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x")
    return figure


@drawing
def columns(names, series, xlabel, ylabel, text="{:.0f}", top=None, marks=()):
    """Grouped vertical bars: series [(name, [value or None])], one value per name in names.

    marks: [(value, text)], lines across all groups.
    """
    figure, axes = canvas(WIDTH - 0.6, 2.2)
    width = 0.8 / len(series)
    for i, ((name, values), (colour, _)) in enumerate(zip(series, CYCLE)):
        for k, value in enumerate(values):
            if value is None:
                continue
            x = k + (i - (len(series) - 1) / 2) * width
            axes.bar(x, value, width * 0.92, color=colour)
            axes.annotate(
                text.format(value),
                (x, value),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        if len(series) > 1:
            axes.bar([0], [0], color=colour, label=name)
    for value, name in marks:
        axes.axhline(value, color=INK, linewidth=1.1, linestyle=(0, (1, 2)))
        axes.annotate(
            name, (-0.45, value), xytext=(0, 2), textcoords="offset points", fontsize=8.5, va="bottom"
        )
    axes.set_xticks(range(len(names)), names)
    axes.tick_params(axis="x", length=0)
    if top:
        axes.set_ylim(0, top)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(axis="y")
    if len(series) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=len(series))
    return figure


@drawing
def heat(maps, unit, xlabel, ylabel, per_row=4):
    """Heat maps with one colour scale: [(title, labels, matrix of numbers or None)]."""
    values = sorted(v for _, _, matrix in maps for row in matrix for v in row if v is not None)
    # Outliers should not compress the scale: it ends at the 1st and 99th percentiles.
    low, high = values[len(values) // 100], values[-1 - len(values) // 100]
    if low == high:
        low, high = low - 1, high + 1
    num_cols = min(per_row, len(maps))
    num_rows = math.ceil(len(maps) / num_cols)
    side = (WIDTH - 0.9) / per_row if num_cols > 1 else 4.5
    figure, grid = plt.subplots(
        num_rows,
        num_cols,
        squeeze=False,
        layout="constrained",
        figsize=(side * num_cols + 0.9, (side + 0.12) * num_rows + 0.3),
    )
    shades = matplotlib.colormaps["cividis"].with_extremes(bad="#eef1f4")
    for axes, (title, labels, matrix) in zip(grid.flat, maps):
        cells = [[math.nan if v is None else v for v in row] for row in matrix]
        image = axes.imshow(cells, cmap=shades, vmin=low, vmax=high, interpolation="nearest", aspect="equal")
        n = len(labels)
        step = 1 if n <= 4 else max(2, 2 * round(n / 12)) if num_cols == 1 else max(2, 2 * round(n / 10))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(range(0, n, step), labels[::step])
        axes.tick_params(length=0, labelsize=6.5)
        plt.setp(axes.get_xticklabels(), rotation=90)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title, fontsize=8.5, fontweight="normal")
    for axes in list(grid.flat)[len(maps) :]:
        axes.set_visible(False)
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    figure.colorbar(image, ax=list(grid.flat), label=unit, shrink=0.6, aspect=25, pad=0.015)
    return figure


@drawing
def chip(maps, verdicts):
    """Maps of a chip, one above the other: [(title, [(GPC, [(SM, value)])])]; frames SMs that have a verdict."""
    most = max(len(sms) for _, groups in maps for _, sms in groups)
    height = sum(0.34 * len(groups) + 0.55 for _, groups in maps)
    figure, grid = plt.subplots(len(maps), 1, squeeze=False, layout="constrained", figsize=(WIDTH, height))
    for axes, (title, groups) in zip(grid.flat, maps):
        matrix = [[v for _, v in sms] + [math.nan] * (most - len(sms)) for _, sms in groups]
        shades = matplotlib.colormaps["cividis"].with_extremes(bad="#ffffff")
        image = axes.imshow(matrix, cmap=shades, interpolation="nearest", aspect="auto")
        for y, (_, sms) in enumerate(groups):
            for x, (sm, _) in enumerate(sms):
                axes.text(x, y, str(sm), ha="center", va="center", fontsize=6, color="#ffffff")
                if sm in verdicts:
                    corner = (x - 0.5, y - 0.5)
                    axes.add_patch(plt.Rectangle(corner, 1, 1, fill=False, edgecolor=VERMILION, linewidth=2))
        axes.set_xticks([])
        axes.set_yticks(range(len(groups)), [f"GPC {i}" for i in range(len(groups))])
        axes.tick_params(length=0, labelsize=6.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title, fontsize=8.5, fontweight="normal")
        figure.colorbar(image, ax=axes, shrink=0.9, pad=0.01)
    return figure
