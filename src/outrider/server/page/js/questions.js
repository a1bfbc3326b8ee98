// What waits for an answer: calls, and plans. What is shown is exactly what would run.
import { get, post } from "./api.js";
import { diff, difference } from "./calls.js";
import { $, h } from "./dom.js";
import { markdown } from "./markdown.js";

export class Questions {
  constructor(sessionId, complain) {
    this.sessionId = sessionId;
    this.complain = complain;
    this.approvals = new Map();
    this.plan = null;
  }

  async load() {
    for (const approval of await get("/approvals", { session_id: this.sessionId })) this.approvals.set(approval.id, approval);
    await this.loadPlan();
  }

  async reload() {
    this.approvals.clear();
    await this.load();
  }

  async loadPlan() {
    this.plan = await get(`/sessions/${this.sessionId}/plan`).catch((error) => (error.status === 404 || error.status === 409 ? null : Promise.reject(error)));
    this.draw();
  }

  put(approval) {
    if (approval.answer === "open") this.approvals.set(approval.id, approval);
    else this.approvals.delete(approval.id);
    this.draw();
  }

  draw() {
    const asked = [...this.approvals.values()].map((approval) => this.approval(approval));
    $("questions").replaceChildren(...asked, ...(this.plan ? [this.planned(this.plan)] : []));
  }

  approval(approval) {
    const answer = (allow, scope, words = "") => async () => {
      try {
        this.put(await post(`/approvals/${approval.id}`, { allow, scope, words }));
      } catch (error) {
        this.complain(error);
      }
    };
    const words = h("textarea", { "aria-label": "A word to the model", placeholder: "Why not? (the model reads this)", hidden: true });
    const refuse = () => {
      if (words.hidden) {
        words.hidden = false;
        words.focus();
      } else answer(false, "once", words.value)();
    };
    const longer = approval.offers === undefined || approval.offers === null || approval.offers.length > 0;
    return h("section", { class: "question", "data-approval": approval.id, "aria-label": `May ${approval.tool} run?` },
      h("h3", {}, `May ${approval.tool} run?`),
      shown(approval.input),
      h("p", { class: "why" }, approval.description),
      longer && approval.offers?.length ? h("p", { class: "why" }, `A longer yes keeps: ${approval.offers.join(", ")}`) : null,
      h("div", { class: "buttons" },
        h("button", { class: "primary", onclick: answer(true, "once") }, "Once"),
        longer ? h("button", { onclick: answer(true, "session") }, "This session") : null,
        longer ? h("button", { onclick: answer(true, "always") }, "Always") : null,
        h("button", { class: "danger", onclick: answer(false, "once") }, "No"),
        h("button", { class: "danger", onclick: refuse }, "No, because…")),
      words);
  }

  planned(plan) {
    const words = h("textarea", { "aria-label": "Changes or reasons", placeholder: "A changed plan, or what is wrong with it" });
    const answer = (body) => async () => {
      this.plan = null;
      this.draw();
      try {
        await post(`/sessions/${this.sessionId}/plan`, body());
      } catch (error) {
        this.complain(error);
      }
    };
    return h("section", { class: "question", "data-plan": plan.id, "aria-label": "Carry out this plan?" },
      h("h3", {}, "Carry out this plan?"), markdown(plan.text), words,
      h("div", { class: "buttons" },
        h("button", { class: "primary", onclick: answer(() => (words.value.trim() ? { accept: true, changed: words.value } : { accept: true })) }, "Accept"),
        h("button", { class: "danger", onclick: answer(() => ({ accept: false, words: words.value })) }, "Refuse")));
  }
}

function shown(input) {
  const change = difference(input);
  if (change) return h("div", {}, input.file_path ? h("p", { class: "file" }, input.file_path) : null, diff(change));
  if (typeof input.command === "string" && Object.keys(input).length === 1) return h("pre", {}, input.command);
  return h("pre", {}, JSON.stringify(input, null, 2));
}
