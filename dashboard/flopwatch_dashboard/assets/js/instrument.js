// The job's instrument: what follows from its points, for the first figure and for live ones.
(() => {
  "use strict";
  const TOPS = [1, 2, 5, 10, 20, 40, 60, 80, 100];
  const WATT_TOPS = [50, 100, 150, 200, 300, 400, 500, 600, 700, 800, 1000, 1200, 1500, 2000, 5000];

  const highest = (rows) => {
    let found = 0;
    for (const row of rows) for (const value of row) if (value > found) found = value;
    return found;
  };

  const topOf = (value, unit, limit) => {
    if (limit && value <= limit) return limit;
    const tops = unit === "%" ? TOPS : WATT_TOPS;
    return tops.find((top) => value <= top) ?? tops.at(-1);
  };

  // One closed polygon for each unbroken run: a fill to the next trace would leak across gaps.
  const polygons = (x, low, high) => {
    const xs = [];
    const ys = [];
    for (let start = 0; start < x.length; start += 1) {
      if (low[start] === null) continue;
      let end = start;
      while (end + 1 < x.length && low[end + 1] !== null) end += 1;
      if (xs.length) {
        xs.push(null);
        ys.push(null);
      }
      for (let i = start; i <= end; i += 1) xs.push(x[i]), ys.push(high[i]);
      for (let i = end; i >= start; i -= 1) xs.push(x[i]), ys.push(low[i]);
      xs.push(x[start]);
      ys.push(high[start]);
      start = end;
    }
    return { x: xs, y: ys };
  };
  flopwatch.polygons = polygons;

  const trace = (data, name) => data.find((candidate) => candidate.name === name);

  // Bands, the ends of the scales, and the top of the ramp.
  const dress = (data, layout) => {
    for (const [metric, [axis, unit]] of Object.entries(layout.meta.units)) {
      const band = trace(data, `band ${metric}`);
      Object.assign(band, polygons(trace(data, metric).x, band.meta.low, band.meta.high));
      const top = topOf(highest([band.meta.high]), unit, layout.meta.limits[metric]);
      Object.assign(layout[axis], {
        range: [0, top * 1.06],
        tickvals: [top / 2, top],
        ticktext: [`${top / 2}`, `${top} ${unit}`],
      });
    }
    trace(data, "strip").zmax = topOf(highest(trace(data, "strip").z), "%");
  };
  flopwatch.dressInstrument = (figure) => dress(figure.data, figure.layout);

  const short = (value) => (value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1));

  // The numbers at the left: value now, mean and range of what is on the screen.
  flopwatch.fillGutter = (id, graph) => {
    const gutter = document.querySelector(`[data-chart="${id}"]`);
    if (!gutter) return;
    const write = (selector, text) => {
      const target = gutter.querySelector(selector);
      if (target) target.textContent = text;
    };
    for (const [metric, [, unit]] of Object.entries(graph.layout.meta.units)) {
      const means = trace(graph.data, metric).y.filter((value) => value !== null);
      const { low, high } = trace(graph.data, `band ${metric}`).meta;
      const lows = low.filter((value) => value !== null);
      if (!means.length) {
        write(`[data-now="${metric}"]`, "–");
        write(`[data-range="${metric}"]`, "not measured");
        continue;
      }
      const mean = means.reduce((sum, value) => sum + value, 0) / means.length;
      const range = `${short(Math.min(...lows))}–${short(highest([high]))} ${unit}`;
      const { live } = graph.layout.meta;
      write(`[data-now="${metric}"]`, short(live ? means.at(-1) : mean));
      write(`[data-range="${metric}"]`, live ? `mean ${short(mean)}, ${range}` : `mean; ${range}`);
    }
    const top = document.getElementById("ramp-top");
    if (top) top.textContent = `${trace(graph.data, "strip").zmax} %`;
  };

  flopwatch.extendInstrument = (graph, message, id) => {
    const { points } = message;
    const old = message.whole ? [] : trace(graph.data, "strip").x;
    // Points from `cut` on come again; those before `first` have left a window that moves on.
    const cut = points.x.length ? old.findIndex((time) => time >= points.x[0]) : -1;
    const end = cut < 0 ? old.length : cut;
    const first = Math.max(0, old.findIndex((time) => time > message.range[0]));
    const joined = (before, after) => [...before.slice(first, end), ...after];
    const x = joined(old, points.x);
    for (const name of ["strip", "idle"]) {
      const target = trace(graph.data, name);
      target.x = x;
      target.z = target.z.map((row, position) => joined(row, points[name][position] ?? []));
    }
    for (const [metric, row] of Object.entries(points.rows)) {
      const { meta } = trace(graph.data, `band ${metric}`);
      meta.low = joined(meta.low, row.low);
      meta.high = joined(meta.high, row.high);
      const line = trace(graph.data, metric);
      Object.assign(line, { x, y: joined(line.y, row.mean), customdata: joined(line.customdata, row.text) });
    }
    dress(graph.data, graph.layout);
    const { shapes, annotations } = message;
    flopwatch.paintLayout(id, graph, { shapes, annotations });
    flopwatch.fillGutter(id, graph);
  };
})();
