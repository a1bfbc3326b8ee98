"""The approval question: what would run, why it needs an answer, and the answers that every front end offers."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from outrider.permissions import reasons
from outrider.presentation.diffs import DiffRow, FileDiff, diff_rows, parse_unified_diff
from outrider.presentation.formats import clean_line, escape_control_characters, reveal_text
from outrider.presentation.tool_calls import call_title, input_text, planned_changes
from outrider.sessions.records import Approval, ApprovalScope
from outrider.types.events import ToolApprovalRequestedEvent
from outrider.types.origins import ApprovalFact, DataFlow
from outrider.types.outcomes import CallEffect, CommandOutcome, OutcomeChoice, RuleWidth
from outrider.types.tool_declaration import declaration_of

AnswerKind = Literal["allow", "deny"]


def was_unattended(error: str) -> bool:
    """Returns whether a call was denied because no user was there to approve it. Searches the text: a remote server
    stores our denial as a user's answer with a prefix."""
    return any(reasons.contains_reason(error, reason) for reason in reasons.UNATTENDED_REASONS)


def is_forbidden_by_rule(error: str) -> bool:
    """Returns whether a call was denied by a rule, so that no approval would allow it."""
    return reasons.contains_reason(error, reasons.RULE_FORBIDS)


# What the model reads about a call that needed an answer while no user was there.
UNATTENDED_DENIAL = reasons.UNATTENDED_DENIAL
UNATTENDED_OUTCOME = reasons.UNATTENDED_OUTCOME
UNATTENDED_BLOCK = reasons.UNATTENDED_BLOCK


class ApprovalChoice(msgspec.Struct, frozen=True):
    """One possible answer to an approval question.

    - `id`: identifies the answer among the answers of one question.
    - `kind`: whether the answer allows or denies the call.
    - `scope`: how long a yes applies.
    - `key`: the key that selects the answer in a terminal.
    - `label`: the text of the button.
    - `needs_reason`: the user writes a reason, which the model reads.
    - `picks_files`: the user names the files to keep.
    - `choice`: what a yes means for the outcome of a command.
    - `prompt`: asks for the reason or for the files.
    """

    id: str
    kind: AnswerKind
    scope: ApprovalScope
    key: str
    label: str
    needs_reason: bool = False
    picks_files: bool = False
    choice: OutcomeChoice = "keep"
    prompt: str = ""


_WHY_NOT = "why not? The model reads this"
_WHICH_FILES = "files to keep, by name or pattern: src/*.py README.md"

ALLOW_ONCE = ApprovalChoice("once", "allow", "once", "y", "yes, once")
ALLOW_SESSION = ApprovalChoice("session", "allow", "session", "s", "this session")
ALLOW_PROJECT = ApprovalChoice("project", "allow", "project", "p", "this folder")
ALLOW_ALWAYS = ApprovalChoice("always", "allow", "always", "a", "always")
DENY = ApprovalChoice("no", "deny", "once", "n", "no")
DENY_WITH_REASON = ApprovalChoice("no-because", "deny", "once", "r", "no, because…", needs_reason=True, prompt=_WHY_NOT)

KEEP = ApprovalChoice("keep", "allow", "once", "y", "keep the changes")
KEEP_SOME = ApprovalChoice("keep-some", "allow", "once", "f", "keep some files…", picks_files=True, prompt=_WHICH_FILES)
DROP = ApprovalChoice("no", "deny", "once", "n", "drop them")
DROP_WITH_REASON = ApprovalChoice(
    "no-because", "deny", "once", "r", "drop them, because…", needs_reason=True, prompt=_WHY_NOT
)
RUN_OUTSIDE = ApprovalChoice("outside", "allow", "once", "o", "run it again outside the sandbox", choice="outside")
START_OUTSIDE = ApprovalChoice("outside", "allow", "once", "o", "run it outside the sandbox", choice="outside")
KEEP_BLOCKED = ApprovalChoice("no", "deny", "once", "n", "no, leave it blocked")

