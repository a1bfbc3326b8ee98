import { render } from "preact";
import { App } from "./app";
import { startAppearance } from "./appearance";
import type { PageChoices } from "./composer";
import { storeCredential } from "./api";
import { feed } from "./feed";
import { startNotifications } from "./notifications";

startAppearance();
const choices = JSON.parse(document.getElementById("choices")!.textContent) as PageChoices;
const signIn = /^#\/sign-in\/([\w-]+)$/.exec(location.hash);
if (signIn) {
  storeCredential(signIn[1]!);
  history.replaceState(null, "", location.pathname);
}
feed.start();
startNotifications();
render(<App choices={choices} />, document.getElementById("app")!);
