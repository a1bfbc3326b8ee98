// The Markdown parser of the page: CommonMark, tables, strikethrough, task lists and formulas. HTML is shown as text.
import MarkdownIt from "markdown-it";

const ALLOWED_LINK = /^(https?:|mailto:)/i;

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
    return `<a href="${parser.utils.escapeHtml(source)}">🖼 ${label}</a>`;
  };

  parser.core.ruler.after("inline", "task_list", (state) => {
    state.tokens.forEach((token, index) => {
      const first = token.children?.[0];
      if (token.type !== "inline" || first?.type !== "text" || state.tokens[index - 2]?.type !== "list_item_open") return;
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
    const rest = state.src.slice(state.pos);
    const match =
      /^\$\$([^$]+)\$\$/.exec(rest) ?? /^\$(?![\s\d])([^$\n]*[^\s$\\])\$(?!\d)/.exec(rest) ??
      /^\\\(([^\n]+?)\\\)/.exec(rest) ?? /^\\\[([^]+?)\\\]/.exec(rest);
    if (!match) return false;
    if (!silent) {
      const token = state.push("formula", "", 0);
      token.content = match[1]!;
      token.meta = { display: match[0].startsWith("$$") || match[0].startsWith("\\[") };
    }
    state.pos += match[0].length;
    return true;
  });
  parser.renderer.rules["formula"] = (tokens, index) => {
    const token = tokens[index]!;
    return `<span class="formula${token.meta?.["display"] ? " display" : ""}">${parser.utils.escapeHtml(token.content)}</span>`;
  };
  return parser;
}
