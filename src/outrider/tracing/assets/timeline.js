"use strict";
(() => {
  const ROW = 26, INDENT = 12, MANY = 2000;
  const KINDS = ["run", "agent", "model", "tool"], LETTERS = ["R", "A", "M", "T"];
  const STATUSES = ["ok", "failed", "stopped", "unfinished"], MARKS = ["✓", "✗", "■", "…"], STATUS_TEXTS = ["done", "failed", "stopped", "unfinished"];
  const STEPS = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].map((seconds) => seconds * 1000);
  const LONG = new Set(["error", "message", "input", "result"]);
  const byId = (id) => document.getElementById(id);
  const grid = byId("grid"), space = byId("space"), ticks = byId("ticks"), panel = byId("details"), tip = byId("tip"), search = byId("search");

  const spans = JSON.parse(byId("rows").textContent).map((row, index) => {
    const [depth, kind, name, agent, start, took, status, outcome, tokensIn, tokensOut, cost, waited, details] = row;
    return { index, depth, kind, name, agent, start, took, status, outcome, tokensIn, tokensOut, cost, waited, details, parent: -1, inner: 0, folded: false };
  });
  const path = [];
  for (const span of spans) {
    path.length = span.depth;
    span.parent = span.depth ? path[span.depth - 1].index : -1;
    path[span.depth] = span;
    if (span.parent >= 0) spans[span.parent].inner += 1;
  }
  const total = Math.max(1, spans.reduce((most, span) => Math.max(most, span.start + span.took), 0));
  let from = 0, to = total, shown = [], beside = new Set(), chosen = 0, deepest = 12;

  const element = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  // The form of `format_duration` in outrider.presentation.formats.
  const time = (ms) => {
    if (ms < 1000) return (ms < 10 && ms % 1 ? ms.toFixed(1) : Math.round(ms)) + "ms";
    if (ms < 9950) return (ms / 1000).toFixed(1) + "s";
    if (ms < 59500) return Math.round(ms / 1000) + "s";
    const seconds = Math.round(ms / 1000), minutes = Math.floor(seconds / 60);
    if (minutes < 60) return minutes + "m " + String(seconds % 60).padStart(2, "0") + "s";
    return Math.floor(minutes / 60) + "h " + String(minutes % 60).padStart(2, "0") + "m";
  };
  const moment = (ms, step) => step < 1000 && ms >= 1000 ? (ms / 1000).toFixed(step < 10 ? 3 : step < 100 ? 2 : 1) + "s" : time(ms).replace(".0s", "s");
  const count = (number) => number.toLocaleString("en");
  const took = (span) => (span.status === 3 ? "≥" : "") + time(span.took);
  const statusText = (span) => [...new Set([STATUS_TEXTS[span.status], span.outcome])].filter(Boolean).join(": ");
  const text = (span) => (span.text ??= [span.name, span.agent, KINDS[span.kind], STATUS_TEXTS[span.status], span.outcome,
    ...span.details.map((detail) => detail[1])].join("\n").toLowerCase());

  // A match is shown with the way to it, however the tree is folded.
  function choose() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kinds = new Set([0, ...[...document.querySelectorAll(".kinds input:checked")].map((box) => Number(box.value))]);
    const failures = byId("failures").checked;
    const narrowed = words.length > 0 || failures || kinds.size < 4;
    shown = [];
    beside = new Set();
    let found = 0;
    if (narrowed) {
      const wanted = new Uint8Array(spans.length);
      for (const span of spans) {
        if (!kinds.has(span.kind) || (failures && span.status === 0) || !words.every((word) => text(span).includes(word))) continue;
        found += 1;
        wanted[span.index] = 1;
        for (let at = span.parent; at >= 0 && !wanted[at]; at = spans[at].parent) wanted[at] = 2;
      }
      for (const span of spans) {
        if (!wanted[span.index]) continue;
        shown.push(span);
        if (wanted[span.index] === 2) beside.add(span.index);
      }
    } else {
      let hidden = Infinity;
      for (const span of spans) {
        if (span.depth > hidden) continue;
        hidden = span.folded ? span.depth : Infinity;
        shown.push(span);
      }
      found = shown.length;
    }
    byId("count").value = narrowed ? count(found) + " of " + count(spans.length) + " spans match"
      : found < spans.length ? count(found) + " of " + count(spans.length) + " spans, the rest is folded" : count(found) + (found === 1 ? " span" : " spans");
    space.style.height = shown.length * ROW + "px";
    grid.setAttribute("aria-rowcount", shown.length);
    const match = narrowed && !shown.includes(spans[chosen]) ? shown.find((span) => !beside.has(span.index)) : undefined;
    if (match) {
      chosen = match.index;
      describe();
    }
    draw();
  }

  function draw() {
    deepest = Math.max(2, Math.floor((0.38 * document.querySelector(".axis .label").offsetWidth) / INDENT));
    const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 8);
    const last = Math.min(shown.length, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW) + 8);
    space.replaceChildren(...shown.slice(first, last).map((span, offset) => row(span, first + offset)));
    grid.setAttribute("aria-activedescendant", "span" + chosen);
    drawTicks();
  }

  function row(span, position) {
    const made = element("div", "row " + KINDS[span.kind] + " " + STATUSES[span.status] + (beside.has(span.index) ? " beside" : ""));
    made.id = "span" + span.index;
    made.style.top = position * ROW + "px";
    made.setAttribute("role", "row");
    made.setAttribute("aria-level", span.depth + 1);
    made.setAttribute("aria-rowindex", position + 1);
    made.setAttribute("aria-selected", span.index === chosen);
    made.setAttribute("aria-label", [KINDS[span.kind], span.name, took(span), statusText(span)].join(", "));
    if (span.inner) made.setAttribute("aria-expanded", !span.folded);
    made.span = span;
    made.append(label(span), lane(span));
    return made;
  }

  function label(span) {
    const cell = element("div", "name");
    cell.setAttribute("role", "gridcell");
    cell.style.paddingLeft = 6 + Math.min(span.depth, deepest) * INDENT + "px";
    const fold = element("u", "", span.inner ? (span.folded ? "▶" : "▼") : "");
    cell.append(fold);
    if (span.depth > deepest) cell.append(element("s", "", "⋯" + span.depth));
    cell.append(element("i", KINDS[span.kind], LETTERS[span.kind]));
    if (span.status) cell.append(element("span", "mark", MARKS[span.status]));
    cell.append(element("b", "", span.name));
    const more = span.kind === 3 ? (span.details.find((detail) => detail[0] === "input") || ["", ""])[1].replace(/\s+/g, " ")
      : span.cost === "unknown" ? "price unknown" : span.cost;
    if (more) cell.append(element("em", "", more.slice(0, 120)));
    return cell;
  }

  function lane(span) {
    const made = element("div", "lane"), width = to - from;
    made.setAttribute("role", "gridcell");
    const left = (100 * (span.start - from)) / width, right = (100 * (span.start + span.took - from)) / width;
    if (span.waited) {
      const wait = element("div", "wait");
      wait.style.left = (100 * (span.start - span.waited - from)) / width + "%";
      wait.style.width = (100 * span.waited) / width + "%";
      made.append(wait);
    }
    if (right < 0 || left > 100) return made;
    const bar = element("div", "bar"), begin = Math.max(left, -1);
    bar.style.left = "min(" + begin + "%, 100% - 3px)";
    bar.style.width = Math.min(right, 101) - begin + "%";
    made.append(bar);
    const before = (100 * (span.start - span.waited - from)) / width;
    if (right >= 78 && before <= 22) return made;
    const note = element("span", "took", took(span));
    if (right < 78) note.style.left = Math.max(right, 0) + "%";
    else note.style.right = 100 - before + "%";
    made.append(note);
    return made;
  }

  function drawTicks() {
    const width = to - from, places = Math.max(2, Math.floor(ticks.clientWidth / 90));
    const rough = width / places, power = 10 ** Math.floor(Math.log10(rough));
    const step = STEPS.find((size) => size >= rough && rough > 5000) ?? [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const made = [];
    for (let at = Math.ceil(from / step) * step; at < to; at += step) {
      if (((to - at) / width) * ticks.clientWidth < 44) break;
      const tick = element("span", "", moment(at, step));
      tick.style.left = (100 * (at - from)) / width + "%";
      made.push(tick);
    }
    ticks.replaceChildren(...made);
  }

  function facts(span) {
    return [["kind", KINDS[span.kind]], ["agent", span.agent], ["outcome", MARKS[span.status] + " " + statusText(span).slice(0, 200)],
      ["starts at", time(span.start)], ["takes", took(span) + " (" + ((100 * span.took) / total).toFixed(1) + " %)"],
      ["used", span.tokensIn || span.tokensOut ? count(span.tokensIn) + " in, " + count(span.tokensOut) + " tokens out" : ""],
      ["cost", span.cost], ["waited", span.waited ? time(span.waited) + " for approval" : ""], ["inside", span.inner ? count(span.inner) + (span.inner === 1 ? " span" : " spans") : ""]].filter((fact) => fact[1]);
  }

  function describe() {
    const span = spans[chosen], list = element("dl");
    const brief = span.details.filter((detail) => !LONG.has(detail[0]));
    for (const [name, value] of [...facts(span), ...brief]) list.append(element("dt", "", name), element("dd", "", value));
    const long = span.details.filter((detail) => LONG.has(detail[0])).flatMap(([name, value]) => [element("h3", "", name), element("pre", "", value)]);
    panel.replaceChildren(element("h2", "", span.name), list, ...long);
  }

  function select(index, seen = true) {
    chosen = index;
    const position = shown.findIndex((span) => span.index === index), top = position * ROW;
    if (seen && position >= 0) {
      if (top < grid.scrollTop) grid.scrollTop = top;
      else if (top + ROW > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + ROW - grid.clientHeight;
    }
    describe();
    draw();
  }

  function fold(span, folded) {
    if (!span.inner || span.folded === folded) return;
    span.folded = folded;
    choose();
  }

  function foldAll(folded) {
    for (const span of spans) span.folded = folded && span.inner > 0 && span.depth > 0;
    choose();
    grid.scrollTop = 0;
  }

  function look(start, end) {
    const width = Math.min(total, Math.max(end - start, Math.min(2, total)));
    from = Math.max(0, Math.min(start, total - width));
    to = from + width;
    draw();
  }
  const lookAt = (span) => look(span.start - span.took * 0.05, span.start + Math.max(span.took, 1) * 1.1);
  function zoom(factor) {
    const span = spans[chosen], middle = Math.min(to, Math.max(from, span.start + span.took / 2)), width = (to - from) * factor;
    look(middle - width / 2, middle + width / 2);
  }

  function move(by) {
    if (!shown.length) return;
    const position = shown.findIndex((span) => span.index === chosen);
    select(shown[Math.max(0, Math.min(shown.length - 1, position + by))].index);
  }
  function left() {
    const span = spans[chosen];
    if (span.inner && !span.folded) fold(span, true);
    else if (span.parent >= 0) select(span.parent);
  }
  function right() {
    const span = spans[chosen];
    if (span.inner && span.folded) fold(span, false);
    else if (span.inner) move(1);
  }
  const page = () => Math.max(1, Math.floor(grid.clientHeight / ROW) - 1);
  const keys = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), ArrowLeft: left, ArrowRight: right,
    PageDown: () => move(page()), PageUp: () => move(-page()), Home: () => move(-Infinity), End: () => move(Infinity),
    Enter: () => lookAt(spans[chosen]), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => look(0, total), "*": () => foldAll(false),
  };
  grid.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== search) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && event.target === search) {
      search.value = "";
      choose();
      grid.focus();
    }
  });

  const spanAt = (event) => event.target.closest?.(".row")?.span;
  grid.addEventListener("click", (event) => {
    const span = spanAt(event);
    if (!span) return;
    if (event.target.tagName === "U") fold(span, !span.folded);
    select(span.index, false);
  });
  grid.addEventListener("dblclick", (event) => spanAt(event) && event.target.tagName !== "U" && lookAt(spanAt(event)));
  grid.addEventListener("pointermove", (event) => {
    const span = event.pointerType === "mouse" ? spanAt(event) : undefined;
    tip.hidden = !span;
    if (!span) return;
    tip.textContent = span.name + "\n" + facts(span).map((fact) => fact.join(": ")).join("\n");
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = (event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
  });
  grid.addEventListener("pointerleave", () => { tip.hidden = true; });

  let waiting = 0;
  const soon = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; draw(); }); };
  grid.addEventListener("scroll", () => { tip.hidden = true; soon(); }, { passive: true });
  addEventListener("resize", soon);
  search.addEventListener("input", () => { grid.scrollTop = 0; choose(); });
  for (const box of document.querySelectorAll(".tools input[type=checkbox]")) box.addEventListener("change", choose);
  byId("unfold").addEventListener("click", () => foldAll(false));
  byId("fold").addEventListener("click", () => foldAll(true));
  byId("closer").addEventListener("click", () => zoom(0.5));
  byId("wider").addEventListener("click", () => zoom(2));
  byId("whole").addEventListener("click", () => look(0, total));

  // Thousands of rows say little at once: begin with the calls that the first agent made.
  if (spans.length > MANY) for (const span of spans) span.folded = span.inner > 0 && span.depth > 0;
  byId("waterfall").hidden = false;
  grid.style.height = Math.min(innerHeight * 0.68, 760, Math.max(130, spans.length * ROW + 8)) + "px";
  choose();
  describe();
})();
