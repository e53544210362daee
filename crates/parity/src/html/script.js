"use strict";
// The page has all data: reports as written by `isograd parity --json`, a command for each finding with a case, and the kernels
// with the ops and checks that cover them.
const data = JSON.parse(document.getElementById("data").textContent);
const BACKENDS = { cpu: "CPU", cuda: "CUDA", hip: "HIP", opencl: "OpenCL" };
const DTYPES = ["f64", "f32", "f16", "bf16", "i64", "i32"];
const form = document.getElementById("filter");
const dialog = document.getElementById("details");

/** An element with attributes and children; text is never read as HTML. */
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") element.onclick = value;
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

const backend = (device) => device.split(":")[0];
const distinct = (values) => [...new Set(values)];
/** In the order of a list; what it lacks comes last, by name. */
const ordered = (values, list) => {
  const place = (value) => (list.includes(value) ? list.indexOf(value) : list.length);
  return distinct(values).sort((a, b) => place(a) - place(b) || a.localeCompare(b));
};

/** JSON has null where a number is not finite. */
const number = (value) => value ?? Infinity;
const short = (value) => {
  if (value === Infinity) return "∞";
  if (value === 0) return "0";
  if (value < 0.005) return "<0.01";
  return value < 100 ? value.toFixed(2) : value < 1e5 ? value.toFixed(0) : value.toExponential(1);
};
const percent = (fraction) => {
  if (fraction === Infinity) return "∞";
  return fraction < 10 ? `${(100 * fraction).toFixed(fraction < 0.1 ? 1 : 0)}%` : `${fraction.toFixed(0)}×`;
};
const time = (seconds) => {
  if (seconds < 1e-3) return `${(1e6 * seconds).toFixed(1)} µs`;
  return seconds < 1 ? `${(1e3 * seconds).toFixed(1)} ms` : `${seconds.toFixed(1)} s`;
};
/** A name that may go on in another line after an underscore. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((part, k) => (k ? [el("wbr"), part] : [part]));
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

// The label of a device: its name, and the run's number if several runs have a device of this name.
const names = data.reports.flatMap((report) => report.devices.map((device) => device.name));
const label = (run, device) => (names.filter((name) => name === device).length > 1 ? `${device} #${run + 1}` : device);

const findings = data.reports.flatMap((report, run) => report.findings.map((finding, k) => {
  const [state, why] = typeof finding.outcome === "string" ? [finding.outcome, ""] : Object.entries(finding.outcome)[0];
  const { bounds, ulps, case: name } = finding.worst ?? { bounds: 0, ulps: 0, case: "" };
  const where = label(run, finding.device);
  const command = data.commands[run][k];
  return { ...finding, run, where, state, why, bounds: number(bounds), ulps: number(ulps), case: name, command };
}));
const speeds = new Map(data.reports.flatMap((report, run) => report.speeds.map((speed) => {
  const key = [speed.op, label(run, speed.device), speed.dtype].join(" ");
  const backward = speed.backward && { ...speed.backward, fraction: number(speed.backward.fraction) };
  return [key, { ...speed, fraction: number(speed.fraction), backward }];
})));
/** The kernels that an op covers. */
const kernelsOf = new Map();
for (const kernel of data.kernels) {
  for (const op of Object.keys(kernel.ops)) kernelsOf.set(op, [...(kernelsOf.get(op) ?? []), kernel.name]);
}
// An op that covers no kernel of the list is listed as a kernel itself.
const others = distinct(findings.map((finding) => finding.op)).filter((op) => !kernelsOf.has(op));
const kernels = [...data.kernels, ...others.map((op) => ({ name: op, category: "others", ops: { [op]: null } }))];

/** Failures first, then by the error. */
const byWorst = (a, b) =>
  (b.state === "failed") - (a.state === "failed") || (a.state === "skipped") - (b.state === "skipped") ||
  (b.bounds === a.bounds ? 0 : b.bounds - a.bounds) || (b.ulps === a.ulps ? 0 : b.ulps - a.ulps);

function summary(list) {
  const count = (state) => list.filter((finding) => finding.state === state).length;
  const largest = (field) => list.reduce((most, finding) => Math.max(most, finding[field]), 0);
  const seconds = list.reduce((sum, finding) => sum + finding.seconds, 0);
  const [passed, failed, skipped, refused] = ["passed", "failed", "skipped", "refused"].map(count);
  return { passed, failed, skipped, refused, bounds: largest("bounds"), ulps: largest("ulps"), seconds };
}

