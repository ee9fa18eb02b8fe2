/** A job's samples: what was asked, answered, graded; filtered and ordered. */
import { html, useEffect, useState } from "../shell/dom.js";
import { number, percent, signed, words } from "../shell/format.js";
import { Choice, Failure } from "../shell/parts.js";
import { href, setQuery } from "../shell/router.js";
import { mean } from "../data/series.js";
import { filtersOf, groupsOf, useSampleList } from "./sampleList.js";
import { Timeline } from "./timeline.js";

const TYPING_MS = 300;
const LONGEST_TIMELINE = 2000; // responses
const ORDERS = [
  ["", "newest first"],
  ["oldest", "oldest first"],
  ["wrong", "most wrong"],
  ["rewarded", "most rewarded"],
  ["surprising", "most surprising"],
  ["parity", "largest parity gap"],
];
const YES_NO_FILTERS = {
  correct: "Correct",
  ungradable: "Ungradable",
  truncated: "Truncated",
  zero_advantage: "Zero advantage",
};
const YES_NO = [
  ["", "any"],
  ["true", "yes"],
  ["false", "no"],
];

export function Samples({ job, query }) {
  const filters = filtersOf(query);
  const { rows, summary, more, searching, error, next, again } = useSampleList(job.id, filters);
  const wantsAll = filters.task && more && rows.length > 0 && rows.length < LONGEST_TIMELINE;
  useEffect(() => void (wantsAll && next()), [wantsAll, rows.length]);
  return html`
    <${Filters} query=${query} summary=${summary} />
    ${
      summary &&
      html`<p class="soft small">${inWords(summary)}<button class="quiet small" onClick=${again}>Look again</button></p>`
    }
    ${error && html`<${Failure} error=${error} what="This gateway does not show samples, or the job has kept none." />`}
    ${
      summary &&
      !rows.length &&
      !error &&
      html`<p class="empty" role="status">${searching ? "Searching…" : "No sample is like that."}</p>`
    }
    ${
      filters.task &&
      rows.length > 0 &&
      html`<${Timeline} job=${job} task=${filters.task} rows=${rows} query=${query} />`
    }
    ${rows.length > 0 && html`<${List} job=${job} rows=${rows} query=${query} />`}
    ${
      more &&
      rows.length > 0 &&
      html`<p>
        <button onClick=${next}>${searching ? "Searching…" : "More"}</button>
        <span class="soft">${groupsOf(rows).length} groups are shown${summary && `, of ${number(summary.groups)}`}</span>
      </p>`
    }
  `;
}

/** What a job's store holds, in a sentence. */
function inWords({ groups, responses, first_step: first, last_step: last, fates }) {
  const steps = groups ? ` of steps ${first} to ${last}` : "";
  const kept = `${number(groups)} groups, ${number(responses)} responses${steps} are kept`;
  const dropped = Object.entries(fates ?? {}).filter(([fate]) => fate !== "used");
  const told = dropped.map(([fate, count]) => `${words(fate)} ${number(count)}`);
  return `${kept}${told.length ? `; dropped: ${told.join(", ")}` : ""}.`;
}

function Filters({ query, summary }) {
  const named = (counts) => [["", "any"], ...Object.keys(counts ?? {}).map((name) => [name, words(name)])];
  const choose = (name) => (value) => setQuery({ [name]: value });
  return html`<form class="bar filters" onSubmit=${(event) => event.preventDefault()}>
    <${Choice} label="Order" value=${query.order} options=${ORDERS} onChange=${choose("order")} />
    <${Typed} label="Text" name="text" query=${query} />
    <${Typed} label="Step" name="step" query=${query} type="number" />
    <${Typed} label="Task" name="task" query=${query} />
    <${Choice}
      label="Purpose"
      value=${query.purpose}
      options=${named(summary?.purposes)}
      onChange=${choose("purpose")}
    />
    <${Choice} label="Fate" value=${query.fate} options=${named(summary?.fates)} onChange=${choose("fate")} />
    ${Object.entries(YES_NO_FILTERS).map(
      ([name, label]) =>
        html`<${Choice} label=${label} value=${query[name]} options=${YES_NO} onChange=${choose(name)} />`,
    )}
  </form>`;
}

