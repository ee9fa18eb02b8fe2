/** Who waits for whom, asked again and again while a job runs. */
import { html } from "../shell/dom.js";
import { JOBS, get } from "../data/api.js";
import { duration } from "../shell/format.js";
import { usePolled } from "../data/poll.js";

const REFRESH_S = 5;

export const useWhy = (id) => usePolled((signal) => get(`${JOBS}/${id}/why`, {}, signal), [id], REFRESH_S);

export function Why({ id }) {
  const { value: why } = useWhy(id);
  if (!why?.because) return null;
  const isStall = !why.moving && why.edge;
  return html`<p class="why ${isStall ? "notice" : ""}" role="status">
    ${isStall && html`<strong>Nothing has moved for ${duration(why.still_s)}: </strong>`}${why.because}
  </p>`;
}
