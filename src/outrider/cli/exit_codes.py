"""Exit codes of the `outrider` program. Scripts depend on these numbers."""

SUCCESS = 0
FAILURE = 1
USAGE_ERROR = 2
NOT_APPROVED = 3  # a call was denied because no user was available to approve it
LIMIT_REACHED = 4
PROVIDER_ERROR = 5
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

# What each code means, for the manual page and the site.
DESCRIPTIONS = {
    SUCCESS: "the command did what it was asked to",
    FAILURE: "it failed; the reason is on stderr",
    USAGE_ERROR: "wrong arguments",
    NOT_APPROVED: "a call was denied because no user was available to approve it",
    LIMIT_REACHED: "a limit on turns, time, tokens or cost was reached",
    PROVIDER_ERROR: "the model API returned an error or could not be reached",
    INTERRUPTED: "interrupted with Ctrl+C",
}
