// Puts the page together: which session is shown, what is heard of it, what the keys do.
import { get, patch, post, remove } from "./api.js";
import { ByHand } from "./by_hand.js";
import { Conversation } from "./conversation.js";
import { $, h } from "./dom.js";
import { Feed } from "./feed.js";
import { Jobs } from "./jobs.js";
import { TABS, facts, processes, usage, waterfall } from "./panel.js";
import { Questions } from "./questions.js";
import { Transcript } from "./transcript.js";

const PAGE = 60;

let view = null; // what belongs to the session that is shown
let jobs = null; // the background runs, while they are shown
let tab = "session";

function complain(error) {
  $("notice").replaceChildren(error.message, ...(error.type === "SessionInUseError" && view ? [" ", takeOver(view)] : []));
  $("notice").hidden = false;
}

// A session that another program works in may be taken from it, if a person says so.
function takeOver(mine) {
  const take = () => post(`/sessions/${mine.id}/open`, { take_over: true }).then(calm, complain);
  return h("button", { onclick: take }, "Take it over");
}

function calm() {
  $("notice").hidden = true;
}

let listing = 0; // what was asked for last counts, whichever answer comes last
async function listSessions() {
  const mine = ++listing;
  const words = $("search").value.trim();
  const current = view?.id;
  const link = (id, name, about) => h("a", { href: `#/${id}`, "aria-current": id === current ? "page" : null }, h("span", { class: "name" }, name || "Untitled"), h("span", { class: "about" }, about));
  try {
    if (words) {
      const found = await get("/search", { query: words, limit: 100 });
      if (mine !== listing) return;
      const hits = [...new Map(found.reverse().map((hit) => [hit.session_id, hit])).values()].reverse(); // the best of each session
      $("sessions").replaceChildren(...(hits.length ? hits.map((hit) => link(hit.session_id, hit.title, hit.snippet)) : [h("p", { class: "note" }, "Nothing found.")]));
      return;
    }
    const { sessions } = await get("/sessions", { limit: 100 });
    if (mine !== listing) return;
    const made = [];
    let day = "";
    for (const session of sessions) {
      const at = new Date(session.time?.updated ?? 0);
      const named = at.toLocaleDateString(undefined, { weekday: "long", month: "short", day: "numeric" });
      if (named !== day) made.push(h("h3", {}, (day = named)));
      made.push(link(session.id, session.title, `${session.mode} · ${session.workspace_directory.split("/").pop()}`));
    }
    $("sessions").replaceChildren(...(made.length ? made : [h("p", { class: "note" }, "No sessions yet.")]));
  } catch (error) {
    complain(error);
  }
}

function leave() {
  view?.feed?.close();
  view?.byHand?.stop();
  view?.questions?.close();
}

async function show(id) {
  leave();
  view = { id, transcript: new Transcript(), busy: false };
  const mine = view;
  calm();
  $("questions").replaceChildren();
  $("queue").replaceChildren();
  try {
    const page = await get(`/sessions/${id}/messages`, { limit: PAGE, views: true });
    if (view !== mine) return;
    if (page.session.mode === "background" && (await isRun(id))) return void location.replace(`#/jobs/${id}`);
    mine.transcript.load(page);
    mine.conversation = new Conversation($("conversation"), mine.transcript, earlier);
    mine.questions = new Questions(id, complain, () => mine.transcript.session?.mode);
    mine.byHand = new ByHand(id, mine.conversation, complain);
    mine.feed = new Feed(id, page.session.seq, { change: (change) => changed(mine, change), live: (events) => lived(mine, events), connected: (yes) => connected(mine, yes) });
    soonUsage(mine, 0);
    await mine.questions.load();
    await waiting(mine);
  } catch (error) {
    if (view === mine) complain(error);
  }
  drawBar();
  drawPanel();
  listSessions();
  toggleMenu(false);
  $("input").focus();
}

async function earlier() {
  const mine = view;
  const page = await get(`/sessions/${mine.id}/messages`, { limit: PAGE, views: true, before: mine.transcript.messages[0].id });
  mine.transcript.load(page, { before: true });
  mine.conversation.drawEarlier();
}

