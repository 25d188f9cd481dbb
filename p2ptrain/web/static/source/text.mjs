// Texts and numbers for users. Strings of peers are hostile: `clean` makes them inert and short.

const NAME_MAX = 48;
const TEXT_MAX = 4000;

// Control characters, marks that change the direction of text, and characters without width.
// Line breaks and tabs are kept where the caller shows several lines.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;
// More than two combining marks in a row would cover the neighbouring lines.
const STACKED = /(\p{M}{2})\p{M}+/gu;

export function clean(value, max = TEXT_MAX) {
  if (value === null || value === undefined) return "";
  // Cut first, so that the expressions read a bounded text.
  const text = String(value).slice(0, 4 * max).replace(HIDDEN, "\ufffd").replace(STACKED, "$1");
  const signs = Array.from(text.slice(0, 2 * max + 2));
  return signs.length > max ? signs.slice(0, max - 1).join("") + "…" : signs.join("");
}

// A name or a short note: one line.
export function short(value, max = NAME_MAX) {
  return clean(value, max).replace(/[\n\t]+/g, " ");
}

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export const NONE = "–";

export function fixed(value, digits) {
  return known(value) ? value.toFixed(digits).replace("-", "−") : NONE;
}

// Three significant digits and a unit: 1.41 G, 129 k, 42.
export function count(value) {
  if (!known(value)) return NONE;
  for (const [size, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(value) >= size * 0.9995) return digits3(value / size) + unit;
  }
  return digits3(value);
}

function digits3(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

// The label of a tick: 1.2 G instead of 1.20 G.
export function tick(value) {
  return count(value).replace(/\.0+(?= |$)|(\.\d*?)0+(?= |$)/, "$1");
}

export function bytes(value) {
  if (!known(value)) return NONE;
  const text = count(value);
  return text.includes(" ") ? text.replace(" k", " kB").replace(/ ([MGT])$/, " $1B") : text + " B";
}

export function bits(bytesPerSecond) {
  if (!known(bytesPerSecond)) return NONE;
  const text = count(8 * bytesPerSecond);
  return text.includes(" ") ? text.replace(/ ([kMGT])$/, " $1bit/s") : text + " bit/s";
}

export function percent(fraction, digits = 1) {
  return known(fraction) ? (100 * fraction).toFixed(digits) + " %" : NONE;
}

export function small(value) {
  if (!known(value)) return NONE;
  if (value !== 0 && Math.abs(value) < 1e-3) {
    const [digits, power] = value.toExponential(1).split("e");
    return `${digits}·10${raised(Number(power))}`;
  }
  return String(Number(value.toPrecision(3)));
}

function raised(power) {
  return Array.from(String(power), (sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
}

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  const whole = Math.round(seconds);
  if (whole < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  if (whole < 120) return `${whole} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// An age, in whole seconds at the beginning: it changes every second.
export function age(seconds) {
  return known(seconds) && seconds < 119.5 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds);
}

function two(number) {
  return String(number).padStart(2, "0");
}

// Local time of day, always with 24 hours: 16:24:02.
export function clock(unixSeconds, withSeconds = true) {
  if (!known(unixSeconds)) return NONE;
  const date = new Date(1000 * unixSeconds);
  return two(date.getHours()) + ":" + two(date.getMinutes()) + (withSeconds ? ":" + two(date.getSeconds()) : "");
}

// Day and time: 11-26 16:24.
export function dayAndTime(unixSeconds) {
  if (!known(unixSeconds)) return NONE;
  const date = new Date(1000 * unixSeconds);
  return `${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(unixSeconds, false)}`;
}

export function plural(number, noun) {
  return `${known(number) ? number : NONE} ${noun}${number === 1 ? "" : "s"}`;
}

export function listed(words) {
  if (words.length < 2) return words.join("");
  return words.slice(0, -1).join(", ") + " and " + words[words.length - 1];
}
