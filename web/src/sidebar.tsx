// The list of sessions with their live states, and the search.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, patch, post, remove, sessionPath } from "./api";
import { feed } from "./feed";
import { switchTheme } from "./appearance";
import { forgetDraft } from "./drafts";
import { FolderIcon } from "./parts";
import type { SearchHit, Session, SessionState, SessionSummary } from "./types";

export const STATE_TEXTS: Record<SessionState, string> = {
  idle: "",
  working: "working",
  waiting: "waiting for you",
  failed: "failed",
  interrupted: "interrupted",
};
const PAGE = 100;

// The last change of each session that was shown, to mark sessions with news. It survives a reload, and all tabs share it.
const SEEN_KEY = "seen";

function readSeen(): Record<string, number> {
  try {
    return JSON.parse(localStorage.getItem(SEEN_KEY) ?? "{}") as Record<string, number>;
  } catch {
    return {};
  }
}

const seen = signal(readSeen());
addEventListener("storage", (event) => {
  if ((event as StorageEvent).key === SEEN_KEY) seen.value = readSeen();
});

export function markSeen(id: string, seq: number): void {
  if ((seen.value[id] ?? -1) >= seq) return;
  const { [id]: before = -1, ...others } = readSeen(); // another tab may have written meanwhile
  seen.value = Object.fromEntries([...Object.entries(others), [id, Math.max(before, seq)]].slice(-1000));
  localStorage.setItem(SEEN_KEY, JSON.stringify(seen.value));
}

export function countWaiting(): number {
  return [...feed.sessions.value.values()].filter(({ state }) => state === "waiting").length;
}

interface SidebarProps {
  currentId: string | undefined;
  isJobs: boolean;
  onNew: () => void;
  onNewIn: () => void;
  onError: (error: unknown) => void;
  onUsage: () => void;
  onSettings: () => void;
}

export function Sidebar({ currentId, isJobs, onNew, onNewIn, onError, onUsage, onSettings }: SidebarProps) {
  const [query, setQuery] = useState("");
  const [hits, setHits] = useState<SearchHit[] | null>(null);
  const [older, setOlder] = useState<SessionSummary[]>([]);
  const [next, setNext] = useState<string | null | undefined>(undefined); // undefined before the first page is known
  const request = useRef(0);

  useEffect(() => {
    const own = ++request.current;
    const words = query.trim();
    if (!words) {
      setHits(null);
      return;
    }
    const timer = setTimeout(() => {
      get<SearchHit[]>("/search", { query: words, limit: 100 }).then((found) => {
        if (own === request.current) setHits(found);
      }, onError);
    }, 200);
    return () => clearTimeout(timer);
  }, [query]);

  const loadMore = async (): Promise<void> => {
    const page = await get<{ sessions: Session[]; next: string | null }>("/sessions", {
      limit: PAGE,
      after: next ?? undefined,
    });
    setNext(page.next);
    setOlder((known) => [...known, ...page.sessions.map(toSummary)]);
  };
  useEffect(() => void loadMore().catch(onError), []);

  const known = new Map(older.map((session) => [session.id, session]));
  for (const [id, session] of feed.sessions.value) known.set(id, session);
  const [isArchive, setArchive] = useState(false);
  const sessions = [...known.values()]
    .filter((session) => !session.deleted && Boolean(session.archived) === isArchive)
    .sort((a, b) => b.updated - a.updated);
  return (
    <aside id="sidebar" aria-label="Sessions">
      <header class="brand">
        <strong>Outrider</strong>
        <span>
          <button id="new-session" class="primary" onClick={onNew}>
            New session
          </button>
          <button
            id="new-session-in"
            class="quiet"
            aria-label="New session in another folder"
            title="New session in another folder"
            onClick={onNewIn}
          >
            <FolderIcon />
          </button>
        </span>
      </header>
      <label class="search">
        <span class="visually-hidden">Search sessions</span>
        <input
          id="search"
          type="search"
          placeholder="Search sessions  ( / )"
          autocomplete="off"
          value={query}
          onInput={(event) => setQuery(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Escape") {
              event.stopPropagation();
              setQuery("");
            }
            if (event.key === "ArrowDown") {
              event.preventDefault();
              document.querySelector<HTMLElement>("#sessions a")?.focus();
            }
          }}
        />
      </label>
      <nav id="sessions" aria-label="List of sessions" onKeyDown={moveFocus}>
        {hits ? (
          <Hits hits={hits} currentId={currentId} />
        ) : (
          <SessionList sessions={sessions} currentId={currentId} onError={onError} />
        )}
        {!hits && next ? (
          <button class="quiet more" onClick={() => loadMore().catch(onError)}>
            More sessions
          </button>
        ) : null}
      </nav>
      <footer>
        <a id="show-jobs" class="quiet" href="#/jobs" aria-current={isJobs ? "page" : "false"}>
          Jobs
        </a>
        <button id="show-usage" class="quiet" onClick={onUsage}>
          Usage
        </button>
        <button id="show-settings" class="quiet" onClick={onSettings}>
          Settings
        </button>
        <button id="show-archive" class="quiet" aria-pressed={isArchive} onClick={() => setArchive(!isArchive)}>
          Archive
        </button>
        <button id="theme" class="quiet" aria-label="Light or dark" onClick={switchTheme}>
          ◐
        </button>
      </footer>
    </aside>
  );
}

