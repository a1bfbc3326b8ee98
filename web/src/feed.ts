// Changes and events of sessions for the components of this page.
import { signal } from "@preact/signals";
import { currentCredential, pageUrl } from "./api";
import { FeedConnection, type FeedMessage, type FeedRequest } from "./feed-connection";
import type { Change, LiveEvent, SessionSummary } from "./types";

export interface SessionListener {
  onChange: (change: Change) => void;
  onLive: (events: LiveEvent[]) => void;
  onConnected: (connected: boolean) => void;
}

interface Followed {
  after: number;
  listener: SessionListener;
}

class Feed {
  readonly isConnected = signal<boolean | null>(null);
  readonly sessions = signal<ReadonlyMap<string, SessionSummary>>(new Map());
  private readonly followed = new Map<string, Set<Followed>>();
  private send: (request: FeedRequest) => void = () => {};

  start(): void {
    const deliver = (message: FeedMessage) => this.receive(message);
    if (typeof SharedWorker === "undefined") {
      this.send = new FeedConnection().subscribe(deliver);
    } else {
      const worker = new SharedWorker(pageUrl("feed-worker.js"), { type: "module", name: "outrider-feed" });
      worker.port.onmessage = (event: MessageEvent<FeedMessage>) => deliver(event.data);
      this.send = (request) => worker.port.postMessage(request);
    }
    this.send({ kind: "start", credential: currentCredential() });
    addEventListener("pagehide", () => this.send({ kind: "close" }));
    addEventListener("pageshow", (event) => (event as PageTransitionEvent).persisted && location.reload());
  }

  // Delivers everything after change `after` of the session, until the returned function is called.
  follow(sessionId: string, after: number, listener: SessionListener): () => void {
    const entry: Followed = { after, listener };
    const entries = this.followed.get(sessionId) ?? new Set();
    this.followed.set(sessionId, entries.add(entry));
    this.send({ kind: "follow", sessionId, after });
    if (this.isConnected.value !== null) listener.onConnected(this.isConnected.value);
    return () => {
      entries.delete(entry);
      if (entries.size) return;
      this.followed.delete(sessionId);
      this.send({ kind: "unfollow", sessionId });
    };
  }

  // Applies a change that this page made to a session, which may be older than those that the server reports.
  put(summary: SessionSummary): void {
    this.sessions.value = new Map(this.sessions.value).set(summary.id, summary);
  }

  private receive(message: FeedMessage): void {
    switch (message.kind) {
      case "connected":
        this.isConnected.value = message.connected;
        for (const entries of this.followed.values())
          for (const { listener } of entries) listener.onConnected(message.connected);
        break;
      case "sessions": {
        const sessions = new Map(this.sessions.value);
        for (const summary of message.sessions) {
          if (summary.deleted) sessions.delete(summary.id);
          else sessions.set(summary.id, summary);
        }
        this.sessions.value = sessions;
        break;
      }
      case "change":
        for (const entry of this.followed.get(message.sessionId) ?? []) {
          if (message.seq <= entry.after) continue;
          entry.after = message.seq;
          entry.listener.onChange(message.change);
        }
        break;
      case "live":
        for (const { listener } of this.followed.get(message.sessionId) ?? []) listener.onLive(message.events);
        break;
    }
  }
}

export const feed = new Feed();
