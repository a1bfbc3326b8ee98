// Searches a built site with the search program of the site itself, as a browser does.
//
//   node scripts/search-site.mjs build/site < questions.json     a list of strings; prints a list of lists of locations
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const site = process.argv[2];
const workers = join(site, "assets/javascripts/workers");
const program = readdirSync(workers).find((name) => /^search\..*\.js$/.test(name));
let listener;
let answer;
const context = vm.createContext({
  console,
  addEventListener: (_, handler) => (listener = handler),
  postMessage: (message) => answer(message),
});
context.self = context;
vm.runInContext(readFileSync(join(workers, program), "utf8"), context);

const ask = (data) => new Promise((resolve) => ((answer = resolve), listener({ data })));
const index = JSON.parse(readFileSync(join(site, "search/search_index.json"), "utf8"));
await ask({ type: 0, data: { config: index.config, docs: index.docs, options: {} } });
const found = [];
for (const question of JSON.parse(readFileSync(0, "utf8"))) {
  const { data } = await ask({ type: 2, data: question });
  // Each item is a page: its sections, the best one first.
  found.push(data.items.map((sections) => sections[0].location));
}
process.stdout.write(JSON.stringify(found));
