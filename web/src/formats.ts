// Numbers as people read them, in the forms of presentation/formats.py. Where a payload has a text in `view`, show that
// one; these are for values that the page computes or that change while it is open. test/format-cases.json has the
// cases that both implementations pass.
export function formatDuration(milliseconds: number): string {
  const seconds = Math.max(milliseconds, 0) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
  if (seconds < 59.5) return `${Math.round(seconds)}s`;
  const whole = Math.round(seconds);
  const pad = (number: number): string => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h ${pad(Math.floor((whole % 3600) / 60))}m`;
}

// The duration of something that still runs, in whole seconds.
export const formatElapsed = (seconds: number): string =>
  seconds < 60 ? `${Math.floor(seconds)}s` : formatDuration(Math.floor(seconds) * 1000);

export function formatCost(dollars: number): string {
  if (!dollars) return "$0.00";
  if (dollars < 0.0001) return "<$0.0001";
  if (dollars < 1) return `$${dollars.toFixed(4)}`;
  return `$${dollars.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}

export const formatTokens = (count: number): string => scale(count, ["", "k", "M", "G"]);

// A kilobyte has 1,000 bytes.
export const formatBytes = (count: number): string => scale(count, [" B", " kB", " MB", " GB"]);

function scale(number: number, units: [string, string, string, string]): string {
  if (number < 1000) return `${number}${units[0]}`;
  if (number >= 1e9) return `${(number / 1e9).toFixed(1)}${units[3]}`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)}${units[2]}`;
  return number < 99_950 ? `${(number / 1000).toFixed(1)}${units[1]}` : `${Math.floor(number / 1000)}${units[1]}`;
}
