"""What a screen may show: every text from models, tools and files passes here before a terminal sees it."""

from outrider.permissions.texts.terminal import for_terminal, shows_everything

__all__ = ["for_terminal", "shows_everything"]
