"""Plots as inline SVG.

Vega-Lite draws them here, and the page contains the drawings: some hundred KiB, where Vega's JavaScript alone is almost
a MiB. They are also visible where scripts do not run: on paper, in a mail preview, under a strict policy. Tooltips with
the numbers are ``<title>`` elements of the SVG.

Names are passed to Vega as data, never in an expression or a field's name. Colours are the page's CSS variables, so
that plots follow the page's light or dark style.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.report import style
from headrace.pipeline.report.page import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SVG: Final = "http://www.w3.org/2000/svg"
WIDTH: Final = 860
HEIGHT: Final = 150
ROW: Final = 22
LABEL_LIMIT: Final = 420
"""Maximum width, in pixels, of a name beside its bar; the tooltip and the table show the whole name."""
CHARACTER: Final = 6.5
"""Width of a character of a name, in pixels: an average."""

Row = dict[str, Any]

_TIMES: Final[dict[str, Any]] = {
    "title": None,
    "grid": False,
    "labelExpr": "utcFormat(datum.value, utchours(datum.value) == 0 ? '%b %d' : '%H:%M')",
}

_CONFIG: Final[dict[str, Any]] = {
    "background": None,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": style.INK, "titleColor": style.INK, "titleFontWeight": "normal", "labelFontSize": 11,
        "titleFontSize": 11, "domainColor": style.FAINT, "tickColor": style.FAINT, "gridColor": style.FAINT,
    },
    "legend": {"labelColor": style.INK, "labelFontSize": 11, "title": None, "orient": "top", "symbolType": "square"},
    "text": {"color": style.INK, "fontSize": 11},
}  # fmt: skip


def over_time(*, caption: str, description: str, unit: str, rows: Sequence[Row], series: Sequence[str]) -> Figure:
    """Return stacked bars on a time axis.

    A row has ``start`` and ``end`` (seconds since 1970), ``series``, ``value``, and ``description``, its tooltip.
    Several series are stacked in the order of ``series``.
    """
    spec: dict[str, Any] = {
        "data": {"values": _stacked(rows, series)},
        "width": WIDTH,
        "height": HEIGHT,
        "mark": {"type": "rect", "stroke": style.PAPER, "strokeWidth": 0.3},
        "encoding": {
            # Vega uses the local time zone by default.
            "x": {"field": "start", "type": "temporal", "scale": {"type": "utc"}, "axis": _TIMES},
            "x2": {"field": "end"},
            "y": {"field": "from", "type": "quantitative", "axis": {**_axis(unit, rows), "minExtent": 45}},
            "y2": {"field": "to"},
            "color": _color(series),
            "description": {"field": "description"},
        },
    }
    return _figure(caption, description, spec)


def _axis(unit: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the axis of a quantity; counts have integer ticks."""
    axis: dict[str, Any] = {"title": unit, "tickCount": 4}
    return {**axis, "tickMinStep": 1} if all(isinstance(row["value"], int) for row in rows) else axis


def _stacked(rows: Sequence[Row], series: Sequence[str]) -> list[Row]:
    """Add ``from`` and ``to``, with times in milliseconds; Vega-Lite itself would stack such bars horizontally."""
    reached: dict[int, float] = {}
    stacked = []
    for row in sorted(rows, key=lambda each: series.index(each.get("series", series[0]))):
        start = row["start"]
        below = reached.get(start, 0)
        reached[start] = below + row["value"]
        times = {"start": start * 1000, "end": row["end"] * 1000}
        stacked.append({"series": series[0], **row, **times, "from": below, "to": reached[start]})
    return stacked


def ranked(*, caption: str, description: str, unit: str, rows: Sequence[Row], series: Sequence[str]) -> Figure:
    """Return horizontal stacked bars, one per ``place``, from rows with ``name``, ``series``, ``value`` and
    ``description``.
    """
    spec = _places(
        [{**row, "order": series.index(row["series"])} for row in rows],
        {
            "mark": {"type": "bar", "height": ROW - 7},
            "encoding": {
                "x": _length(unit),
                "color": _color(series),
                "order": {"field": "order", "type": "quantitative"},
                "description": {"field": "description"},
            },
        },
    )
    return _figure(caption, description, spec)