function counts({ passed, failed, skipped, refused }) {
  const parts = [];
  if (failed) parts.push(el("span", { class: "bad" }, `✗ ${failed.toLocaleString("en")} failed`));
  if (passed || !failed) parts.push(`${passed.toLocaleString("en")} passed`);
  if (skipped) parts.push(`${skipped.toLocaleString("en")} skipped`);
  if (refused) parts.push(`${refused.toLocaleString("en")} refused`);
  return parts.flatMap((part, k) => (k ? [", ", part] : [part]));
}

// The address has the whole state: the filter, the order of the table, and the open entries.
const FIELDS = ["q", "device", "dtype", "check", "show"];
const state = () => new URLSearchParams(location.hash.slice(1));
function setState(changes, keep) {
  const next = state();
  for (const [name, value] of Object.entries(changes)) value ? next.set(name, value) : next.delete(name);
  const address = next.size ? `#${next}` : location.pathname + location.search;
  keep ? history.pushState(null, "", address) : history.replaceState(null, "", address);
  render();
}

/** Whether a text has what is looked for: a regular expression, or the text itself if it is none. */
function matcher(wanted) {
  try {
    const expression = new RegExp(wanted, "i");
    return { matches: (text) => expression.test(text), isValid: true };
  } catch {
    return { matches: (text) => text.toLowerCase().includes(wanted.toLowerCase()), isValid: false };
  }
}

/** What a cell or a row shows, by its name. */
const shown = new Map();

function cell(kernel, column, list) {
  const worst = [...list].sort(byWorst)[0];
  const { failed, passed, bounds } = summary(list);
  const level = bounds > 0 ? 1 + [0.25, 0.5, 0.75].filter((from) => bounds >= from).length : 0;
  const kind = failed ? "failed" : passed ? `l${level}` : "skipped";
  const text = failed ? (worst.bounds > 1 ? `✗ ${short(worst.bounds)}` : "✗") : passed ? short(bounds) : "skip";
  const id = `kernel ${kernel.name} ${column.backend} ${column.dtype}`;
  const said = failed ? `failed, ${worst.check}` : passed ? `passed, ${short(bounds)} of its bound` : `${worst.state}, ${worst.why}`;
  const title = `${kernel.name} on ${BACKENDS[column.backend] ?? column.backend} in ${column.dtype}`;
  shown.set(id, { title, list });
  const label = `${title}: ${said}`;
  return el("button", { type: "button", class: kind, "data-id": id, "aria-label": label, title: said, tabindex: -1 }, text);
}

/** The findings of an op that runs a kernel. */
const runs = (kernel) => (finding) => kernel.ops[finding.op]?.includes(finding.check) ?? true;

/** The number of kernels that passed wherever they ran, and of all that an op covers. */
function rightKernels() {
  const byOp = Map.groupBy(findings, (finding) => finding.op);
  const covered = kernels.filter((kernel) => Object.keys(kernel.ops).length);
  const isRight = (kernel) => {
    const { passed, failed } = summary(Object.keys(kernel.ops).flatMap((op) => byOp.get(op) ?? []).filter(runs(kernel)));
    return passed > 0 && failed === 0;
  };
  return [covered.filter(isRight).length, covered.length];
}

