// Open questions of a session: approvals, questions of models and plans.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Diff, Markdown } from "./parts";
import type { SessionModel } from "./session-model";
import type { Approval, Choice, Plan, PlanChoice, Question } from "./types";

export function Questions({ model }: { model: SessionModel }) {
  const approvals = [...model.approvals.value.values()].sort(
    (a, b) => (a.view?.position ?? 0) - (b.view?.position ?? 0),
  );
  const questions = [...model.questions.value.values()];
  const plan = model.plan.value;
  const kinds = new Map<string, Approval[]>();
  for (const approval of approvals) {
    const kind = approval.view?.kind;
    if (kind) kinds.set(kind, [...(kinds.get(kind) ?? []), approval]);
  }
  const section = useRef<HTMLElement>(null);
  const hadFocus = useRef(false);
  const count = approvals.length + questions.length + (plan ? 1 : 0);
  // An answered question disappears, and the focus with it: it moves to the next question, or to the input.
  useLayoutEffect(() => {
    if (hadFocus.current && document.activeElement === document.body)
      (section.current?.querySelector<HTMLElement>(".question") ?? document.getElementById("input"))?.focus();
  }, [count]);
  return (
    <section
      id="questions"
      aria-label="Questions"
      aria-live="assertive"
      ref={section}
      onFocusIn={() => (hadFocus.current = true)}
      onFocusOut={(event) => {
        if (event.relatedTarget && !section.current?.contains(event.relatedTarget as Node)) hadFocus.current = false;
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          document.getElementById("input")?.focus();
        }
      }}
    >
      {[...kinds]
        .filter(([, alike]) => alike.length > 1)
        .map(([kind, alike]) => (
          <GroupAnswer key={kind} kind={kind} approvals={alike} model={model} />
        ))}
      {approvals.map((approval) => (
        <ApprovalBox key={approval.id} approval={approval} model={model} />
      ))}
      {questions.map((question) => (
        <QuestionBox key={question.id} question={question} model={model} />
      ))}
      {plan ? <PlanBox key={plan.id} plan={plan} model={model} /> : null}
    </section>
  );
}

const isTyped = (event: KeyboardEvent): boolean =>
  event.target instanceof HTMLTextAreaElement ||
  event.target instanceof HTMLInputElement ||
  event.ctrlKey ||
  event.metaKey ||
  event.altKey;

// Presses the button whose number was typed.
function chooseByNumber(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  const button = isTyped(event)
    ? undefined
    : event.currentTarget.querySelectorAll<HTMLButtonElement>(".buttons button")[Number(event.key) - 1];
  if (!button) return;
  event.preventDefault();
  event.stopPropagation();
  button.click();
}

// Takes the choice whose key or number was typed.
function chooseByKey<T extends { key: string }>(event: KeyboardEvent, choices: T[], choose: (choice: T) => void): void {
  const choice = isTyped(event)
    ? undefined
    : (choices.find(({ key }) => key === event.key) ?? choices[Number(event.key) - 1]);
  if (!choice) return;
  event.preventDefault();
  event.stopPropagation();
  choose(choice);
}

// One answer for all questions of a kind: an edit of many files is one decision.
function GroupAnswer({ kind, approvals, model }: { kind: string; approvals: Approval[]; model: SessionModel }) {
  const view = approvals[0]!.view!;
  const title = `${approvals.length} ${view.kind_label} wait for an answer`;
  const choose = async (choice: Choice): Promise<void> => {
    for (const { id } of approvals)
      await model.answerApproval(id, { allow: choice.kind === "allow" }).catch(model.report);
  };
  return (
    <section
      class="question"
      data-group={kind}
      aria-label={title}
      tabIndex={-1}
      onKeyDown={(event) => chooseByKey(event, view.group_choices, choose)}
    >
      <h2>{title}</h2>
      <div class="buttons">
        {view.group_choices.map((choice) => (
          <button
            class={choice.kind === "deny" ? "danger" : "primary"}
            data-choice={choice.id}
            title={`Key ${choice.key}`}
            onClick={() => choose(choice)}
          >
            {capitalize(choice.label.replace("{count}", String(approvals.length)))}
          </button>
        ))}
      </div>
    </section>
  );
}

const capitalize = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

