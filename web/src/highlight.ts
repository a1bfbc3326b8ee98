// Syntax highlighting, loaded when the first code block with a language is shown.
import hljs from "highlight.js/lib/common";

export function highlightCode(text: string, language: string): string | null {
  return hljs.getLanguage(language) ? hljs.highlight(text, { language, ignoreIllegals: true }).value : null;
}