KEEP_SESSION = ApprovalChoice("session", "allow", "session", "s", "keep such changes this session")
KEEP_PROJECT = ApprovalChoice("project", "allow", "project", "p", "in this folder")
KEEP_ALWAYS = ApprovalChoice("always", "allow", "always", "a", "always")

COUNT = "{count}"
LASTING_COVERS = "an answer that lasts covers"

_ONLY_ONCE = "no rule could describe exactly this call, so it can only be allowed once"
_BY_DESTINATION = "none; an answer for the session lets it send data to {destination}"
_BY_CONTENT = "none; a lasting answer applies as long as the workspace files that influence the command stay unchanged"


class WidthView(msgspec.Struct, frozen=True):
    """One width of a lasting answer as front ends show it: what it covers, its rules, and how many earlier questions it
    would have covered."""

    id: str
    label: str
    rule_text: str
    history: str = ""


_KIND_LABELS = {"edit": "edits", "command": "commands", "outcome": "outcomes"}


class ApprovalDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What an approval question shows, computed, for front ends that receive it as JSON.

    `diff` and `input` together show the call completely. Control characters in `input`, `diff`, `facts`,
    `marked_facts` and `effects` are escapes.

    - `title`: the call on one line.
    - `reason`: why the call needs an answer.
    - `rules`: what a lasting answer would store.
    - `rule_text`: the rules as text, or why there are none.
    - `rule_label`: comes before a rule text that says what a lasting answer covers.
    - `choices`: the possible answers.
    - `group_choices`: the answers to all waiting questions of the `kind`; `COUNT` in a label is their number.
    - `changes`: the files that the call would change or has changed.
    - `agent`: the agent that asks, if it is not the session's own.
    - `input`: the arguments that the diff does not show.
    - `diff`: the rows of `changes`.
    - `heading`: the question on one line.
    - `facts`: the texts of `marked_facts`.
    - `marked_facts`: what the call would send, what the session has read, and what an outcome consists of.
    - `files`: the paths of the files in the outcome of a command.
    - `widths`: what a lasting answer may cover, the narrowest first.
    - `effects`: what the call does.
    - `kind`: what the question is about; empty if it must be answered alone.
    - `kind_label`: several questions of this kind, in words.
    - `position`: the place of the call in the answer of the model that made it.
    """

    title: str
    reason: str
    rules: tuple[str, ...]
    rule_text: str
    rule_label: str = ""
    choices: tuple[ApprovalChoice, ...]
    group_choices: tuple[ApprovalChoice, ...] = ()
    changes: tuple[FileDiff, ...] = ()
    agent: str = ""
    input: str = ""
    diff: tuple[DiffRow, ...] = ()
    heading: str = ""
    facts: tuple[str, ...] = ()
    marked_facts: tuple[ApprovalFact, ...] = ()
    files: tuple[str, ...] = ()
    widths: tuple[WidthView, ...] = ()
    effects: tuple[CallEffect, ...] = ()
    kind: str = ""
    kind_label: str = ""
    position: int = 0


class ApprovalView(msgspec.Struct, frozen=True, kw_only=True):
    """A question about one exact call.

    - `id`: the id of the approval.
    - `session_id`: the session whose call asks.
    - `call_id`: the call that asks.
    - `tool`: the name of the tool.
    - `arguments`: the arguments of the call.
    - `reason`: why the call needs an answer.
    - `rules`: what a lasting answer would store.
    - `can_last`: whether the answer can last; without it, the call can only be allowed once.
    - `agent`: the agent that asks, if it is not the session's own.
    - `outcome`: what a sandboxed command has changed or needs.
    - `flow`: the data that the call would send.
    - `offered`: the widths of a lasting answer that the engine offers.
    - `effects`: what the call does.
    - `preview`: a unified diff of what the call would change.
    - `position`: the place of the call in the answer of the model that made it.
    """

    id: str
    session_id: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    reason: str
    rules: tuple[str, ...] = ()
    can_last: bool = False
    agent: str = ""
    outcome: CommandOutcome | None = None
    flow: DataFlow | None = None
    offered: tuple[RuleWidth, ...] = ()
    effects: tuple[CallEffect, ...] = ()
    preview: str = ""
    position: int = 0

    @property
    def widths(self) -> tuple[WidthView, ...]:
        """What a lasting answer may cover, the narrowest first."""
        return tuple(
            WidthView(width.id, width.label, ", ".join(width.rules) or _BY_CONTENT, _describe_history(width))
            for width in self.offered
        )

    @property
    def kind(self) -> str:
        """What the question is about, for an answer to all questions of one kind: "edit", "command" or "outcome".
        Empty if it must be answered alone, because it is about protected files, more access or data that would be
        sent."""
        if self.flow is not None:
            return ""
        if self.outcome is not None:
            files = self.outcome.files
            return "" if not files or any(file.protected or file.conflict for file in files) else "outcome"
        return {"write": "edit", "shell": "command"}.get(declaration_of(self.tool).kind, self.tool)

    @property
    def kind_label(self) -> str:
        """The name of several questions of this kind."""
        return _KIND_LABELS.get(self.kind) or (f"calls of {clean_line(self.kind, 60)}" if self.kind else "")

    @property
    def title(self) -> str:
        return call_title(self.tool, self.arguments)

    @property
    def heading(self) -> str:
        """The question in one line."""
        agent = f" for {self.agent}" if self.agent else ""
        if self.outcome is None:
            return f"Allow {self.tool}{agent}?"
        if self.outcome.predicted:
            return f"Run this command{agent}?"
        if self.outcome.files:
            return f"Keep what this command changed{agent}?"
        return f"Run this command again with more access{agent}?"

    @property
    def facts(self) -> tuple[str, ...]:
        """The texts of `marked_facts`."""
        return tuple(fact.text for fact in self.marked_facts)

    @property
    def marked_facts(self) -> tuple[ApprovalFact, ...]:
        """What the call would send and what the session has read before, and what an outcome consists of, risky files
        first: one line each."""
        flow = self.flow or (self.outcome.flow if self.outcome else None)
        return (*(flow.facts if flow else ()), *(_outcome_facts(self.outcome) if self.outcome else ()))

    @property
    def changes(self) -> list[FileDiff]:
        """The files that a command has changed, or that the call would change, as far as its arguments show them."""
        if self.outcome is not None:
            # With git's header, the prefixes a/ and b/ are not read as parts of the paths.
            texts = [f"diff --git a/{file.path} b/{file.path}\n{file.diff}" for file in self.outcome.files if file.diff]
            return [diff for text in texts for diff in parse_unified_diff(text)]
        return parse_unified_diff(self.preview) or planned_changes(self.tool, self.arguments)

    @property
    def choices(self) -> tuple[ApprovalChoice, ...]:
        if self.outcome is not None:
            return _outcome_choices(self.outcome, can_last=bool(self.offered))
        lasting = (ALLOW_SESSION, ALLOW_PROJECT, ALLOW_ALWAYS) if self.can_last else ()
        if self.flow is not None:
            lasting = lasting[:1]
        return (ALLOW_ONCE, *lasting, DENY, DENY_WITH_REASON)

    @property
    def group_choices(self) -> tuple[ApprovalChoice, ...]:
        """The answers to all questions of this kind at once."""
        if not self.kind:
            return ()
        return (
            ApprovalChoice("yes-to-all", "allow", "once", "Y", f"yes to all {COUNT} {self.kind_label}"),
            ApprovalChoice("no-to-all", "deny", "once", "N", f"no to all {COUNT}"),
        )

    @property
    def rule_text(self) -> str:
        """What a lasting answer would store, or why there is none."""
        if self.outcome is not None and not self.offered:
            return ""
        if self.flow is not None and self.can_last:
            return _BY_DESTINATION.format(destination=self.flow.destination)
        return ", ".join(self.rules) or (_BY_CONTENT if self.can_last else _ONLY_ONCE)

    @property
    def details(self) -> ApprovalDetails:
        facts = tuple(ApprovalFact(escape_control_characters(fact.text), fact.risky) for fact in self.marked_facts)
        return ApprovalDetails(
            title=self.title,
            reason=self.reason,
            rules=self.rules,
            rule_text=self.rule_text,
            rule_label=LASTING_COVERS if self.widths or self.can_last else "",
            choices=self.choices,
            group_choices=self.group_choices,
            changes=tuple(self.changes),
            agent=self.agent,
            input=reveal_text(input_text(self.tool, self.arguments)),
            diff=tuple(_shown_rows(self.changes)),
            heading=self.heading,
            facts=tuple(fact.text for fact in facts),
            marked_facts=facts,
            files=tuple(file.path for file in self.outcome.files) if self.outcome else (),
            widths=self.widths,
            effects=tuple(CallEffect(escape_control_characters(effect.text), effect.risky) for effect in self.effects),
            kind=self.kind,
            kind_label=self.kind_label,
            position=self.position,
        )

    def answer(
        self, choice_id: str, text: str = "", files: Sequence[str] | None = None, *, width: str = ""
    ) -> dict[str, Any]:
        """Returns the keyword arguments of `Engine.answer` for a choice. `text` is the reason of a denial, or names and
        patterns of files to keep; `files` are files that were picked from the list; `width` is the id of what a lasting
        answer covers. An unknown choice denies."""
        choice = choice_by_id(self.choices, choice_id)
        if choice is None or choice.kind == "deny":
            return {"allow": False, "words": text}
        answer: dict[str, Any] = {"allow": True, "scope": choice.scope, "choice": choice.choice}
        if choice.picks_files:
            answer["keep"] = tuple(files) if files is not None else self.match_files(text.replace(",", " ").split())
        if width and choice.scope != "once":
            answer["width"] = width
        return answer

    def match_files(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Returns the changed files that have one of these names, or match one of them as a pattern."""
        paths = [file.path for file in self.outcome.files] if self.outcome else []
        return tuple(path for path in paths if any(path == name or fnmatchcase(path, name) for name in patterns))


