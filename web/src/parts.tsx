// Messages and their parts. Titles, subjects, states, diffs and figures come from the server as texts; the page decides
// only how they look, and draws a kind that it does not know from the same fields.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { get, sessionPath } from "./api";
import { appearance } from "./appearance";
import { feed } from "./feed";
import { copyText, MarkdownRenderer } from "./markdown";
import { Transcript, type ShownMessage } from "./transcript";
import type { Attachment, DiffRow, ItemView, MessagePage, Notice, Part } from "./types";

export function Markdown({
  text,
  isFinal = true,
  partId,
}: {
  text: string;
  isFinal?: boolean;
  partId?: string | undefined;
}) {
  const element = useRef<HTMLDivElement>(null);
  const renderer = useRef<MarkdownRenderer | null>(null);
  const pending = useRef<{
    text: string;
    isFinal: boolean;
    timer?: ReturnType<typeof setTimeout>;
    notBefore: number;
  }>({ text, isFinal, notBefore: 0 });
  useLayoutEffect(() => {
    const state = pending.current;
    Object.assign(state, { text, isFinal });
    const draw = (): void => {
      clearTimeout(state.timer);
      delete state.timer;
      const start = performance.now();
      renderer.current ??= new MarkdownRenderer(element.current!);
      renderer.current.update(state.text, state.isFinal);
      const end = performance.now();
      state.notBefore = end + 3 * (end - start); // the page stays responsive while a long answer streams in
    };
    const delay = state.notBefore - performance.now();
    if (isFinal || delay <= 0) draw();
    else state.timer ??= setTimeout(draw, delay);
  }, [text, isFinal]);
  useEffect(() => () => clearTimeout(pending.current.timer), []);
  return <div class="markdown" ref={element} data-part={partId} />;
}

export function Diff({ rows }: { rows: DiffRow[] }) {
  return (
    <pre class="diff" tabIndex={0}>
      {rows.map((row, index) => (
        <span key={index} class={row.kind}>
          {row.text}
        </span>
      ))}
    </pre>
  );
}

export function FolderIcon() {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d="M1.5 3.5h4.4l1.5 1.6h7.1v7.4h-13z" />
    </svg>
  );
}

export function ClipIcon() {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d="M12.8 7.3 7.6 12.5a3 3 0 0 1-4.3-4.3L9 2.6a2 2 0 0 1 2.9 2.8L6.3 11a1 1 0 0 1-1.4-1.4l4.8-4.9" />
    </svg>
  );
}

export function NoticeLine({ notice, partId }: { notice: Notice; partId?: string }) {
  if (notice.body) {
    return (
      <details class="reasoning" data-part={partId}>
        <summary>{notice.text}</summary>
        <Markdown text={notice.body} />
      </details>
    );
  }
  return (
    <p class={notice.level === "error" ? "failure" : `note ${notice.level}`} data-part={partId} role="status">
      {notice.text}
    </p>
  );
}

function ImageOf({ source, name }: { source: string; name?: string | null | undefined }) {
  return source.startsWith("data:image/") ? <img src={source} alt={name || "an image"} /> : null;
}

function attachmentSource(file: Attachment): string {
  return file.url ?? `data:${file.mime_type};base64,${file.data}`;
}

// A row that opens: a tool call, a command, or a kind that is newer than the page.
function CallRow({ view, part, live }: { view: ItemView; part: Part; live: string | undefined }) {
  const [isOpen, setOpen] = useState(appearance.value.opensCalls);
  const hasText = Boolean(view.title || view.subject || view.status_text);
  return (
    <details class="call" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)} data-part={part.id}>
      <summary>
        <span class="tool">{hasText ? view.title : view.kind}</span>
        <span class="subject">{view.subject}</span>
        {view.status_text ? <CallStatus view={view} /> : null}
      </summary>
      <div class="inside">
        <CallBody view={view} part={part} live={live} />
      </div>
    </details>
  );
}

// The facts of a status, each in its tone; a newer server may send tones that have no style here.
function CallStatus({ view }: { view: ItemView }) {
  const facts = view.status_facts ?? [{ text: view.status_text ?? "" }];
  return (
    <span class={`status ${view.status ?? ""}`} title={view.duration ? `took ${view.duration}` : undefined}>
      {facts.map((fact, index) => [
        index ? (fact.joined ? " " : " · ") : "",
        <span class={`tone-${fact.tone ?? "quiet"}`}>{fact.text}</span>,
      ])}
    </span>
  );
}

function CallBody({ view, part, live }: { view: ItemView; part: Part; live: string | undefined }) {
  const { state } = part;
  const output = view.output || state?.output || live;
  return (
    <>
      {view.input ? <pre tabIndex={0}>{view.input}</pre> : null}
      {view.diff?.length ? <Diff rows={view.diff} /> : null}
      {view.todos ? <TodoList todos={view.todos} /> : null}
      {view.body ? <Markdown text={view.body} /> : null}
      {output || view.kind === "command" ? (
        <pre class="output" tabIndex={0}>
          {output || "(no output)"}
        </pre>
      ) : null}
      {state?.error ? <p class="failure">{state.error}</p> : null}
      {(state?.attachments ?? []).map((file) => (
        <ImageOf source={attachmentSource(file)} name={file.name} />
      ))}
    </>
  );
}

