/** All jobs: what state they are in, their last numbers; several can be compared. */
import { html, useEffect, useState } from "../shell/dom.js";
import { JOBS, get } from "../data/api.js";
import { DeleteFound } from "./actions.js";
import { ago, left, number } from "../shell/format.js";
import { useLatest } from "../data/latest.js";
import { Choice, Empty, Failure, Status, StepBar, isFinal } from "../shell/parts.js";
import { usePolled } from "../data/poll.js";
import { href, setQuery } from "../shell/router.js";

const REFRESH_S = 3;
const PAGE = 20;
const NUMBERS = ["Reward", "Accuracy", "Evaluation", "Left", "Submitted"];
export const MAX_COMPARED = 6;
const ACTIVE = ["running", "pausing", "cancelling"];
const STATES = ["queued", ...ACTIVE, "paused", "succeeded", "failed", "cancelled"];

export function Jobs({ query }) {
  const [limit, setLimit] = useState(PAGE);
  const filters = { status: query.state, find: query.find };
  const {
    value: list,
    error,
    again,
  } = usePolled(
    (signal) => allJobs(limit, filters, signal),
    [limit, query.state, query.find],
    REFRESH_S,
  );
  const chosen = query.compare?.split(",") ?? [];
  useEffect(() => void (document.title = "Jobs · Weir"), []);
  const shown = list?.jobs ?? [];
  const toggle = (id) =>
    setQuery({ compare: (chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]).join(",") });
  return html`
    <div class="bar">
      <h1>Jobs</h1>
      <span class="grow"></span>
      <a class="button primary" href=${href(["submit"])}>Submit a job</a>
    </div>
    <div class="bar filters">
      <${Choice}
        label="State"
        value=${query.state}
        options=${[["", "all"], ...STATES.map((name) => [name, name])]}
        onChange=${(state) => setQuery({ state })}
      />
      <label class="field"
        >Find<input
          type="search"
          value=${query.find ?? ""}
          placeholder="name, id, model, label"
          onInput=${(event) => setQuery({ find: event.target.value })}
      /></label>
      <span class="grow"></span>
      ${
        (query.state ? isFinal(filters) : query.find) &&
        shown.length > 0 &&
        html`<${DeleteFound} filters=${filters} onDone=${again} />`
      }
      ${
        chosen.length > 1 &&
        html`<a class="button" href=${href(["jobs", chosen[0]], { with: chosen.slice(1).join(",") })}
          >Compare ${chosen.length} jobs</a
        >`
      }
      ${chosen.length === 1 && html`<span class="soft">Choose another job to compare with</span>`}
    </div>
    ${error && html`<${Failure} error=${error} />`}
    ${
      list &&
      !shown.length &&
      html`<${Empty}>${query.state || query.find ? "No job fits the filters." : "No job yet: submit a recipe."}<//>`
    }
    ${
      shown.length > 0 &&
      html`<table class="jobs">
        <thead>
          <tr>
            <th scope="col"><span class="hidden">Compare</span></th>
            ${["Job", "State", "Steps"].map((name) => html`<th scope="col">${name}</th>`)}
            ${NUMBERS.map((name) => html`<th scope="col" class="num">${name}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${shown.map(
            (job) =>
              html`<${Row}
                key=${job.id}
                job=${job}
                chosen=${chosen.includes(job.id)}
                full=${chosen.length >= MAX_COMPARED}
                onChoose=${() => toggle(job.id)}
              />`,
          )}
        </tbody>
      </table>`
    }
    ${list?.more && html`<p><button onClick=${() => setLimit(limit + PAGE)}>Older jobs</button></p>`}
  `;
}

function Row({ job, chosen, full, onChoose }) {
  const { metrics, evaluation, rewards } = useLatest(job);
  const name = job.weir.recipe.name ?? "unreadable";
  return html`
    <tr class=${chosen ? "chosen" : ""}>
      <td>
        <input
          type="checkbox"
          checked=${chosen}
          disabled=${full && !chosen}
          onChange=${onChoose}
          aria-label=${`Compare ${name} ${job.id}`}
        />
      </td>
      <th scope="row">
        <a href=${href(["jobs", job.id])}>${name}</a><span class="id">${job.id}</span
        ><span class="id">from ${job.model}</span>${
          job.weir.waiting_for && html`<span class="waiting">${job.weir.waiting_for}</span>`
        }${job.error && html`<span class="waiting">${job.error.message}</span>`}
      </th>
      <td><${Status} job=${job} /></td>
      <td><${StepBar} job=${job} /></td>
      <td class="num" data-label="reward">
        <span><${Spark} values=${rewards} />${number(metrics?.reward)}</span>
      </td>
      <td class="num" data-label="accuracy">${number(metrics?.accuracy)}</td>
      <td class="num" data-label="evaluation">
        <span
          >${number(evaluation?.accuracy)}${
            evaluation && html`<span class="soft small"> ${evaluation.name ? `on ${evaluation.name}` : `step ${evaluation.step}`}</span>`
          }</span
        >
      </td>
      <td class="num soft" data-label="left">${left(job) ?? "–"}</td>
      <td class="num soft" data-label="submitted">${job.created_at ? ago(job.created_at) : "–"}</td>
    </tr>
  `;
}

/** The last rewards as a line, for the eye. */
function Spark({ values }) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const points = known.map(
    (value, place) => `${(84 * place) / (known.length - 1)},${20 - (20 * (value - low)) / (high - low || 1)}`,
  );
  return html`<svg class="spark" viewBox="0 0 84 20" aria-hidden="true"><polyline points=${points.join(" ")} /></svg>`;
}

/** The newest jobs that fit, and before them those that the stack works on. */
async function allJobs(limit, query, signal) {
  const some = (more) => get(JOBS, { ...query, ...more }, signal);
  const active = !query.status && !query.find ? (await some({ status: ACTIVE })).data : [];
  const jobs = [];
  let page = { has_more: true };
  while (page.has_more && jobs.length < limit) {
    page = await some({ limit: Math.min(100, limit - jobs.length), after: jobs.at(-1)?.id });
    jobs.push(...page.data);
  }
  const pinned = new Set(active.map(({ id }) => id));
  return { jobs: [...active, ...jobs.filter(({ id }) => !pinned.has(id))], more: page.has_more };
}
