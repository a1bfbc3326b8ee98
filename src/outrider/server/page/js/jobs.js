// Background runs: the list of them with a form for a new one, and one of them with what it does and what came of it.
import { get, post } from "./api.js";
import { Conversation } from "./conversation.js";
import { $, h } from "./dom.js";
import { Feed } from "./feed.js";
import { markdown } from "./markdown.js";
import { Questions } from "./questions.js";
import { Schedules } from "./schedules.js";
import { Transcript } from "./transcript.js";
import { diff } from "./views.js";

const LOOK = 2000; // milliseconds
const OVER = ["done", "failed", "canceled"];
const AGAIN = "again";
const DELAYS = { 0: "at once", 3600: "in an hour", 28800: "in eight hours", 86400: "tomorrow", [AGAIN]: "again and again" };

export class Jobs {
  constructor(place, complain) {
    this.place = place;
    this.complain = complain;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.feed?.close();
    $("questions").replaceChildren();
  }

  // Draw now, and again and again as long as this view is open and somebody looks at it.
  async look(draw) {
    try {
      if (!document.hidden) await draw();
    } catch (error) {
      if (!this.closed) this.complain(error);
    }
    if (!this.closed) this.timer = setTimeout(() => this.look(draw), LOOK);
  }

  async list() {
    $("title").textContent = "Background jobs";
    const rows = h("tbody");
    const none = h("p", { class: "note", hidden: true }, "No runs yet. What is submitted here goes on when this page is closed.");
    const table = h("table", { class: "jobs", hidden: true },
      h("thead", {}, h("tr", {}, ...["State", "Run", "Submitted", "Cost"].map((name) => h("th", { scope: "col" }, name)))), rows);
    const schedules = new Schedules(this.complain);
    this.place.replaceChildren(h("div", { class: "board" }, this.form(schedules), schedules.element, none, table));
    this.place.scrollTop = 0;
    await this.look(async () => {
      const [runs, scheduled] = await Promise.all([get("/jobs", { limit: 100 }), get("/schedules")]);
      if (this.closed) return;
      schedules.draw(scheduled);
      none.hidden = Boolean(runs.length);
      table.hidden = !runs.length;
      const drawn = JSON.stringify(runs.map((run) => [run.id, run.state, run.outcome?.cost]));
      if (drawn === this.drawn) return; // a row that has the keyboard's focus keeps it
      this.drawn = drawn;
      const held = document.activeElement?.closest?.("tr")?.dataset.run;
      rows.replaceChildren(...runs.map(row));
      if (held) rows.querySelector(`[data-run="${CSS.escape(held)}"] a`)?.focus();
    });
  }

