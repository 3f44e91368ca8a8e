// Draws the spending of a vault's last 30 days: bars, the day's cap as a line, refusals as dots.
"use strict";

function draw(place) {
  const { days, spent, refused, cap } = JSON.parse(place.dataset.chart);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const series = [
    { value: (_, at) => (at === null ? "-" : new Date(at * 1000).toISOString().slice(0, 10)), label: "Day (UTC)" },
    {
      label: "Spent (USDC)",
      fill: colour("accent"),
      stroke: colour("accent"),
      width: 0,
      paths: uPlot.paths.bars({ size: [0.7, 40] }),
      points: { show: false },
    },
    {
      label: "Refused",
      scale: "count",
      stroke: colour("bad"),
      paths: () => null,
      points: { show: true, size: 8, fill: colour("bad"), filter: (plot) => refused.flatMap((n, i) => (n ? [i] : [])) },
    },
  ];
  const data = [days, spent, refused];
  if (cap !== null) {
    series.push({ label: "Cap in 24 hours", stroke: colour("warn"), dash: [6, 4], width: 2, points: { show: false } });
    data.push(days.map(() => cap));
  }
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const plot = new uPlot(
    {
      width: place.clientWidth,
      height: 240,
      series,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      scales: {
        // Add half a day on either side, so that the outer bars are not cut off.
        x: { range: [days[0] - 43200, days[days.length - 1] + 43200] },
        y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] },
        count: { range: (_, low, high) => [0, Math.max(high * 1.3, 4)] },
      },
      axes: [
        { ...axis, values: (_, at) => at.map((one) => new Date(one * 1000).toISOString().slice(5, 10)) },
        { ...axis, size: 64 },
        { ...axis, scale: "count", side: 1, grid: { show: false }, size: 40, incrs: [1, 2, 5, 10, 100, 1000] },
      ],
    },
    data,
    place,
  );
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 240 })).observe(place);
}

for (const place of document.querySelectorAll("[data-chart]")) draw(place);
// An open page gets a new chart after each payment.
document.addEventListener("htmx:load", ({ target }) => {
  for (const place of target.querySelectorAll("[data-chart]")) if (!place.childElementCount) draw(place);
});
