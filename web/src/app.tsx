// The page: which session or job is shown, the bar above it and the keys.
import { signal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { get, patch, post, sessionPath, storeCredential, ApiError } from "./api";
import {
  Composer,
  Controls,
  InputCard,
  toParts,
  type ChosenSettings,
  type PageChoices,
  type PageCommand,
} from "./composer";
import { Conversation } from "./conversation";
import { HOME_DRAFT, writeDraft, writeFiles, type AttachedFile } from "./drafts";
import { feed } from "./feed";
import { formatElapsed } from "./formats";
import { JobList, JobView } from "./jobs";
import { type CheckKind, SessionCheck } from "./comparison";
import { CommandPalette, type PaletteEntry } from "./palette";
import { Panel, type PanelTab } from "./panel";
import { Questions } from "./questions";
import { SessionModel } from "./session-model";
import { countWaiting, markSeen, Sidebar, STATE_TEXTS } from "./sidebar";
import { switchTheme } from "./appearance";
import { FirstKey, FolderPicker, TRUST_CHANGED } from "./settings";
import type { MessageActions } from "./parts";
import type { FolderTrust, Notice, RestoreResult, Session } from "./types";

const pageError = signal<Error | null>(null);
const reportError = (error: unknown): void => void (pageError.value = error as Error);

interface Place {
  kind: "home" | "session" | "jobs" | "job";
  id: string;
  messageId: string;
}

function readPlace(): Place {
  const [first = "", second = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (first === "jobs") return { kind: second ? "job" : "jobs", id: second, messageId: "" };
  return first ? { kind: "session", id: first, messageId: second } : { kind: "home", id: "", messageId: "" };
}

// A run belongs to its worker: opening it as a session here would take it away.
const isJob = (id: string): Promise<boolean> =>
  get(`/jobs/${encodeURIComponent(id)}`).then(
    () => true,
    () => false,
  );

export function App({ choices }: { choices: PageChoices }) {
  const [place, setPlace] = useState(readPlace);
  const [opened, setModel] = useState<SessionModel | null>(null);
  const model = place.kind === "session" && opened?.id === place.id ? opened : null; // another place is shown at once
  const [panel, setPanel] = useState<PanelTab | null>(null);
  const [lastTab, setLastTab] = useState<PanelTab>("session");
  const [isMenuOpen, setMenuOpen] = useState(false);
  const [isPaletteOpen, setPaletteOpen] = useState(false);
  const [isSignedOut, setSignedOut] = useState(false);
  const [picking, setPicking] = useState<"start" | "choose" | null>(null); // a folder for a new session, or for the message on the first page
  const [check, setCheck] = useState<CheckKind | null>(null);
  const [homeFolder, setHomeFolder] = useState("");
  const [jobTitle, setJobTitle] = useState<[string, string]>(["", ""]);

  useEffect(() => {
    const update = (): void => setPlace(readPlace());
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  useEffect(() => {
    pageError.value = null;
    if (place.kind !== "session") {
      setModel(null);
      return;
    }
    const created = new SessionModel(place.id);
    setModel(created);
    created.load().then(async () => {
      if (created.transcript.session.value?.mode === "background" && (await isJob(place.id)))
        location.replace(`#/jobs/${place.id}`);
      if (place.messageId) await created.reveal(place.messageId);
    }, created.report);
    return () => created.close();
  }, [place.kind, place.id]);
  useEffect(() => {
    setMenuOpen(false);
    if (place.messageId && model?.id === place.id && model.transcript.session.value)
      model.reveal(place.messageId).catch(model.report);
  }, [place]); // a search hit in the session that is already shown

  const [user, setUser] = useState("");
  const [isAdmin, setAdmin] = useState(false);
  useEffect(() => {
    get<{ name: string; role: string; has_users: boolean }>("/me").then(
      ({ name, role, has_users }) => {
        setUser(has_users ? `${name} (${role})` : "");
        setAdmin(!has_users || role === "admin");
      },
      () => {}, // an older server has no users
    );
  }, []);
  useEffect(() => {
    const onSignedOut = (): void => setSignedOut(true);
    document.addEventListener("outrider-signed-out", onSignedOut);
    return () => document.removeEventListener("outrider-signed-out", onSignedOut);
  }, []);

  const createSession = async (workspace?: string): Promise<void> => {
    setPicking(null);
    try {
      location.hash = `#/${(await post<Session>("/sessions", workspace ? { workspace } : {})).id}`;
    } catch (error) {
      reportError(error);
    }
  };
  const chooseFolder = (path: string): void => {
    if (picking === "start") return void createSession(path);
    setHomeFolder(path);
    setPicking(null);
    document.getElementById("start-input")?.focus();
  };
  const openPanel = (tab: PanelTab | null): void => {
    if (tab) setLastTab(tab);
    setPanel(tab);
  };

  useLayoutEffect(() => {
    const onKeyDown = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      const isTyping = /^(input|textarea|select)$/i.test(target.tagName);
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setPaletteOpen(true);
        return;
      }
      if (event.key === "Escape") {
        if (isMenuOpen) setMenuOpen(false);
        else if (target.id === "start-input")
          target.blur(); // then the keys of the page work
        else if (target.id === "input" || !isTyping) model?.stop();
        return;
      }
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const keys: Record<string, () => void> = {
        "/": () => document.getElementById("search")?.focus(),
        n: () => void createSession(),
        f: () => setPicking("start"),
        d: () => openPanel(panel ? null : lastTab),
        i: () => (document.getElementById("input") ?? document.getElementById("start-input"))?.focus(),
        q: () => document.querySelector<HTMLElement>(".question")?.focus(),
        "?": () => setPaletteOpen(true),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]!();
    };
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  });
  useEffect(() => {
    document.body.classList.toggle("with-panel", panel !== null);
    document.body.classList.toggle("with-menu", isMenuOpen);
  }, [panel, isMenuOpen]);

  const palette: PaletteEntry[] = [
    { name: "New session", key: "n", run: () => void createSession() },
    { name: "New session in a folder…", key: "f", run: () => setPicking("start") },
    { name: "Search sessions", key: "/", run: () => document.getElementById("search")?.focus() },
    { name: "Show or hide details", key: "d", run: () => openPanel(panel ? null : lastTab) },
    { name: "Review changes", run: () => openPanel("changes") },
    { name: "Background jobs", run: () => void (location.hash = "#/jobs") },
    { name: "Settings", run: () => openPanel("settings") },
    { name: "Light or dark", run: switchTheme },
    { name: user ? `Sign out ${user}` : "Sign this browser out", run: () => void signOut().catch(reportError) },
    ...(model
      ? (
          [
            ["replay", "Replay this session"],
            ["what-if", "What if another model had answered…"],
            ["compare", "Compare with another session…"],
          ] as const
        ).map(([kind, name]) => ({ name, run: () => setCheck(kind) }))
      : []),
    ...(model
      ? [
          { name: "Stop the turn", key: "Esc", run: () => model.stop() },
          {
            name: "Go to the open question",
            key: "q",
            run: () => document.querySelector<HTMLElement>(".question")?.focus(),
          },
        ]
      : []),
  ];
  if (isSignedOut) return <SignedOut />;
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          (document.getElementById("input") ?? document.getElementById("main"))?.focus();
        }}
      >
        Skip to the input
      </a>
      <Sidebar
        currentId={place.kind === "session" ? place.id : undefined}
        isJobs={place.kind === "jobs" || place.kind === "job"}
        onNew={() => void createSession()}
        onNewIn={() => setPicking("start")}
        onError={reportError}
        onUsage={() => openPanel("usage")}
        onSettings={() => openPanel("settings")}
      />
      <main id="main" tabIndex={-1} onClick={() => isMenuOpen && setMenuOpen(false)}>
        <header id="bar">
          <h1 class="visually-hidden">Outrider</h1>
          <button
            id="menu"
            class="quiet"
            aria-controls="sidebar"
            aria-expanded={isMenuOpen}
            onClick={(event) => {
              event.stopPropagation();
              setMenuOpen(!isMenuOpen);
            }}
          >
            <span aria-hidden="true">☰</span>
            <span class="visually-hidden">Sessions</span>
            <WaitingCount currentId={place.id} />
          </button>
          {model ? <SessionBar key={model.id} model={model} /> : <PlainBar place={place} job={jobTitle} />}
          {user ? (
            <span id="user" class="note">
              {user}
            </span>
          ) : null}
          <button
            id="panel-toggle"
            class="quiet"
            aria-controls="panel"
            aria-expanded={panel !== null}
            onClick={() => openPanel(panel ? null : lastTab)}
          >
            Details
          </button>
        </header>
        <ErrorNotice model={model} />
        {place.kind === "jobs" ? <JobList onError={reportError} /> : null}
        {place.kind === "job" ? (
          <JobView
            key={place.id}
            id={place.id}
            onError={reportError}
            onTitle={(title, state) => setJobTitle([title, state])}
          />
        ) : null}
        {place.kind === "home" ? (
          <Home choices={choices} folder={homeFolder} onFolder={() => setPicking("choose")} />
        ) : null}
        {model ? (
          <SessionView
            key={model.id}
            model={model}
            choices={choices}
            isAdmin={isAdmin}
            onPanel={openPanel}
            onFolder={() => setPicking("start")}
          />
        ) : null}
      </main>
      {panel ? (
        <Panel
          model={model}
          tab={panel}
          onTab={openPanel}
          onClose={() => {
            openPanel(null);
            document.getElementById("panel-toggle")?.focus();
          }}
          onError={reportError}
        />
      ) : null}
      {picking ? (
        <FolderPicker
          recent={recentFolders()}
          action={picking === "start" ? "Start here" : "Choose"}
          onChoose={(path) => chooseFolder(path)}
          onClose={() => setPicking(null)}
        />
      ) : null}
      {check && model ? (
        <SessionCheck key={`${model.id} ${check}`} sessionId={model.id} kind={check} onClose={() => setCheck(null)} />
      ) : null}
      {isPaletteOpen ? (
        <CommandPalette entries={palette} more={sessionEntries} onClose={() => setPaletteOpen(false)} />
      ) : null}
      <PageTitle
        model={model}
        title={place.kind === "job" ? jobTitle[0] : place.kind === "jobs" ? "Background jobs" : ""}
      />
    </>
  );
}

