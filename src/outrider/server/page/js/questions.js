// What waits for an answer: calls, questions of models, and plans. What is shown is exactly what would run.
import { get, post } from "./api.js";
import { $, h } from "./dom.js";
import { markdown } from "./markdown.js";
import { diff } from "./views.js";

export class Questions {
  constructor(sessionId, complain, mode = () => "") {
    this.sessionId = sessionId;
    this.mode = mode;
    this.complain = complain;
    this.approvals = new Map();
    this.asked = new Map();
    this.plan = null;
    this.shown = new Map();
  }

  async load() {
    for (const approval of await get("/approvals", { session_id: this.sessionId })) this.approvals.set(approval.id, approval);
    for (const question of await get("/questions", { session_id: this.sessionId })) this.asked.set(question.id, question);
    await this.loadPlan();
  }

  async reload() {
    this.approvals.clear();
    this.asked.clear();
    await this.load();
  }

  async loadPlan() {
    const none = (error) => (error.status === 404 || error.status === 409 ? null : Promise.reject(error));
    this.plan = this.mode() === "plan" ? await get(`/sessions/${this.sessionId}/plan`).catch(none) : null;
    this.draw();
  }

  put(approval) {
    if (approval.answer === "open") this.approvals.set(approval.id, approval);
    else this.approvals.delete(approval.id);
    this.draw();
  }

  // Of agents that were called, and of those of other servers, only what is asked is told here, not what is kept.
  hear({ type, session_id, approval_id: id, tool_name: tool, view, server }) {
    if (session_id === this.sessionId && !server && type === "ToolApprovalRequestedEvent") return;
    if (type === "ToolApprovalRequestedEvent") this.put({ id, tool, view, answer: "open" });
    else this.put({ id, answer: "given" });
  }

  ask(question) {
    this.asked.set(question.id, question);
    this.draw();
  }

  settle(id) {
    this.asked.delete(id);
    this.draw();
  }

  // Another session is shown: what is still on its way here does not come into it.
  close() {
    this.closed = true;
  }

  // What is shown already stays as it is: somebody may be writing in it.
  draw() {
    if (this.closed) return;
    const wanted = new Map([
      ...[...this.approvals.values()].map((approval) => [approval.id, () => this.approval(approval)]),
      ...[...this.asked.values()].map((asked) => [asked.id, () => this.question(asked)]),
      ...(this.plan ? [[this.plan.id, () => this.planned(this.plan)]] : []),
    ]);
    for (const [id, element] of this.shown) {
      if (wanted.has(id)) continue;
      element.remove();
      this.shown.delete(id);
    }
    this.drawGroups();
    for (const [id, make] of wanted) {
      if (!this.shown.has(id)) this.shown.set(id, make());
      if (!this.shown.get(id).isConnected) $("questions").append(this.shown.get(id));
    }
  }

  // One answer for all questions of a kind: an edit of many files is one decision.
  drawGroups() {
    for (const element of $("questions").querySelectorAll("[data-group]")) element.remove();
    const kinds = new Map();
    for (const approval of this.approvals.values()) {
      const kind = approval.view?.kind ?? "";
      kinds.set(kind, [...(kinds.get(kind) ?? []), approval]);
    }
    for (const [kind, alike] of kinds) {
      if (!kind || alike.length < 2) continue;
      const name = { edit: "edits", command: "commands", outcome: "outcomes" }[kind] ?? `calls of ${kind}`;
      const answer = (allow) => async () => {
        for (const { id } of [...alike].sort((one, other) => (one.view.position ?? 0) - (other.view.position ?? 0))) {
          try {
            this.put(await post(`/approvals/${id}`, { allow }));
          } catch (error) {
            this.complain(error);
          }
        }
      };
      $("questions").prepend(h("section", { class: "question", "data-group": kind, "aria-label": `${alike.length} ${name} wait` },
        h("h3", {}, `${alike.length} ${name} wait for an answer`),
        h("div", { class: "buttons" },
          h("button", { class: "primary", "data-choice": "yes-to-all", onclick: answer(true) }, `Yes to all ${alike.length}`),
          h("button", { class: "danger", "data-choice": "no-to-all", onclick: answer(false) }, `No to all ${alike.length}`))));
    }
  }

