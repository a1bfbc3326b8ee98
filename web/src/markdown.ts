// Markdown to DOM nodes. HTML in the text is shown as text; the generated HTML passes the sanitiser before it is used.
import DOMPurify from "dompurify";
import type { Token } from "markdown-it";
import { highlightCode } from "./highlight";
import { createParser } from "./markdown-parser";

const parser = createParser();

const CLEAN = {
  RETURN_DOM_FRAGMENT: true as const,
  FORBID_TAGS: ["style", "form", "svg", "math"],
  FORBID_ATTR: ["style"],
  ALLOW_DATA_ATTR: false,
};

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

// Sizes and macros are limited: a formula cannot cover the page or take long.
const FORMULA_OPTIONS = { output: "mathml", throwOnError: false, trust: false, maxSize: 10, maxExpand: 200 } as const;
const CLEAN_FORMULA = {
  RETURN_DOM_FRAGMENT: true as const,
  USE_PROFILES: { html: true, mathMl: true },
  ADD_TAGS: ["semantics", "annotation"],
  FORBID_TAGS: ["a", "img", "form", "input", "button", "style"],
  FORBID_ATTR: ["style", "href", "src", "id", "name"],
};

async function renderFormulas(elements: HTMLElement[]): Promise<void> {
  const { default: katex } = await import("katex");
  for (const element of elements) {
    const html = katex.renderToString(element.textContent, {
      ...FORMULA_OPTIONS,
      displayMode: element.classList.contains("display"),
    });
    // The policy reports style attributes as soon as HTML with them is parsed.
    element.replaceChildren(DOMPurify.sanitize(html.replace(/ style="[^"]*"/g, ""), CLEAN_FORMULA));
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
  const html = await highlightCode(text, language);
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
