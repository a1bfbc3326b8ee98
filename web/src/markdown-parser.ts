// The Markdown parser of the page: CommonMark, tables, strikethrough, task lists and formulas. HTML is shown as text.
import MarkdownIt from "markdown-it";

const ALLOWED_LINK = /^(https?:|mailto:)/i;

const MAX_FORMULA = 5_000; // characters

// Returns where a text occurs next, from a position on. Many openings without an end would take quadratic time without
// the cache.
let searched = { source: "", places: {} as Record<string, number> };
function findNext(source: string, text: string, start: number): number {
  if (searched.source !== source) searched = { source, places: {} };
  const known = searched.places[text];
  if (known !== undefined && (known < 0 || known >= start)) return known;
  return (searched.places[text] = source.indexOf(text, start));
}

function findFormula(source: string, start: number): { content: string; length: number; isDisplay: boolean } | null {
  const opening = source.slice(start, start + 2);
  if (opening === "\\(" || opening === "\\[") {
    const end = findNext(source, opening === "\\(" ? "\\)" : "\\]", start + 2);
    if (end <= start + 2 || end - start > MAX_FORMULA) return null;
    const content = source.slice(start + 2, end);
    return opening === "\\(" && content.includes("\n")
      ? null
      : { content, length: end + 2 - start, isDisplay: opening === "\\[" };
  }
  if (opening[0] !== "$") return null;
  const text = source.slice(start, start + MAX_FORMULA);
  const display = /^\$\$([^$]+)\$\$/.exec(text);
  const match = display ?? /^\$(?![\s\d])([^$\n]*[^\s$\\])\$(?!\d)/.exec(text);
  return match && { content: match[1]!, length: match[0].length, isDisplay: Boolean(display) };
}

export function createParser(): InstanceType<typeof MarkdownIt> {
  const parser = new MarkdownIt({ html: false, linkify: true, breaks: false });
  parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
  parser.validateLink = (url) => ALLOWED_LINK.test(url.trim()) || /^data:image\/(png|jpe?g|gif|webp);/i.test(url);

  // The page loads nothing from other servers: a remote image becomes a link to it.
  parser.renderer.rules.image = (tokens, index) => {
    const token = tokens[index]!;
    const source = String(token.attrGet("src") ?? "");
    const label = parser.utils.escapeHtml(token.content || "image");
    if (source.startsWith("data:")) return `<img src="${parser.utils.escapeHtml(source)}" alt="${label}">`;
    return `<a href="${parser.utils.escapeHtml(source)}">image: ${label}</a>`;
  };

  parser.core.ruler.after("inline", "task_list", (state) => {
    state.tokens.forEach((token, index) => {
      const first = token.children?.[0];
      if (token.type !== "inline" || first?.type !== "text" || state.tokens[index - 2]?.type !== "list_item_open")
        return;
      const match = /^\[([ xX])\] /.exec(first.content);
      if (!match) return;
      first.content = first.content.slice(4);
      const box = new state.Token("task_box", "", 0);
      box.meta = { checked: match[1] !== " " };
      token.children!.unshift(box);
      state.tokens[index - 2]!.attrJoin("class", "task");
    });
  });
  // The strict content security policy forbids style attributes.
  for (const rule of ["th_open", "td_open"] as const) {
    parser.renderer.rules[rule] = (tokens, index) => {
      const align = /text-align:\s*(\w+)/.exec(String(tokens[index]!.attrGet("style") ?? ""))?.[1];
      return `<${tokens[index]!.tag}${align ? ` class="${align}"` : ""}>`;
    };
  }
  parser.renderer.rules["task_box"] = (tokens, index) =>
    `<input type="checkbox" disabled${tokens[index]!.meta?.["checked"] ? " checked" : ""}> `;

  // Formulas: $…$ and \(…\) in a line, $$…$$ and \[…\] as a display. A dollar sign before a space or a digit is money.
  parser.inline.ruler.before("escape", "formula", (state, silent) => {
    const found = findFormula(state.src, state.pos);
    if (!found) return false;
    if (!silent) {
      const token = state.push("formula", "", 0);
      token.content = found.content;
      token.meta = { display: found.isDisplay };
    }
    state.pos += found.length;
    return true;
  });
  parser.renderer.rules["formula"] = (tokens, index) => {
    const token = tokens[index]!;
    return `<span class="formula${token.meta?.["display"] ? " display" : ""}">${parser.utils.escapeHtml(token.content)}</span>`;
  };
  return parser;
}
