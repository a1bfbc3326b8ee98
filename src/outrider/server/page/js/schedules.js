// What is submitted again and again: when next, a pause, and an end to it.
import { post, remove } from "./api.js";
import { h } from "./dom.js";

export class Schedules {
  constructor(complain) {
    this.complain = complain;
    this.rows = h("tbody");
    this.element = h("section", { class: "schedules", "aria-label": "Schedules", hidden: true }, h("h2", {}, "Again and again"),
      h("table", { class: "jobs" },
        h("thead", {}, h("tr", {}, ...["", "Run", "Next", "Cron"].map((name) => h("th", { scope: "col" }, name)))), this.rows));
  }

  draw(found) {
    this.element.hidden = !found.length;
    const drawn = JSON.stringify(found);
    if (drawn === this.drawn) return;
    [this.drawn, this.found] = [drawn, found];
    const held = this.rows.contains(document.activeElement) ? document.activeElement : null; // it keeps the keyboard's focus
    const [id, name] = [held?.closest("tr").dataset.schedule, held?.dataset.act];
    this.rows.replaceChildren(...found.map((one) => this.row(one)));
    if (held) this.rows.querySelector(`[data-schedule="${CSS.escape(id)}"] [data-act="${name}"]`)?.focus();
  }

  // One request at a time; what came of it is drawn at once. (A button that is disabled would lose the keyboard's focus.)
  async act(work) {
    if (this.busy) return;
    this.busy = true;
    try {
      this.draw(await work());
    } catch (error) {
      this.complain(error);
    } finally {
      this.busy = false;
    }
  }

  row(schedule) {
    const words = schedule.prompt.slice(0, 60);
    const path = `/schedules/${encodeURIComponent(schedule.id)}`;
    const others = (now) => this.found.flatMap((one) => (one.id === schedule.id ? now : [one]));
    const turn = schedule.paused ? "Resume" : "Pause";
    const pause = () => this.act(async () => others([await post(`${path}/${turn.toLowerCase()}`)]));
    const end = ({ currentTarget }) => {
      if (currentTarget.textContent === "Delete") currentTarget.textContent = "Really?";
      else this.act(async () => (await remove(path), others([])));
    };
    const reset = (event) => (event.currentTarget.textContent = "Delete");
    const next = new Date(schedule.due);
    return h("tr", { "data-schedule": schedule.id },
      h("td", { class: "acts" },
        h("button", { class: "quiet", "data-act": "pause", "aria-label": `${turn} the schedule of ${words}`, title: schedule.paused ? "Runs of it from its next time on" : "No runs of it until it is resumed", onclick: pause }, turn),
        h("button", { class: "quiet", "data-act": "end", "aria-label": `Delete the schedule of ${words}`, title: "No more runs of it; those that were submitted go on", onclick: end, onblur: reset }, "Delete")),
      h("td", { title: schedule.workspace }, schedule.prompt),
      h("td", {}, schedule.paused ? h("span", { class: "badge" }, "paused") : h("time", { datetime: next.toISOString() }, next.toLocaleString())),
      h("td", { title: schedule.timezone }, schedule.cron));
  }
}
