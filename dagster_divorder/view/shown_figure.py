"""A figure that a notebook shows, imported only where one is drawn."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class ShownFigure(Figure):
    """Notebooks show a plain Figure only if `matplotlib.pyplot` has made it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
