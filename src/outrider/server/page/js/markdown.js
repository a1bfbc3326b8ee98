// Markdown as elements: what models write most. Anything else stays the text that it is.
import { h } from "./dom.js";

export function markdown(text) {
  const root = h("div", { class: "markdown" });
  for (const block of blocks(text)) root.append(block);
  return root;
}

function* blocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = line.match(/^\s*(```+|~~~+)\s*([\w+#.-]*)/);
    if (fence) {
      const start = ++at;
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) at++;
      yield h("pre", {}, h("code", { "data-language": fence[2] }, lines.slice(start, at).join("\n")));
      at++;
      continue;
    }
    const heading = line.match(/^(#{1,6})\s+(.*)/);
    if (heading) {
      yield h(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
      at++;
      continue;
    }
    if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      yield h("hr");
      at++;
      continue;
    }
    if (/^\s*>/.test(line)) {
      const start = at;
      while (at < lines.length && /^\s*>/.test(lines[at])) at++;
      yield h("blockquote", {}, ...blocks(lines.slice(start, at).map((one) => one.replace(/^\s*> ?/, "")).join("\n")));
      continue;
    }
    if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      const start = at;
      while (at < lines.length && (/^\s*([-*+]|\d+[.)])\s+/.test(lines[at]) || (/^\s+\S/.test(lines[at]) && lines[at].trim()))) at++;
      yield list(lines.slice(start, at));
      continue;
    }
    if (line.includes("|") && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(lines[at + 1] ?? "")) {
      const start = at;
      while (at < lines.length && lines[at].includes("|")) at++;
      yield table(lines.slice(start, at));
      continue;
    }
    if (!line.trim()) {
      at++;
      continue;
    }
    const start = at;
    while (at < lines.length && lines[at].trim() && (at === start || !/^\s*(```|~~~|#{1,6}\s|>|[-*+]\s|\d+[.)]\s)/.test(lines[at]))) at++;
    yield h("p", {}, ...inline(lines.slice(start, at).join("\n")));
  }
}

function list(lines) {
  const numbered = /^\s*\d/.test(lines[0]);
  const indent = lines[0].match(/^\s*/)[0].length;
  const items = [];
  for (const line of lines) {
    const mark = line.match(/^(\s*)([-*+]|\d+[.)])\s+(.*)/);
    if (mark && mark[1].length <= indent) items.push({ text: mark[3], inner: [] });
    else items[items.length - 1]?.inner.push(line);
  }
  const made = items.map(({ text, inner }) => h("li", {}, ...inline(text), ...(inner.length ? blocks(inner.map((one) => one.slice(Math.min(indent + 2, one.search(/\S/)))).join("\n")) : [])));
  return h(numbered ? "ol" : "ul", {}, ...made);
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const [head, , ...rows] = lines;
  return h("table", {},
    h("thead", {}, h("tr", {}, ...cells(head).map((cell) => h("th", {}, ...inline(cell))))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells(row).map((cell) => h("td", {}, ...inline(cell)))))));
}

const MARKS = /(`+)([\s\S]+?)\1|\*\*([^*]+?)\*\*|(?<![\w*])\*([^*\s][^*]*?)\*(?!\w)|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>()"']+[^\s<>()"'.,;:!?])/g;

function inline(text) {
  const made = [];
  let last = 0;
  for (const found of text.matchAll(MARKS)) {
    if (found.index > last) made.push(text.slice(last, found.index));
    const [whole, , code, strong, soft, label, address, bare] = found;
    if (code !== undefined) made.push(h("code", {}, code.trim()));
    else if (strong !== undefined) made.push(h("strong", {}, ...inline(strong)));
    else if (soft !== undefined) made.push(h("em", {}, ...inline(soft)));
    else made.push(h("a", { href: address ?? bare, rel: "noreferrer noopener nofollow", target: "_blank" }, label ?? bare));
    last = found.index + whole.length;
  }
  if (last < text.length) made.push(text.slice(last));
  return made;
}