const sessionEntries = (): PaletteEntry[] =>
  [...feed.sessions.value.values()]
    .filter(({ deleted }) => !deleted)
    .sort((a, b) => b.updated - a.updated)
    .map(({ id, title }) => ({ name: `Open ${title || "Untitled"}`, run: () => void (location.hash = `#/${id}`) }));

// The folders of the latest sessions.
function recentFolders(): string[] {
  const sessions = [...feed.sessions.value.values()].sort((a, b) => b.updated - a.updated);
  return [...new Set(sessions.map(({ workspace }) => workspace).filter(Boolean))].slice(0, 6);
}

// How many other sessions wait, on the button that opens the list of sessions on a phone.
function WaitingCount({ currentId }: { currentId: string }) {
  const count = [...feed.sessions.value.values()].filter(
    ({ id, state, deleted }) => state === "waiting" && id !== currentId && !deleted,
  ).length;
  return count ? (
    <span class="count" title={`${count} waiting for you`}>
      {count}
      <span class="visually-hidden"> waiting for you</span>
    </span>
  ) : null;
}

function SignedOut() {
  return (
    <main id="main">
      <div class="empty">
        <h2>This browser is signed out</h2>
        <p>
          <a href="./">Sign in again</a>, if this server has a login page. Or run <code>outrider serve --link</code>{" "}
          where the server runs, and open the link that it prints.
        </p>
      </div>
    </main>
  );
}