function renderMap(found, { matches }) {
  const dtypesOf = (name) => ordered(found.filter((f) => backend(f.device) === name).map((f) => f.dtype), DTYPES);
  const backends = ordered(found.map((finding) => backend(finding.device)), Object.keys(BACKENDS));
  const columns = backends.flatMap((name) => dtypesOf(name).map((dtype) => ({ backend: name, dtype })));
  const head = el("thead", {},
    el("tr", {}, el("th", { class: "corner", rowspan: 2, scope: "col" }, "kernel"),
      ...backends.map((name) => el("th", { scope: "colgroup", colspan: dtypesOf(name).length }, BACKENDS[name] ?? name))),
    el("tr", {}, ...columns.map(({ dtype }) => el("th", { scope: "col" }, dtype))));
  const byOp = Map.groupBy(found, (finding) => finding.op);
  const isWhole = !FIELDS.some((name) => state().get(name));
  const bodies = [...Map.groupBy(kernels, (kernel) => kernel.category)].map(([category, ofCategory]) => {
    const rows = [], idle = [], planned = [];
    for (const kernel of ofCategory) {
      const ops = Object.keys(kernel.ops);
      const isWanted = matches(kernel.name) || ops.some(matches);
      const list = isWanted ? ops.flatMap((op) => byOp.get(op) ?? []).filter(runs(kernel)) : [];
      if (!list.length) {
        (ops.length ? idle : planned).push(kernel.name);
        continue;
      }
      const of = Map.groupBy(list, (finding) => `${backend(finding.device)} ${finding.dtype}`);
      const cells = columns.map((column) => {
        const list = of.get(`${column.backend} ${column.dtype}`);
        return el("td", {}, list && cell(kernel, column, list));
      });
      const by = ops.filter((op) => op !== kernel.name).join(", ");
      const head = el("th", { scope: "row" }, ...breakable(kernel.name), by ? el("small", {}, `by ${by}`) : undefined);
      rows.push(el("tr", { "data-kernel": kernel.name }, head, ...cells));
    }
    if (!rows.length && !(isWhole && planned.length + idle.length)) return undefined;
    const line = (text) => el("tr", {}, el("td", { class: "rest", colspan: columns.length + 1 }, el("div", {}, text)));
    if (isWhole && idle.length) rows.push(line(`Not run: ${idle.join(", ")}`));
    if (isWhole && planned.length) rows.push(line(`Planned, no op has it yet: ${planned.join(", ")}`));
    const title = el("th", { scope: "rowgroup", colspan: columns.length + 1 }, el("span", {}, category.replaceAll("_", " ")));
    return el("tbody", {}, el("tr", {}, title), ...rows);
  });
  document.getElementById("map").replaceChildren(...(columns.length ? [head, ...bodies.filter(Boolean)] : [nothing()]));
}

const nothing = () => el("caption", {}, "Nothing is left by the filter.");

const COLUMNS = [
  { name: "op", value: (row) => row.op },
  { name: "device", value: (row) => row.where },
  { name: "dtype", value: (row) => DTYPES.indexOf(row.dtype) },
  { name: "checks", title: "checks", value: (row) => row.failed * 1e6 + row.skipped * 1e3 + row.passed, isNumber: true },
  { name: "bounds", title: "worst / bound", value: (row) => row.bounds, isNumber: true },
  { name: "ulps", value: (row) => row.ulps, isNumber: true },
  { name: "speed", value: (row) => row.speed?.fraction ?? -1, isNumber: true },
  { name: "seconds", title: "time of checks", value: (row) => row.seconds, isNumber: true },
];

function renderTable(found) {
  const groups = Map.groupBy(found, (f) => [f.op, f.where, f.dtype].join(" "));
  const rows = [...groups].map(([key, list]) => ({ ...list[0], ...summary(list), list, speed: speeds.get(key) }));
  const sort = state().get("sort") ?? "";
  const column = COLUMNS.find(({ name }) => name === sort.replace(/^-/, ""));
  if (column) {
    const sign = sort.startsWith("-") ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a === b ? 0 : a - b);
    rows.sort((a, b) => sign * compare(column.value(a), column.value(b)));
  }
  const head = el("thead", {}, el("tr", {}, ...COLUMNS.map(({ name, title, isNumber }) => {
    const direction = column?.name !== name ? undefined : sort.startsWith("-") ? "descending" : "ascending";
    // Numbers are sorted with the largest first. The third click restores the original order.
    const [first, second] = isNumber ? [`-${name}`, name] : [name, `-${name}`];
    const next = sort === first ? second : sort === second ? "" : first;
    const onclick = () => {
      setState({ sort: next });
      document.querySelector(`[data-sort=${name}]`).focus();
    };
    const button = el("button", { type: "button", "data-sort": name, onclick }, title ?? name);
    return el("th", { scope: "col", class: isNumber && "number", "aria-sort": direction }, button);
  })));
  const number = (...children) => el("td", { class: "number" }, ...children);
  const body = rows.map((row) => {
    const id = `row ${row.op} ${row.where} ${row.dtype}`;
    shown.set(id, { title: `${row.op} on ${row.where} in ${row.dtype}`, list: row.list });
    const ran = row.passed + row.failed > 0;
    const fraction = row.speed?.fraction ?? 0;
    const meter = el("meter", { max: 1, value: Math.min(1, fraction), "aria-hidden": "true" });
    const speed = row.speed ? [meter, percent(fraction)] : ["–"];
    return el("tr", { "data-op": row.op },
      el("th", { scope: "row" }, el("button", { type: "button", "data-id": id }, row.op)),
      el("td", {}, row.where), el("td", {}, row.dtype), number(...counts(row)),
      number(ran ? short(row.bounds) : "–"), number(ran && (row.ulps || !row.bounds) ? short(row.ulps) : "–"), number(...speed), number(time(row.seconds)));
  });
  document.getElementById("table").replaceChildren(...(rows.length ? [head, el("tbody", {}, ...body)] : [nothing()]));
  return rows.length;
}