function ApprovalBox({ approval, model }: { approval: Approval; model: SessionModel }) {
  const view = approval.view!;
  const widths = view.widths ?? [];
  const files = view.files ?? [];
  const [width, setWidth] = useState(widths[0]?.id ?? "");
  const [selected, setSelected] = useState<ReadonlySet<string>>(() => new Set(files));
  const [isPicking, setPicking] = useState(false);
  const [denial, setDenial] = useState<Choice | null>(null);
  const [isSending, setSending] = useState(false);
  const [words, setWords] = useState("");
  const chosenWidth = widths.find(({ id }) => id === width);
  const title = view.heading || `Allow ${approval.tool}?`;

  const answer = async (choice: Choice, reason = ""): Promise<void> => {
    const body: Record<string, unknown> = {
      allow: choice.kind === "allow",
      scope: choice.scope,
      words: reason,
      choice: choice.choice,
    };
    if (choice.scope !== "once" && widths.length) body["width"] = width;
    if (choice.picks_files) body["keep"] = [...selected];
    setSending(true);
    await model.answerApproval(approval.id, body).catch(model.report);
    setSending(false);
  };
  const choose = (choice: Choice): void => {
    if (choice.picks_files && !isPicking) setPicking(true);
    else if (choice.needs_reason && denial?.id !== choice.id) setDenial(choice);
    else void answer(choice, choice.needs_reason ? words : "");
  };
  return (
    <section
      class="question"
      data-approval={approval.id}
      aria-label={title}
      tabIndex={-1}
      onKeyDown={(event) => chooseByKey(event, view.choices, choose)}
    >
      <h2>{title}</h2>
      <p class="why">{view.reason}</p>
      <div class="body" tabIndex={0}>
        {view.effects?.length ? (
          <ul class="effects">
            {view.effects.map(({ text, risky }) => (
              <li class={risky ? "risky" : undefined}>{text}</li>
            ))}
          </ul>
        ) : null}
        {view.input ? <pre tabIndex={0}>{view.input}</pre> : null}
        {view.marked_facts.length ? (
          <ul class="facts-list">
            {view.marked_facts.map(({ text, risky }) => (
              <li class={risky ? "risky" : undefined}>{text}</li>
            ))}
          </ul>
        ) : null}
        {view.diff.length ? <Diff rows={view.diff} /> : null}
        {isPicking ? (
          <fieldset class="files">
            <legend>Files to keep</legend>
            {files.map((path) => (
              <label class="option">
                <input
                  type="checkbox"
                  value={path}
                  checked={selected.has(path)}
                  onChange={(event) => {
                    const next = new Set(selected);
                    if (event.currentTarget.checked) next.add(path);
                    else next.delete(path);
                    setSelected(next);
                  }}
                />{" "}
                {path}
              </label>
            ))}
          </fieldset>
        ) : null}
      </div>
      {widths.length ? (
        <p class="why">
          <label>
            {capitalize(view.rule_label)}{" "}
            <select
              aria-label={`What ${view.rule_label}`}
              value={width}
              onChange={(event) => setWidth(event.currentTarget.value)}
            >
              {widths.map(({ id, label }) => (
                <option value={id}>{label}</option>
              ))}
            </select>
          </label>{" "}
          <span>{[chosenWidth?.rule_text, chosenWidth?.history].filter(Boolean).join(" · ")}</span>
        </p>
      ) : view.rule_text ? (
        <p class="why">
          {view.rule_label ? `${capitalize(view.rule_label)}: ${view.rule_text}` : capitalize(view.rule_text)}
        </p>
      ) : null}
      {denial ? (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void answer(denial, words);
          }}
        >
          <AutofocusArea
            label="A word to the model"
            placeholder={`${capitalize(denial.prompt)} (Enter sends it)`}
            value={words}
            onInput={setWords}
            onSend={() => void answer(denial, words)}
            onCancel={() => setDenial(null)}
          />
        </form>
      ) : null}
      <div class="buttons">
        {view.choices.map((choice, index) => (
          <button
            class={choice.kind === "deny" ? "danger" : index === 0 ? "primary" : undefined}
            data-choice={choice.id}
            disabled={isSending}
            title={`Key ${choice.key}`}
            onClick={() => choose(choice)}
          >
            {capitalize(choice.label)}
          </button>
        ))}
      </div>
    </section>
  );
}

interface AreaProps {
  label: string;
  placeholder: string;
  value: string;
  onInput: (value: string) => void;
  onSend?: () => void;
  onCancel?: () => void;
  rows?: number;
}