def _outcome_facts(outcome: CommandOutcome) -> Iterator[ApprovalFact]:
    for access in outcome.blocked:
        yield ApprovalFact(f"{'needs' if outcome.predicted else 'blocked'}: {access.description}", risky=True)
    if outcome.exit_code not in (0, None):
        yield ApprovalFact(f"exit code {outcome.exit_code}")
    for line in outcome.left_running:
        yield ApprovalFact(f"left running, and ended: {line}")
    for file in outcome.files:
        risks = [
            mark
            for mark, applies in (
                ("PROTECTED", file.protected),
                ("changed by another program meanwhile", file.conflict),
                ("cannot be undone", not file.can_undo),
            )
            if applies
        ]
        marks = [*risks, *(["ignored by git"] if file.ignored else []), *([file.note] if file.note else [])]
        name = f"{file.path}/" if file.file == "folder" else file.path
        yield ApprovalFact(f"{file.kind}: {name}" + (f" ({', '.join(marks)})" if marks else ""), risky=bool(risks))
        for operation in file.operations:
            yield ApprovalFact(f"    {operation.description}", risky=bool(operation.lost))
    if outcome.more_files:
        yield ApprovalFact(f"and {outcome.more_files:,} more files")


def _describe_history(width: RuleWidth) -> str:
    if not width.asked:
        return ""
    refused = f"{width.refused} that you refused"
    return f"covers {width.covered} of {width.asked} earlier questions; {refused}"


