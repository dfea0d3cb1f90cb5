// The jobs grid: columns by width, rows anew in place, the order in the address.
(() => {
  "use strict";
  // The narrowest window in which a column is shown; the look's breakpoints.
  const FROM = {
    job_id: 769, user: 769, gpus: 769, sm_active: 769, dram_active: 769, mfu: 769, elapsed: 769,
    reason: 1180, spark: 1440, account: 1600, partition: 1800, power_watts: 1800,
  };
  const DEFAULT_SORT = "-idle_gpu_hours";
  const BLOCK = 100;
  const ready = new WeakSet();
  let filters = null;
  let grid = null;

  const fit = (api) => {
    for (const [column, width] of Object.entries(FROM)) api.setColumnsVisible([column], innerWidth >= width);
    const narrow = innerWidth <= 768;
    api.setColumnWidths([
      { key: "state", newWidth: narrow ? 36 : 40 },
      { key: "tensor_active", newWidth: innerWidth >= 1600 ? 126 : 104 },
      { key: "idle_gpu_hours", newWidth: narrow ? 80 : 84 },
      { key: "elapsed", newWidth: innerWidth >= 1600 ? 132 : 84 },
    ]);
  };

  const sortInAddress = () => new URLSearchParams(location.search).get("sort") ?? DEFAULT_SORT;

  const writeSort = (api) => {
    const sorted = api.getColumnState().find((column) => column.sort);
    if (!sorted) return;
    const name = (sorted.sort === "desc" ? "-" : "") + sorted.colId;
    if (name !== sortInAddress()) flopwatch.setQuery({ sort: name === DEFAULT_SORT ? "" : name });
  };

  // Back and forward change the address; the grid follows.
  const readSort = (api) => {
    const name = sortInAddress();
    const colId = name.replace(/^-/, "");
    const sort = name.startsWith("-") ? "desc" : "asc";
    const now = api.getColumnState().find((column) => column.sort);
    if (now?.colId === colId && now.sort === sort) return;
    api.applyColumnState({ state: [{ colId, sort }], defaultState: { sort: null } });
  };

  const openRow = (event) => {
    if (!event.data || event.event.target.closest("a")) return;
    if (event.event.ctrlKey || event.event.metaKey) open(event.data.href, "_blank", "noopener");
    else dash_clientside.set_props("url", { pathname: event.data.href, search: "" });
  };

  const takeOver = (api) => {
    grid = api;
    flopwatch.live.moved();
    if (ready.has(api)) return;
    ready.add(api);
    fit(api);
    const resized = () => (api.isDestroyed() ? removeEventListener("resize", resized) : fit(api));
    addEventListener("resize", resized);
    api.addEventListener("sortChanged", () => writeSort(api));
    let shown = String(flopwatch.shownRows());
    api.addEventListener("bodyScrollEnd", () => {
      if (shown === (shown = String(flopwatch.shownRows()))) return;
      flopwatch.live.moved();
    });
    api.addEventListener("rowClicked", openRow);
    api.addEventListener("cellKeyDown", (event) => event.event.key === "Enter" && openRow(event));
  };

  const filterText = () => {
    const query = new URLSearchParams(location.search);
    query.delete("sort");
    return query.toString();
  };

  dash_clientside.flopwatch.gridReady = (_columns) => {
    filters = filterText();
    grid = null;
    dash_ag_grid.getApiAsync("jobs-grid").then(takeOver);
    return dash_clientside.no_update;
  };

  // Another order is read in place; other filters start from the top.
  dash_clientside.flopwatch.filterJobs = () => {
    if (!document.getElementById("jobs-grid")) return dash_clientside.no_update;
    dash_ag_grid.getApiAsync("jobs-grid").then((api) => {
      if (api.isDestroyed()) return;
      readSort(api);
      if (filterText() === filters) return;
      filters = filterText();
      api.ensureIndexVisible(0, "top");
      api.purgeInfiniteCache();
    });
    return dash_clientside.no_update;
  };

  // The rows of the blocks on the screen, as [first, end); null where there is no grid.
  flopwatch.shownRows = () => {
    if (!grid || grid.isDestroyed()) return null;
    const first = Math.max(0, grid.getFirstDisplayedRowIndex());
    const last = Math.max(first, grid.getLastDisplayedRowIndex());
    return [Math.floor(first / BLOCK) * BLOCK, (Math.floor(last / BLOCK) + 1) * BLOCK];
  };

  // New figures go into the rows in place. Where other rows belong the grid reads its blocks again,
  // which keeps scroll and focus as well.
  flopwatch.receiveRows = ({ start, total, rows }) => {
    if (!grid || grid.isDestroyed()) return;
    const nodes = rows.map((_, position) => grid.getDisplayedRowAtIndex(start + position));
    if (nodes.some((node) => node && !node.data)) return; // its first rows are on their way
    const same = total === grid.getDisplayedRowCount() && rows.every((row, position) => nodes[position]?.data.id === row.id);
    if (!same) return grid.refreshInfiniteCache();
    const changed = nodes.filter((node, position) => JSON.stringify(node.data) !== JSON.stringify(rows[position]));
    nodes.forEach((node, position) => Object.assign(node.data, rows[position]));
    grid.refreshCells({ rowNodes: changed, force: true });
  };
})();
