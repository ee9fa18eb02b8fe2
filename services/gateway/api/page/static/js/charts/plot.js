/** uPlot as a component: it takes the page's colours, its width, and the keyboard. */
import uPlot from "../../vendor/uplot.js";
import { html, useEffect, useLayoutEffect, useRef } from "../shell/dom.js";
import { number } from "../shell/format.js";
import { colour } from "../shell/theme.js";

/**
 * @param {object} props
 * @param {(colour: (name: string) => string) => uPlot.Options} props.options new ones draw a new chart
 * @param {uPlot.AlignedData} props.data
 * @param {string} props.label what the chart shows, for who does not see it
 * @param {(place: number|null) => void} [props.onHover] told the place in the data under the cursor
 */
export function Plot({ options, data, label, height = 170, sync, onHover }) {
  const box = useRef(null);
  const plot = useRef(null);
  const latest = useRef(data);
  latest.current = data;
  useLayoutEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      const own = withDefaults(options(colour), { width: box.current.clientWidth, height, sync, onHover });
      plot.current = new uPlot(own, latest.current, box.current);
    };
    draw();
    const resize = new ResizeObserver(() => plot.current.setSize({ width: box.current.clientWidth, height }));
    resize.observe(box.current);
    addEventListener("theme-changed", draw);
    return () => {
      resize.disconnect();
      removeEventListener("theme-changed", draw);
      plot.current.destroy();
    };
  }, [options, height]);
  useEffect(() => {
    if (plot.current.data !== data) plot.current.setData(data, !isZoomed(plot.current));
  }, [data, options]);
  const onKeyDown = (event) => moveCursor(plot.current, event);
  return html`<div class="plot" ref=${box} role="img" tabindex="0" aria-label=${label} onKeyDown=${onKeyDown}></div>`;
}

function withDefaults(options, { width, height, sync, onHover }) {
  const axis = {
    stroke: colour("--soft"),
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { show: false },
    font: "11px Inter, system-ui",
  };
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, 12, 0, 0],
    ...options,
    cursor: { sync: sync && { key: sync }, points: { size: 7 }, drag: { x: true, y: false }, ...options.cursor },
    scales: { x: { time: false }, ...options.scales },
    axes: [
      {
        ...axis,
        label: "step",
        labelFont: axis.font,
        labelSize: 14,
        labelGap: 0,
        size: 24,
        gap: 4,
        space: 64,
        incrs: STEPS,
        values: (_, ticks) => ticks.map(number),
        ...options.axes?.[0],
      },
      { ...axis, size: 50, gap: 6, space: 32, values: tickTexts, ...options.axes?.[1] },
    ],
    hooks: { setCursor: [(plot) => onHover?.(plot.cursor.idx ?? null)], ...options.hooks },
  };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];

/** As many decimals as the distance between ticks has; on a log axis some ticks have no text. */
function tickTexts(_plot, ticks, _axis, _space, distance) {
  const decimals = String(Number(distance.toPrecision(3))).split(".")[1]?.length ?? 0;
  const isPlain = distance >= 1e-4 && decimals > 0;
  return ticks.map((tick) => (tick === null ? "" : isPlain ? tick.toFixed(decimals) : number(tick)));
}

function isZoomed(plot) {
  const [steps, { min, max }] = [plot.data[0], plot.scales.x];
  return steps.length > 1 && (min > steps[0] || max < steps.at(-1));
}

/** Arrows, Home and End move the cursor from value to value; Escape takes it away. */
function moveCursor(plot, event) {
  const steps = plot.data[0];
  const here = plot.cursor.idx ?? steps.length;
  const places = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: steps.length - 1 };
  if (event.key === "Escape") return plot.setCursor({ left: -10, top: -10 });
  const place = Math.max(0, Math.min(steps.length - 1, places[event.key] ?? -1));
  if (!(event.key in places) || !steps.length) return;
  event.preventDefault();
  event.stopPropagation();
  plot.setCursor({ left: plot.valToPos(steps[place], "x"), top: plot.over.clientHeight / 2 });
}
