// Tables: a form with a field for each column, and tables of rows.

const byId = (id) => document.getElementById(id);

export class TableView {
  constructor(model, examples, changed) {
    this.columns = model.columns;
    this.examples = examples;
    this.changed = changed;
    this.fields = this.columns.map((column, i) => this.field(column, i));
    byId("fields").replaceChildren(...this.fields.map((field) => field.element));
    byId("row-previous").onclick = () => this.choose(this.at - 1);
    byId("row-next").onclick = () => this.choose(this.at + 1);
    byId("row-reset").onclick = () => this.choose(this.at);
    this.choose(0, true);
    byId("table").hidden = false;
    byId("file").hidden = false;
  }

  // What is asked: null where a cell is missing.
  row() {
    return Object.fromEntries(this.fields.map((field) => [field.column.name, field.missing.checked ? null : field.value()]));
  }
  anythingMissing() {
    return this.fields.some((field) => field.missing.checked);
  }
  request() {
    return { draws: 60 };
  }

  choose(at, blankSome = false) {
    this.at = (at + this.examples.length) % this.examples.length;
    const row = this.examples[this.at];
    byId("row-name").textContent = `row ${this.at + 1} of ${this.examples.length}`;
    for (const field of this.fields) field.set(row[field.column.name]);
    if (blankSome && !this.anythingMissing()) {
      this.fields.at(-1).blank(true);
      this.fields.findLast((field) => field.column.kind === "real" || field.column.kind === "integer")?.blank(true);
    }
    this.changed();
  }

  field(column, i) {
    const element = make("div", { className: "field" });
    const label = make("label", { htmlFor: `cell-${i}`, textContent: column.name });
    const listed = column.kind !== "real" && column.kind !== "integer";
    const levels = column.levels.length ? column.levels : ["0", "1"];
    const input = listed ? make("select", {}) : make("input", { type: "number", step: "any" });
    input.id = `cell-${i}`;
    if (listed) levels.forEach((level) => input.add(new Option(level, level)));
    const missing = make("input", { type: "checkbox" });
    const missingLabel = make("label", {});
    missing.setAttribute("aria-label", `${column.name} is missing`);
    missingLabel.append(missing, " missing");
    const answer = make("div", { className: "answer" });
    element.append(label, input, missingLabel, answer);
    const field = {
      column, element, input, missing, answer,
      value: () => {
        if (!listed) return input.value === "" ? null : Number(input.value);
        return column.kind === "category" || column.levels.length === 2 && column.kind === "binary" ? input.value : Number(input.value);
      },
      set: (value) => {
        input.value = value === null || value === undefined ? "" : String(value);
        field.blank(value === null || value === undefined);
      },
      blank: (yes) => {
        missing.checked = yes;
        input.disabled = yes;
        answer.replaceChildren();
      },
    };
    missing.onchange = () => {
      if (!missing.checked && listed && input.selectedIndex < 0) input.selectedIndex = 0;
      const empty = !missing.checked && !listed && input.value === "";
      field.blank(missing.checked);
      if (empty) input.focus();
      this.changed();
    };
    input.onchange = () => {
      if (!listed && input.value === "") field.blank(true);
      this.changed();
    };
    return field;
  }

  // Answers

  showAnswer(answer) {
    const { cells, completions } = answer.rows[0];
    for (const field of this.fields) {
      const cell = cells[field.column.name];
      field.answer.replaceChildren(...(cell ? described(field.column, cell) : []));
    }
    this.showTable(byId("row-completions"), completions.slice(0, 6), "completions of this row", new Set(Object.keys(cells)));
  }
  showNothing() {
    for (const field of this.fields) field.answer.replaceChildren();
    byId("row-completions").replaceChildren(make("p", { className: "hint", textContent: "No cell is missing." }));
    byId("one-completions").replaceChildren();
  }
  showOne(answer) {
    const { best, cells } = answer.rows[0];
    this.showTable(byId("one-completions"), [best], "the row as this sample completes it", new Set(Object.keys(cells)));
  }
  showRows(into, rows) {
    this.showTable(into, rows, "new rows", new Set());
  }
  showTable(into, rows, name, fresh) {
    const table = make("table", {});
    const head = table.createTHead().insertRow();
    // what was completed comes first: on a small screen the rest is out of sight
    const columns = [...this.columns].sort((a, b) => fresh.has(b.name) - fresh.has(a.name));
    for (const column of columns) head.append(make("th", { textContent: column.name, scope: "col" }));
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const column of columns) {
        const cell = line.insertCell();
        cell.textContent = written(column, row[column.name]);
        if (fresh.has(column.name)) cell.className = "new";
      }
    }
    const box = make("div", { className: "scroll", tabIndex: 0 });
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", name);
    box.append(table);
    const at = into.firstElementChild?.scrollLeft ?? 0;
    into.replaceChildren(box);
    box.scrollLeft = at;
  }
}

function described(column, cell) {
  const levels = Object.entries(cell.levels).sort((a, b) => b[1] - a[1]).slice(0, 4);
  if (!levels.length) {
    const value = make("b", { textContent: written(column, cell.value) });
    const range = ` 90 %: ${written(column, cell.low)} to ${written(column, cell.high)}`;
    const bar = make("meter", { min: 0, max: 1, value: cell.certainty });
    bar.setAttribute("aria-label", `certainty of ${column.name}`);
    const sure = make("div", { className: "levels" });
    sure.append(make("small", { textContent: "certainty" }), bar, make("small", { textContent: percent(cell.certainty) }));
    const line = make("div", {});
    line.append(value, make("small", { textContent: range }));
    return [line, sure];
  }
  const grid = make("div", { className: "levels" });
  levels.forEach(([level, share], i) => {
    const bar = make("meter", { min: 0, max: 1, value: share });
    bar.setAttribute("aria-label", `probability of ${level}`);
    grid.append(make(i ? "span" : "b", { textContent: level }), bar, make("small", { textContent: percent(share) }));
  });
  return [grid];
}

function written(column, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (column.kind === "integer") return String(Math.round(value));
  if (column.kind !== "real") return String(value);
  return column.decimals === null ? String(Number(value.toPrecision(5))) : value.toFixed(column.decimals);
}

function make(tag, fields) {
  return Object.assign(document.createElement(tag), fields);
}

const percent = (share) => `${Math.round(100 * share)} %`;
