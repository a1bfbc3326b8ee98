// Changes and events of sessions for the components of this page.
import { computed, signal } from "@preact/signals";
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
  // A session does not wait for this page while its plan is hidden here.
  readonly sessions = computed<ReadonlyMap<string, SessionSummary>>(() => {
    const sessions = new Map(this.known.value);
    for (const [id, plan] of this.hiddenPlans.value) {
      const summary = sessions.get(id);
      if (summary?.state === "waiting" && summary.plan === plan) sessions.set(id, { ...summary, state: "idle" });
    }
    return sessions;
  });
  private readonly known = signal<ReadonlyMap<string, SessionSummary>>(new Map());
  private readonly hiddenPlans = signal<ReadonlyMap<string, string>>(new Map()); // ids of plans by session
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
    this.known.value = new Map(this.known.value).set(summary.id, summary);
  }

  // Hides the plan of a session until the session has another one, or until the page is loaded again.
  hidePlan(sessionId: string, planId: string): void {
    this.hiddenPlans.value = new Map(this.hiddenPlans.value).set(sessionId, planId);
  }

  isPlanHidden(sessionId: string, planId: string): boolean {
    return this.hiddenPlans.value.get(sessionId) === planId;
  }

  private receive(message: FeedMessage): void {
    switch (message.kind) {
      case "connected":
        this.isConnected.value = message.connected;
        for (const entries of this.followed.values())
          for (const { listener } of entries) listener.onConnected(message.connected);
        break;
      case "sessions": {
        const sessions = new Map(this.known.value);
        for (const summary of message.sessions) {
          if (summary.deleted) sessions.delete(summary.id);
          else sessions.set(summary.id, summary);
        }
        this.known.value = sessions;
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