function changed(mine, change) {
  if (mine !== view) return;
  if (change.type === "approval") return mine.questions.put(change.approval);
  if (change.type === "inbox") return void waiting(mine);
  if (change.type === "deleted") return void (location.hash = "");
  const { session, message, part } = mine.transcript.change(change);
  if (message) mine.conversation.soon(message, part);
  if (session) listSessions();
  if (!["session", "message", "part"].includes(change.type)) mine.conversation.notice(change.notice ?? { level: "detail", text: change.type });
  if (change.type === "message" && change.message.time?.completed) soonUsage(mine);
  drawBar();
  soonPanel();
}

function lived(mine, events) {
  if (mine !== view) return;
  for (const event of events) {
    switch (event.type) {
      case "PartDeltaEvent": {
        mine.busy = true;
        mine.wait = null;
        const { message, part } = mine.transcript.delta(event);
        if (message) mine.conversation.soon(message, part);
        break;
      }
      case "PartUpdatedEvent": {
        const { message, part } = mine.transcript.put(event.part, event.view);
        if (message) mine.conversation.soon(message, part);
        break;
      }
      case "SessionUpdatedEvent":
        if (event.changes.question) mine.questions.ask(event.changes.question);
        if (event.changes.settled) mine.questions.settle(event.changes.settled);
        break;
      case "ToolApprovalRequestedEvent":
      case "ToolApprovalResultEvent":
        mine.questions.hear(event);
        break;
      case "ToolOutputEvent":
        mine.conversation.output(event);
        break;
      case "RetryScheduledEvent":
        mine.wait = { text: event.notice.text, until: Date.now() + event.delay_ms };
        break;
      case "ModelSilentEvent":
        mine.wait = { text: event.notice.text };
        break;
      case "StateChangedEvent":
        mine.wait = null;
        mine.label = event.label;
        mine.busy = !["idle", "done", "failed", "aborted"].includes(event.new_state);
        break;
      case "LoopStartedEvent":
        mine.busy = true;
        waiting(mine).catch(complain);
        break;
      case "LoopCompletedEvent":
        mine.busy = false;
        mine.ended = event.termination_reason;
        mine.questions.reload().catch(complain);
        break;
      default:
        break;
    }
    if (event.notice && !event.shown_elsewhere) mine.conversation.notice(event.notice);
  }
  drawBar();
}

function connected(mine, yes) {
  if (mine !== view) return;
  const back = yes && mine.away;
  mine.away = !yes;
  if (back) cameBack(mine);
  if (yes) askAgain(mine).catch(complain);
  drawBar();
  if (yes) calm();
}

// What is kept comes by itself; what was only told meanwhile is asked for. A turn that goes on shows itself.
function cameBack(mine) {
  mine.busy = false;
  mine.questions?.reload().catch(complain);
  waiting(mine).catch(complain);
  listSessions();
}

// A question that waited when the server ended is asked again when somebody works in the session; what another program
// works in is left to it.
async function askAgain(mine) {
  const asks = (part) => part.metadata?.asks && ["pending", "running"].includes(part.state.status);
  if (!mine.transcript.messages.at(-1)?.parts.some(asks)) return;
  await post(`/sessions/${mine.id}/open`, {}).catch((error) => (error.status === 409 ? null : Promise.reject(error)));
  await mine.questions?.reload();
}

// Whether the last turn ended without its work being done: it can be continued, also with another model.
function stopped(mine) {
  if (mine.busy || mine.away) return false;
  if (mine.ended) return ["error", "limit", "length", "refusal", "aborted", "repetition", "empty_answers"].includes(mine.ended);
  const last = mine.transcript.messages.at(-1);
  return last?.role === "assistant" && Boolean(last.error || ["length", "refusal"].includes(last.finish));
}

async function goOn(mine) {
  try {
    const { broke_off } = await post(`/sessions/${mine.id}/open`, {});
    mine.ended = null;
    if (broke_off) post(`/sessions/${mine.id}/continue`).catch(complain); // it responds at the end of the turn
    else await post(`/sessions/${mine.id}/prompt`, { text: "continue", id: crypto.randomUUID() });
    mine.busy = true;
    calm();
  } catch (error) {
    complain(error);
  }
  drawBar();
}

async function listModels() {
  if ($("model").options.length > 1) return;
  for (const name of await get("/models").catch(() => [])) $("model").append(h("option", { value: name }, name));
}

