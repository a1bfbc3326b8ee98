"""A git worktree for each run, so that runs disturb neither each other nor whoever works in the repository."""
