// Highlights code in a worker: some texts take a grammar very long, and the page ends the worker then.
import hljs from "highlight.js/lib/common";

export interface HighlightRequest {
  id: number;
  text: string;
  language: string;
}

onmessage = ({ data: { id, text, language } }: MessageEvent<HighlightRequest>) => {
  const html = hljs.getLanguage(language) ? hljs.highlight(text, { language, ignoreIllegals: true }).value : null;
  postMessage({ id, html });
};
