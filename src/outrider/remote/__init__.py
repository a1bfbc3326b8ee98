"""An engine on another machine, used as if it were here."""
