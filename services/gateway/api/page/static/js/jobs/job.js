/** One job, perhaps compared with others: what it does now, and its views. */
import { html, useEffect } from "../shell/dom.js";
import { JOBS, get } from "../data/api.js";
import { Actions } from "./actions.js";
import { Curves } from "../charts/curves.js";
import { Evaluations } from "../charts/evaluations.js";
import { Events } from "./events.js";
import { useHistories } from "../data/history.js";
import { Flow } from "./flow.js";
import { left } from "../shell/format.js";
import { Model } from "./model.js";
import { Failure, Status, StepBar, Tabs, isFinal } from "../shell/parts.js";
import { usePolled } from "../data/poll.js";
import { Recipe } from "./recipe.js";
import { href } from "../shell/router.js";
import { MAX_COMPARED } from "./jobs.js";
import { Samples } from "../samples/samples.js";
import { Group } from "../samples/group.js";
import { Why } from "./why.js";

const REFRESH_S = 5;
const VIEWS = {
  curves: ["Curves", Curves],
  evaluations: ["Evaluations", Evaluations],
  samples: ["Samples", Samples],
  flow: ["Time & flow", Flow],
  model: ["Model", Model],
  events: ["Events", Events],
  recipe: ["Recipe", Recipe],
};

export function Job({ id, path, query }) {
  const others = (query.with?.split(",") ?? []).filter((other) => other !== id).slice(0, MAX_COMPARED - 1);
  const { jobs, error, again } = useJobs([id, ...others]);
  const {
    histories,
    isUp,
    error: broken,
  } = useHistories(
    jobs.map((job, place) => ({ id: job.id, live: place === 0 ? !isFinal(job) : job.status === "running" })),
  );
  const job = jobs[0];
  const first = job?.weir.steps === 0 ? "evaluations" : "curves";
  const [view = first, key] = path;
  useEffect(() => void (document.title = `${job?.weir.recipe.name ?? id} · ${view} · Weir`), [job?.id, view]);
  if (error && !job) return html`<${Failure} error=${error} what="There is no such job." /><a class="button" href=${href([])}>All jobs</a>`;
  if (!job) return html`<p class="soft">…</p>`;
  const runs = jobs.flatMap((one, place) =>
    histories.has(one.id) ? [{ job: one, history: histories.get(one.id), line: place + 1 }] : [],
  );
  const views = Object.entries(VIEWS).filter(([name]) => name === first || name !== "curves");
  const links = views.map(([name, [text]]) => [
    name,
    text,
    href(["jobs", id, ...(name === first ? [] : [name])], { with: query.with }),
  ]);
  return html`
    <div class="bar head">
      <div>
        <h1>${job.weir.recipe.name ?? "unreadable"}</h1>
        <span class="id">${job.id}, from ${origin(job)}</span>
      </div>
      <${Status} job=${job} />
      <${StepBar} job=${job} />
      ${left(job) && html`<span class="soft small">${left(job)}</span>`}
      <span class="grow"></span>
      <a class="button" href=${href([], { compare: [id, ...others].join(",") })}>Compare</a>
      <${Actions} job=${job} onDone=${again} />
    </div>
    ${(error ?? broken) && html`<${Failure} error=${error ?? broken} />`}
    ${!isUp && html`<p class="soft small" role="status">The line to the gateway broke; it is tried again.</p>`}
    ${
      (job.error?.message ?? job.weir.waiting_for) &&
      html`<p class="notice">${job.error?.message ?? job.weir.waiting_for}</p>`
    }
    ${!isFinal(job) && job.status !== "paused" && html`<${Why} id=${id} />`}
    ${runs.length > 1 && html`<${Legend} runs=${runs} id=${id} others=${others} query=${query} />`}
    <${Tabs} label="Views of the job" tabs=${links} here=${view} />
    <div class="view">${histories.has(id) && shown(view, key, { job, runs, query, history: runs[0].history })}</div>
  `;
}

/** The model that a job started from, with a link to the job that made it. */
function origin({ model, weir: { forked_from: from } }) {
  if (!from) return model;
  return html`<a href=${href(["jobs", from.job])}>${from.job}</a>${from.step !== null && ` at step ${from.step}`}`;
}

function shown(view, key, props) {
  if (view === "samples" && key) return html`<${Group} ...${props} id=${key} />`;
  const [, Shown] = VIEWS[view] ?? VIEWS.curves;
  return html`<${Shown} ...${props} />`;
}

/** The jobs that are looked at, asked for again; one that is not there is left out, but the first. */
function useJobs(ids) {
  const one = (id, place, signal) =>
    get(`${JOBS}/${encodeURIComponent(id)}`, {}, signal).catch((error) => {
      if (place === 0 || error.status !== 404) throw error;
    });
  const ask = (signal) => Promise.all(ids.map((id, place) => one(id, place, signal)));
  const { value, error, again } = usePolled(ask, [ids.join(",")], REFRESH_S);
  return { jobs: value?.filter(Boolean) ?? [], error, again };
}

const Legend = ({ runs, id, others, query }) => html`
  <ul class="legend" aria-label="Compared jobs">
    ${runs.map(({ job, line }) => {
      const rest = others.filter((other) => other !== job.id).join(",");
      return html`<li>
        <i class="swatch line-${line}"></i><a href=${href(["jobs", job.id])}>${job.weir.recipe.name}</a
        ><span class="id">${job.id.slice(-6)}</span>
        ${
          job.id !== id &&
          html`<a
            class="remove"
            href=${href(["jobs", id], { ...query, with: rest })}
            aria-label=${`Compare without ${job.id}`}
            >×</a
          >`
        }
      </li>`;
    })}
  </ul>
`;
