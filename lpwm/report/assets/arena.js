// The arena: the Jaccard index of every cell's support with that of one reference cell, recomputed at each choice.
(function (lpwm) {
  "use strict";
  const ones = new Uint8Array(256);
  for (let i = 1; i < 256; i++) ones[i] = (i & 1) + ones[i >> 1];

  function jaccard(b, i, j) {
    let both = 0, either = 0;
    for (let k = 0; k < b.width; k++) {
      const x = b.bytes[i * b.width + k], y = b.bytes[j * b.width + k];
      both += ones[x & y];
      either += ones[x | y];
    }
    return either ? both / either : 1; // two empty supports are equal
  }
  function map(study, reference) {
    const n = study.n * study.n, out = new Float64Array(n);
    for (let j = 0; j < n; j++) out[j] = jaccard(study.packed, reference, j);
    return out;
  }
  function means(study, values, reference) { // within the reference's zone (itself left out), and across
    const sum = [0, 0], count = [0, 0];
    for (let j = 0; j < values.length; j++) {
      if (j === reference) continue;
      const other = study.zones[j] === study.zones[reference] ? 0 : 1;
      sum[other] += values[j];
      count[other] += 1;
    }
    return { within: sum[0] / count[0], across: sum[1] / count[1] };
  }

  function Panel(parent, owner, side) {
    const panel = lpwm.make("div", { class: "panel" }, parent);
    this.title = lpwm.make("h3", { id: "arena-title-" + side }, panel);
    this.canvas = lpwm.make("canvas", {
      class: "map", tabindex: "0", role: "application", "aria-roledescription": "map of cells",
      "aria-labelledby": "arena-title-" + side, "aria-describedby": "arena-readout",
    }, panel);
    const scale = lpwm.make("div", { class: "scale", "aria-hidden": "true" }, panel);
    lpwm.make("span", { text: "0" }, scale);
    const stops = lpwm.data.colors.map;
    lpwm.make("span", { class: "ramp", style: "background:linear-gradient(90deg," + stops.join(",") + ")" }, scale);
    lpwm.make("span", { text: "1 Jaccard index" }, scale);
    this.line = lpwm.make("p", { class: "cell" }, panel);
    this.owner = owner;
    const cell = (event) => {
      const box = this.canvas.getBoundingClientRect(), n = this.study.n;
      const at = (v, low, size) => Math.min(n - 1, Math.max(0, Math.floor((v - low) / size * n)));
      return at(event.clientY, box.top, box.height) * n + at(event.clientX, box.left, box.width);
    };
    this.canvas.addEventListener("click", (e) => owner.choose(cell(e)));
    this.canvas.addEventListener("pointermove", (e) => { // the map follows the pointer, and returns to the mark that was kept
      if (e.pointerType !== "touch" && cell(e) !== owner.reference) owner.mark(cell(e));
    });
    this.canvas.addEventListener("pointerleave", () => owner.mark(owner.kept));
    this.canvas.addEventListener("keydown", (e) => owner.key(e));
  }
  Panel.prototype.show = function (study) {
    this.study = study;
    this.title.textContent = study.label;
    this.draw();
  };
  Panel.prototype.draw = function () {
    const s = this.study, n = s.n, reference = this.owner.reference;
    this.values = map(s, reference);
    this.canvas.dataset.reference = Math.floor(reference / n) + "," + reference % n;
    const size = Math.max(240, Math.round((this.canvas.clientWidth || 320) * (window.devicePixelRatio || 1)));
    this.canvas.width = this.canvas.height = size;
    const g = this.canvas.getContext("2d"), at = (i) => Math.round(i * size / n);
    for (let j = 0; j < n * n; j++) {
      const r = Math.floor(j / n), c = j % n;
      g.fillStyle = "rgb(" + lpwm.shade(this.values[j]).join(",") + ")";
      g.fillRect(at(c), at(r), at(c + 1) - at(c), at(r + 1) - at(r));
    }
    const wide = Math.max(2, size / 200);
    g.lineWidth = wide; // zone borders: light dashes on a dark line, seen on every color
    g.beginPath();
    for (let r = 0; r < n; r++) for (let c = 0; c < n; c++) {
      if (c + 1 < n && s.zones[r * n + c] !== s.zones[r * n + c + 1]) { g.moveTo(at(c + 1), at(r)); g.lineTo(at(c + 1), at(r + 1)); }
      if (r + 1 < n && s.zones[r * n + c] !== s.zones[(r + 1) * n + c]) { g.moveTo(at(c), at(r + 1)); g.lineTo(at(c + 1), at(r + 1)); }
    }
    g.strokeStyle = "rgba(20,20,20,0.7)";
    g.stroke();
    g.strokeStyle = "#fff";
    g.setLineDash([wide * 3, wide * 3]);
    g.stroke();
    g.setLineDash([]);
    const r = Math.floor(reference / n), c = reference % n; // the reference: dark inside light, seen on every color
    g.lineWidth = wide * 2.4; g.strokeStyle = "#fff";
    g.strokeRect(at(c), at(r), at(c + 1) - at(c), at(r + 1) - at(r));
    g.lineWidth = wide; g.strokeStyle = "#b00020";
    g.strokeRect(at(c), at(r), at(c + 1) - at(c), at(r + 1) - at(r));
    this.say();
  };
  Panel.prototype.say = function () {
    const s = this.study, m = means(s, this.values, this.owner.reference), f = (v) => v.toFixed(2);
    this.line.innerHTML = "Shared with the same zone <b>" + f(m.within) + "</b>, with other zones <b>" + f(m.across) + "</b>.";
  };

  function Arena(parent) {
    this.studies = lpwm.data.studies;
    this.studies.forEach((s) => { s.packed = lpwm.bits(s.supports); });
    const n = this.studies[0].n;
    this.reference = this.kept = Math.floor(n / 4) * n + Math.floor(n / 4);
    this.panels = [];
    const sparse = this.studies.findIndex((s) => s.sparse), dense = this.studies.findIndex((s) => !s.sparse);
    let pair = this.studies.length === 1 ? [0] : [0, 1];
    if (sparse >= 0 && dense >= 0) pair = [sparse, dense];
    pair.forEach((i, side) => {
      const panel = new Panel(parent, this, side);
      this.panels.push(panel);
      panel.show(this.studies[i]);
    });
    ["arena-left", "arena-right"].forEach((id, side) => {
      const select = document.getElementById(id);
      if (!select) return;
      select.value = String(pair[side]);
      select.addEventListener("change", () => { this.panels[side].show(this.studies[+select.value]); this.rescale(); });
    });
    this.say();
    window.addEventListener("resize", () => this.panels.forEach((p) => p.draw()));
  }
  Arena.prototype.rescale = function () { // panels of one resolution share the reference
    const n = this.panels[0].study.n;
    if (this.reference >= n * n) this.reference = this.kept = 0;
    this.panels.forEach((p) => p.draw());
    this.say();
  };
  Arena.prototype.choose = function (cell) {
    this.kept = cell;
    this.mark(cell);
  };
  Arena.prototype.mark = function (cell) {
    this.reference = cell;
    this.panels.forEach((p) => p.draw());
    this.say();
  };
  Arena.prototype.key = function (event) {
    const n = this.panels[0].study.n, r = Math.floor(this.reference / n), c = this.reference % n;
    const to = { ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], Home: [r, 0], End: [r, n - 1], PageUp: [0, c], PageDown: [n - 1, c] }[event.key];
    if (!to) return;
    event.preventDefault();
    const clamp = (v) => Math.min(n - 1, Math.max(0, v));
    this.choose(clamp(to[0]) * n + clamp(to[1]));
  };
  Arena.prototype.say = function () {
    const s = this.panels[0].study, r = Math.floor(this.reference / s.n), c = this.reference % s.n;
    const each = this.panels.map((p) => {
      const m = means(p.study, p.values, this.reference);
      return p.study.label + ": same zone " + m.within.toFixed(2) + ", other zones " + m.across.toFixed(2);
    });
    document.getElementById("arena-readout").textContent = "Marked: row " + (r + 1) + ", column " + (c + 1) +
      " (x " + s.x[c].toFixed(0) + ", y " + s.y[r].toFixed(0) + "), zone " + s.zones[this.reference] + ". " + each.join("; ") + ".";
  };
  lpwm.jaccardMap = map;
  lpwm.startArena = function () {
    const place = document.getElementById("arena-panels");
    if (place) lpwm.arena = new Arena(place);
  };
})(window.lpwm);
