// The one connection to the server's event stream, for all sessions that are followed. It runs in a shared worker, so
// that all tabs of the browser use one connection, or in the page where there are no shared workers.
import { readEvents, setCredential, type ServerEvent } from "./api";
import type { Change, LiveEvent, SessionSummary } from "./types";

export type FeedMessage =
  | { kind: "connected"; connected: boolean }
  | { kind: "sessions"; sessions: SessionSummary[] }
  | { kind: "change"; sessionId: string; seq: number; change: Change }
  | { kind: "live"; sessionId: string; events: LiveEvent[] };

export type FeedRequest =
  | { kind: "start"; credential: string }
  | { kind: "follow"; sessionId: string; after: number }
  | { kind: "unfollow"; sessionId: string }
  | { kind: "close" };

const FIRST_DELAY = 500; // milliseconds before the first reconnection
const LONGEST_DELAY = 5_000;
const MAX_FOLLOWED = 50; // as many as the server accepts

interface Subscriber {
  deliver: (message: FeedMessage) => void;
  sessions: Set<string>;
}

export class FeedConnection {
  private readonly subscribers = new Set<Subscriber>();
  private readonly positions = new Map<string, number>(); // the last change that arrived, by session, newest session last
  private streamed = new Set<string>(); // sessions of the current connection
  private readonly rewound = new Set<string>(); // sessions whose position is older than the current connection's
  private readonly summaries = new Map<string, SessionSummary>();
  private current: AbortController | null = null;
  private isConnected: boolean | null = null;
  private restartTimer: ReturnType<typeof setTimeout> | undefined;
  private delay = FIRST_DELAY;

  subscribe(deliver: (message: FeedMessage) => void): (request: FeedRequest) => void {
    const subscriber: Subscriber = { deliver, sessions: new Set() };
    this.subscribers.add(subscriber);
    if (this.isConnected !== null) deliver({ kind: "connected", connected: this.isConnected });
    if (this.summaries.size) deliver({ kind: "sessions", sessions: [...this.summaries.values()] });
    return (request) => this.handle(subscriber, request);
  }

  private handle(subscriber: Subscriber, request: FeedRequest): void {
    if (!this.subscribers.has(subscriber)) return; // a page that is closed
    switch (request.kind) {
      case "start":
        setCredential(request.credential); // a worker has no local storage
        if (!this.current) this.restart(0);
        break;
      case "follow": {
        subscriber.sessions.add(request.sessionId);
        const known = this.positions.get(request.sessionId);
        this.positions.delete(request.sessionId);
        this.positions.set(request.sessionId, Math.min(known ?? request.after, request.after));
        if (known !== undefined && known <= request.after && this.streamed.has(request.sessionId)) break;
        this.rewound.add(request.sessionId);
        this.restart(0);
        break;
      }
      case "unfollow":
        subscriber.sessions.delete(request.sessionId);
        this.forgetUnused();
        break;
      case "close":
        this.subscribers.delete(subscriber);
        this.forgetUnused();
        if (!this.subscribers.size) this.disconnect();
        break;
    }
  }

  // The stream includes sessions without subscribers until it is restarted for another reason.
  private forgetUnused(): void {
    const used = new Set([...this.subscribers].flatMap((one) => [...one.sessions]));
    for (const id of this.positions.keys()) if (!used.has(id)) this.positions.delete(id);
    if (this.isConnected && [...this.positions.keys()].some((id) => !this.streamed.has(id))) this.restart(0); // one has room
  }

  // A worker may outlive its tabs; the next tab starts from nothing.
  private disconnect(): void {
    clearTimeout(this.restartTimer);
    this.current?.abort();
    this.current = null;
    this.isConnected = null;
    this.summaries.clear();
    this.delay = FIRST_DELAY;
  }

  private restart(delay: number): void {
    clearTimeout(this.restartTimer);
    this.restartTimer = setTimeout(() => void this.connect(), delay);
  }

  private async connect(): Promise<void> {
    this.current?.abort();
    const controller = new AbortController();
    this.current = controller;
    this.rewound.clear();
    const isCurrent = (): boolean => this.current === controller; // a replaced connection delivers what it had received
    const followed = [...this.positions].slice(-MAX_FOLLOWED); // the others follow when one of these is closed
    this.streamed = new Set(followed.map(([id]) => id));
    const follow = followed.map(([id, seq]) => `${id}:${seq}`).join(",");
    try {
      const path = `/events?views=true&follow=${encodeURIComponent(follow)}`;
      const receive = (event: ServerEvent): void => void (isCurrent() && this.receive(event));
      await readEvents("GET", path, undefined, controller.signal, receive, () => void (isCurrent() && this.opened()));
    } catch {
      // reported below
    }
    if (!isCurrent()) return;
    this.setConnected(false);
    this.restart(this.delay);
    this.delay = Math.min(this.delay * 2, LONGEST_DELAY);
  }

  private opened(): void {
    this.delay = FIRST_DELAY;
    this.setConnected(true);
  }

  private setConnected(connected: boolean): void {
    this.isConnected = connected;
    for (const subscriber of this.subscribers) subscriber.deliver({ kind: "connected", connected });
  }

  private receive(event: ServerEvent): void {
    const data = JSON.parse(event.data);
    if (event.name === "sessions") {
      for (const summary of data as SessionSummary[]) {
        if (summary.deleted) this.summaries.delete(summary.id);
        else this.summaries.set(summary.id, summary);
      }
      for (const subscriber of this.subscribers) subscriber.deliver({ kind: "sessions", sessions: data });
      return;
    }
    const sessionId: string = data.session_id;
    const message: FeedMessage =
      event.name === "change"
        ? { kind: "change", sessionId, seq: data.seq, change: data.change }
        : { kind: "live", sessionId, events: data.events };
    if (this.rewound.has(sessionId)) return; // its follower misses changes before this one; the next connection has all
    if (message.kind === "change" && this.positions.has(sessionId)) this.positions.set(sessionId, message.seq);
    for (const subscriber of this.subscribers) if (subscriber.sessions.has(sessionId)) subscriber.deliver(message);
  }
}
