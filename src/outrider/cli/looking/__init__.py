"""Commands that look: traces, figures, models, settings, the state of the machine."""
