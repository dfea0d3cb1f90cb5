// What came by the live path, put where it belongs: texts by element, rows of the grid in place, and
// points into the figure on the screen, which is never replaced, so that zoom stays.
//
// The message of a chart has a `kind`. "replace": `traces` hold new x and y for each trace, or none
// if they are the same, and `scale` what follows for the vertical axis. "instrument": `points` from
// the first on that is new or has changed. Both tell the `range` of the time axis, which moves on
// unless the reader has zoomed, and the `window` it stands for.
//
// Plotly.extendTraces can't replace a late point, nor lengthen the rows of a heat map. What it does
// after appending is what is done here: one redraw of the same figure.
(() => {
  "use strict";
  const kinds = {
    replace(graph, message) {
      message.traces.forEach((points, position) => Object.assign(graph.data[position], points));
      Object.assign(graph.layout.yaxis, message.scale);
    },
    instrument: (graph, message, id) => flopwatch.extendInstrument(graph, message, id),
  };

  const draw = (id, graph, message) => {
    const chart = flopwatch.charts[id];
    kinds[message.kind](graph, message, id);
    if (message.window !== chart.window) chart.zoomed = false;
    chart.window = message.window;
    chart.range = message.range ?? chart.range;
    if (!chart.zoomed && chart.range) graph.layout.xaxis.range = [...chart.range];
    chart.ours = true;
    return Plotly.redraw(graph).finally(() => (chart.ours = false));
  };

  // Points come one after another: the first ones wait until the figure of their page is drawn.
  let queues = { readAt: null };
  const queue = (id, message, readAt) => {
    if (queues.readAt !== readAt) queues = { readAt };
    queues[id] = (queues[id] ?? Promise.resolve())
      .then(() => flopwatch.whenDrawn(id, readAt))
      .then((graph) => graph && draw(id, graph, message));
  };

  // `readAt` tells which page the news is for.
  flopwatch.receive = (news, readAt) => {
    for (const [id, properties] of Object.entries(news.parts))
      if (document.getElementById(id)) dash_clientside.set_props(id, properties);
    for (const [id, message] of Object.entries(news.charts)) queue(id, message, readAt);
    if (news.rows) flopwatch.receiveRows(news.rows);
    flopwatch.freshness(news.freshness);
  };
})();
