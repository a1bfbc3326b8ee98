import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { test } from "node:test";
import { formatBytes, formatCost, formatDuration, formatElapsed, formatTokens } from "../src/formats";

// tests/unit/presentation/test_formats.py runs the same cases.
const FORMATS: Record<string, (value: number) => string> = {
  duration: formatDuration,
  elapsed: formatElapsed,
  cost: formatCost,
  tokens: formatTokens,
  bytes: formatBytes,
};
const cases = JSON.parse(
  await readFile(path.join(path.dirname(process.env.PAGE_SOURCES!), "test/format-cases.json"), "utf8"),
) as Record<string, [number | string, string][]>;

for (const [name, rows] of Object.entries(cases)) {
  test(`the page writes each ${name} as the other front ends do`, () => {
    for (const [value, text] of rows) assert.equal(FORMATS[name]!(Number(value)), text);
  });
}