function commandLine(command) {
  const code = el("code", {}, command);
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.onclick = async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "Copied";
    } catch {
      // The command stays selected, to be copied by keyboard.
      button.textContent = "Selected";
    }
  };
  return el("div", { class: "command" }, code, button);
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => (value ?? "") !== "");
  return el("dl", {}, ...known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, ...[value].flat())]));
}

/** Of a finding that failed, the worst is often of cases before that, which were within their bounds. */
const error = (finding) => {
  const isKnown = finding.case && (finding.state === "passed" || finding.bounds > 1);
  if (!isKnown) return "";
  // Of numbers near 0 there are no units of the last place.
  const ulps = finding.bounds > 0 && !finding.ulps ? "" : `, ${short(finding.ulps)} ulps`;
  return `${short(finding.bounds)} of its bound${ulps}`;
};
const outcome = ({ state }) => {
  if (state === "failed") return el("span", { class: "bad" }, "✗ failed");
  return state === "passed" ? "✓ passed" : state;
};

/** A time beside that of a copy. */
function share({ fraction, bytes, seconds }) {
  return `${percent(fraction)} of a copy: ${(bytes / 1e6).toFixed(1)} MB in ${time(seconds)}`;
}

/** All that is known of a finding. */
function described(finding) {
  const report = data.reports[finding.run];
  const device = report.devices.find(({ name }) => name === finding.device);
  const speed = speeds.get([finding.op, finding.where, finding.dtype].join(" "));
  const parts = [facts([
    ["check", `${finding.check} of ${finding.op} in ${finding.dtype}`],
    ["outcome", outcome(finding)],
    ["worst error", error(finding)],
    ["case", finding.case],
    ["cases", finding.cases ? finding.cases.toLocaleString("en") : ""],
    ["took", time(finding.seconds)],
    ["speed", speed && share(speed)],
    ["speed backward", speed?.backward && share(speed.backward)],
    ["device", [finding.where, device?.hardware].filter(Boolean).join(", ")],
  ])];
  if (finding.why) parts.push(el("pre", { class: finding.state }, finding.why));
  if (finding.command) parts.push(commandLine(finding.command));
  return parts;
}

function renderDetails(id) {
  const entry = shown.get(id);
  if (!entry) return closeDetails();
  const list = [...entry.list].sort(byWorst);
  document.getElementById("details-title").textContent = entry.title;
  const several = distinct(list.map((finding) => `${finding.op} ${finding.where}`)).length > 1;
  const lines = list.map((finding) => {
    const where = several ? [`${finding.op} on ${finding.where}`] : [];
    const said = el("span", {}, outcome(finding), ...[error(finding), ...where].filter(Boolean).map((text) => `, ${text}`));
    return el("li", {}, el("details", {}, el("summary", {}, finding.check, said), ...described(finding)));
  });
  document.getElementById("details-body").replaceChildren(...described(list[0]),
    el("h3", {}, plural(list.length, "check")), el("ul", { class: "checks" }, ...lines));
  dialog.dataset.of = id;
  if (!dialog.open) dialog.showModal();
}

/** Closes what is open; the focus goes back to where it was opened. */
function closeDetails() {
  if (!dialog.open) return;
  dialog.close();
  const buttons = [...document.querySelectorAll("[data-id]")];
  buttons.find((button) => button.dataset.id === dialog.dataset.of)?.focus();
}

const leave = (event) => {
  event.preventDefault();
  setState({ open: "" });
};
dialog.addEventListener("cancel", leave);
dialog.querySelector("form").addEventListener("submit", leave);
dialog.addEventListener("click", (event) => event.target === dialog && leave(event));

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-id]");
  if (button) setState({ open: button.dataset.id }, true);
});