  question(asked) {
    const own = h("textarea", { "aria-label": "An answer of your own", placeholder: "An answer of your own" });
    const boxes = asked.multiple ? asked.options.map((option) => h("input", { type: "checkbox", value: option })) : [];
    const answer = (answers) => async () => {
      try {
        await post(`/questions/${asked.id}`, { answers: answers() });
      } catch (error) {
        this.complain(error);
        if (error.status !== 404) return;
      }
      this.settle(asked.id);
    };
    const chosen = () => [...boxes.filter((box) => box.checked).map((box) => box.value), own.value.trim()].filter(Boolean);
    return h("section", { class: "question", "data-question": asked.id, "aria-label": "A question" },
      h("h3", {}, asked.agent ? `${asked.agent} asks` : "A question"), markdown(asked.text),
      ...boxes.map((box) => h("label", { class: "option" }, box, ` ${box.value}`)),
      own,
      h("div", { class: "buttons" },
        ...(asked.multiple ? [] : asked.options.map((option) => h("button", { onclick: answer(() => [option]) }, option))),
        h("button", { class: "primary", onclick: answer(chosen) }, "Answer"),
        h("button", { class: "danger", onclick: answer(() => []) }, "No answer")));
  }

  // The server says what may be answered (`view.choices`); the page draws one button for each of it.
  approval(approval) {
    const { view } = approval;
    const boxes = (view.files ?? []).map((path) => h("input", { type: "checkbox", value: path, checked: true }));
    const picked = () => boxes.filter((box) => box.checked).map((box) => box.value);
    const files = h("fieldset", { class: "files", hidden: true },
      h("legend", {}, "Files to keep"), ...boxes.map((box) => h("label", { class: "option" }, box, ` ${box.value}`)));
    const answer = async ({ kind, scope, choice, picks_files }, words = "") => {
      const body = { allow: kind === "allow", scope, words, choice };
      if (scope !== "once" && widths.length) body.width = width.value;
      if (picks_files) body.keep = picked();
      try {
        this.put(await post(`/approvals/${approval.id}`, body));
      } catch (error) {
        this.complain(error);
      }
    };
    const widths = view.widths ?? [];
    const width = h("select", { "aria-label": "What a lasting answer covers", onchange: () => showWidth() },
      ...widths.map(({ id, label }) => h("option", { value: id }, label)));
    const rule = h("p", { class: "why" });
    const showWidth = () => {
      const chosen = widths.find(({ id }) => id === width.value) ?? widths[0];
      rule.textContent = chosen ? [chosen.rule_text, chosen.history].filter(Boolean).join(" · ") : "";
    };
    showWidth();
    const words = h("textarea", { "aria-label": "A word to the model", placeholder: "Why not? (the model reads this)", hidden: true });
    const choose = (choice) => () => {
      if (choice.picks_files && files.hidden) {
        files.hidden = false;
        return undefined;
      }
      if (!choice.needs_reason) return answer(choice);
      if (!words.hidden) return answer(choice, words.value);
      words.hidden = false;
      words.focus();
    };
    const button = (choice, at) => h("button", {
      class: choice.kind === "deny" ? "danger" : at === 0 ? "primary" : undefined,
      "data-choice": choice.id,
      onclick: choose(choice),
    }, choice.label[0].toUpperCase() + choice.label.slice(1));
    const title = view.heading ?? `Allow ${approval.tool}?`;
    return h("section", { class: "question", "data-approval": approval.id, "aria-label": title },
      h("h3", {}, title),
      view.effects?.length
        ? h("ul", { class: "effects" }, ...view.effects.map(({ text, risky }) => h("li", { class: risky ? "risky" : undefined }, text)))
        : null,
      view.input ? h("pre", {}, view.input) : null,
      view.facts?.length ? h("ul", { class: "facts" }, ...view.facts.map((fact) => h("li", {}, fact))) : null,
      view.diff.length ? diff(view.diff) : null,
      h("p", { class: "why" }, view.reason),
      ...(widths.length
        ? [h("label", { class: "why" }, "A lasting answer covers ", width), rule]
        : [view.rule_text ? h("p", { class: "why" }, `What a lasting answer stores: ${view.rule_text}`) : null]),
      files,
      h("div", { class: "buttons" }, ...view.choices.map(button)),
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
