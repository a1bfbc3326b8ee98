"""What the exit code of the program says."""

DONE = 0
FAILED = 1
USAGE = 2
NOT_APPROVED = 3  # a call was refused, since nobody was there to approve it
LIMIT = 4
PROVIDER = 5
INTERRUPTED = 130