// The arrow keys move between the sessions, or between the hits of a search, and back to the search.
function moveFocus(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const links = [...event.currentTarget.querySelectorAll<HTMLElement>("a")];
  const at = links.indexOf(event.target as HTMLElement);
  if (!step || at < 0) return;
  event.preventDefault();
  (links[at + step] ?? (step < 0 ? document.getElementById("search") : null))?.focus();
}

const toSummary = (session: Session): SessionSummary => ({
  id: session.id,
  title: session.title,
  workspace: session.workspace_directory,
  mode: session.mode,
  state: "idle",
  updated: session.time?.updated ?? 0,
  seq: session.seq,
  archived: Boolean(session.time?.archived),
});

const SHOWN_HITS = 5; // of one session

// What a search found, by session. A click on a hit shows its message, also if it is the last one that was shown.
function Hits({ hits, currentId }: { hits: SearchHit[]; currentId: string | undefined }) {
  const [opened, setOpened] = useState<string[]>([]);
  if (!hits.length) return <p class="note">Nothing found.</p>;
  const bySession = new Map<string, SearchHit[]>();
  for (const hit of hits) {
    const found = bySession.get(hit.session_id) ?? [];
    if (!found.some(({ message_id }) => message_id === hit.message_id)) bySession.set(hit.session_id, [...found, hit]);
  }
  return (
    <>
      {[...bySession].map(([id, found]) => (
        <div key={id} class="hits" role="group" aria-label={found[0]!.title || "Untitled"}>
          {found.slice(0, opened.includes(id) ? found.length : SHOWN_HITS).map((hit, index) => (
            <a
              href={`#/${id}${hit.message_id ? `/${hit.message_id}` : ""}`}
              aria-current={id === currentId && index === 0 ? "page" : undefined}
              onClick={(event) => {
                if (event.currentTarget.hash === location.hash) dispatchEvent(new HashChangeEvent("hashchange"));
              }}
            >
              {index ? null : <span class="name">{hit.title || "Untitled"}</span>}
              <span class="about">{hit.snippet}</span>
            </a>
          ))}
          {found.length > SHOWN_HITS && !opened.includes(id) ? (
            <button class="quiet more" onClick={() => setOpened([...opened, id])}>
              {found.length - SHOWN_HITS} more in this session
            </button>
          ) : null}
        </div>
      ))}
    </>
  );
}

function dayName(date: Date): string {
  const today = new Date();
  const days = Math.round(
    (new Date(today.toDateString()).getTime() - new Date(date.toDateString()).getTime()) / 86_400_000,
  );
  if (days === 0 || days === 1) return days ? "Yesterday" : "Today";
  const year = date.getFullYear() === today.getFullYear() ? {} : { year: "numeric" as const };
  return date.toLocaleDateString(undefined, { weekday: "long", month: "short", day: "numeric", ...year });
}