async function signOut(): Promise<void> {
  await post("/sign-out");
  storeCredential("");
  location.reload();
}

const NO_CHOICES: ChosenSettings = { model: "", mode: "", approval: "", effort: "", agent: "" };

// The start: a message begins a session. Commands need the session first, so they become its draft.
function Home({ choices, folder, onFolder }: { choices: PageChoices; folder: string; onFolder: () => void }) {
  const [chosen, setChosen] = useState(NO_CHOICES);
  const [isSending, setSending] = useState(false);
  const start = async (text: string, files: AttachedFile[]): Promise<boolean> => {
    setSending(true);
    try {
      const { mode, approval, agent, model, effort } = chosen;
      const given = Object.entries({ mode, approval, agent, workspace: folder }).filter(([, value]) => value);
      const { id } = await post<Session>("/sessions", Object.fromEntries(given));
      if (model) await post(`${sessionPath(id)}/model`, { model });
      if (effort) await post(`${sessionPath(id)}/effort`, { effort });
      if (/^[/!]/.test(text)) {
        writeDraft(id, text);
        await writeFiles(id, files);
      } else {
        await post(`${sessionPath(id)}/prompt`, {
          parts: toParts(text, files),
          id: crypto.randomUUID(),
          delivery: "queue",
        });
      }
      location.hash = `#/${id}`;
      return true;
    } finally {
      setSending(false);
    }
  };
  return (
    <section id="conversation" class="home" aria-label="Start" tabIndex={0}>
      <div class="empty">
        <h2>What should be done?</h2>
        <FirstKey onDone={() => document.getElementById("start-input")?.focus()} />
        <form class="start" onSubmit={(event) => event.preventDefault()}>
          <InputCard
            id={HOME_DRAFT}
            inputId="start-input"
            label="Message of a new session"
            placeholder="A message starts a session"
            commands={[]}
            minRows={3}
            onSend={start}
            onError={reportError}
            controls={
              <Controls
                value={chosen}
                choices={choices}
                isNew
                folder={folder}
                onChange={(name, value) => setChosen({ ...chosen, [name]: value })}
                onFolder={onFolder}
                onError={reportError}
                folderLabel={folder ? `Folder ${folder}. Choose another one` : "Choose a folder"}
              />
            }
            buttons={(send, isEmpty) => (
              <button type="button" class="primary" disabled={isSending || isEmpty} onClick={() => send()}>
                Start
              </button>
            )}
          />
        </form>
        <RecentSessions />
        <p class="note">Everything you see here is stored on the machine that serves this page.</p>
      </div>
    </section>
  );
}

