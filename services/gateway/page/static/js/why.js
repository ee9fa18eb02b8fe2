/** Who waits for whom, asked every 3 s while a job runs. */
import { html } from "./dom.js";
import { JOBS, get } from "./api.js";
import { duration } from "./format.js";
import { usePolled } from "./poll.js";

const REFRESH_S = 3;

export const useWhy = (id) => usePolled((signal) => get(`${JOBS}/${id}/why`, {}, signal), [id], REFRESH_S);

export function Why({ id }) {
  const { value: why } = useWhy(id);
  if (!why?.because) return null;
  return html`<p class="why ${why.moving ? "" : "notice"}" role="status">
    ${!why.moving && html`<strong>Still for ${duration(why.still_s)}. </strong>`}${why.because}
  </p>`;
}
