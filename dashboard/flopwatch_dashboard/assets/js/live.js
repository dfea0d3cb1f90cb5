// Live points: taken into the figure on the screen, which is never replaced, so that zoom stays.
//
// A message has a `kind`. "replace": `traces` hold new x and y for each trace. "instrument": `points`
// are those after the last ones, and a few again that may have changed. Both tell the `range` of the
// time axis, which moves on unless the reader has zoomed, and the `window` it stands for.
(() => {
  "use strict";
  const kinds = {
    replace(graph, message) {
      message.traces.forEach((points, position) => Object.assign(graph.data[position], points));
    },
    instrument: (graph, message, id) => flopwatch.extendInstrument(graph, message, id),
  };

  const receive = (id, graph, message) => {
    const chart = flopwatch.charts[id];
    kinds[message.kind](graph, message, id);
    if (message.window !== chart.window) chart.zoomed = false;
    chart.window = message.window;
    chart.range = message.range ?? chart.range;
    if (!chart.zoomed && chart.range) graph.layout.xaxis.range = [...chart.range];
    chart.ours = true;
    return Plotly.redraw(graph).finally(() => (chart.ours = false));
  };

  dash_clientside.flopwatch.live = (message) => {
    const id = dash_clientside.callback_context.inputs_list[0].id.replace(/-live$/, "");
    if (message && flopwatch.charts[id]) flopwatch.drawn(id, (graph) => receive(id, graph, message), 0);
    return dash_clientside.no_update;
  };
})();