def _outcome_choices(outcome: CommandOutcome, *, can_last: bool) -> tuple[ApprovalChoice, ...]:
    lasting = (KEEP_SESSION, KEEP_PROJECT, KEEP_ALWAYS) if can_last else ()
    if outcome.files:
        keep_some = (KEEP_SOME,) if len(outcome.files) > 1 else ()
        return (KEEP, *keep_some, *lasting, DROP, DROP_WITH_REASON)
    if outcome.predicted:
        return (*_rerun_choices(outcome, "run it with"), START_OUTSIDE, DENY, DENY_WITH_REASON)
    hosts = [msgspec.structs.replace(choice, label=_HOST_LABELS[choice.id], choice="hosts") for choice in lasting]
    return (*_rerun_choices(outcome, "run it again with"), *hosts, RUN_OUTSIDE, KEEP_BLOCKED, DENY_WITH_REASON)


_HOST_LABELS = {"session": "allow these hosts this session", "project": "in this folder", "always": "always"}


def _rerun_choices(outcome: CommandOutcome, verb: str) -> Iterator[ApprovalChoice]:
    hosts = [access.target for access in outcome.blocked if access.kind == "network" and access.target]
    if any(access.kind == "network" for access in outcome.blocked):
        label = f"{verb} {', '.join(hosts) or 'the network'}"
        yield ApprovalChoice("hosts", "allow", "once", "y", label, choice="hosts")
    paths = [access.target for access in outcome.blocked if access.kind != "network" and access.target]
    if paths and all(access.grantable for access in outcome.blocked):
        label = f"{verb} write access to {', '.join(paths)}"
        yield ApprovalChoice("paths", "allow", "once", "w", label, choice="paths")