// Why a request is repeated, with the seconds that are left, or how long the model has been silent.
let countdown = null;
function waitText(wait) {
  if (!wait?.until) return wait?.text;
  const left = Math.ceil((wait.until - Date.now()) / 1000);
  if (left <= 0) return "sending the request again";
  countdown ??= setTimeout(() => {
    countdown = null;
    drawBar();
  }, 500);
  return wait.text.replace(/^retrying in [^:]*/, `retrying in ${left} s`);
}

function drawBar() {
  const session = view?.transcript.session;
  $("composer").hidden = !session;
  $("title").textContent = session ? session.title || "Untitled" : "";
  document.title = session?.title ? `${session.title} · Outrider` : "Outrider";
  $("mode").hidden = !session;
  if (session) $("mode").value = session.mode;
  $("approval").hidden = session?.mode !== "agent";
  if (session) $("approval").value = session.approval;
  $("effort").hidden = !session;
  if (session) $("effort").value = view.effort ?? "";
  const words = view?.away ? "the server is away, waiting for it" : view?.busy ? waitText(view.wait) || view.label || "working" : view?.ended && view.ended !== "completed" ? view.ended.replaceAll("_", " ") : "";
  if ($("state").textContent !== words) $("state").textContent = words;
  $("state").classList.toggle("busy", Boolean(view?.busy && !view.away));
  $("state").classList.toggle("away", Boolean(view?.away));
  $("abort").hidden = !view?.busy;
  $("next").hidden = !session || !stopped(view);
  const used = view?.usage;
  const priced = used && (!used.unpriced || Number(used.cost));
  $("facts").textContent = used?.tokens.input ? `${used.view.tokens} tokens${priced ? ` · ${used.view.cost}` : ""}` : "";
}

// The figures of the whole session, of which the page may have only the last messages.
function soonUsage(mine, wait = 300) {
  mine.usageTimer ??= setTimeout(async () => {
    mine.usageTimer = null;
    mine.usage = await get(`/sessions/${mine.id}/usage`).catch(() => mine.usage);
    if (mine !== view) return;
    drawBar();
    soonPanel();
  }, wait);
}

async function waiting(mine) {
  const items = await get(`/sessions/${mine.id}/queue`);
  if (mine !== view) return;
  $("queue").replaceChildren(...items.map((item) => h("div", { class: "waiting" }, h("span", {}, `waits: ${item.text}`),
    h("button", { class: "quiet", "aria-label": `Take back: ${item.text}`, onclick: () => remove(`/sessions/${mine.id}/queue/${encodeURIComponent(item.id)}`).then(() => waiting(mine), complain) }, "✕"))));
}

let panelTimer = null;
function soonPanel() {
  if ($("panel").hidden || panelTimer) return;
  panelTimer = setTimeout(() => {
    panelTimer = null;
    if (tab === "session" || tab === "trace") drawPanel();
  }, 500);
}

async function drawPanel() {
  if ($("panel").hidden) return;
  const all = view?.transcript.session ? Object.entries(TABS) : [["usage", TABS.usage]];
  if (!all.some(([name]) => name === tab)) tab = "usage";
  $("tabs").replaceChildren(...all.map(([name, label]) => h("button", { role: "tab", id: `tab-${name}`, tabindex: name === tab ? "0" : "-1", "aria-selected": String(name === tab), "aria-controls": "panel-body", onclick: () => { tab = name; drawPanel(); } }, label)));
  $("panel-body").setAttribute("aria-labelledby", `tab-${tab}`);
  const drawn = { session: () => facts(view.transcript, view.usage), trace: () => waterfall(view.transcript), processes: () => processes(view.id, complain, drawPanel), usage: () => usage() }[tab];
  try {
    $("panel-body").replaceChildren(...(await drawn()));
  } catch (error) {
    complain(error);
  }
}

// Arrows go from tab to tab, as in every list of tabs.
function chooseTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const tabs = [...$("tabs").children];
  const at = tabs.indexOf(document.activeElement);
  if (!step || at < 0) return;
  tabs[(at + step + tabs.length) % tabs.length].click();
  $(`tab-${tab}`).focus();
}

function toggleMenu(open = !document.body.classList.contains("with-menu")) {
  document.body.classList.toggle("with-menu", open);
  $("menu").setAttribute("aria-expanded", String(open));
}

function togglePanel(open = $("panel").hidden, name = tab) {
  tab = name;
  $("panel").hidden = !open;
  document.body.classList.toggle("with-panel", open);
  $("panel-toggle").setAttribute("aria-expanded", String(open));
  drawPanel();
}

