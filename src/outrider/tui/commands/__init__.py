"""The slash commands: one table, and what each of them does."""