function AutofocusArea({ label, placeholder, value, onInput, onSend, onCancel, rows = 2 }: AreaProps) {
  const element = useRef<HTMLTextAreaElement>(null);
  useEffect(() => element.current?.focus(), []);
  return (
    <textarea
      ref={element}
      aria-label={label}
      placeholder={placeholder}
      rows={rows}
      value={value}
      onInput={(event) => onInput(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === "Enter" && onSend && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          onSend();
        }
        if (event.key === "Escape") {
          event.stopPropagation();
          onCancel?.();
        }
      }}
    />
  );
}

function QuestionBox({ question, model }: { question: Question; model: SessionModel }) {
  const [checked, setChecked] = useState<ReadonlySet<string>>(new Set());
  const [own, setOwn] = useState("");
  const answer = (answers: string[]): void => void model.answerQuestion(question.id, answers);
  const collected = (): string[] =>
    [...question.options.filter((option) => checked.has(option)), own.trim()].filter(Boolean);
  return (
    <section
      class="question"
      data-question={question.id}
      aria-label="A question"
      tabIndex={-1}
      onKeyDown={chooseByNumber}
    >
      <h2>{question.agent ? `${question.agent} asks` : "A question"}</h2>
      <div class="body" tabIndex={0}>
        <Markdown text={question.text} />
        {question.multiple
          ? question.options.map((option) => (
              <label class="option">
                <input
                  type="checkbox"
                  value={option}
                  checked={checked.has(option)}
                  onChange={(event) => {
                    const next = new Set(checked);
                    if (event.currentTarget.checked) next.add(option);
                    else next.delete(option);
                    setChecked(next);
                  }}
                />{" "}
                {option}
              </label>
            ))
          : null}
      </div>
      <textarea
        aria-label="Your own answer"
        rows={1}
        placeholder="Your own answer"
        value={own}
        onInput={(event) => setOwn(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            answer(collected());
          }
          if (event.key === "Escape") event.stopPropagation();
        }}
      />
      <div class="buttons">
        {question.multiple
          ? null
          : question.options.map((option) => <button onClick={() => answer([option])}>{option}</button>)}
        <button class="primary" onClick={() => answer(collected())}>
          Answer
        </button>
        <button class="danger" onClick={() => answer([])}>
          No answer
        </button>
      </div>
    </section>
  );
}

function PlanBox({ plan, model }: { plan: Plan; model: SessionModel }) {
  const { title, question, reason, choices } = plan.view;
  const [isEditing, setEditing] = useState(false);
  const [text, setText] = useState(plan.text);
  const [words, setWords] = useState("");
  const [isRefusing, setRefusing] = useState(false);
  const answer = (body: Record<string, unknown>): void => void model.answerPlan(body).catch(model.report);
  const choose = (choice: PlanChoice): void => {
    if (choice.edits_plan) setEditing(!isEditing);
    else if (choice.id === "accept")
      answer(text.trim() && text !== plan.text ? { accept: true, changed: text } : { accept: true });
    else if (choice.id === "later") model.hidePlan();
    else if (choice.takes_reason && !isRefusing) setRefusing(true);
    else answer({ accept: false, words });
  };
  return (
    <section
      class="question"
      data-plan={plan.id}
      aria-label={title}
      tabIndex={-1}
      onKeyDown={(event) => chooseByKey(event, choices, choose)}
    >
      <h2>{title}</h2>
      <p class="why">{question}</p>
      <div class="body" tabIndex={0}>
        {isEditing ? (
          <AutofocusArea
            label="Text of the plan"
            placeholder="Text of the plan"
            rows={Math.min(24, text.split("\n").length + 2)}
            value={text}
            onInput={setText}
            onCancel={() => setEditing(false)}
          />
        ) : (
          <Markdown text={text} />
        )}
      </div>
      {isRefusing ? (
        <AutofocusArea
          label="A word to the model"
          placeholder={`${capitalize(reason)} (Enter sends it)`}
          value={words}
          onInput={setWords}
          onSend={() => answer({ accept: false, words })}
          onCancel={() => setRefusing(false)}
        />
      ) : null}
      <div class="buttons">
        {choices.map((choice, index) => (
          <button
            class={choice.id === "refuse" ? "danger" : index === 0 ? "primary" : undefined}
            data-choice={choice.id}
            title={`Key ${choice.key}`}
            onClick={() => choose(choice)}
          >
            {choice.edits_plan && isEditing ? "Preview" : capitalize(choice.label)}
          </button>
        ))}
      </div>
    </section>
  );
}