export function TodoList({ todos }: { todos: { content: string; status?: string }[] }) {
  return (
    <ul class="todos">
      {todos.map(({ content, status }) => (
        <li class={status ?? "pending"}>{content}</li>
      ))}
    </ul>
  );
}

const hasEnded = (part: Part): boolean => ["completed", "error"].includes(part.state?.status ?? "");

// An agent that was called: its conversation inside its caller's. It is followed while it is open.
function CalledAgent({ part, view, message }: { part: Part; view: ItemView; message: ShownMessage }) {
  const version = message.version.value; // the call of the agent may arrive after it
  const calls = message.parts.filter((one) => one.type === "tool");
  const own = calls.find((one) => one.state?.metadata?.["child_session_id"] === part.child_session_id);
  const isWorking = own ? !hasEnded(own) : !calls.every(hasEnded);
  const [isOpen, setOpen] = useState(isWorking);
  useEffect(() => void (isWorking && setOpen(true)), [isWorking]);
  return (
    <details
      class="called"
      open={isOpen}
      onToggle={(event) => setOpen(event.currentTarget.open)}
      data-part={part.id}
      data-version={version}
    >
      <summary>
        <span class="tool">▸ {view.title}</span>
        <span class="subject">{view.subject}</span>
      </summary>
      {isOpen ? (
        <ChildSession id={view.child_session_id!} name={view.title ?? "agent"} asker={message.agent || "assistant"} />
      ) : null}
    </details>
  );
}

function ChildSession({ id, name, asker }: { id: string; name: string; asker: string }) {
  const [transcript] = useState(() => new Transcript());
  const [error, setError] = useState("");
  useEffect(() => {
    let unfollow: (() => void) | undefined;
    let isClosed = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const load = (): void => {
      get<MessagePage>(`${sessionPath(id)}/messages`, { limit: 60, views: true }).then(
        (page) => {
          if (isClosed) return;
          setError("");
          transcript.load(page);
          unfollow = feed.follow(id, page.session.seq, {
            onChange: (change) => transcript.apply(change),
            onLive: (events) => {
              for (const event of events) {
                if (event.type === "PartDeltaEvent") transcript.applyDelta(event);
                else if (event.type === "PartUpdatedEvent")
                  transcript.putPart(event.part!, event.view as ItemView | null);
                else if (event.type === "ToolOutputEvent") transcript.applyOutput(event);
              }
            },
            onConnected: () => {},
          });
        },
        (failure: Error) => {
          if (isClosed) return;
          setError(failure.message); // the child session may not have been stored yet
          timer = setTimeout(load, 1000);
        },
      );
    };
    load();
    return () => {
      isClosed = true;
      clearTimeout(timer);
      unfollow?.();
    };
  }, [id]);
  const order = transcript.order.value;
  const loadEarlier = async (): Promise<void> => {
    const query = { limit: 60, views: true, before: transcript.messages[0]!.id };
    transcript.load(await get<MessagePage>(`${sessionPath(id)}/messages`, query), { before: true });
  };
  return (
    <div class="inside" aria-label={`What ${name} does`} data-order={order}>
      {transcript.isComplete.value ? null : (
        <button class="earlier quiet" onClick={loadEarlier}>
          Show earlier messages
        </button>
      )}
      {transcript.notices.value.map((notice) => (
        <NoticeLine notice={notice} />
      ))}
      {error && !transcript.messages.length ? <p class="note">…</p> : null}
      {transcript.messages.map((message, index) => (
        <MessageItem
          key={message.id}
          message={message}
          transcript={transcript}
          asker={asker}
          previous={transcript.messages[index - 1]}
        />
      ))}
    </div>
  );
}

function PartItem({
  part,
  view,
  message,
  transcript,
}: {
  part: Part;
  view: ItemView;
  message: ShownMessage;
  transcript: Transcript;
}) {
  switch (view.kind) {
    case "text":
      if (message.role === "user")
        return (
          <div class="text" data-part={part.id}>
            {part.text}
          </div>
        );
      return (
        <Markdown
          text={view.body ?? part.text ?? ""}
          isFinal={!message.isDraft && Boolean(message.time?.completed)}
          partId={part.id}
        />
      );
    case "reasoning":
      return <Reasoning part={part} title={view.title ?? ""} isFinal={!message.isDraft} />;
    case "agent":
      return <CalledAgent part={part} view={view} message={message} />;
    case "file":
      return (
        <p class="note" data-part={part.id}>
          {part.url?.startsWith("data:image/") ? (
            <ImageOf source={part.url} name={part.filename} />
          ) : (
            <>
              <ClipIcon /> {view.subject}
            </>
          )}
        </p>
      );
    case "notice":
      return (
        <NoticeLine
          notice={{
            level: view.level ?? "info",
            text: view.subject ?? "",
            ...(view.body ? { body: view.body } : {}),
          }}
          partId={part.id}
        />
      );
    default:
      return <CallRow view={view} part={part} live={transcript.outputs.get(part.call_id ?? "")} />;
  }
}