const RECENT = 5;

// The sessions that one probably returns to: those that wait, then the latest.
function RecentSessions() {
  const listed = [...feed.sessions.value.values()].filter(({ deleted, archived }) => !deleted && !archived);
  const sessions = listed
    .sort((a, b) => Number(b.state === "waiting") - Number(a.state === "waiting") || b.updated - a.updated)
    .slice(0, RECENT);
  if (!sessions.length) return null;
  return (
    <nav class="recent" aria-label="Recent sessions">
      {sessions.map(({ id, title, state, workspace }) => (
        <a key={id} href={`#/${id}`}>
          <span class="name">{title || "Untitled"}</span>
          <span class="about">
            {state === "idle" ? null : <span class={`state ${state}`}>{STATE_TEXTS[state]} · </span>}
            {workspace.split("/").pop()}
          </span>
        </a>
      ))}
    </nav>
  );
}

function PlainBar({ place, job }: { place: Place; job: [string, string] }) {
  const title = place.kind === "jobs" ? "Background jobs" : place.kind === "job" ? job[0] : "";
  return (
    <>
      {title ? <h2 id="title">{title}</h2> : <span id="title" />}
      <span id="state" role="status" aria-live="polite">
        {place.kind === "job" ? job[1] : ""}
      </span>
    </>
  );
}

function SessionBar({ model }: { model: SessionModel }) {
  const session = model.transcript.session.value;
  const usage = model.usage.value;
  const isPriced = usage && (!usage.unpriced || Number(usage.cost));
  const state = stateText(model);
  return (
    <>
      <h2 id="title">{session ? session.title || "Untitled" : "…"}</h2>
      <span
        id="state"
        role="status"
        aria-live="polite"
        class={model.isAway.value ? "away" : model.isBusy.value ? "busy" : undefined}
      >
        {state}
      </span>
      <span id="facts">
        {usage?.tokens.input ? `${usage.view.tokens} tokens${isPriced ? ` · ${usage.view.cost}` : ""}` : ""}
      </span>
    </>
  );
}

// What is going on, with the seconds until a request is repeated.
function stateText(model: SessionModel): string {
  const [, setTick] = useState(0);
  const wait = model.wait.value;
  const left = wait?.until ? Math.ceil((wait.until - Date.now()) / 1000) : 0;
  useEffect(() => {
    if (left <= 0) return;
    const timer = setTimeout(() => setTick((tick) => tick + 1), 500);
    return () => clearTimeout(timer);
  });
  if (model.isAway.value) return "the server is away, waiting for it";
  if (!model.isBusy.value) return model.ending.value;
  if (wait?.until) return left > 0 ? wait.text.replace("{left}", formatElapsed(left)) : (wait.next ?? "");
  return wait?.text || model.label.value || "working";
}

