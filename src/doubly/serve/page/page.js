// The page: what the model is decides the view; everything that is shown comes from the API.

import { ask, get, newest } from "./api.js";
import { ImageView } from "./image.js";
import { TableView } from "./table.js";

const byId = (id) => document.getElementById(id);
const SEED = 1;

async function start() {
  const [model, examples] = await Promise.all([get("api/model"), get("api/examples")]);
  const image = model.view === "image";
  document.title = `${model.name} · doubly`;
  byId("title").textContent = model.name;
  const rows = image ? `pictures of ${model.shape.join(" × ")}` : `tables of ${model.columns.length} columns`;
  byId("about").textContent = `A model of ${rows}: ${model.layers.join(" – ")}. ${model.samples} samples of its weights. Shown: ${examples.origin}.`;
  byId("main").hidden = false;

  const status = document.querySelector(`#${model.view} .status`);
  const tell = (text, wrong = false) => {
    status.textContent = text;
    status.classList.toggle("wrong", wrong);
  };
  const which = byId("which");
  const several = model.samples > 0;
  const whole = several ? "ensemble" : model.weights[0];

  // First a quick answer by the mean of the weights, then the one of all samples, then that of the sample on the slider.
  const impute = async (more, show, current) => {
    const found = await ask("api/impute", { rows: [view.row()], seed: SEED, ...view.request(), ...more });
    if (current() && view.anythingMissing()) show(found);
    return found;
  };
  const whenMissing = (step) => async (current) => (view.anythingMissing() ? step(current) : undefined);
  const steps = [
    async () => {
      if (view.anythingMissing()) return;
      view.showNothing();
      tell(image ? "Nothing is erased." : "No cell is missing.");
    },
    whenMissing(async (current) => {
      if (!model.weights.includes("mean")) return;
      const found = await impute({ of: "mean" }, (answer) => view.showAnswer(answer), current);
      if (current()) tell(`First answer, by the mean of the weights, in ${found.seconds.toFixed(2)} s …`);
    }),
    whenMissing(async (current) => {
      const found = await impute({ of: whole }, (answer) => view.showAnswer(answer), current);
      if (current()) tell(several ? `By ${found.samples} samples of the weights, in ${found.seconds.toFixed(2)} s.` : `In ${found.seconds.toFixed(2)} s.`);
    }),
    whenMissing((current) => (several ? impute({ sample: Number(which.value) }, (answer) => view.showOne(answer), current) : undefined)),
  ];
  const refresh = newest(steps, (error) => tell(error.message, true));
  let view = null;
  view = new (image ? ImageView : TableView)(model, examples.rows, () => view && refresh());
  refresh();

  // One sample at a time: the same seed for all, so that what differs is the weights.
  const slide = newest(
    [
      async (current) => {
        const found = await ask("api/sample", { n: image ? 12 : 5, sample: Number(which.value), seed: SEED });
        if (current()) view.showRows(byId("one-draws"), found.rows);
      },
      whenMissing((current) => impute({ sample: Number(which.value) }, (answer) => view.showOne(answer), current)),
    ],
    (error) => tell(error.message, true),
  );
  const moved = () => {
    byId("which-now").textContent = `${which.value} of ${model.samples}`;
    which.setAttribute("aria-valuetext", `sample ${which.value} of ${model.samples}`);
    slide();
  };
  if (several) {
    byId("weights").hidden = false;
    which.max = model.samples;
    which.oninput = moved;
    moved();
  }

  let seed = 0;
  const draw = newest(
    [
      async (current) => {
        const found = await ask("api/sample", { n: image ? 36 : 10, of: whole, seed });
        if (current()) view.showRows(byId("drawn"), found.rows);
      },
    ],
    (error) => tell(error.message, true),
  );
  byId("again").onclick = () => {
    seed += 1;
    draw();
  };
  draw();
  byId("send").onclick = () => complete(model.limits.body);
}

// A whole table: it goes up as it is, and comes down completed.
async function complete(most) {
  const [file] = byId("csv").files;
  const said = byId("file-status");
  const link = byId("download");
  const tell = (text, wrong = false) => {
    said.textContent = text;
    said.classList.toggle("wrong", wrong);
  };
  link.hidden = true;
  if (!file) return tell("Choose a table first.", true);
  if (file.size > most) return tell(`The table must have at most ${Math.floor(most / 2 ** 20)} MB.`, true);
  byId("send").disabled = true;
  tell("Working …");
  try {
    const response = await fetch("api/complete", { method: "POST", headers: { "Content-Type": "text/csv" }, body: file });
    if (!response.ok) throw new Error((await response.json()).error);
    if (link.href) URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(await response.blob());
    link.download = file.name.replace(/(\.\w+)?$/, "-completed$1");
    link.hidden = false;
    const note = decodeURIComponent(response.headers.get("X-Doubly-Note") ?? "");
    tell(`${response.headers.get("X-Doubly-Completed")} cells completed.${note ? ` Note: ${note}.` : ""}`);
  } catch (error) {
    tell(error.message, true);
  }
  byId("send").disabled = false;
}

start().catch((error) => {
  byId("about").textContent = "";
  byId("main").hidden = false;
  for (const section of document.querySelectorAll("section")) section.hidden = true;
  byId("failure").hidden = false;
  byId("failure").textContent = `The page could not be set up: ${error.message}`;
});
