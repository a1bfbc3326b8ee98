// How this browser shows the page: colours, size of the text, width of conversations, and what is opened.
import { signal } from "@preact/signals";

export interface Appearance {
  theme: "system" | "light" | "dark";
  size: "small" | "normal" | "large" | "largest";
  width: "normal" | "wide";
  wrapsCode: boolean;
  opensReasoning: boolean;
  opensCalls: boolean;
}

const DEFAULTS: Appearance = {
  theme: "system",
  size: "normal",
  width: "normal",
  wrapsCode: false,
  opensReasoning: false,
  opensCalls: false,
};
const KEY = "appearance";

function readStored(): Appearance {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Appearance>;
    return { ...DEFAULTS, ...stored };
  } catch {
    return DEFAULTS;
  }
}

export const appearance = signal(readStored());

function apply(): void {
  const { dataset } = document.documentElement;
  const { theme, size, width, wrapsCode } = appearance.value;
  if (theme === "system") delete dataset["theme"];
  else dataset["theme"] = theme;
  Object.assign(dataset, { size, width, code: wrapsCode ? "wrapped" : "scrolling" });
}

export function changeAppearance(changes: Partial<Appearance>): void {
  appearance.value = { ...appearance.value, ...changes };
  localStorage.setItem(KEY, JSON.stringify(appearance.value));
  apply();
}

export function switchTheme(): void {
  const { theme } = appearance.value;
  const isDark = theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
  changeAppearance({ theme: isDark ? "light" : "dark" });
}

// Applies the stored values, now and when another tab changes them.
export function startAppearance(): void {
  apply();
  addEventListener("storage", (event) => {
    if ((event as StorageEvent).key !== KEY) return;
    appearance.value = readStored();
    apply();
  });
}
