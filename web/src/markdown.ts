// Markdown to DOM nodes. HTML in the text is shown as text; the generated HTML passes the sanitiser before it is used.
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import type { Token } from "markdown-it";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: false });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
const ALLOWED_LINK = /^(https?:|mailto:)/i;
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

const CLEAN = { RETURN_DOM_FRAGMENT: true as const, FORBID_TAGS: ["style", "form", "svg", "math"], FORBID_ATTR: ["style"], ALLOW_DATA_ATTR: false };

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

// `isGrowing` is set for blocks that are rendered again soon: highlighting and formulas wait for their end.
function renderTokens(tokens: Token[], isGrowing = false): DocumentFragment {
  const fragment = DOMPurify.sanitize(parser.renderer.render(tokens, parser.options, {}), CLEAN);
  for (const pre of fragment.querySelectorAll("pre")) decorateCode(pre, isGrowing);
  for (const table of fragment.querySelectorAll("table")) {
    const scroller = document.createElement("div");
    scroller.className = "table";
    scroller.tabIndex = 0;
    table.replaceWith(scroller);
    scroller.append(table);
  }
  const formulas = fragment.querySelectorAll<HTMLElement>("span.formula");
  if (formulas.length && !isGrowing) void renderFormulas([...formulas]);
  return fragment;
}

async function renderFormulas(elements: HTMLElement[]): Promise<void> {
  const { default: katex } = await import("katex");
  for (const element of elements) {
    katex.render(element.textContent, element, {
      output: "mathml",
      throwOnError: false,
      displayMode: element.classList.contains("display"),
    });
  }
}

function decorateCode(pre: HTMLPreElement, isGrowing: boolean): void {
  const code = pre.querySelector("code") ?? pre;
  const language = /language-([\w+#-]+)/.exec(code.className)?.[1] ?? "";
  const frame = document.createElement("div");
  frame.className = "code";
  const bar = document.createElement("div");
  bar.className = "code-bar";
  const label = document.createElement("span");
  label.textContent = language;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.textContent = "Copy";
  copy.setAttribute("aria-label", language ? `Copy the ${language} code` : "Copy the code");
  bar.append(label, copy);
  pre.tabIndex = 0;
  pre.replaceWith(frame);
  frame.append(bar, pre);
  if (language && !isGrowing) void highlightElement(code as HTMLElement, language);
}

const MAX_HIGHLIGHTED = 60_000; // characters

export async function highlightElement(code: HTMLElement, language: string): Promise<void> {
  const text = code.textContent;
  if (text.length > MAX_HIGHLIGHTED) return;
  const { highlightCode } = await import("./highlight");
  const html = highlightCode(text, language);
  if (html !== null && code.textContent === text) code.replaceChildren(DOMPurify.sanitize(html, CLEAN));
}

// One listener for all copy buttons of the page.
document.addEventListener("click", (event) => {
  const button = (event.target as Element | null)?.closest<HTMLButtonElement>("button.copy");
  const text = button?.closest(".code")?.querySelector("pre")?.textContent;
  if (button && text !== undefined) void copyText(text, button);
});

export async function copyText(text: string, button?: HTMLElement): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // without a secure context there is no clipboard API
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  if (!button) return;
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1500);
}

// Renders a text that grows. Blocks that can no longer change are rendered once; only the text after them is parsed
// again. A text that does not continue the previous one is rendered from its beginning.
export class MarkdownRenderer {
  private text = "";
  private stable = 0; // characters that are rendered for good
  private tail: Node[] = [];

  constructor(private readonly element: HTMLElement) {}

  update(text: string, isFinal: boolean): void {
    if (!text.startsWith(this.text) || (isFinal && this.stable > 0)) {
      this.element.replaceChildren();
      this.stable = 0;
      this.tail = [];
    }
    this.text = text;
    const rest = text.slice(this.stable);
    const environment = {};
    const tokens = parser.parse(rest, environment);
    const blocks = topLevelBlocks(tokens);
    for (const node of this.tail) (node as ChildNode).remove();
    if (!isFinal && blocks.length > 2) {
      const keep = blocks.at(-2)!; // the last but one may still be continued, for example a list
      this.element.append(renderTokens(tokens.slice(0, keep.index)));
      this.stable += lineOffset(rest, keep.line);
      const fragment = renderTokens(tokens.slice(keep.index), true);
      this.tail = [...fragment.childNodes];
      this.element.append(fragment);
    } else {
      const fragment = renderTokens(tokens, !isFinal);
      this.tail = [...fragment.childNodes];
      this.element.append(fragment);
    }
  }
}

function topLevelBlocks(tokens: Token[]): { index: number; line: number }[] {
  const blocks: { index: number; line: number }[] = [];
  tokens.forEach((token, index) => {
    if (token.level === 0 && token.nesting >= 0 && token.map) blocks.push({ index, line: token.map[0] });
  });
  return blocks;
}

function lineOffset(text: string, line: number): number {
  let offset = 0;
  for (; line > 0; line -= 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}