function Reasoning({ part, title, isFinal }: { part: Part; title: string; isFinal: boolean }) {
  const [isOpen, setOpen] = useState(appearance.value.opensReasoning);
  return (
    <details
      class="reasoning"
      open={isOpen}
      onToggle={(event) => setOpen(event.currentTarget.open)}
      data-part={part.id}
    >
      <summary>{title}</summary>
      {isOpen ? <Markdown text={part.text ?? ""} isFinal={isFinal} /> : null}
    </details>
  );
}

// Failed attempts without anything between them are one line, which shows the last one; the server marks them.
function isSuperseded(part: Part, message: ShownMessage, transcript: Transcript): boolean {
  const own = transcript.views.get(part.id);
  if (own?.kind !== "notice") return false;
  const views = message.parts.slice(message.parts.indexOf(part) + 1).map((one) => transcript.views.get(one.id));
  const next = views.find((one) => one);
  return Boolean(next?.merges && next.title === own.title);
}

export interface MessageActions {
  edit?: (message: ShownMessage) => void;
  fork?: (message: ShownMessage) => void;
  undo?: (message: ShownMessage) => void;
}

interface MessageProps {
  message: ShownMessage;
  transcript: Transcript;
  asker?: string;
  actions?: MessageActions | undefined;
  previous?: ShownMessage | undefined;
}

// Whether a message is a further step of the same answer: its author is not repeated.
const isFurtherStep = (message: ShownMessage, previous: ShownMessage | undefined): boolean =>
  message.role === "assistant" &&
  previous?.role === "assistant" &&
  message.agent === previous.agent &&
  message.model?.model === previous.model?.model;

export function MessageItem({ message, transcript, asker = "you", actions, previous }: MessageProps) {
  const version = message.version.value;
  const who = message.role === "user" ? asker : message.agent || "assistant";
  const model = message.role !== "user" && message.model ? ` · ${message.model.model}` : "";
  const parts: ComponentChildren[] = [];
  for (const part of message.parts) {
    const view = transcript.views.get(part.id);
    if (!view || isSuperseded(part, message, transcript)) continue; // bookkeeping that is not shown
    const item = <PartItem key={part.id} part={part} view={view} message={message} transcript={transcript} />;
    parts.push(
      view.withdrawn ? (
        <div key={part.id} class="withdrawn">
          {item}
        </div>
      ) : (
        item
      ),
    );
  }
  const view = transcript.messageViews.get(message.id);
  const notices = view?.notices ?? [];
  const isLast = transcript.messages.at(-1) === message;
  const hasEndedCall = message.parts.some((part) => transcript.views.get(part.id)?.unfinished);
  // The last message may still be written; the state of the session says whether it is.
  const isOver = isLast
    ? feed.sessions.value.get(transcript.session.value?.id ?? "")?.state === "interrupted"
    : !message.isDraft;
  const isCut =
    message.role === "assistant" && (hasEndedCall || view?.unfinished || (isOver && !message.time?.completed));
  return (
    <article
      class={`message ${message.role}${isFurtherStep(message, previous) ? " further" : ""}${messageText(message) ? "" : " silent"}`}
      data-message={message.id}
      data-version={version}
      aria-label={who}
    >
      <div class="who">
        <span title={view?.duration ? `took ${view.duration}` : undefined}>{who + model}</span>
        {actions ? <MessageMenu message={message} actions={actions} /> : null}
      </div>
      {parts}
      {notices.map((notice) => (
        <NoticeLine notice={notice} />
      ))}
      {isCut ? <p class="note warning interrupted-mark">This answer is not complete.</p> : null}
    </article>
  );
}

function messageText(message: ShownMessage): string {
  return message.parts
    .filter((part) => part.type === "text" && !part.synthetic)
    .map((part) => part.text ?? "")
    .join("\n\n");
}

function MessageMenu({ message, actions }: { message: ShownMessage; actions: MessageActions }) {
  const isUser = message.role === "user";
  return (
    <span class="message-menu">
      <button
        class="quiet"
        aria-label="Copy this message"
        title="Copy"
        onClick={(event) => void copyText(messageText(message), event.currentTarget)}
      >
        Copy
      </button>
      {isUser && actions.edit ? (
        <button class="quiet" aria-label="Edit this message and send it again" onClick={() => actions.edit!(message)}>
          Edit
        </button>
      ) : null}
      {actions.fork ? (
        <button
          class="quiet"
          aria-label="Fork: continue from here in a copy of the session"
          onClick={() => actions.fork!(message)}
        >
          Fork
        </button>
      ) : null}
      {isUser && actions.undo ? (
        <button
          class="quiet"
          aria-label="Undo the file changes since this message"
          onClick={() => actions.undo!(message)}
        >
          Undo
        </button>
      ) : null}
    </span>
  );
}
