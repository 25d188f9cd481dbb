// Instructions to take part in the run, and to take its weights.

import { h, svg } from "./dom.mjs";
import { qrMatrix } from "./qr.mjs";
import { clean, short } from "./text.mjs";

export function mountJoin(app, section) {
  const place = h("div", { class: "join" });
  section.append(place);
  let shown = null;
  return () => {
    const state = app.model.state;
    if (!state) return;
    const key = JSON.stringify([state.invite, state.run]);
    if (key !== shown) place.replaceChildren(...content(state, app.staticReport));
    shown = key;
  };
}

function content({ invite, run }, staticReport) {
  const about = [["Model", run && run.model], ["About", run && run.description], ["Licence", run && run.licence], ["Contact", run && run.contact], ["Run id", run && run.id]];
  const facts = about.filter(([, value]) => value).map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, h("bdi", {}, clean(value, 400)))));
  const needs = h("p", { class: "muted" }, "You need Linux, Python 3.11 to 3.13, and a GPU or some cores. The node shows what the run costs and asks before it takes part. It never runs code that the run or its peers send.");
  return [...(invite ? invitation(short(invite, 2000)) : [h("p", {}, "There is no invitation on this page. The run's organiser prints one: ", h("code", {}, "p2ptrain invite"), ".")]), needs, takeWeights(Boolean(run && run.public_weights), staticReport), h("dl", { class: "facts wide" }, facts)];
}

// A node's home has the newest snapshot already. Its visitors, and the readers of a report, have not.
function takeWeights(isPublic, staticReport) {
  const opening = staticReport ? ["Take the weights: "] : ["Take the weights on this machine: ", h("code", {}, "p2ptrain export --to hf ./weights"), ". Elsewhere: "];
  if (isPublic) return h("p", {}, opening, h("code", {}, "p2ptrain watch INVITE --weights ./weights"), ", without admission.");
  return h("p", {}, opening, h("code", {}, "p2ptrain ckpt fetch --bootstrap ADDRESS"), ", then ", h("code", {}, "p2ptrain export --to hf ./weights"), ", for peers that are admitted to the run.");
}

function invitation(invite) {
  const command = `p2ptrain join ${invite}`;
  const box = h("code", { class: "invite", tabindex: "0", "aria-label": "Command that joins the run" }, command);
  const copy = h("button", { type: "button", class: "button", onclick: () => copyText(command, box, copy) }, "Copy the command");
  const matrix = qrMatrix(invite);
  return [h("p", { class: "summary" }, "One command takes part in this run:"), box, copy, matrix ? qrCode(matrix) : null].filter(Boolean);
}

async function copyText(text, box, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(box);
    button.textContent = "Selected; press Ctrl-C";
  }
}

function qrCode(matrix) {
  const size = matrix.length + 8;
  const path = matrix.flatMap((row, y) => row.flatMap((dark, x) => (dark ? [`M${x + 4} ${y + 4}h1v1h-1z`] : []))).join("");
  return svg("svg", { class: "qr", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "QR code of the invitation", "shape-rendering": "crispEdges" }, svg("rect", { width: size, height: size, fill: "#fff" }), svg("path", { d: path, fill: "#000" }));
}
