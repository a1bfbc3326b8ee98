"""Settings from the configuration file, the environment, command-line flags and the project."""
