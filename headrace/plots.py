"""Plots for `headrace fit` and `headrace simulate`. Needs matplotlib (`pip install 'headrace[plot]'`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


@contextmanager
def figure(path: Path, x_label: str, y_labels: Sequence[str]) -> Iterator[list[Any]]:
    """One panel per y label, side by side; written to `path` as PNG on leaving."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise click.ClickException("plots need matplotlib: pip install 'headrace[plot]'") from None
    drawing = Figure(figsize=(5.5 * len(y_labels), 4), layout="constrained")
    FigureCanvasAgg(drawing)
    axes = list(drawing.subplots(1, len(y_labels), squeeze=False)[0])
    for panel, label in zip(axes, y_labels, strict=True):
        panel.set(xlabel=x_label, ylabel=label)
        panel.grid(alpha=0.3)
    yield axes
    drawing.savefig(path, format="png", dpi=110)
