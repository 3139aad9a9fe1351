// Pictures: an editor to erase in, and small canvases that show rows.

const byId = (id) => document.getElementById(id);

export class ImageView {
  constructor(model, examples, changed) {
    [this.lines, this.across] = model.shape;
    this.binary = model.kind === "binary";
    this.examples = examples.map((row) => row.map((value) => value ?? 0));
    const values = this.examples.flat();
    this.low = this.binary ? 0 : values.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = this.binary ? 1 : values.reduce((a, b) => Math.max(a, b), -Infinity);
    this.at = 0;
    this.changed = changed;
    this.cursor = { line: 0, column: 0 };
    this.drawn = []; // what has to be drawn again when the colours change
    this.editor = byId("editor");
    this.cell = Math.max(2, Math.floor(640 / Math.max(this.lines, this.across)));
    this.editor.width = this.across * this.cell;
    this.editor.height = this.lines * this.cell;
    byId("least").textContent = this.binary ? "even odds" : "uncertain";
    for (let size = 1; size <= Math.max(1, Math.min(9, Math.floor(this.across / 3))); size += 2) byId("brush").add(new Option(`${size} × ${size}`, size));
    byId("brush").value = this.across > 16 ? "3" : "1";
    byId("new-title").textContent = "New pictures from the model";
    this.listen();
    this.choose(0);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
    byId("image").hidden = false;
  }

  // What is asked: null where something is erased.
  row() {
    return this.original.map((value, i) => (this.gone[i] ? null : value));
  }
  anythingMissing() {
    return this.gone.some(Boolean);
  }
  request() {
    return { draws: 12 };
  }

  choose(at) {
    this.at = (at + this.examples.length) % this.examples.length;
    this.original = this.examples[this.at];
    this.gone = this.original.map((_, i) => i >= this.across * Math.ceil(this.lines / 2));
    this.draw();
    this.changed();
  }
  set(test, erased) {
    this.original.forEach((_, i) => {
      if (test(Math.floor(i / this.across), i % this.across)) this.gone[i] = erased;
    });
    this.draw();
    this.changed();
  }
  brush(line, column, erased) {
    const reach = (Number(byId("brush").value) - 1) / 2;
    this.set((l, c) => Math.abs(l - line) <= reach && Math.abs(c - column) <= reach, erased);
  }