def approval_view(approval: Approval, *, agent: str = "") -> ApprovalView:
    return _create_view(
        approval,
        agent,
        approval_id=approval.id,
        tool=approval.tool,
        arguments=approval.input,
        can_last=approval.can_persist,
    )


def requested_approval_view(event: ToolApprovalRequestedEvent, *, agent: str = "") -> ApprovalView:
    """Returns the question from the event that announces it, for front ends that do not read the stored approval."""
    return _create_view(
        event,
        agent,
        approval_id=event.approval_id,
        tool=event.tool_name,
        arguments=event.tool_input,
        can_last=event.can_last,
    )


def _create_view(
    question: Approval | ToolApprovalRequestedEvent,
    agent: str,
    *,
    approval_id: str,
    tool: str,
    arguments: dict[str, Any],
    can_last: bool,
) -> ApprovalView:
    """Returns the view of a stored or announced question. The keyword parameters are the fields whose names differ
    between the two."""
    return ApprovalView(
        id=approval_id,
        session_id=question.session_id,
        call_id=question.call_id,
        tool=tool,
        arguments=arguments,
        reason=question.description,
        rules=question.offers,
        can_last=can_last,
        agent=agent,
        outcome=question.outcome,
        offered=question.widths,
        effects=question.effects,
        preview=question.preview,
        position=question.position,
        flow=question.flow,
    )


class QuestionSection(msgspec.Struct, frozen=True):
    """One section of an approval question as lines of text, in which control characters are escapes. `facts` are what
    the call does, sends and needs, and what an outcome consists of, one per line."""

    kind: Literal["question", "facts", "input", "diff"]
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def question_sections(view: ApprovalView, *, hunks: bool = True) -> list[QuestionSection]:
    """Returns the complete question: what is asked and why, the facts, the complete input, and the diff. Without
    `hunks` the diff only names the files, for a protocol that shows their contents itself."""
    effects = [f"! {effect.text}" if effect.risky else effect.text for effect in view.effects]
    rows = [row.text for row in _shown_rows(view.changes) if hunks or row.kind == "file"]
    sections = (
        QuestionSection("question", tuple(reveal_text(text) for text in (view.heading, view.reason) if text)),
        QuestionSection("facts", tuple(escape_control_characters(fact) for fact in (*effects, *view.facts))),
        QuestionSection("input", _revealed_lines(input_text(view.tool, view.arguments))),
        QuestionSection("diff", tuple(rows)),
    )
    return [section for section in sections if section.lines]


def question_text(view: ApprovalView, *, shows_input: bool = True) -> str:
    """Returns the complete question as plain text; without `shows_input` for a protocol that sends the input
    separately. The input and the diff are indented, so that no line of them looks like a line of the question."""
    return "\n\n".join(
        "\n".join(f"{_MARGINS[section.kind]}{line}" for line in section.lines)
        for section in question_sections(view)
        if shows_input or section.kind != "input"
    )


def lasting_lines(view: ApprovalView) -> tuple[str, ...]:
    """Returns what each width of a lasting answer covers, complete, for front ends whose options are short."""
    lines = [f"{width.label}: {width.rule_text}" for width in view.widths]
    if not lines and view.can_last and view.rule_text:
        lines = [view.rule_text]
    return tuple(map(escape_control_characters, lines))


