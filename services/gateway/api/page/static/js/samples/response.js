/** One response: its numbers, its text, what the grader said of it, and which weights wrote it. */
import { html } from "../shell/dom.js";
import { duration, number, signed, words } from "../shell/format.js";
import { Facts } from "../shell/parts.js";
import { verdictOf } from "./samples.js";
import { isForeign } from "./shading.js";
import { MARK_SYMBOLS, Tokens, marksOf } from "./tokens.js";

export function ResponseCard({ response, shading, end, chosen }) {
  const { grade, index, spans } = response;
  const own = response.tokens.filter((_, token) => !isForeign(response, token)).length;
  const accuracy = grade?.outcome.kind === "graded" ? grade.outcome.value : null;
  const verdict = verdictOf({ ...response, accuracy, graded: grade !== null });
  const parts = [
    ["A_out", response.outcome_advantage],
    ["A_proc", response.process_advantage],
    ["A_total", response.advantage],
  ].map(([name, value]) => [
    name,
    html`<span class=${value > 0 ? "plus" : value < 0 ? "minus" : ""}>${signed(value)}</span>`,
  ]);
  return html`<article class="panel card ${chosen ? "chosen" : ""}" aria-label=${`Response ${index}`}>
    <header>
      <h3>${index}</h3>
      <span class="verdict ${verdict.kind}"><i aria-hidden="true">${verdict.symbol}</i>${verdict.text}</span>
      <span class="grow"></span>
      <span class="soft small"
        >${number(own)} tokens${response.finish_reason === "length" ? ", cut off" : ""}</span
      >
    </header>
    <${Facts} className="advantages" facts=${[...parts, ["reward", number(response.reward)]]} />
    ${response.episode && html`<${Episode} episode=${response.episode} />`}
    ${response.tokens.length > 0 && html`<${Tokens} response=${response} shading=${shading} end=${end} />`}
    ${grade && html`<${Score} name="outcome" score=${grade.outcome} />`}
    ${grade?.process && html`<${Score} name="process" score=${grade.process} />`}
    <${Marks} response=${response} />
    <${Versions} spans=${spans} />
  </article>`;
}

/** What the environment says of an episode, and its conversation. */
function Episode({ episode }) {
  const { reward, problem, words: told, turns, seconds, conversation } = episode;
  const facts = [
    ["environment", problem ? words(problem) : number(reward)],
    ["turns", number(turns)],
    ...Object.entries(seconds).map(([part, spent]) => [`time of ${part}`, duration(spent)]),
  ];
  return html`<section class="score" aria-label="Episode">
    <${Facts} className="advantages" facts=${facts} />
    ${told && html`<p class="notice">${told}</p>`}
    <details class="small" open>
      <summary>The conversation</summary>
      <ol class="turns">
        ${conversation.map(
          ({ role, content }) =>
            html`<li class=${role === "assistant" ? "" : "foreign"}><b>${role}</b><pre>${content}</pre></li>`,
        )}
      </ol>
    </details>
  </section>`;
}

/** Which weights wrote what. */
export const Versions = ({ spans }) =>
  html`<p class="soft small">
    ${spans.map(({ version, start, end }) => `version ${version}: tokens ${start} to ${end}`).join("; ")}
  </p>`;

/** A verifier's score with its reason, its criteria, and the judge's words. */
export function Score({ name, score }) {
  if (score.kind === "ungradable")
    return html`<section class="score">
      <h4>${name} <b>ungradable</b></h4>
      <p class="small">${reasonOf(score)}</p>
    </section>`;
  const [values, comments] = [score.breakdown ?? {}, score.comments ?? {}];
  const criteria = Object.keys({ ...values, ...comments }).map((criterion) => [
    words(criterion),
    html`${criterion in values && html`<b>${number(values[criterion])}</b> `}${comments[criterion]}`,
  ]);
  return html`<section class="score">
    <h4>${name} <b>${number(score.value)}</b></h4>
    ${score.reason && html`<p class="small">${reasonOf(score)}</p>`}
    ${criteria.length > 0 && html`<${Facts} className="criteria small" facts=${criteria} />`}
  </section>`;
}

/** A reason is a sentence, or a name such as "wrong_equations". */
const reasonOf = ({ reason }) => (/^\w+$/.test(reason) ? words(reason) : reason);

export function Marks({ response }) {
  const marks = marksOf(response);
  if (!marks.length) return null;
  const characters = [...response.text];
  const count = (verdict) => marks.filter((mark) => mark.verdict === verdict).length;
  const counts = Object.keys(MARK_SYMBOLS)
    .filter(count)
    .map((verdict) => `${count(verdict)} ${verdict}`);
  return html`<details class="marks small">
    <summary>
      ${`The grader looked at ${marks.length} ${marks.length === 1 ? "place" : "places"}: ${counts.join(", ")}`}
    </summary>
    <ul>
      ${marks.map(
        ({ start, end, verdict, note }) =>
          html`<li class=${verdict}>
            <i aria-hidden="true">${MARK_SYMBOLS[verdict]}</i>
            <code>${characters.slice(start, end).join("")}</code> ${note || verdict}
          </li>`,
      )}
    </ul>
  </details>`;
}