// Tab reaches one cell of the map; arrow keys reach the others from there.
const map = document.getElementById("map");
const AROUND = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
map.addEventListener("keydown", (event) => {
  const here = event.target.closest("td");
  const [down, right] = AROUND[event.key] ?? [];
  if (!here || down === undefined) return;
  event.preventDefault();
  const rows = [...map.querySelectorAll("tr[data-kernel]")];
  let row = rows.indexOf(here.parentElement), column = here.cellIndex;
  do {
    row += down;
    column += right;
  } while (rows[row]?.cells[column] && !rows[row].cells[column].querySelector("button"));
  rows[row]?.cells[column]?.querySelector("button")?.focus();
});
map.addEventListener("focusin", (event) => {
  if (!event.target.dataset.id) return;
  map.querySelectorAll("button[tabindex='0']").forEach((button) => (button.tabIndex = -1));
  event.target.tabIndex = 0;
});

let rendered;
function render() {
  const now = state();
  const wanted = FIELDS.map((name) => now.get(name) ?? "");
  const key = JSON.stringify([wanted, now.get("sort")]);
  if (key !== rendered) {
    rendered = key;
    const [q, device, dtype, check, show] = wanted;
    FIELDS.forEach((name, k) => { if (form.elements[name].value !== wanted[k]) form.elements[name].value = wanted[k]; });
    const search = matcher(q);
    form.elements.q.setAttribute("aria-invalid", String(!search.isValid));
    const found = findings.filter((f) =>
      (!device || f.where === device) && (!dtype || f.dtype === dtype) &&
      (!check || f.check === check) && (!show || f.state === show) &&
      (!q || [f.op, ...(kernelsOf.get(f.op) ?? [])].some(search.matches)));
    shown.clear();
    renderMap(found, search);
    map.querySelector("button")?.setAttribute("tabindex", "0");
    const rows = renderTable(found);
    document.getElementById("count").value = `${plural(found.length, "check")} in ${plural(rows, "row")}`;
  }
  const id = now.get("open");
  if (id) renderDetails(id);
  else closeDetails();
}

function renderRuns() {
  const all = summary(findings);
  const verdict = document.getElementById("verdict");
  const isSpeeds = data.reports.every((report) => report.extent === "speeds");
  const isRight = !all.failed && data.reports.every((report) => report.complete) && (all.passed > 0 || isSpeeds);
  const [right, of] = rightKernels();
  const what = isSpeeds ? "Nothing was checked: these are speeds" : `${right} of ${of} kernels are right`;
  verdict.textContent = isRight ? `✓ Passed: ${what}` : `✗ Failed: ${what}`;
  verdict.className = isRight ? "passed" : "failed";
  document.getElementById("counts").append(...counts(all));
  document.title = `isograd parity: ${all.failed ? `${all.failed} failed` : `${all.passed} passed`}`;
  document.getElementById("runs").append(...data.reports.flatMap((report, run) => report.devices.map((device) => {
    const list = findings.filter((f) => f.run === run && f.device === device.name);
    const notes = [report.extent, report.complete ? "" : "did not end"].filter(Boolean).join(", ");
    return el("article", {}, el("h3", {}, label(run, device.name)), facts([
      ["checks", counts(summary(list))],
      ["hardware", device.hardware],
      ["driver", device.driver],
      ["f64", device.has_f64 ? "" : "no"],
      ["copies", device.bandwidth ? `${(device.bandwidth / 1e9).toFixed(1)} GB/s` : ""],
      ["date", `${report.date} UTC`],
      ["version", [report.version, report.commit].filter(Boolean).join(", ")],
      ["extent", report.complete ? notes : [el("span", { class: "bad" }, notes)]],
      ["seed", data.seeds[run]],
      ["run", time(report.seconds)],
    ]));
  })));
}

function fillFilter() {
  const fill = (name, values) => form.elements[name].append(...values.map((value) => el("option", { value }, value)));
  fill("device", ordered(findings.map((f) => f.where), []));
  fill("dtype", ordered(findings.map((f) => f.dtype), DTYPES));
  fill("check", ordered(findings.map((f) => f.check), []));
}

form.addEventListener("input", () => setState(Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value]))));
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", () => setState(Object.fromEntries(FIELDS.map((name) => [name, ""]))));
addEventListener("hashchange", render);
addEventListener("popstate", render);
renderRuns();
fillFilter();
render();