/** A field that filters when the typing rests. */
function Typed({ label, name, query, type = "search" }) {
  const [text, setText] = useState(query[name] ?? "");
  useEffect(() => setText(query[name] ?? ""), [query[name]]);
  useEffect(() => {
    if (text === (query[name] ?? "")) return undefined;
    const timer = setTimeout(() => setQuery({ [name]: text }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<label class="field"
    >${label}<input type=${type} min="0" size="8" value=${text} onInput=${(event) => setText(event.target.value)}
  /></label>`;
}

const ANSWERS = 8; // of a group that are told one by one
const MEANS = ["reward", "process", "length", "surprise", "parity_gap"]; // over the answers of a group
const numbersOf = (row) => [...MEANS, "advantage"].map((name) => `${words(name)} ${number(row[name])}`).join(", ");

/** A row per group: what was asked, what was answered, and how that was graded. */
function List({ job, rows, query }) {
  const link = (row) =>
    href(["jobs", job.id, "samples", row.key], {
      ...filtersOf(query),
      colour: query.colour,
      with: query.with,
      response: row.index,
    });
  return html`<div class="panel scroll list" tabindex="0" role="region" aria-label="Samples">
    <table class="samples">
      <thead>
        <tr>
          <th scope="col">sample</th>
          <th scope="col" class="num">step</th>
          <th scope="col">prompt and answers</th>
          <th scope="col" class="num">right</th>
          ${MEANS.map((name) => html`<th scope="col" class="num">${words(name)}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${groupsOf(rows).map((key) => {
          const group = rows.filter((row) => row.key === key);
          const right = group.filter((row) => verdictOf(row).kind === "right").length;
          return html`<tr key=${key}>
            <th scope="row">
              <a href=${link(group[0])}>${key}</a>${
                group[0].fate !== "used" && html` <span class="chip">${words(group[0].fate)}</span>`
              }
            </th>
            <td class="num">${group[0].step}</td>
            <td class="texts">
              <b title=${group[0].task_id}>${group[0].prompt ?? group[0].task_id}</b>
              ${group
                .slice(0, ANSWERS)
                .map(
                  (row) => html`<a href=${link(row)} aria-label=${row.id} title=${numbersOf(row)}><${Outcome} row=${row} />${row.text ?? row.failure ?? ""}</a>`,
                )}
              ${group.length > ANSWERS && html`<span class="soft">and ${group.length - ANSWERS} more</span>`}
            </td>
            <td class="num">${group.some(({ graded }) => graded) ? `${right} / ${group.length}` : "–"}</td>
            ${MEANS.map((name) => html`<td class="num">${number(mean(group.map((row) => row[name])))}</td>`)}
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

/** How a response came out, in a symbol and a word. */
function Outcome({ row }) {
  const verdict = verdictOf(row);
  return html`<span class="verdict ${verdict.kind}"><i aria-hidden="true">${verdict.symbol}</i>${verdict.text}</span> ${
      row.truncated && html`<span class="chip">truncated</span>`
    }`;
}

export function verdictOf({ failure, accuracy, index, graded, advantage }) {
  if (failure || index === null) return { kind: "unknown", symbol: "!", text: "failed" };
  const valued = advantage === null ? "not graded" : `advantage ${signed(advantage)}`;
  if (graded === false) return { kind: "unknown", symbol: "·", text: valued };
  if (accuracy === null || accuracy === undefined) return { kind: "unknown", symbol: "?", text: "ungradable" };
  if (accuracy >= 1 - 1e-9) return { kind: "right", symbol: "✓", text: "right" };
  if (accuracy === 0) return { kind: "wrong", symbol: "✗", text: "wrong" };
  return { kind: "partly", symbol: "◐", text: percent(accuracy) };
}
