"""Path checks: containment in the workspace, protected names, race-free opening, and gitignore rules."""
