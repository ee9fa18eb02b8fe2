/** Evaluations on held-out tasks: accuracy with its interval, and each task's share of right answers. */
import { html, useMemo, useState } from "../shell/dom.js";
import { number, percent } from "../shell/format.js";
import { Empty, Table } from "../shell/parts.js";
import { Plot } from "./plot.js";
import { JOBS, get } from "../data/api.js";
import { usePolled } from "../data/poll.js";
import { href, setQuery } from "../shell/router.js";

const AT_ONCE = 100;

const inOrder = (history) => [...history.evaluations.values()].sort((a, b) => a.step - b.step);

export function Evaluations({ job, runs, query }) {
  const told = runs.filter(({ history }) => history.evaluations.size);
  const names = [...new Set(runs.flatMap(({ history }) => [...history.otherEvaluations.keys()]))].sort();
  if (!told.length && !names.length)
    return html`<${Empty}>No evaluation yet.${job.weir.recipe.evaluation ? "" : " The recipe asks for none."}<//>`;
  return html`
    <${File} name="" runs=${told} />
    ${names.map((name) => html`<${File} key=${name} name=${name} runs=${runs.map((run) => onFile(run, name))} />`)}
    <${Tasks} job=${job} results=${inOrder(runs[0].history)} query=${query} />
  `;
}

/** A run whose evaluations are those on a further file. */
const onFile = (run, name) => ({
  ...run,
  history: { evaluations: run.history.otherEvaluations.get(name) ?? new Map() },
});

function File({ name, runs }) {
  const told = runs.filter(({ history }) => history.evaluations.size);
  const on = name && ` on ${name}`;
  return html`
    ${
      told.some(({ history }) => history.evaluations.size > 1) &&
      html`<section class="panel">
        <h2>Accuracy on ${name || "held-out tasks"}, with 95 % intervals</h2>
        <${Chart} runs=${told.map((run) => ({ ...run, curve: (!name && run.job.weir.forecast?.curve) || [] }))} />
      </section>`
    }
    ${told.map(
      ({ job: one, history }) =>
        html`<section class="panel" key=${one.id}>
          <h2>${runs.length > 1 ? one.weir.recipe.name : "Results"}${on} <${Best} results=${inOrder(history)} /></h2>
          <${Results} results=${inOrder(history)} label=${`Results${on}`} />
        </section>`,
    )}
  `;
}

function Best({ results }) {
  const best = results.reduce((one, other) => (other.accuracy > one.accuracy ? other : one));
  return html`<span class="soft small">best: ${number(best.accuracy)} at step ${best.step}</span>`;
}

function Chart({ runs }) {
  const count = runs.reduce((total, { history }) => total + history.evaluations.size, 0);
  const ids = runs.map(({ job, curve }) => job.id + curve.length).join();
  const data = useMemo(() => {
    const known = runs.flatMap(({ history, curve }) => [...history.evaluations.keys(), ...curve.map(([step]) => step)]);
    const steps = [...new Set(known)].sort((a, b) => a - b);
    const rows = runs.flatMap(({ history }) =>
      ["accuracy", "accuracy_high", "accuracy_low"].map((name) =>
        steps.map((step) => history.evaluations.get(step)?.[name] ?? null),
      ),
    );
    const forecasts = runs.flatMap(({ curve }) =>
      [2, 3, 1].map((place) => steps.map((step) => curve.find(([other]) => other === step)?.[place] ?? null)),
    );
    return [steps, ...rows, ...forecasts];
  }, [count, ids, runs.map(({ curve }) => curve.join()).join()]);
  const options = useMemo(
    () => (colour) => ({
      series: [
        {},
        ...runs.flatMap(({ line }) => withInterval(colour(`--line-${line}`))),
        ...runs.flatMap(({ line }) => asForecast(colour(`--line-${line}`))),
      ],
      bands: [...runs, ...runs].map(({ line }, run) => ({
        series: [3 * run + 2, 3 * run + 3],
        fill: colour(`--band-${line}`),
      })),
      scales: { y: { range: (_, min, max) => [Math.max(0, min - 0.02), Math.min(1, max + 0.02)] } },
    }),
    [ids],
  );
  const label = runs
    .map(
      ({ job, history, curve }) =>
        `${job.weir.recipe.name}: ${inOrder(history)
          .map((one) => `${number(one.accuracy)} at step ${one.step}`)
          .join(", ")}${curve.length ? `, forecast ${number(curve.at(-1)[2])} at step ${curve.at(-1)[0]}` : ""}`,
    )
    .join("; ");
  return html`<${Plot} options=${options} data=${data} height=${220} label=${label} />`;
}

