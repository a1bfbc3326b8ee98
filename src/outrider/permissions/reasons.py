"""The text of permission decisions: why a call is allowed, needs an approval or is denied.

Every front end shows these texts in the approval request, and the model reads them if a call is denied. A reason states
what the call does and why that needs an answer. More specific texts follow after a colon: those about single programs
are in `permissions/shell/programs/`, those about command lines in `permissions/shell/`, and those about paths in
`permissions/paths/`. The answers that a user can choose are in `presentation/approvals.py`.
"""

from string import Formatter

from outrider.permissions.modes import Action

ACTION_REASONS: dict[Action, str] = {
    "talk": "it changes nothing outside the session",
    "read": "it reads inside the workspace",
    "shell that reads": "every command in it is proven to read only",
    "write": "it changes files of the workspace",
    "shell": "it is not proven to read only",
    "beyond": "it may access something outside the workspace",  # network, a path outside, an unknown tool
    "protected": "it reads or changes a protected file",  # only if the reason of the path is not known
    "delegate": "another agent works under the same rights",
}

# What a rule decides. The model reads the rule too: it can then look for a way that the rule does not forbid.
RULE_FORBIDS = "a rule forbids it: {rule}"
RULE_ASKS = "a rule requires approval: {rule}"
RULE_ALLOWS = "a rule allows it: {rule}"

# What the mode decides.
MODE_LACKS_TOOL = "{mode} mode does not offer this tool: {reason}"
MODE_CANNOT_ASK = "{reason}; {mode} mode cannot ask for approval"
NO_SANDBOX = "{reason}; there is no sandbox to run it in"
UNCONFINED = "{reason}; the user runs commands without a sandbox"
STAYS_RUNNING = "{reason}; it stays running and changes the workspace directly"
LEVEL_ALLOWS = "{reason}; the approval level is {level}"
OWNER_STAYS = "sessions of this user stay in their workspace and in the sandbox; an administrator can do it"
OWNER_LEFT = "the workspace of this session is not in the folder of its user any more: a link points to another one"
OWNER_NEEDS_SANDBOX = "commands of this user run only in a sandbox, and there is none here; an administrator can run it"
NO_SANDBOX_IN_MODE = "commands run inside a sandbox only in {mode} mode, and none works on this machine"

# What the call itself decides.
UNKNOWN_EFFECTS = "the effects of {tool} are not known"
UNKNOWN_INPUT_EFFECT = "the effect of input on the process is not known"
CONNECTS_TO_HOSTS = "it connects to other hosts"
OUTSIDE_DIRECTORY = "its working directory: {reason}"
NO_FILE = "the call names no file"
NO_COMMAND = "the call names no command"
PATH_CHANGED = "its path resolves to another file than at the time of the approval request"
REDACTED_INPUT = "its input contains {mark} in place of a secret that was not stored; it is not the secret itself"

# What the tool decides.
TOOL_CHANGED = "the definition of {tool} has changed since its last approval"
HOOK_ASKS = "a hook requires an approval: {reason}"
TOOL_POLICY = "the tool {tool} says {policy} for this call"

# What the model reads about a call that did not run.
INVALID_CALL = "Invalid arguments: {reason}. Nothing was run."
DENIED_CALL = "This call is not allowed: {reason}. It was not run."
UNATTENDED_DENIAL = (
    "This call needs an approval, and no user is available to give it. It was not run. Continue without it, or report "
    "that it is needed."
)
UNATTENDED_OUTCOME = "This command changed files, and no user is available to approve that. Its changes were discarded."
UNATTENDED_WRITE = "This command tried to change files, and no user is available to approve that."
UNATTENDED_BLOCK = "the sandbox blocked its access to {wanted}, and no user is available to allow it"
PREDICTED = "{effect}. It has not started yet"
PREDICTED_OUTSIDE = "{effect}. It has not started yet; an approval runs it outside the sandbox"
UNATTENDED_PREDICTED = "This command was not run, because no user is available to approve it: {effect}."
UNATTENDED_REASONS = (UNATTENDED_DENIAL, UNATTENDED_OUTCOME, UNATTENDED_WRITE, UNATTENDED_BLOCK, UNATTENDED_PREDICTED)
USER_DENIED_PREDICTED = "The user did not allow this command to start: {effect}"
BLOCKED = "the sandbox blocked its access to {wanted}"
USER_DENIED = "The user denied this call."
USER_DENIED_BECAUSE = "The user denied this call: {message}"
APPROVE_FUNCTION_FAILED = "the function that approves calls gave no answer ({error})"
NOT_APPROVED = "This call was not run: {reason}."

# What `outrider permissions explain` adds.
OUTSIDE_SANDBOX = "outside the sandbox"
INSIDE_SANDBOX = "inside the sandbox"
READ_ONLY_SANDBOX = "inside the sandbox (it can only read)"
DROPPED_OUTCOME = "inside the sandbox (its changes are discarded)"
ASKED_OUTCOME = "inside the sandbox (its changes need approval)"
COMMITTED_OUTCOME = "inside the sandbox (its changes are applied)"
READS_ONLY = "reads only"
WHOLE_LINE = "the whole line: {problem}"
ALWAYS_ADDS = '"always" would add {rule}'


def action_reason(action: Action, detail: str) -> str:
    """Returns the reason for a class of calls, followed by what is special about this call. For a command, `detail`
    states what it does and is the complete reason."""
    if action == "shell" and detail:
        return detail
    return f"{ACTION_REASONS[action]}: {detail}" if detail else ACTION_REASONS[action]


def contains_reason(text: str, reason: str) -> bool:
    """Returns whether a text contains a reason of this module, with any values for its placeholders."""
    position = 0
    for literal in fixed_words(reason):
        start = text.find(literal, position)
        if start < 0:
            return False
        position = start + len(literal)
    return True


def fixed_words(reason: str) -> tuple[str, ...]:
    """Returns the literal parts of a reason, between its placeholders. Raises ValueError if there are none, because
    every text would contain such a reason."""
    literals = tuple(stripped for field_text, *_ in Formatter().parse(reason) if (stripped := field_text.strip(" .")))
    if not literals:
        raise ValueError(f"the reason {reason!r} consists of placeholders only")
    return literals
