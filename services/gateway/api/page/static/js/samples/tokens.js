/** The text of a response, token by token, coloured by a number, with the grader's marks. */
import { html, useEffect, useMemo, useRef, useState } from "../shell/dom.js";
import { number, signed } from "../shell/format.js";
import { pieces } from "./pieces.js";
import { SHADINGS, isForeign, legendClasses, levelClass } from "./shading.js";

const AT_FIRST = 3000; // tokens
export const MARK_SYMBOLS = { right: "✓", wrong: "✗", unknown: "?" };

export const marksOf = ({ grade }) => [...(grade?.outcome?.marks ?? []), ...(grade?.process?.marks ?? [])];

export function Tokens({ response, shading, end }) {
  const [active, setActive] = useState(null);
  const [all, setAll] = useState(false);
  const box = useRef(null);
  const tokens = useMemo(() => (all ? response.tokens : response.tokens.slice(0, AT_FIRST)), [response, all]);
  const runs = useMemo(() => pieces(tokens, response.episode ? [] : marksOf(response)), [tokens]);
  const text = useMemo(() => drawn(runs, response, shading, end), [runs, shading, end]);
  useEffect(() => {
    if (active === null) return undefined;
    const parts = box.current.querySelectorAll(`[data-token="${active}"]`);
    parts.forEach((part) => part.classList.add("active"));
    return () => parts.forEach((part) => part.classList.remove("active"));
  }, [active, text]);
  const look = (event) => {
    const token = event.target.dataset.token;
    if (token !== undefined) setActive(Number(token));
  };
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !tokens.length) return;
    event.preventDefault();
    event.stopPropagation();
    setActive(active === null ? 0 : Math.max(0, Math.min(tokens.length - 1, active + step)));
  };
  return html`
    <div
      class="tokens"
      ref=${box}
      tabindex="0"
      role="group"
      aria-label=${`Text of response ${response.index}; the arrows go from token to token`}
      onMouseOver=${look}
      onMouseLeave=${() => setActive(null)}
      onClick=${look}
      onKeyDown=${move}
    >
      ${text}
    </div>
    ${
      response.tokens.length > tokens.length &&
      html`<button onClick=${() => setAll(true)}>Show all ${number(response.tokens.length)} tokens</button>`
    }
    <p class="reading small" aria-live="polite"><${Reading} response=${response} token=${active} runs=${runs} /></p>
  `;
}

function drawn(runs, response, shading, end) {
  const kind = SHADINGS[shading];
  const values = (kind && kind.values(response)) ?? [];
  const versions = new Map(response.spans.slice(1).map((span) => [span.start, span.version]));
  const part = ({ token, text }) => {
    const level = isForeign(response, token) ? "foreign" : kind && levelClass(values[token], end, kind);
    const seam = versions.has(token) && html`<${Seam} version=${versions.get(token)} />`;
    return html`${seam}<span data-token=${token} class=${level}>${text}</span>`;
  };
  return runs.map(({ mark, parts }) =>
    mark
      ? html`<span class="mark ${mark.verdict}" title=${mark.note || mark.verdict}
          >${parts.map(part)}<sup aria-label=${mark.verdict}>${MARK_SYMBOLS[mark.verdict]}</sup></span
        >`
      : parts.map(part),
  );
}

/** Where other weights went on with a response. */
const Seam = ({ version }) => html`<b class="version" title="Sampled by version ${version} from here">v${version}</b>`;

/** Every number of one token, and what the grader noted there. */
function Reading({ response, token, runs }) {
  if (token === null) return null;
  const mark = runs.find(({ parts }) => parts.some((part) => part.token === token))?.mark;
  const told = Object.values(SHADINGS).flatMap((kind) => {
    const value = kind.values(response)?.[token];
    return value === null || value === undefined ? [] : [[kind.text, kind.diverges ? signed(value) : number(value)]];
  });
  return html`<code>${JSON.stringify(response.tokens[token])}</code>
    ${isForeign(response, token) && html`<span class="pair">of a tool or the environment</span>`}
    ${told.map(([name, value]) => html`<span class="pair">${name} <b>${value}</b></span>`)}
    ${
      mark &&
      html`<span class="pair">${MARK_SYMBOLS[mark.verdict]} ${mark.verdict}${mark.note && `: ${mark.note}`}</span>`
    }`;
}

/** The scale of a colouring, with its numbers. */
export function Scale({ shading, end }) {
  const kind = SHADINGS[shading];
  if (!kind) return null;
  if (end === null) return html`<span class="soft small">Nothing was computed for these tokens.</span>`;
  const show = kind.diverges ? signed : number;
  return html`<span
    class="scale small"
    role="img"
    aria-label=${`Colours from ${kind.diverges ? `${show(-end)} over 0` : "0"} to ${show(end)} ${kind.unit}`}
  >
    ${kind.diverges ? `≤ ${show(-end)}` : "0"}<span class="colours"
      >${legendClasses(kind).map((name) => html`<i class=${name}></i>`)}</span
    >≥ ${show(end)} ${kind.unit}
  </span>`;
}
