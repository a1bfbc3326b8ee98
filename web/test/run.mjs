// Bundles the tests and runs them with Node's test runner.
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const output = await mkdtemp(path.join(tmpdir(), "outrider-page-"));
const tests = (await readdir(here)).filter((name) => name.endsWith(".test.ts")).map((name) => path.join(here, name));
await build({
  entryPoints: tests,
  outdir: output,
  bundle: true,
  platform: "node",
  format: "esm",
  outExtension: { ".js": ".mjs" },
  logLevel: "error",
});
const result = spawnSync(process.execPath, ["--test", output + path.sep], {
  stdio: "inherit",
  cwd: output,
  env: { ...process.env, PAGE_SOURCES: path.join(here, "../package.json") },
});
await rm(output, { recursive: true });
process.exit(result.status ?? 1);
