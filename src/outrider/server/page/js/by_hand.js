// Commands of one's own (!): run where the server is, shown as they go on, and told to the model with what is said next.
import { stream } from "./api.js";
import { h } from "./dom.js";

const SHOWN = 100_000; // characters of an output that are kept here
const TOLD = 20_000; // characters of it that the model reads

export class ByHand {
  constructor(sessionId, conversation, complain) {
    this.sessionId = sessionId;
    this.conversation = conversation;
    this.complain = complain;
    this.parts = [];
    this.running = new Set();
  }

  async run(command) {
    const going = new AbortController();
    const output = h("pre", { class: "output" });
    const status = h("span", { class: "status calling", role: "status" }, "running");
    const end = h("button", { class: "danger", onclick: () => going.abort() }, "End it");
    const shown = h("details", { class: "call by-hand", open: true },
      h("summary", {}, h("span", { class: "tool" }, "!"), h("span", { class: "subject" }, command), status),
      h("div", { class: "inside" }, output, h("div", { class: "buttons" }, end)));
    this.conversation.beside(shown);
    this.running.add(going);
    let text = "";
    let words = "the server hung up";
    try {
      await stream(`/sessions/${this.sessionId}/commands`, { command }, going.signal, (name, told) => {
        if (name === "ended") words = told.words;
        else output.textContent = text = (text + told.text).slice(-SHOWN);
        this.conversation.follow();
      });
    } catch (error) {
      if (!going.signal.aborted) {
        shown.remove();
        return this.complain(error);
      }
      words = "interrupted";
    } finally {
      this.running.delete(going);
      end.remove();
    }
    status.textContent = words;
    status.className = `status ${/^exit code 0$/.test(words) ? "done" : "errored"}`;
    if (!text) output.textContent = "(no output)";
    this.parts.push({ type: "text", synthetic: true, text: `The user ran a command: ${command}\n${text.slice(-TOLD)}\n(${words})`, metadata: { command, output: text } });
  }

  stop() {
    for (const going of this.running) going.abort();
  }

  // What goes along with the next words; `back` puts it back if they could not be said.
  take() {
    const parts = this.parts;
    this.parts = [];
    return parts;
  }

  back(parts) {
    this.parts = [...parts, ...this.parts];
  }
}
