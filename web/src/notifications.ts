// Browser notifications and the badge of the page's icon, from the states of all sessions.
import { pageUrl } from "./api";
import { effect } from "@preact/signals";
import { feed } from "./feed";
import type { SessionState, SessionSummary } from "./types";

const TEXTS: Partial<Record<SessionState, string>> = {
  waiting: "waits for you",
  failed: "failed",
  interrupted: "was interrupted",
  idle: "is done",
};

export function areNotificationsOn(): boolean {
  return (
    typeof Notification !== "undefined" &&
    Notification.permission === "granted" &&
    localStorage.getItem("notifications") === "on"
  );
}

// Returns whether they are on; the browser asks for permission the first time.
export async function switchNotifications(isOn: boolean): Promise<boolean> {
  if (isOn && typeof Notification !== "undefined") await Notification.requestPermission();
  localStorage.setItem("notifications", isOn ? "on" : "off");
  return areNotificationsOn();
}

const isNews = (before: SessionState | undefined, now: SessionState): boolean =>
  before !== undefined &&
  before !== now &&
  (now === "waiting" || ((before === "working" || before === "waiting") && now !== "working"));

function notify(session: SessionSummary): void {
  const notification = new Notification(session.title || "Untitled", {
    body: `The session ${TEXTS[session.state]}.`,
    tag: session.id,
  });
  notification.onclick = () => {
    window.focus();
    location.hash = `#/${session.id}`;
    notification.close();
  };
}

export function startNotifications(): void {
  const states = new Map<string, SessionState>();
  effect(() => {
    const sessions = [...feed.sessions.value.values()];
    const waiting = sessions.filter(({ state }) => state === "waiting").length;
    if ("setAppBadge" in navigator)
      void (waiting ? navigator.setAppBadge(waiting) : navigator.clearAppBadge()).catch(() => {});
    drawBadge(waiting);
    for (const session of sessions) {
      if (isNews(states.get(session.id), session.state) && document.hidden && areNotificationsOn()) notify(session);
      states.set(session.id, session.state);
    }
  });
}

// The icon of the tab gets a dot while a session waits.
function drawBadge(waiting: number): void {
  const link = document.querySelector<HTMLLinkElement>("link[rel=icon]");
  if (link) link.href = pageUrl(waiting ? "icon-waiting.svg" : "icon.svg").href;
}
