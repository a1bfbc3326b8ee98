import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";
import { createParser } from "../src/markdown-parser";

interface SpecExample {
  markdown: string;
  html: string;
  number: number;
}

const { tests: examples } = createRequire(process.env["PAGE_SOURCES"]!)("commonmark-spec") as { tests: SpecExample[] };

// Differences of spelling that no reader sees: empty elements, entities and white space between blocks.
function normalize(html: string): string {
  return html
    .replace(/<(br|hr|img)([^>]*?)\s*\/?>/g, "<$1$2>")
    .replaceAll("&quot;", '"')
    .replaceAll(/>\s+</g, "><")
    .trim();
}

function countPassed(render: (markdown: string) => string): { passed: number; failed: number[] } {
  const failed: number[] = [];
  for (const { markdown, html, number } of examples) {
    if (normalize(render(markdown.replaceAll("→", "\t"))) !== normalize(html.replaceAll("→", "\t")))
      failed.push(number);
  }
  return { passed: examples.length - failed.length, failed };
}

test("the grammar of the page's parser is CommonMark", (context) => {
  const parser = createParser();
  parser.set({ html: true, xhtmlOut: true, linkify: false });
  parser.validateLink = () => true;
  parser.renderer.rules.image = (tokens, index, options, environment, self) => {
    const token = tokens[index]!;
    token.attrSet("alt", self.renderInlineAsText(token.children!, options, environment));
    return self.renderToken(tokens, index, options);
  };
  const { passed, failed } = countPassed((markdown) => parser.render(markdown));
  context.diagnostic(`${passed} of ${examples.length} examples; others: ${failed.join(", ")}`);
  assert.ok(passed >= 640, `only ${passed} of ${examples.length} examples pass; others: ${failed.join(", ")}`);
});

test("the parser as it is used differs only by its rules for HTML, links and images", (context) => {
  const parser = createParser();
  parser.set({ xhtmlOut: true });
  const { passed } = countPassed((markdown) => parser.render(markdown));
  const withoutPolicy = examples.filter(
    ({ html, markdown }) =>
      !/<(?!\/?(p|h\d|ul|ol|li|em|strong|code|pre|blockquote|hr|br|a|img)\b)/.test(html) &&
      !/<|\]\(|\]\[|\]:|\[.*\]|https?:/.test(markdown),
  );
  const parserPlain = createParser();
  parserPlain.set({ xhtmlOut: true });
  const wrong = withoutPolicy.filter(
    ({ markdown, html }) =>
      normalize(parserPlain.render(markdown.replaceAll("→", "\t"))) !== normalize(html.replaceAll("→", "\t")),
  );
  context.diagnostic(
    `${passed} of ${examples.length} examples as used; ${withoutPolicy.length - wrong.length} of ${withoutPolicy.length} without HTML, links and images; others: ${wrong.map(({ number }) => number).join(", ")}`,
  );
  assert.deepEqual(
    wrong.map(({ number }) => number),
    [],
  );
});

test("formulas are found, and text with many openings is parsed in time", () => {
  const parser = createParser();
  const render = (text: string): string => parser.render(text).trim();
  assert.equal(render("\\(a\\) $b$ \\(\\)"), '<p><span class="formula">a</span> <span class="formula">b</span> ()</p>');
  assert.equal(render("\\[a\nb\\]"), '<p><span class="formula display">a\nb</span></p>');
  assert.equal(render("\\(a\nb\\) $5 and $6"), "<p>(a\nb) $5 and $6</p>");
  const begun = performance.now();
  for (const opening of ["\\(", "\\[", "$a", "$$a"]) parser.render(opening.repeat(50_000));
  assert.ok(performance.now() - begun < 10_000);
});
