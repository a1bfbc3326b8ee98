"""The command line interface: headless runs, stored sessions, background jobs, servers and diagnostics."""
