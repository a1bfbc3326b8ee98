"""Programs that can be used without any effect, and the closed list of options under which they are."""
