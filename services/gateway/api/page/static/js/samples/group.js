/** One group of samples: the prompt, and its responses side by side. */
import { html, useEffect, useMemo, useRef, useState } from "../shell/dom.js";
import { JOBS, get } from "../data/api.js";
import { duration, number, words } from "../shell/format.js";
import { Keys, useKeys } from "../shell/keys.js";
import { Choice, Failure } from "../shell/parts.js";
import { usePolled } from "../data/poll.js";
import { ResponseCard } from "./response.js";
import { go, href, setQuery } from "../shell/router.js";
import { filtersOf, groupsOf, useSampleList } from "./sampleList.js";
import { SHADINGS, scaleEnd } from "./shading.js";
import { Scale } from "./tokens.js";

const COLOURINGS = [...Object.entries(SHADINGS).map(([name, { text }]) => [name, text]), ["none", "nothing"]];

export function Group({ job, id, query }) {
  const ask = (signal) => get(`${JOBS}/${job.id}/samples/${encodeURIComponent(id)}`, {}, signal);
  const { value: group, error } = usePolled(ask, [job.id, id]);
  const { before, after } = useNeighbours(job.id, id, query);
  const [showsKeys, setShowsKeys] = useState(false);
  const shading = query.colour ?? "advantage";
  const linkTo = (key) =>
    key && href(["jobs", job.id, "samples", key], { ...filtersOf(query), colour: query.colour, with: query.with });
  const back = href(["jobs", job.id, "samples"], { ...filtersOf(query), colour: query.colour, with: query.with });
  const cycle = () =>
    setQuery({ colour: COLOURINGS[(COLOURINGS.findIndex(([name]) => name === shading) + 1) % COLOURINGS.length][0] });
  const keys = {
    j: ["next group", () => after && go(linkTo(after))],
    k: ["previous group", () => before && go(linkTo(before))],
    c: ["colour by the next number", cycle],
    u: ["back to the list", () => go(back)],
    "?": ["show the keys", () => setShowsKeys(true)],
  };
  useKeys({ ...keys, ArrowRight: keys.j, ArrowLeft: keys.k });
  const end = useMemo(
    () => group && SHADINGS[shading] && scaleEnd(group.responses, SHADINGS[shading]),
    [group, shading],
  );
  return html`
    <div class="bar filters">
      <a class="button" href=${back}>← Samples</a>
      <a class="button" href=${linkTo(before)} aria-disabled=${!before} aria-label="Previous group">‹</a>
      <h2 class="key">${id}</h2>
      <a class="button" href=${linkTo(after)} aria-disabled=${!after} aria-label="Next group">›</a>
      <span class="grow"></span>
      <${Choice}
        label="Colour by"
        value=${shading}
        options=${COLOURINGS}
        onChange=${(colour) => setQuery({ colour })}
      />
      ${group && html`<${Scale} shading=${shading} end=${end} />`}
      <button class="quiet" aria-label="Keys" onClick=${() => setShowsKeys(true)}>?</button>
    </div>
    ${
      error &&
      html`<${Failure} error=${error} what="There is no such sample any more: the oldest go when the store is full." />`
    }
    ${
      group &&
      html`<${About} job=${job} group=${group} />
        <p class="soft small">Hover over a text, or focus it and use ← →, to read the numbers of each token.</p>
        <${Cards} group=${group} shading=${shading} end=${end} chosen=${Number(query.response)} />`
    }
    ${
      showsKeys &&
      html`<${Keys}
        keys=${{ ...keys, "→ ←": ["next and previous group; in a text, the next and previous token", null] }}
        onClose=${() => setShowsKeys(false)}
      />`
    }
  `;
}

/** The groups before and after one in the list it was opened from; else by its number. */
function useNeighbours(jobId, id, query) {
  const list = useSampleList(jobId, filtersOf(query));
  const groups = groupsOf(list.rows);
  const place = groups.indexOf(id);
  useEffect(() => {
    if (place >= 0 && place === groups.length - 1 && list.more) list.next();
  }, [place, groups.length]);
  if (place >= 0) return { before: groups[place - 1], after: groups[place + 1] };
  const [purpose, number] = id.split(":");
  return { before: number > 0 ? `${purpose}:${number - 1}` : undefined, after: `${purpose}:${Number(number) + 1}` };
}

function About({ job, group }) {
  const { task } = group;
  const facts = [
    ["purpose", group.purpose],
    ["step", group.step],
    ["attempt", group.attempt],
    ["sampled in", duration(group.sampling_seconds)],
    ["graded in", duration(group.grading_seconds)],
  ];
  return html`<section class="panel about">
    <p class="facts">
      ${facts.map(([name, value]) => html`<span class="pair">${name} <b>${value}</b></span>`)}
      ${
        task &&
        html`<span class="pair"
          >task <a href=${href(["jobs", job.id, "samples"], { task: task.id, order: "oldest" })}>${task.id}</a></span
        >`
      }
      <span class="chip ${group.fate === "used" ? "" : "bad"}"
        >${group.fate === "used" ? "used" : `dropped: ${words(group.fate)}`}</span
      >
    </p>
    ${group.failure && html`<p class="notice">${group.failure}</p>`}
    ${
      task &&
      html`<div class="asked">
        ${textsOf(group).map(
          ([name, text]) =>
            html`<div>
              <h3>${name}</h3>
              <pre>${text}</pre>
            </div>`,
        )}
      </div>`
    }
  </section>`;
}

function textsOf({ prompt, task }) {
  const told = Object.entries(task.metadata ?? {}).map(
    ([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`,
  );
  const more = [["Answer", task.answer], ["Solution", task.solution], ["Metadata", told.join("\n")]];
  return [["Prompt", prompt ?? task.prompt], ...more.filter(([, text]) => text)];
}

function Cards({ group, shading, end, chosen }) {
  const box = useRef(null);
  useEffect(
    () => box.current.children[chosen]?.scrollIntoView({ block: "nearest", inline: "center" }),
    [group.id, chosen],
  );
  return html`<div
    class="cards"
    ref=${box}
    tabindex="0"
    role="region"
    aria-label=${`${number(group.responses.length)} responses`}
  >
    ${group.responses.map(
      (response) =>
        html`<${ResponseCard}
          key=${response.index}
          response=${response}
          shading=${shading}
          end=${end}
          chosen=${chosen === response.index}
        />`,
    )}
  </div>`;
}
