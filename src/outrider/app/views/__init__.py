"""What screens need of an engine besides its own methods: questions with their rules, files, commands of the user."""
