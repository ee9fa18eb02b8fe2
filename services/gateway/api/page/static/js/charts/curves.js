/** The curves of one or several jobs: any number of the step events, smoothed, on a log axis. */
import uPlot from "../../vendor/uplot.js";
import { html, useMemo, useState } from "../shell/dom.js";
import { number, words } from "../shell/format.js";
import { Empty } from "../shell/parts.js";
import { Plot } from "./plot.js";
import { setQuery } from "../shell/router.js";
import { positive, smoothed } from "../data/series.js";

const FIRST = [
  ...["reward", "accuracy", "process", "process_wrong", "outcome_exhausted", "entropy", "response_length"],
  ...["length_correct", "length_wrong", "clip_fraction", "staleness", "parity_max", "probe_gap"],
  ...["tokens_per_second", "loss", "grad_norm", "kl"],
];

/** What the measures mean; the reference of the metrics has the rest. */
const MEANING = {
  reward: "mean of what the advantage compares",
  accuracy: "share of right answers; hollow marks: on held-out tasks",
  process: "mean process score of right responses",
  process_wrong: "mean process score of wrong responses",
  outcome_exhausted: "share of groups with equal outcomes",
  signal: "share of groups with an advantage other than 0",
  trained_share: "share of the tokens that a backward pass computes",
  entropy: "of the policy, nats per token",
  response_length: "mean, in tokens",
  length_correct: "mean of right responses, in tokens",
  length_wrong: "mean of wrong responses, in tokens",
  clip_fraction: "share of tokens beyond the clip range",
  staleness: "mean age of the sampling weights, in updates",
  parity_max: "largest gap of log-probs, engine to learner, same weights",
  probe_gap: "mean gap of log-probs of the probe, engine to learner",
  mismatch_kl: "divergence of engine and learner",
  tokens_per_second: "sampled and trained",
  loss: "of the objective",
  grad_norm: "before clipping",
  kl: "to the reference policy",
};

/**
 * @param {object} props
 * @param {{job: object, history: import("../data/history.js").History, line: number}[]} props.runs
 * @param {object} props.query of the view
 */
export function Curves({ runs, query }) {
  const names = [...new Set(runs.flatMap(({ history }) => history.names))].sort();
  const chosen = query.curves?.split(",") ?? FIRST.filter((name) => names.includes(name));
  const smooth = Number(query.smooth ?? 0.6);
  const log = query.log === "1";
  const num = runs.reduce((total, { history }) => total + history.num, 0);
  if (!names.length) return html`<${Empty}>No step yet: the curves begin with the first.<//>`;
  return html`
    <div class="bar filters">
      <label class="field"
        ><span>Smoothing <b>${smooth.toFixed(2)}</b></span>
        <input
          type="range"
          min="0"
          max="0.98"
          step="0.02"
          value=${smooth}
          onInput=${(event) => setQuery({ smooth: event.target.value })}
        />
      </label>
      <label class="tick"
        ><input
          type="checkbox"
          checked=${log}
          onChange=${(event) => setQuery({ log: event.target.checked ? 1 : null })}
        />Log axis</label
      >
      <${Chooser} names=${names} chosen=${chosen} />
      <span class="grow"></span>
      <span class="soft small">Drag to zoom, double-click to see all</span>
    </div>
    <div class="curves">
      ${chosen.map(
        (name) => html`<${Curve} key=${name} name=${name} runs=${runs} num=${num} smooth=${smooth} log=${log} />`,
      )}
    </div>
  `;
}

function Chooser({ names, chosen }) {
  const toggle = (name) =>
    setQuery({ curves: (chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name]).join(",") });
  return html`<details class="chooser">
    <summary class="button">Curves: ${chosen.length} of ${names.length}</summary>
    <div class="menu">
      ${names.map(
        (name) =>
          html`<label class="tick"
            ><input
              type="checkbox"
              checked=${chosen.includes(name)}
              onChange=${() => toggle(name)}
            />${words(name)}</label
          >`,
      )}
      <button onClick=${() => setQuery({ curves: null })}>The usual ones</button>
    </div>
  </details>`;
}

function Curve({ name, runs, num, smooth, log }) {
  const [place, setPlace] = useState(null);
  const ids = runs.map(({ job }) => job.id).join(",");
  const { data, isLog } = useMemo(() => aligned(name, runs, smooth, log), [name, ids, num, smooth, log]);
  const options = useMemo(() => (colour) => optionsFor(runs, smooth > 0, isLog, name === "accuracy", colour), [ids, smooth > 0, isLog]);
  const shown = runs.map((run, number) => ({
    ...run,
    value: valueAt(data, smooth > 0 ? 2 * number + 2 : number + 1, place),
  }));
  const step = place === null ? null : data[0][place];
  const values = shown.map(({ job, value }) => `${job.weir.recipe.name} ${number(value)}`);
  const label = `${words(name)} at ${step === null ? "the last step" : `step ${step}`}: ${values.join(", ")}`;
  return html`<section class="panel curve">
    <header>
      <h2>${words(name)}</h2>
      ${step !== null && html`<span class="soft small">step ${step}</span>`}
      <span class="grow"></span>
      ${shown.map(({ line, value }) => html`<span class="value line-${line}">${number(value)}</span>`)}
    </header>
    ${MEANING[name] && html`<p class="soft small about-measure">${MEANING[name]}</p>`}
    <${Plot} options=${options} data=${data} label=${label} sync="curves" onHover=${setPlace} />
  </section>`;
}

/** The tables of all runs over one axis of steps: raw and smoothed, or raw alone. */
function aligned(name, runs, smooth, log) {
  const raw = runs.map(({ history }) => history.curve(name));
  const isLog = log && raw.some(([, curve]) => curve.some((value) => value > 0));
  const tables = raw.map(([steps, curve]) => {
    const values = isLog ? positive(curve) : curve;
    return [steps, ...(smooth > 0 ? [values, smoothed(values, smooth)] : [values])];
  });
  if (name === "accuracy") tables.push(...runs.map(evaluated));
  return { data: tables.length > 1 ? uPlot.join(tables) : tables[0].map((column) => [...column]), isLog };
}

/** The accuracy on held-out tasks, by step. */
function evaluated({ history }) {
  const results = [...history.evaluations.values()].sort((a, b) => a.step - b.step);
  return [results.map(({ step }) => step), results.map(({ accuracy }) => accuracy)];
}

const markOf = (stroke) => ({ stroke, width: 0, paths: () => null, points: { show: true, size: 8, fill: "transparent" } });

function optionsFor(runs, isSmooth, isLog, isAccuracy, colour) {
  const series = runs.flatMap(({ line }) => {
    const stroke = colour(`--line-${line}`);
    const bold = { stroke, width: 2, spanGaps: true };
    const faint = { stroke, alpha: 0.25, width: 1, spanGaps: true, points: { show: false } };
    return isSmooth ? [faint, { ...bold, points: { show: isAlone } }] : [bold];
  });
  const marks = isAccuracy ? runs.map(({ line }) => markOf(colour(`--line-${line}`))) : [];
  return { series: [{}, ...series, ...marks], scales: { y: isLog ? { distr: 3 } : {} } };
}

/** One value makes no line, and would not be seen. */
const isAlone = (plot, row) => plot.data[row].filter((value) => value != null).length === 1;

/** The value at a place, or the last there is before it: another job may be at other steps. */
function valueAt(data, row, place) {
  const end = place ?? data[0].length - 1;
  for (let at = end; at >= 0; at -= 1) if (data[row][at] != null) return data[row][at];
  return null;
}
