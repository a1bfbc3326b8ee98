"""The palette that a widget is drawn with now."""

from textual.widget import Widget

from outrider.tui.rendering.palette import Palette, palette_named


def palette_of(widget: Widget) -> Palette:
    return palette_named(theme_of(widget))


def theme_of(widget: Widget) -> str:
    return widget.app.theme  # pyright: ignore[reportUnknownMemberType]  an App may return anything