function ErrorNotice({ model }: { model: SessionModel | null }) {
  const error = model?.error.value ?? pageError.value;
  if (!error) return <div id="notice" role="alert" hidden />;
  const close = (): void => {
    pageError.value = null;
    if (model) model.error.value = null;
  };
  return (
    <div id="notice" role="alert">
      {error.message}
      {model && error instanceof ApiError && error.type === "SessionInUseError" ? (
        <>
          {" "}
          <button onClick={() => model.takeOver().catch(model.report)}>Take it over</button>
        </>
      ) : null}
      <button class="quiet" aria-label="Close the message" onClick={close}>
        ✕
      </button>
    </div>
  );
}

interface SessionViewProps {
  model: SessionModel;
  choices: PageChoices;
  isAdmin: boolean;
  onPanel: (tab: PanelTab) => void;
  onFolder: () => void;
}

function SessionView({ model, choices, isAdmin, onPanel, onFolder }: SessionViewProps) {
  const session = model.transcript.session.value;
  const summary = feed.sessions.value.get(model.id);
  useSignalEffect(() => {
    const current = model.transcript.session.value;
    const listed = feed.sessions.value.get(model.id);
    if (current && !document.hidden) markSeen(model.id, Math.max(current.seq, listed?.seq ?? 0));
  });
  const asks = model.approvals.value.size + model.questions.value.size > 0;
  useEffect(() => {
    // A plan waits after its turn, everything else within one.
    if (summary)
      model.isBusy.value =
        summary.state === "working" || (summary.state === "waiting" && (asks || summary.mode !== "plan"));
  }, [summary?.state, asks]);
  const hasQuestion = model.approvals.value.size > 0 || model.questions.value.size > 0 || model.plan.value !== null;
  const path = sessionPath(model.id);
  const restore = (direction: "undo" | "redo", to?: string): Promise<RestoreResult> =>
    post(`${path}/files`, to ? { direction, to } : { direction });
  const fork = async (at?: string): Promise<Session> => post<Session>(`${path}/fork`, at ? { at } : {});
  const compact = async (instructions: string): Promise<void> => {
    const { notice } = await (instructions === "undo"
      ? post<{ notice?: Notice | null }>(`${path}/compact/undo`)
      : post<{ notice?: Notice | null }>(`${path}/compact`, { instructions }));
    if (notice) model.addNotice(notice);
  };
  const open = ({ id }: Session): void => void (location.hash = `#/${id}`);
  const actions: MessageActions = useMemo(
    () => ({
      edit: (message) => {
        const text = message.parts
          .filter((part) => part.type === "text" && !part.synthetic)
          .map((part) => part.text ?? "")
          .join("\n\n");
        const before = model.transcript.messages[model.transcript.messages.indexOf(message) - 1];
        const created = before
          ? fork(before.id)
          : post<Session>("/sessions", { workspace: model.transcript.session.value?.workspace_directory });
        const files = message.parts.flatMap(({ type, url, mime, filename }) =>
          type === "file" && url?.startsWith("data:") ? [{ url, mime: mime ?? "", filename: filename || "file" }] : [],
        );
        created
          .then(async (copy) => {
            writeDraft(copy.id, text);
            await writeFiles(copy.id, files);
            open(copy);
          })
          .catch(model.report);
      },
      fork: (message) => void fork(message.id).then(open, model.report),
      undo: (message) => void restore("undo", message.id).then(({ notice }) => model.addNotice(notice), model.report),
    }),
    [model],
  );
  const commands = useMemo(
    (): PageCommand[] => [
      {
        name: "compact",
        description: "Replace old messages with a summary: /compact INSTRUCTIONS, or /compact undo",
        run: compact,
      },
      {
        name: "undo",
        description: "Undo the file changes of the last turn",
        run: async () => model.addNotice((await restore("undo")).notice),
      },
      {
        name: "redo",
        description: "Restore what was undone",
        run: async () => model.addNotice((await restore("redo")).notice),
      },
      { name: "continue", description: "Continue an interrupted turn", run: () => model.continueTurn() },
      {
        name: "rename",
        description: "Change the title: /rename TITLE",
        run: async (title) => void (await patch(path, { title })),
      },
      { name: "fork", description: "Continue in a copy of this session", run: async () => open(await fork()) },
      {
        name: "model",
        description: "Change the model: /model PROVIDER/MODEL",
        run: (name) => model.setModel(name),
      },
      {
        name: "mode",
        description: "Change the mode: /mode plan",
        run: async (mode) => void (await patch(path, { mode })),
      },
      {
        name: "new",
        description: "Start a new session",
        run: async () => open(await post<Session>("/sessions", {})),
      },
      { name: "changes", description: "Review the changes of this session", run: () => onPanel("changes") },
    ],
    [model],
  );
  return (
    <>
      <Conversation model={model} actions={actions} />
      {session && isAdmin && !hasQuestion ? (
        <TrustHint
          key={session.workspace_directory}
          workspace={session.workspace_directory}
          onReview={() => onPanel("settings")}
        />
      ) : null}
      {model.isStopped() && model.transcript.messages.length ? <NextStep model={model} /> : null}
      <Questions model={model} />
      {session ? <Composer model={model} commands={commands} choices={choices} onFolder={onFolder} /> : null}
    </>
  );
}

