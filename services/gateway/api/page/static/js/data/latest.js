/** The newest numbers of a job in the list of all jobs. */
import { get } from "./api.js";
import { usePolled } from "./poll.js";

const NOTHING = { metrics: null, evaluation: null, rewards: [] };

export function useLatest(job) {
  const ask = (signal) => get(`v1/page/jobs/${job.id}/latest`, {}, signal);
  return usePolled(ask, [job.id, job.weir.step, job.status]).value ?? NOTHING;
}