function SessionList({
  sessions,
  currentId,
  onError,
}: {
  sessions: SessionSummary[];
  currentId: string | undefined;
  onError: (error: unknown) => void;
}) {
  if (!sessions.length) return <p class="note">No sessions.</p>;
  const rows = [];
  let day = "";
  for (const session of sessions) {
    const name = dayName(new Date(session.updated));
    if (name !== day) rows.push(<h2 key={name}>{(day = name)}</h2>);
    rows.push(<SessionRow key={session.id} session={session} isCurrent={session.id === currentId} onError={onError} />);
  }
  return <>{rows}</>;
}

function SessionRow({
  session,
  isCurrent,
  onError,
}: {
  session: SessionSummary;
  isCurrent: boolean;
  onError: (error: unknown) => void;
}) {
  const [isOpen, setOpen] = useState(false);
  const [title, setTitle] = useState<string | null>(null);
  const [isSure, setSure] = useState(false);
  const isUnread = !isCurrent && session.seq > (seen.value[session.id] ?? session.seq);
  const path = sessionPath(session.id);
  const act = async (work: Promise<unknown>): Promise<void> => {
    setOpen(false);
    await work.catch(onError);
  };
  if (title !== null) {
    const save = (): void => {
      setTitle(null);
      if (title.trim() && title !== session.title) void act(patch(path, { title: title.trim() }));
    };
    return (
      <input
        class="rename"
        aria-label="Title of the session"
        value={title}
        ref={(element) => element?.focus()}
        onInput={(event) => setTitle(event.currentTarget.value)}
        onBlur={save}
        onKeyDown={(event) => {
          if (event.key === "Enter") save();
          if (event.key === "Escape") {
            event.stopPropagation();
            setTitle(null);
          }
        }}
      />
    );
  }
  return (
    <div
      class="session-row"
      onKeyDown={(event) => {
        if (event.key === "Escape" && isOpen) {
          event.stopPropagation();
          setOpen(false);
        }
      }}
    >
      <a href={`#/${session.id}`} aria-current={isCurrent ? "page" : undefined} class={isUnread ? "unread" : undefined}>
        <span class="name">{session.title || "Untitled"}</span>
        <span class="about">
          {session.state !== "idle" ? (
            <span class={`state ${session.state}`}>{STATE_TEXTS[session.state]} · </span>
          ) : null}
          {session.mode} · {session.workspace.split("/").pop()}
        </span>
      </a>
      <button
        class="quiet menu"
        aria-label={`Actions for ${session.title || "Untitled"}`}
        aria-expanded={isOpen}
        onClick={() => {
          setOpen(!isOpen);
          setSure(false);
        }}
      >
        ⋯
      </button>
      {isOpen ? (
        <div class="actions" role="group" aria-label="Actions">
          <button
            class="quiet"
            onClick={() => {
              setTitle(session.title);
              setOpen(false);
            }}
          >
            Rename
          </button>
          <button
            class="quiet"
            onClick={() => act(post<Session>(`${path}/fork`, {}).then(({ id }) => (location.hash = `#/${id}`)))}
          >
            Fork
          </button>
          <button
            class="quiet"
            onClick={() =>
              act(
                patch(path, { archived: !session.archived }).then(() =>
                  feed.put({ ...session, archived: !session.archived }),
                ),
              )
            }
          >
            {session.archived ? "Unarchive" : "Archive"}
          </button>
          <button
            class="quiet danger"
            onClick={() =>
              isSure
                ? act(
                    remove(path).then(() => {
                      forgetDraft(session.id);
                      feed.put({ ...session, deleted: true });
                    }),
                  )
                : setSure(true)
            }
          >
            {isSure ? "Really delete?" : "Delete"}
          </button>
        </div>
      ) : null}
    </div>
  );
}