async function send() {
  const text = $("input").value;
  if (!text.trim() || !view) return;
  $("input").value = "";
  grow();
  const { id, byHand, busy, conversation } = view;
  if (/^!\s*\S/.test(text)) return void byHand.run(text.slice(1).trim());
  const before = byHand.take();
  try {
    await post(`/sessions/${id}/prompt`, { parts: [...before, { type: "text", text }], id: crypto.randomUUID(), delivery: busy ? "steer" : "queue" });
    conversation.said((element) => element.querySelector(".status.calling"));
    calm();
  } catch (error) {
    byHand.back(before);
    $("input").value = text;
    complain(error);
  }
}

function stop() {
  view.byHand?.stop();
  if (view.busy) post(`/sessions/${view.id}/abort`).catch(complain);
}

function grow() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
}

function goTo() {
  const id = location.hash.replace(/^#\//, "");
  jobs?.close();
  jobs = null;
  $("show-jobs").setAttribute("aria-current", /^jobs(\/|$)/.test(id) ? "page" : "false");
  if (/^jobs(\/|$)/.test(id)) showJobs(decodeURIComponent(id.slice(5)));
  else if (id) show(id);
  else {
    leave();
    view = null;
    $("conversation").replaceChildren(h("div", { class: "empty" }, h("h2", {}, "What should be done?"), h("p", {}, "Start a session, or choose one. Everything you see here is kept on the machine that serves this page.")));
    $("questions").replaceChildren();
    drawBar();
    drawPanel();
    listSessions();
  }
}

// A run belongs to its worker: to open it as a session here would take it away.
const isRun = (id) => get(`/jobs/${id}`).then(() => true, () => false);

function showJobs(id) {
  leave();
  view = null;
  calm();
  $("questions").replaceChildren();
  drawBar();
  drawPanel();
  listSessions();
  document.body.classList.remove("with-menu");
  jobs = new Jobs($("conversation"), complain);
  if (id) jobs.show(id);
  else jobs.list();
  $("main").focus();
}

function start() {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
  $("mode").addEventListener("change", () => patch(`/sessions/${view.id}`, { mode: $("mode").value }).catch(complain));
  $("approval").addEventListener("change", () => patch(`/sessions/${view.id}`, { approval: $("approval").value }).catch(complain));
  $("effort").addEventListener("change", async () => {
    try {
      view.effort = (await post(`/sessions/${view.id}/effort`, { effort: $("effort").value || null })).effort;
    } catch (error) {
      complain(error);
    }
    drawBar();
  });
  $("continue").addEventListener("click", () => view && goOn(view));
  $("model").addEventListener("focus", listModels);
  $("model").addEventListener("change", async () => {
    try {
      await post(`/sessions/${view.id}/model`, { model: $("model").value });
      await goOn(view);
    } catch (error) {
      complain(error);
    }
  });
  $("new-session").addEventListener("click", async () => {
    try {
      location.hash = `#/${(await post("/sessions", {})).id}`;
    } catch (error) {
      complain(error);
    }
  });
  let typing = null;
  $("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(listSessions, 200); });
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("input").addEventListener("input", grow);
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  $("abort").addEventListener("click", stop);
  $("menu").addEventListener("click", (event) => { event.stopPropagation(); toggleMenu(); });
  $("main").addEventListener("click", () => toggleMenu(false));
  $("tabs").addEventListener("keydown", chooseTab);
  $("panel-close").addEventListener("click", () => { togglePanel(false); $("panel-toggle").focus(); });
  $("panel-toggle").addEventListener("click", () => togglePanel());
  $("show-usage").addEventListener("click", () => togglePanel(true, "usage"));
  $("theme").addEventListener("click", theme);
  document.addEventListener("keydown", (event) => {
    const writing = /^(input|textarea|select)$/i.test(event.target.tagName);
    const plain = !writing && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (event.key === "/" && plain) { event.preventDefault(); $("search").focus(); }
    else if (event.key === "n" && plain) { event.preventDefault(); $("new-session").click(); }
    else if (event.key === "d" && plain) togglePanel();
    else if (event.key === "Escape" && document.body.classList.contains("with-menu")) toggleMenu(false);
    else if (event.key === "Escape" && view) stop();
  });
  addEventListener("hashchange", goTo);
  setInterval(() => { if (!document.hidden && !$("search").value) listSessions(); }, 15_000);
  goTo();
}

start();
