"""The command line: headless runs, the sessions that are kept, and a look at everything else."""
