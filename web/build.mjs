// Builds the page into src/outrider/server/page. With --verify it builds into memory and reports files that differ.
import { createHash } from "node:crypto";
import { readdir, readFile, rm, writeFile, mkdir } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const target = path.join(here, "../src/outrider/server/page");

// The digest of everything that decides what the bundle contains; the Python tests compare it without Node.
async function digestSources() {
  const names = [
    ...(await readdir(path.join(here, "src"))).map((name) => `src/${name}`),
    "index.html",
    "style.css",
    "icon.svg",
    "icon-waiting.svg",
    "package-lock.json",
    "build.mjs",
  ].sort();
  const hash = createHash("sha256");
  for (const name of names)
    hash
      .update(name)
      .update("\0")
      .update(await readFile(path.join(here, name)))
      .update("\0");
  return hash.digest("hex");
}

// The notices of the libraries in the bundle.
async function collectLicenses() {
  const { packages } = JSON.parse(await readFile(path.join(here, "package-lock.json"), "utf8"));
  const notices = [];
  for (const [place, { version, license, dev }] of Object.entries(packages)) {
    if (!place || dev) continue;
    const folder = path.join(here, place);
    const name = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
    const text = name ? await readFile(path.join(folder, name), "utf8") : "";
    notices.push(`${place.replace("node_modules/", "")} ${version} (${license})\n\n${text.trim()}\n`);
  }
  return notices.join(`\n${"-".repeat(80)}\n\n`);
}

async function makeFiles() {
  const { outputFiles } = await build({
    absWorkingDir: here,
    entryPoints: {
      app: "src/main.tsx",
      "feed-worker": "src/feed-worker.ts",
      "highlight-worker": "src/highlight-worker.ts",
    },
    outdir: target,
    bundle: true,
    splitting: true,
    format: "esm",
    target: "es2022",
    minify: true,
    legalComments: "eof",
    jsx: "automatic",
    jsxImportSource: "preact",
    chunkNames: "chunk-[hash]",
    write: false,
  });
  const files = new Map(outputFiles.map((file) => [path.relative(target, file.path), Buffer.from(file.contents)]));
  for (const name of ["index.html", "style.css", "icon.svg", "icon-waiting.svg"])
    files.set(name, await readFile(path.join(here, name)));
  files.set("licenses.txt", Buffer.from(await collectLicenses()));
  files.set("sources.txt", Buffer.from(`${await digestSources()}\n`));
  return files;
}

const files = await makeFiles();
if (process.argv.includes("--verify")) {
  const present = new Set(await readdir(target));
  const different = [];
  for (const [name, content] of files) {
    if (!present.delete(name) || !content.equals(await readFile(path.join(target, name)))) different.push(name);
  }
  different.push(...present);
  if (different.length) {
    console.error(`the bundle does not match the sources: ${different.join(", ")}; run \`make page\``);
    process.exit(1);
  }
} else {
  await rm(target, { recursive: true, force: true });
  await mkdir(target, { recursive: true });
  for (const [name, content] of files) await writeFile(path.join(target, name), content);
  const size = [...files].map(([name, content]) => `${name} ${Math.round(content.length / 1024)} KB`);
  console.log(size.join("\n"));
}
