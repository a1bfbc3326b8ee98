import { render } from "preact";
import { App } from "./app";
import type { PageChoices } from "./composer";
import { feed } from "./feed";

const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset["theme"] = theme;
const choices = JSON.parse(document.getElementById("choices")!.textContent) as PageChoices;
feed.start();
render(<App choices={choices} />, document.getElementById("app")!);
