/** How tokens are coloured: which number, on which scale. Pure. */

const LEVELS = 8;
const ALMOST_ALL = 0.99; // of the values lie on the scale: a few beyond it would bleach all others

const negated = (values) => values.map((value) => (value === null ? null : -value));
const gaps = ({ logprobs, behavior_logprobs: behavior }) =>
  logprobs &&
  behavior?.map((value, token) =>
    logprobs[token] === null || value === null ? null : Math.abs(logprobs[token] - value),
  );

/** What tokens can be coloured by. `values` of a response: [token], null where nothing is known. */
export const SHADINGS = {
  advantage: { text: "advantage", unit: "", diverges: true, values: (response) => response.token_advantages },
  surprise: {
    text: "surprise",
    unit: "nats",
    values: ({ behavior_logprobs: behavior }) => behavior && negated(behavior),
  },
  logprob: { text: "learner's −log-prob", unit: "nats", values: ({ logprobs }) => logprobs && negated(logprobs) },
  entropy: { text: "entropy", unit: "nats", values: ({ entropies }) => entropies },
  parity: { text: "parity gap", unit: "nats", values: gaps },
};

/** Whether a token is a tool's or the environment's, so that no number is known of it. */
export const isForeign = ({ behavior_logprobs: behavior, logprobs }, token) => (behavior ?? logprobs)?.[token] === null;

/** The largest value that a scale shows, over all responses: its end. */
export function scaleEnd(responses, shading) {
  const sizes = responses
    .flatMap((response) => shading.values(response) ?? [])
    .filter((value) => value !== null)
    .map(Math.abs);
  if (!sizes.length) return null;
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(ALMOST_ALL * (sizes.length - 1))] || sizes.at(-1);
}

/** The class of a token's colour: up1…up8, down1…down8 where values may be negative, else at1…at8. */
export function levelClass(value, end, { diverges }) {
  if (value === null || value === undefined || !end) return "";
  const level = Math.min(LEVELS, Math.round((Math.abs(value) / end) * LEVELS));
  if (!level) return "";
  return `${diverges ? (value > 0 ? "up" : "down") : "at"}${level}`;
}

/** The classes of a legend from one end of the scale to the other. */
export function legendClasses({ diverges }) {
  const levels = Array.from({ length: LEVELS }, (_, place) => place + 1);
  return diverges
    ? [...levels.map((level) => `down${level}`).reverse(), "", ...levels.map((level) => `up${level}`)]
    : ["", ...levels.map((level) => `at${level}`)];
}
