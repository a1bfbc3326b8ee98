"""Exit codes of the `outrider` program. Scripts depend on these numbers."""

SUCCESS = 0
FAILURE = 1
USAGE_ERROR = 2
NOT_APPROVED = 3  # a call was denied because no user was available to approve it
LIMIT_REACHED = 4
PROVIDER_ERROR = 5
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
