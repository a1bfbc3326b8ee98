"""The border around the field in which one writes; its colour tells the mode."""

from textual.containers import Horizontal

from outrider.types.agents import Mode


class Frame(Horizontal):
    DEFAULT_CSS = """
    Frame { height: auto; margin: 0 1; padding: 0 1; border: round $faint; background: $background; }
    Frame:focus-within { border: round $primary 60%; }
    Frame.-plan:focus-within { border: round $secondary 70%; }
    Frame.-background:focus-within { border: round $warning; }
    Frame.-chat:focus-within { border: round $quiet; }
    """

    def show(self, mode: Mode) -> None:
        for known in ("plan", "background", "chat"):
            self.set_class(known == mode, f"-{known}")