_MARGINS = {"question": "", "facts": "- ", "input": "    ", "diff": "    "}


def _shown_rows(changes: Sequence[FileDiff]) -> Iterator[DiffRow]:
    for row in diff_rows(changes):
        yield DiffRow(row.kind, escape_control_characters(row.text) if row.kind == "file" else reveal_text(row.text))


def _revealed_lines(text: str) -> tuple[str, ...]:
    return tuple(reveal_text(text).split("\n")) if text else ()


def approval_fields(view: ApprovalView) -> dict[str, Any]:
    """Returns the question as JSON fields, for third-party protocols: the exact call, what its answer is about, and the
    answers that front ends of Outrider offer."""
    outcome_diff = "".join(file.diff for file in view.outcome.files) if view.outcome else ""
    return {
        "approval_id": view.id,
        "tool": view.tool,
        "input": view.arguments,
        "title": view.title,
        "heading": view.heading,
        "reason": view.reason,
        "effects": [{"text": effect.text, "risky": effect.risky} for effect in view.effects],
        "facts": list(view.facts),
        "diff": outcome_diff or view.preview or None,
        "files": [file.path for file in view.outcome.files] if view.outcome else [],
        "choices": [
            {
                "id": choice.id,
                "kind": choice.kind,
                "label": choice.label,
                "needs_reason": choice.needs_reason,
                "picks_files": choice.picks_files,
            }
            for choice in view.choices
        ],
        "widths": [{"id": width.id, "label": width.label, "rules": width.rule_text} for width in view.widths],
    }


def choice_by_id(choices: Sequence[ApprovalChoice], choice_id: str) -> ApprovalChoice | None:
    return next((choice for choice in choices if choice.id == choice_id), None)


class PlanChoice(msgspec.Struct, frozen=True):
    """One possible answer to a plan.

    - `id`: identifies the answer.
    - `key`: the key that selects the answer in a terminal.
    - `label`: the text of the button.
    - `edits_plan`: the user changes the text of the plan first.
    - `takes_reason`: the user may write what should change, which the model reads.
    """

    id: Literal["accept", "change", "refuse", "later"]
    key: str
    label: str
    edits_plan: bool = False
    takes_reason: bool = False


class PlanDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What front ends show with a plan that waits for an answer. `reason` is the prompt for the comment that the model
    reads after a no."""

    title: str
    question: str
    reason: str
    choices: tuple[PlanChoice, ...]


PLAN_DETAILS = PlanDetails(
    title="The plan is ready",
    question="Execute the plan? The session then continues in agent mode.",
    reason="what should change? The model makes a new plan",
    choices=(
        PlanChoice("accept", "y", "execute it"),
        PlanChoice("change", "c", "edit it first", edits_plan=True),
        PlanChoice("refuse", "n", "no", takes_reason=True),
        PlanChoice("later", "l", "discuss it first"),
    ),
)


SCOPE_LABELS: dict[ApprovalScope, str] = {
    "once": "this call",
    "session": "session",
    "project": "folder",
    "always": "always",
}
"""Where a stored approval applies: in the session or the folder in which it was given, or everywhere."""


class GrantView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored approval as strings: the call that asked, everything that the approval covers, and where it applies."""

    title: str
    text: str
    scope: str


def grant_view(approval: Approval) -> GrantView:
    return GrantView(
        title=call_title(approval.tool, approval.input),
        text=escape_control_characters(grant_text(approval)),
        scope=SCOPE_LABELS[approval.scope],
    )


def grant_text(approval: Approval) -> str:
    """Returns everything that a stored approval covers: rules, file contents and destinations."""
    permissions = [*approval.offers]
    if approval.contents:
        permissions.append("the present content of the configuration files that its programs read")
    if approval.flow is not None and approval.flow.can_last:
        permissions.append(f"sending data to {approval.flow.destination}")
    return ", ".join(permissions) or "exactly this call"