  listen() {
    byId("previous").onclick = () => this.choose(this.at - 1);
    byId("next").onclick = () => this.choose(this.at + 1);
    byId("lower").onclick = () => this.set((line) => line >= this.lines / 2, true);
    byId("right").onclick = () => this.set((_, column) => column >= this.across / 2, true);
    byId("all").onclick = () => this.set(() => true, true);
    byId("restore").onclick = () => this.set(() => true, false);
    let last = null;
    const stroke = (event) => {
      const box = this.editor.getBoundingClientRect();
      const to = { line: ((event.clientY - box.top) / box.height) * this.lines, column: ((event.clientX - box.left) / box.width) * this.across };
      const from = last ?? to;
      const steps = Math.max(1, Math.ceil(2 * Math.hypot(to.line - from.line, to.column - from.column)));
      const erased = document.querySelector("input[name=tool]:checked").value === "erase";
      for (let i = 1; i <= steps; i++) {
        const share = i / steps;
        this.cursor = this.inside(Math.floor(from.line + share * (to.line - from.line)), Math.floor(from.column + share * (to.column - from.column)));
        this.brush(this.cursor.line, this.cursor.column, erased);
      }
      last = to;
    };
    this.editor.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.editor.setPointerCapture(event.pointerId);
      last = null;
      stroke(event);
    });
    this.editor.addEventListener("pointermove", (event) => {
      if (this.editor.hasPointerCapture(event.pointerId)) stroke(event);
    });
    this.editor.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["focus", "blur"]) this.editor.addEventListener(kind, () => this.draw());
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step && event.key !== " ") return;
    event.preventDefault();
    if (step) this.cursor = this.inside(this.cursor.line + step[0], this.cursor.column + step[1]);
    const here = this.cursor.line * this.across + this.cursor.column;
    if (event.key === " ") this.brush(this.cursor.line, this.cursor.column, !this.gone[here]);
    else if (event.shiftKey) this.brush(this.cursor.line, this.cursor.column, true);
    else this.draw();
    const state = this.gone[here] ? "erased" : this.binary ? (this.original[here] ? "on" : "off") : this.original[here].toFixed(2);
    byId("cursor").textContent = `line ${this.cursor.line + 1}, column ${this.cursor.column + 1}: ${state}`;
  }
  inside(line, column) {
    return { line: Math.min(Math.max(line, 0), this.lines - 1), column: Math.min(Math.max(column, 0), this.across - 1) };
  }

  // The editor

  draw() {
    const pen = this.editor.getContext("2d");
    const { cell } = this;
    const colours = palette();
    const missing = this.gone.filter(Boolean).length;
    this.editor.setAttribute("aria-label", `Picture ${this.at + 1} of ${this.examples.length}, ${missing} of ${this.gone.length} pixels erased`);
    this.gone.forEach((gone, i) => {
      const [x, y] = [(i % this.across) * cell, Math.floor(i / this.across) * cell];
      pen.fillStyle = gone ? css(colours.gone) : css(mix(colours.paper, colours.ink, this.level(this.original[i])));
      pen.fillRect(x, y, cell, cell);
      if (gone && cell >= 8) {
        pen.strokeStyle = css(colours.goneLine);
        pen.lineWidth = Math.max(1, cell / 24);
        pen.beginPath();
        pen.moveTo(x + cell * 0.3, y + cell * 0.7);
        pen.lineTo(x + cell * 0.7, y + cell * 0.3);
        pen.stroke();
      }
    });
    if (document.activeElement === this.editor && this.editor.matches(":focus-visible")) {
      pen.strokeStyle = css(colours.accent);
      pen.lineWidth = Math.max(3, cell / 10);
      const inset = pen.lineWidth / 2;
      pen.strokeRect(this.cursor.column * cell + inset, this.cursor.line * cell + inset, cell - 2 * inset, cell - 2 * inset);
    }
  }
  level(value) {
    return this.high > this.low ? Math.min(Math.max((value - this.low) / (this.high - this.low), 0), 1) : 0;
  }

  // Answers

  showAnswer(answer) {
    const { completions, expected, certainty } = answer.rows[0];
    const gone = [...this.gone];
    this.showPictures(byId("completions"), completions.slice(0, 10), "completion", gone);
    this.showPictures(byId("expected"), [expected], "expected picture", gone);
    const least = this.binary ? 0.5 : 0;
    const canvases = this.canvases(byId("certainty"), 1, () => `certainty: ${percent(mean(certainty.filter((_, i) => gone[i])))} on average where the picture was erased`);
    this.remember("certainty", () => {
      const { sure, unsure, paper } = palette();
      paintPixels(canvases[0], this.across, this.lines, (i) => (gone[i] ? mix(unsure, sure, (certainty[i] - least) / (1 - least)) : paper));
      paintPixels(byId("scale"), 40, 1, (i) => mix(unsure, sure, i / 39));
    });
  }
  showNothing() {
    for (const id of ["completions", "expected", "certainty", "one-completions"]) {
      byId(id).replaceChildren();
      this.drawn = this.drawn.filter((entry) => entry.name !== id);
    }
  }
  showOne(answer) {
    this.showPictures(byId("one-completions"), answer.rows[0].completions.slice(0, 8), "completion by this sample", [...this.gone]);
  }
  showRows(into, rows) {
    this.showPictures(into, rows, "new picture", rows[0].map(() => false));
  }

  showPictures(into, rows, name, gone) {
    into.classList.add("pictures");
    const canvases = this.canvases(into, rows.length, (i) => `${name}${rows.length > 1 ? ` ${i + 1}` : ""}`);
    this.remember(into.id, () => {
      const colours = palette();
      rows.forEach((row, k) => paintPixels(canvases[k], this.across, this.lines, (i) => mix(colours.paper, gone[i] ? colours.fresh : colours.ink, this.level(row[i]))));
    });
  }
  canvases(into, count, label) {
    while (into.children.length > count) into.lastChild.remove();
    while (into.children.length < count) into.append(document.createElement("canvas"));
    return [...into.children].map((canvas, i) => {
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", label(i));
      return canvas;
    });
  }
  remember(name, paint) {
    this.drawn = [...this.drawn.filter((entry) => entry.name !== name), { name, paint }];
    paint();
  }
  paint() {
    this.draw();
    for (const entry of this.drawn) entry.paint();
  }
}

function paintPixels(canvas, across, lines, colour) {
  canvas.width = across;
  canvas.height = lines;
  const pen = canvas.getContext("2d");
  const pixels = pen.createImageData(across, lines);
  for (let i = 0; i < across * lines; i++) pixels.data.set([...colour(i), 255], 4 * i);
  pen.putImageData(pixels, 0, 0);
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => {
    const text = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  };
  return { paper: read("--paper"), ink: read("--ink"), fresh: read("--new"), gone: read("--gone"), goneLine: read("--gone-line"), accent: read("--accent"), sure: read("--sure"), unsure: read("--unsure") };
}

const mix = (from, to, share) => from.map((value, i) => Math.round(value + Math.min(Math.max(share, 0), 1) * (to[i] - value)));
const css = (colour) => `rgb(${colour.join(",")})`;
const mean = (values) => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);
const percent = (share) => `${Math.round(100 * share)} %`;
