// Numbers as people read them, always with their unit.

const THIN = "\u202f";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 12,345 */
export const count = (n) => (n === null || n === undefined ? "–" : grouped.format(n));

/** Seconds as µs, ms or s, three digits. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds >= 120) return `${(seconds / 60).toFixed(1)}${THIN}min`;
  if (seconds >= 1) return `${digits(seconds)}${THIN}s`;
  if (seconds === 0) return `0${THIN}ms`;
  if (seconds >= 1e-3) return `${digits(seconds * 1e3)}${THIN}ms`;
  return `${digits(seconds * 1e6)}${THIN}µs`;
}

/** Three significant digits, none lost before the point. */
export function digits(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 100) return grouped.format(Math.round(value));
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export const rate = (value, unit) => `${value === null ? "–" : digits(value)}${THIN}${unit}`;

export const percent = (share) =>
  Number.isFinite(share) ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}${THIN}%` : "–";

/** A count with its noun, singular or plural. */
export const some = (n, singular, plural = `${singular}s`) => `${count(n)} ${n === 1 ? singular : plural}`;

/** Time of day with milliseconds, from seconds since 1970. */
export function clockTime(unixS, { milliseconds = true } = {}) {
  const date = new Date(unixS * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return milliseconds ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}` : time;
}

/** The end of a request id, enough to tell neighbours apart. */
export function shortId(requestId) {
  const parts = requestId.split("-");
  const tail = parts.length > 1 && parts.at(-1).length < 4 ? parts.slice(-2).join("-") : parts.at(-1);
  return tail.length > 8 ? tail.slice(-8) : tail;
}

/** Bytes as B, kB, MB or GB, three digits. */
export function bytes(n) {
  if (n < 1000) return `${n}${THIN}B`;
  if (n < 1e6) return `${digits(n / 1e3)}${THIN}kB`;
  return n < 1e9 ? `${digits(n / 1e6)}${THIN}MB` : `${digits(n / 1e9)}${THIN}GB`;
}
