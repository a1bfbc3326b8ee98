import { render } from "preact";
import { App } from "./app";
import type { PageChoices } from "./composer";
import { setCredential } from "./api";
import { feed } from "./feed";
import { startNotifications } from "./notifications";

const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset["theme"] = theme;
const choices = JSON.parse(document.getElementById("choices")!.textContent) as PageChoices;
const signIn = /^#\/sign-in\/([\w-]+)$/.exec(location.hash);
if (signIn) {
  localStorage.setItem("credential", signIn[1]!);
  setCredential(signIn[1]!);
  history.replaceState(null, "", "/");
}
feed.start();
startNotifications();
render(<App choices={choices} />, document.getElementById("app")!);
