/** Numbers and times as a person reads them. */
const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A number with about three significant digits; "–" for null. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(1).replace("e+", "e");
  if (Number.isInteger(value) || size >= 1000) return whole.format(value);
  return size < 10 ? value.toFixed(3) : plain.format(value);
}

/** The same with a sign, and a true minus. */
export const signed = (value) =>
  value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + number(value).replace("-", "−");

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

/** "8 ms", "95 s", "12 min", "3.5 h", "4 d" */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.1) return `${Math.ceil(1000 * seconds)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const ago = (unixSeconds) => `${duration(Math.max(0, Date.now() / 1000 - unixSeconds))} ago`;

/** How long a job takes, or its place in the queue; null if neither is known. */
export function left({ estimated_finish: finish, weir: { place } }) {
  if (finish) return `${duration(Math.max(0, finish - Date.now() / 1000))} left`;
  return place ? `${place}. in the queue` : null;
}

const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
export const moment = (unixSeconds) => clock.format(new Date(unixSeconds * 1000));

/** "response_length" as "response length" */
export const words = (name) => name.replaceAll("_", " ");
