// Guess first: a slider before a figure, then guess, text and ledger on one line. The guess stays in this browser; without
// a script the figure is folded, and that is all. And the calculator, which is loaded when it is opened; without a script
// there is a link to it.

"use strict";

const DIGITS = 2; // of a guess on a logarithmic slider

function valueOf(slider) {
  const at = Number(slider.value);
  return slider.dataset.log === undefined ? at : Number((10 ** at).toPrecision(DIGITS));
}

function tell(form) {
  const slider = form.querySelector("input");
  form.querySelector("output").textContent = `${valueOf(slider).toLocaleString("en")}${form.dataset.unit}`;
}

function reveal(form) {
  const said = form.querySelector("output").textContent;
  form.querySelector(".own").textContent = `Your guess: ${said}. `;
  form.querySelector("details").open = true;
}

function begin(form) {
  const slider = form.querySelector("input");
  const name = `ridgeline guess ${form.dataset.name}`;
  let kept = null;
  try {
    kept = localStorage.getItem(name);
  } catch {
    // a browser that keeps nothing of files
  }
  if (kept !== null) slider.value = kept;
  form.querySelector(".hand").hidden = false;
  tell(form);
  if (kept !== null) reveal(form);
  slider.addEventListener("input", () => tell(form));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      localStorage.setItem(name, slider.value);
    } catch {
      // as above
    }
    reveal(form);
  });
}

document.querySelectorAll("form.guess").forEach(begin);

for (const calculator of document.querySelectorAll("details.calculator")) {
  calculator.addEventListener("toggle", () => {
    const frame = calculator.querySelector("iframe");
    if (calculator.open && !frame.src) frame.src = frame.dataset.src;
  });
}
