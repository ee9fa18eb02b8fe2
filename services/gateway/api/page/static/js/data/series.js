/** Arithmetic on curves. Pure. */

/**
 * An exponential moving average that starts at the first value (Adam's bias correction), and passes over gaps.
 * @param {(number|null)[]} values @param {number} weight of the past, in [0, 1)
 */
export function smoothed(values, weight) {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

/** What a logarithmic axis can hold. */
export const positive = (values) => values.map((value) => (value > 0 ? value : null));

/** Curves on top of one another: the first lies at the bottom. */
export function stacked(curves) {
  const total = curves[0]?.map(() => 0) ?? [];
  return curves.map((curve) => curve.map((value, place) => (total[place] += value ?? 0)));
}

/** The middle one of the known values, the upper of two; 0 if there is none. */
export const median = (values) => {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known[known.length >> 1] ?? 0;
};

/** Of the known values; null if there is none. */
export const mean = (values) => {
  const known = values.filter((value) => value !== null);
  return known.length ? sum(known) / known.length : null;
};

export const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