def against_quota(*, caption: str, description: str, unit: str, rows: Sequence[Row]) -> Figure:
    """Return, per ``place``, a bar to ``usual``, a thin bar to ``peak`` and a mark at ``quota``.

    A row has ``name`` and ``description`` as well.
    """
    described = {"description": {"field": "description"}}
    spec = _places(
        rows,
        {
            "mark": {"type": "bar", "height": 3, "color": style.SERIES[4]},
            "encoding": {"x": _length(unit, "peak"), **described},
        },
        {
            "mark": {"type": "bar", "height": ROW - 9, "color": style.SERIES[0]},
            "encoding": {"x": _length(unit, "usual"), **described},
        },
        {
            "mark": {"type": "tick", "size": ROW - 5, "thickness": 3, "color": style.MARKED},
            "encoding": {"x": _length(unit, "quota"), **described},
        },
    )
    return _figure(caption, description, spec)


def _length(unit: str, field: str = "value") -> dict[str, Any]:
    axis = {"title": unit, "tickCount": 6, "grid": True}
    return {"field": field, "type": "quantitative", "stack": "zero" if field == "value" else None, "axis": axis}


def _places(rows: Sequence[Row], *layers: dict[str, Any]) -> dict[str, Any]:
    """Return bars below each other. Names are text marks: an axis would merge two places with the same name."""
    # The first row of each place has its name.
    firsts = list({row["place"]: row for row in reversed(rows)}.values())
    labels = min(LABEL_LIMIT, CHARACTER * max((len(row["name"]) for row in firsts), default=0) + 12)
    names = {
        "data": {"values": [{"place": row["place"], "name": row["name"]} for row in firsts]},
        "mark": {"type": "text", "align": "right", "baseline": "middle", "dx": -6, "limit": labels},
        "encoding": {"x": {"value": 0}, "text": {"field": "name"}, "description": {"field": "name"}},
    }
    return {
        "data": {"values": list(rows)},
        "width": WIDTH - labels,
        "height": {"step": ROW},
        "encoding": {"y": {"field": "place", "type": "ordinal", "axis": None}},
        "layer": [*layers, names],
    }


def _color(series: Sequence[str]) -> dict[str, Any]:
    colors = [style.SERIES[index % len(style.SERIES)] for index in range(len(series))]
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(series), "range": colors},
        "legend": {} if len(series) > 1 else None,
    }


def _figure(caption: str, description: str, spec: Mapping[str, Any]) -> Figure:
    return Figure(caption=caption, description=description, svg=_titled(_drawn({**spec, "config": _CONFIG})))


def _drawn(spec: Mapping[str, Any]) -> str:
    try:
        import vl_convert
    except ImportError as error:
        raise PipelineError("report needs the package vl-convert-python: pip install 'headrace[pipeline]'") from error
    drawn: str = vl_convert.vegalite_to_svg(json.dumps(spec))
    return drawn


def _titled(svg: str) -> str:
    """Replace the descriptions of marks by tooltips, and remove attributes for screen readers.

    The figure has a label of its own, and a table beside it.
    """
    ET.register_namespace("", SVG)
    root = ET.fromstring(svg)  # noqa: S314 -- written by Vega, with names as text and without a document type
    for mark in root.iter():
        described = mark.attrib.pop("aria-label", None)
        kind = mark.attrib.pop("aria-roledescription", None)
        mark.attrib.pop("role", None)
        if described and kind not in (None, "axis", "legend", "title") and len(mark) == 0:
            ET.SubElement(mark, f"{{{SVG}}}title").text = described
    root.set("aria-hidden", "true")
    root.set("focusable", "false")
    return ET.tostring(root, encoding="unicode")