  form(schedules) {
    const prompt = h("textarea", { id: "job-prompt", rows: "3", required: true, "aria-label": "What should be done in the background?", placeholder: "What should be done in the background?" });
    const priority = h("input", { type: "number", min: "1", max: "1000", value: "100", id: "job-priority" });
    const after = h("select", { id: "job-after" }, ...Object.entries(DELAYS).map(([value, words]) => h("option", { value }, words)));
    const cron = h("input", { id: "job-cron", class: "cron", value: "0 7 * * *", "aria-label": "Minute, hour, day, month and weekday", title: "Minute, hour, day, month and weekday: 0 7 * * 1-5 is at seven on each day of work" });
    const when = h("label", { hidden: true }, "at ", cron);
    after.addEventListener("change", () => (when.hidden = after.value !== AGAIN));
    const worktree = h("input", { type: "checkbox", checked: true, id: "job-worktree" });
    const submit = h("button", { class: "primary", type: "submit" }, "Submit");
    const send = async (event) => {
      event.preventDefault();
      if (!prompt.value.trim()) return prompt.focus();
      submit.disabled = true;
      try {
        const order = { prompt: prompt.value, priority: Number(priority.value) || 100, worktree: worktree.checked };
        if (after.value === AGAIN) {
          await post("/schedules", { ...order, cron: cron.value, timezone: Intl.DateTimeFormat().resolvedOptions().timeZone });
          prompt.value = "";
          schedules.draw(await get("/schedules"));
        } else location.hash = `#/jobs/${(await post("/jobs", { ...order, after: Number(after.value) })).id}`;
      } catch (error) {
        this.complain(error);
      } finally {
        submit.disabled = false;
      }
    };
    prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event);
    });
    return h("form", { class: "new-job", "aria-label": "New run", onsubmit: send }, prompt,
      h("div", { class: "row" },
        h("label", {}, "Begin ", after), when, h("label", {}, "Priority ", priority),
        h("label", { title: "In a repository, work in a checkout of its own" }, worktree, " own worktree"), submit),
      h("p", { class: "hint" }, "Ctrl+Enter submits. A smaller priority is begun sooner, among your own runs."));
  }

  async show(id) {
    const head = h("section", { class: "run", "aria-label": "Run" });
    const log = h("section", { class: "log", "aria-label": "What the run does", tabindex: "0" });
    this.place.replaceChildren(h("div", { class: "board" }, h("p", {}, h("a", { href: "#/jobs" }, "← All jobs")), head, log));
    this.place.scrollTop = 0;
    const questions = new Questions(id, this.complain);
    await this.look(async () => {
      const found = await get(`/jobs/${encodeURIComponent(id)}`);
      if (this.closed) return;
      questions.approvals = new Map(found.approvals.map((approval) => [approval.id, approval]));
      const asked = JSON.stringify(found.approvals.map((approval) => approval.id));
      if (asked !== this.asked) questions.draw(); // what somebody is typing an answer to stays
      this.asked = asked;
      this.draw(head, found);
      if (!this.feed) await this.follow(id, log);
    });
  }

  draw(head, found) {
    const drawn = JSON.stringify(found);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const { run, diff_rows: changes, stat, branch, worktree } = found;
    const held = head.contains(document.activeElement);
    $("title").textContent = run.prompt;
    $("state").textContent = run.state;
    const act = (words, path, kind) => h("button", { class: kind, onclick: () => post(`/jobs/${encodeURIComponent(run.id)}/${path}`).then((now) => this.draw(head, { ...found, run: now }), this.complain) }, words);
    const shown = [
      h("p", { class: "line" }, badge(run.state), h("strong", {}, run.prompt)),
      facts(run, branch, worktree),
      h("div", { class: "buttons" },
        OVER.includes(run.state) ? null : act("Cancel", "cancel", "danger"),
        ["failed", "canceled"].includes(run.state) ? act("Retry", "retry", "primary") : null),
      run.outcome?.error ? h("p", { class: "failure" }, run.outcome.error) : null,
      OVER.includes(run.state) && run.outcome?.output ? h("div", { class: "outcome" }, markdown(run.outcome.output)) : null,
      changes.length ? h("details", { class: "changes", open: true }, h("summary", {}, stat.trim().split("\n").pop() || "What it changed"), diff(changes)) : null,
    ];
    head.replaceChildren(...shown.filter(Boolean));
    if (held) head.querySelector("button")?.focus();
  }

  async follow(id, log) {
    const transcript = new Transcript();
    const page = await get(`/sessions/${encodeURIComponent(id)}/messages`, { limit: 60, views: true });
    if (this.closed) return;
    transcript.load(page);
    const conversation = new Conversation(log, transcript, async () => {
      transcript.load(await get(`/sessions/${encodeURIComponent(id)}/messages`, { limit: 60, views: true, before: transcript.messages[0].id }), { before: true });
      conversation.drawEarlier();
    });
    const change = (what) => {
      if (!["session", "message", "part"].includes(what.type)) return;
      const { message, part } = transcript.change(what);
      if (message) conversation.soon(message, part);
    };
    this.feed = new Feed(id, page.session.seq, { change, live: () => {}, connected: () => {} });
  }
}

function row(run) {
  return h("tr", { "data-run": run.id },
    h("td", {}, badge(run.state)),
    h("td", {}, h("a", { href: `#/jobs/${run.id}` }, run.prompt)),
    h("td", {}, run.created ? new Date(run.created).toLocaleString() : ""),
    h("td", {}, run.view.cost));
}

function badge(state) {
  return h("span", { class: "badge", "data-state": state }, state);
}

function facts(run, branch, worktree) {
  const { outcome, view } = run;
  const rows = {
    Submitted: run.created ? new Date(run.created).toLocaleString() : "",
    Begins: run.begins ? new Date(run.begins).toLocaleString() : run.after_run ? `after the run ${run.after_run.slice(-8)}` : "",
    Took: view.duration,
    Steps: outcome ? outcome.steps : "",
    Tokens: view.tokens,
    Cost: view.cost,
    "Workers so far": run.attempts || "",
    Queue: run.queue === "runs" ? "" : run.queue,
    Branch: branch,
    Worktree: worktree,
  };
  const known = Object.entries(rows).filter(([, value]) => value !== "");
  return h("dl", { class: "facts" }, ...known.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
}
