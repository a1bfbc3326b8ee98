// What is submitted again and again: when next, and an end to it.
import { remove } from "./api.js";
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
    if (drawn === this.drawn) return; // a button that has the keyboard's focus keeps it
    this.drawn = drawn;
    this.rows.replaceChildren(...found.map((one) => this.row(one)));
  }

  row(schedule) {
    const words = schedule.prompt.slice(0, 60);
    const end = async (event) => {
      const button = event.currentTarget;
      if (button.textContent === "Delete") return void (button.textContent = "Really?");
      button.disabled = true;
      try {
        await remove(`/schedules/${encodeURIComponent(schedule.id)}`);
        button.closest("tr").remove();
      } catch (error) {
        button.disabled = false;
        this.complain(error);
      }
    };
    const reset = (event) => (event.currentTarget.textContent = "Delete");
    return h("tr", { "data-schedule": schedule.id },
      h("td", {}, h("button", { class: "quiet", "aria-label": `Delete the schedule of ${words}`, title: "No more runs of it; those that were submitted go on", onclick: end, onblur: reset }, "Delete")),
      h("td", { title: schedule.workspace }, schedule.prompt),
      h("td", {}, h("time", { datetime: new Date(schedule.due).toISOString() }, new Date(schedule.due).toLocaleString())),
      h("td", { title: schedule.timezone }, schedule.cron));
  }
}
