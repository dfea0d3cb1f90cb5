// Figures come with names of colour tokens ("--accent"); here they get the values of the scheme.
(() => {
  "use strict";
  const charts = {}; // by id: {tokens: [[path, name]], number, range, window, zoomed, ours}
  flopwatch.charts = charts;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isToken = (value) => typeof value === "string" && value.startsWith("--");

  const DATA = new Set(["x", "y", "z", "customdata", "low", "high"]); // long, and without tokens

  const collect = (node, path, found) => {
    if (isToken(node)) found.push([path, node]);
    else if (node && typeof node === "object")
      for (const key of Object.keys(node))
        if (!DATA.has(key)) collect(node[key], [...path, key], found);
    return found;
  };

  const write = (root, tokens) => {
    for (const [path, name] of tokens) {
      const parent = path.slice(0, -1).reduce((node, key) => node?.[key], root);
      if (parent) parent[path.at(-1)] = colour(name);
    }
  };

  // Act on a chart once the figure that was painted last is drawn. A chart of the page before may
  // still stand in its place: each painted figure bears a number of its own.
  const drawn = (id, act, tries = 200) => {
    const graph = document.getElementById(id)?.querySelector(".js-plotly-plot");
    if (graph?._fullLayout && graph.layout.meta?.number === charts[id].number) act(graph);
    else if (tries > 0) setTimeout(() => drawn(id, act, tries - 1), 50);
  };
  flopwatch.drawn = drawn;

  // The graph `id` of the page that was read at `readAt`; null if it is not drawn within 10 s.
  flopwatch.whenDrawn = async (id, readAt) => {
    for (let tries = 0; tries < 200; tries += 1) {
      const graph = document.getElementById(id)?.querySelector(".js-plotly-plot");
      const meta = graph?._fullLayout && graph.layout.meta;
      if (meta?.read_at === readAt && meta.number === charts[id]?.number) return graph;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return null;
  };
  let painted = 0;

  // A zoom of the reader's is told from our own changes of the range by the mark `ours`.
  const watchZoom = (id, graph) => {
    if (graph.flopwatchWatched) return;
    graph.flopwatchWatched = true;
    graph.on("plotly_relayout", (change) => {
      const chart = charts[id];
      if (chart.ours) return;
      if ("xaxis.range[0]" in change || "xaxis.range" in change) chart.zoomed = true;
    });
    graph.on("plotly_doubleclick", () => flopwatch.resetZoom(id));
  };

  flopwatch.resetZoom = (id) => {
    const chart = charts[id];
    chart.zoomed = false;
    drawn(id, (graph) => flopwatch.setRange(id, graph, chart.range));
  };

  flopwatch.setRange = (id, graph, range) => {
    const chart = charts[id];
    chart.range = range;
    chart.ours = true;
    return Plotly.relayout(graph, { "xaxis.range": [...range] }).finally(() => (chart.ours = false));
  };

  // Give the parts of a layout that came with a live message their colours, now and later.
  flopwatch.paintLayout = (id, graph, parts) => {
    const chart = charts[id];
    const fresh = Object.keys(parts);
    chart.tokens = chart.tokens.filter(([path]) => !(path[0] === "layout" && fresh.includes(path[1])));
    const tokens = collect({ layout: parts }, [], []);
    write({ layout: parts }, tokens);
    chart.tokens.push(...tokens);
    Object.assign(graph.layout, parts);
  };

  dash_clientside.flopwatch.paint = (figure) => {
    if (!figure) return dash_clientside.no_update;
    const id = dash_clientside.callback_context.outputs_list.id;
    const copy = structuredClone(figure);
    const { layout } = copy;
    const number = (painted += 1);
    layout.meta = { ...layout.meta, number };
    if (innerWidth <= 768) layout.xaxis.nticks = 4;
    if (layout.meta.kind === "instrument") flopwatch.dressInstrument(copy);
    const tokens = collect(copy, [], []);
    write(copy, tokens);
    const { window } = layout.meta;
    charts[id] = { tokens, number, window, range: layout.xaxis.range, zoomed: false, ours: false };
    drawn(id, (graph) => {
      watchZoom(id, graph);
      if (layout.meta.kind === "instrument") flopwatch.fillGutter(id, graph);
    });
    return copy;
  };

  addEventListener("flopwatch-scheme", () => {
    for (const [id, chart] of Object.entries(charts)) {
      drawn(id, (graph) => {
        write(graph, chart.tokens);
        Plotly.redraw(graph);
      }, 0);
    }
  });
})();
