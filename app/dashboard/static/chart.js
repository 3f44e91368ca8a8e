// Draws the spending of a vault's last 30 days: a bar a day, the cap as a line with its label, refusals as a strip below.
"use strict";

const STRIP = 22; // pixels
const NEAR = 0.05; // The cap is left out of the drawing if the largest spending is below this share of it.

function draw(place) {
  const { days, spent, refused, cap } = JSON.parse(place.dataset.chart);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const most = Math.max(...spent);
  const near = cap !== null && most >= cap * NEAR;
  const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const names = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  const name = (at) => names.format(new Date(at * 1000));
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;

  function marks(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${12 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textBaseline = "bottom";
    ctx.textAlign = "left";
    if (cap !== null) {
      const text = near ? `Cap in 24 hours: ${money.format(cap)}` : `Cap in 24 hours: ${money.format(cap)} (far above)`;
      const y = near ? plot.valToPos(cap, "y", true) : bbox.top + 14 * ratio;
      ctx.strokeStyle = ctx.fillStyle = colour("warn");
      ctx.setLineDash([6 * ratio, 4 * ratio]);
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      if (near) ctx.moveTo(bbox.left, y);
      if (near) ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.fillText(text, bbox.left + 4 * ratio, y - 2 * ratio);
    }
    const bottom = bbox.top + bbox.height;
    const wide = Math.min(Math.max((bbox.width / days.length) * 0.7, 4 * ratio), 24 * ratio);
    ctx.fillStyle = colour("bad");
    for (const [number, count] of refused.entries())
      if (count) ctx.fillRect(plot.valToPos(days[number], "x", true) - wide / 2, bottom + 8 * ratio, wide, 8 * ratio);
    if (refused.some(Boolean)) {
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText("refused", bbox.left - 6 * ratio, bottom + 12 * ratio);
    }
    ctx.restore();
  }

  function point(plot) {
    const at = plot.cursor.idx;
    tip.hidden = at == null || plot.cursor.left < 0;
    if (tip.hidden) return;
    tip.textContent = `${name(days[at])}\n${money.format(spent[at])} USDC spent\n${refused[at]} refused`;
    const left = plot.over.offsetLeft + plot.valToPos(days[at], "x") + 12;
    tip.style.left = `${Math.min(left, place.clientWidth - tip.offsetWidth)}px`;
  }

  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const plot = new uPlot(
    {
      width: place.clientWidth,
      height: 260,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      series: [{}, { fill: colour("accent"), width: 0, paths: uPlot.paths.bars({ size: [0.7, 24] }), points: { show: false } }],
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      scales: {
        // Add half a day on either side, so that the outer bars are not cut off.
        x: { range: [days[0] - 43200, days[days.length - 1] + 43200] },
        y: { range: () => [0, Math.max((near ? Math.max(most, cap) : most) * 1.15, 1)] },
      },
      axes: [
        { ...axis, grid: { show: false }, gap: STRIP, size: 50, values: (_, at) => at.map(name) },
        { ...axis, size: 72, label: "USDC a day (UTC)", labelSize: 22, stroke: colour("muted") },
      ],
      hooks: { draw: [marks], setCursor: [point] },
    },
    [days, spent],
    place,
  );
  place.append(tip);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 260 })).observe(place);
}

for (const place of document.querySelectorAll("[data-chart]")) draw(place);
// An open page gets a new chart after each payment.
document.addEventListener("htmx:load", ({ target }) => {
  for (const place of target.querySelectorAll("[data-chart]")) if (!place.childElementCount) draw(place);
});