// Says that instructions and settings of the folder are not used, until it is trusted or the hint is closed.
function TrustHint({ workspace, onReview }: { workspace: string; onReview: () => void }) {
  const key = `trust-hint:${workspace}`;
  const [items, setItems] = useState<FolderTrust["items"]>([]);
  const [isClosed, setClosed] = useState(() => localStorage.getItem(key) === "closed");
  useEffect(() => {
    const load = (): void =>
      void get<FolderTrust>("/trust", { path: workspace }).then(
        (trust) => setItems(trust.state === "untrusted" ? trust.items : []),
        () => {},
      ); // a server without extensions of folders
    if (isClosed) return;
    load();
    document.addEventListener(TRUST_CHANGED, load);
    return () => document.removeEventListener(TRUST_CHANGED, load);
  }, [isClosed]);
  if (isClosed || !items.length) return null;
  const [first] = items;
  const names = `${first!.name}${items.length > 1 ? ` and ${items.length - 1} more` : ""}`;
  return (
    <div class="hint-bar" role="status">
      <span title={items.map(({ name }) => name).join(", ")}>
        {names} {items.length > 1 ? "are" : "is"} not used: this folder is not trusted.
      </span>
      <button class="quiet" onClick={onReview}>
        Review
      </button>
      <button
        class="quiet"
        aria-label="Close this hint"
        onClick={() => {
          localStorage.setItem(key, "closed");
          setClosed(true);
        }}
      >
        ✕
      </button>
    </div>
  );
}

// After a failure, a limit or an interruption: continue, with the same or another model.
function NextStep({ model }: { model: SessionModel }) {
  const [models, setModels] = useState<string[]>([]);
  const proceed = (name?: string): void => {
    const ready = name ? model.setModel(name) : Promise.resolve();
    ready.then(() => model.continueTurn()).catch(model.report);
  };
  return (
    <div id="next" class="interrupted" role="group" aria-label="Next step">
      The last turn did not finish.{" "}
      <button id="continue" class="primary" onClick={() => proceed()}>
        Continue
      </button>{" "}
      <button id="retry" onClick={() => void model.retryTurn().catch(model.report)}>
        Retry
      </button>{" "}
      <select
        id="next-model"
        aria-label="Continue with another model"
        value=""
        onFocus={() => models.length || void get<string[]>("/models").then(setModels, model.report)}
        onChange={(event) => event.currentTarget.value && proceed(event.currentTarget.value)}
      >
        <option value="">with another model…</option>
        {models.map((name) => (
          <option value={name}>{name}</option>
        ))}
      </select>
    </div>
  );
}

// The title of the browser's tab, with the number of sessions that wait for an answer.
function PageTitle({ model, title }: { model: SessionModel | null; title: string }) {
  useSignalEffect(() => {
    const name = model ? model.transcript.session.value?.title : title;
    const waiting = countWaiting();
    document.title = `${waiting ? `(${waiting}) ` : ""}${name ? `${name} · ` : ""}Outrider`;
  });
  return null;
}