const withInterval = (stroke) => [
  { stroke, width: 2, points: { show: true, size: 7, fill: stroke }, spanGaps: true },
  ...[1, 2].map(() => ({ stroke, width: 1, dash: [3, 4], points: { show: false }, spanGaps: true })),
];

const asForecast = (stroke) => [
  { stroke, width: 2, dash: [6, 5], points: { show: false }, spanGaps: true },
  ...[1, 2].map(() => ({ width: 0, points: { show: false }, spanGaps: true })),
];

const withPasses = (passes) => ({
  step: (one) => one.step,
  tasks: (one) => number(one.tasks),
  responses: (one) => number(one.samples),
  accuracy: (one) => html`<b>${number(one.accuracy)}</b>`,
  "95 % interval": (one) => `${number(one.accuracy_low)} – ${number(one.accuracy_high)}`,
  ...Object.fromEntries(passes.map((name) => [name, (one) => number(one[name])])),
  process: (one) => number(one.process),
  "of wrong": (one) => number(one.process_wrong),
  length: (one) => number(one.response_length),
  truncated: (one) => percent(one.truncated),
  ungradable: (one) => number(one.ungradable),
  failed: (one) => number(one.failed),
});

function Results({ results, label }) {
  const passes = [
    ...new Set(
      results.flatMap((one) => Object.keys(one).filter((name) => /^pass@\d+$/.test(name) && name !== "pass@1")),
    ),
  ];
  passes.sort((a, b) => Number(a.slice(5)) - Number(b.slice(5)));
  const columns = Object.entries(withPasses(passes)).map(([name, show]) => [name, show, "num"]);
  return html`<${Table} label=${label} className="results" columns=${columns} rows=${results} />`;
}

function Tasks({ job, results, query }) {
  const [limit, setLimit] = useState(AT_ONCE);
  const { value: prompts } = usePolled((signal) => readPrompts(job.id, signal), [job.id]);
  const texts = useMemo(() => new Map(prompts), [prompts]);
  const told = results.filter((one) => one.per_task);
  if (!told.length) return null;
  const rows = useMemo(() => taskRows(told), [told.length]);
  const sought = (query.find ?? "").toLowerCase();
  const shown = rows.filter(({ task }) => `${task} ${texts.get(task)}`.toLowerCase().includes(sought));
  const link = ({ task }) =>
    html`<a title=${task} href=${href(["jobs", job.id, "samples"], { task, purpose: "eval", order: "oldest" })}
      >${texts.get(task) ?? task}</a
    >`;
  const columns = [
    ["task", link],
    ...told.map((one, place) => [
      one.step,
      ({ shares }) => shares[place]?.toFixed(2) ?? "–",
      ({ shares }) => `num share-${shares[place] === null ? "none" : Math.round(shares[place] * 8)}`,
    ]),
    ["change", ({ change }) => `${change > 0 ? "▲" : change < 0 ? "▼" : ""} ${Math.abs(change).toFixed(2)}`, "num"],
  ];
  return html`<section class="panel">
    <div class="bar">
      <h2>Tasks</h2>
      <span class="soft small">by how much each has changed, the worst first</span><span class="grow"></span>
      <label class="field"
        >Find<input
          type="search"
          value=${query.find ?? ""}
          placeholder="text or id"
          onInput=${(event) => setQuery({ find: event.target.value })}
      /></label>
    </div>
    <${Table} label="Tasks" className="heat" columns=${columns} rows=${shown.slice(0, limit)} />
    ${
      shown.length > limit &&
      html`<p><button onClick=${() => setLimit(limit + AT_ONCE)}>More of ${shown.length} tasks</button></p>`
    }
  </section>`;
}

/** Pairs of a held-out task and its prompt: of the file, or if that is gone, of kept samples. */
async function readPrompts(id, signal) {
  const pairs = Object.entries((await get(`v1/page/jobs/${id}/held_out`, {}, signal)).data);
  if (pairs.length) return pairs;
  const samples = await get(`${JOBS}/${id}/samples`, { purpose: "eval", limit: 1000 }, signal);
  return samples.data.map((row) => [row.task_id, row.prompt]);
}

function taskRows(results) {
  const tasks = [...new Set(results.flatMap((one) => Object.keys(one.per_task)))];
  const rows = tasks.map((task) => {
    const shares = results.map(({ per_task }) => (per_task[task] ? per_task[task][0] / per_task[task][1] : null));
    const known = shares.filter((share) => share !== null);
    return { task, shares, change: known.at(-1) - known[0] };
  });
  return rows.sort((a, b) => a.change - b.change || a.task.localeCompare(b.task));
}
