// Cells of the jobs grid. Texts come ready from the server; here they get their shapes.
(() => {
  "use strict";
  const h = (name, props, ...children) => React.createElement(name, props, ...children);
  const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions ?? {});
  const LETTERS = { active: "A", low: "L", idle: "I", shared: "", unknown: "?", pending: "P", ended: "E" };
  const DASH = "–";
  const narrow = () => innerWidth <= 768;

  const missing = (why) => h("span", { className: "muted", title: why, tabIndex: 0 }, DASH);

  cells.JobsState = ({ data }) =>
    data ? h("span", { className: `glyph ${data.state_now}`, title: data.state_now }, LETTERS[data.state_now]) : null;

  cells.JobsId = ({ data }) => (data ? h("a", { href: data.href, className: "job-id" }, data.job_id) : null);

  cells.JobsName = ({ data }) => {
    if (!data) return null;
    const link = h("a", { href: data.href, className: "job-name" }, data.name);
    if (!narrow()) return link;
    const gpus = `${data.user}, ${data.gpus} ${data.model ? `× ${data.model}` : "GPUs"}`;
    return h("span", { className: "two-lines" }, link, h("span", null, gpus));
  };

  cells.JobsGpus = ({ data }) =>
    data ? h("span", null, h("b", { style: { fontWeight: 600 } }, data.gpus), " ", h("span", { className: "muted" }, data.model)) : null;

  cells.JobsTensor = ({ data }) => {
    if (!data) return null;
    if (data.tensor_active === DASH) return missing(data.why);
    const width = `${(100 * data.tensor_share).toFixed(1)}%`;
    return h("span", { className: "value-bar number" },
      h("b", null, data.tensor_active),
      h("span", { className: "inline-bar" }, h("i", { style: { width } })));
  };

  cells.JobsNumber = ({ data, value, colDef }) => {
    if (!data) return null;
    if (value === DASH) return missing(colDef.colId === "mfu" ? data.mfu_why : data.why);
    const warm = colDef.colId === "idle_gpu_hours" && data.idle_warm;
    return h("span", warm ? { className: "warm" } : null, value);
  };

  cells.JobsReason = ({ data }) =>
    data ? h("span", { className: "muted reason", title: data.reason }, data.reason) : null;

  // A run is an unbroken stretch of points: a line and the area under it.
  const runs = (levels) => {
    const found = [[]];
    levels.forEach((level, position) => {
      if (level === null) found.push([]);
      else found.at(-1).push(`${position},${(19 - 17 * level).toFixed(1)}`);
    });
    return found.filter((run) => run.length > 1);
  };

  cells.JobsSpark = ({ data }) => {
    if (!data) return null;
    const lines = runs(data.spark);
    if (!lines.length) return missing(data.why);
    const left = (run) => run[0].split(",")[0];
    const right = (run) => run.at(-1).split(",")[0];
    return h("svg", { className: "spark-cell", viewBox: `0 0 ${data.spark.length - 1} 20`, preserveAspectRatio: "none", "aria-hidden": true },
      ...lines.map((run, key) => h("path", { key: `a${key}`, className: "area", d: `M${left(run)},20 L${run.join(" ")} L${right(run)},20Z` })),
      ...lines.map((run, key) => h("path", { key, className: "line", d: `M${run.join(" L")}` })));
  };

  cells.JobsElapsed = ({ data }) => {
    if (!data) return null;
    if (data.elapsed === DASH) return missing(data.why);
    const share = data.elapsed_share;
    return h("span", { className: "elapsed", title: data.limit ? `of ${data.limit}` : "no limit" },
      data.elapsed, innerWidth >= 1600 ? h("span", null, data.limit) : null,
      share === null ? null : h("i", { style: { width: `${(100 * share).toFixed(1)}%` } }));
  };
})();
