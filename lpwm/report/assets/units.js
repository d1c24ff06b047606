// Sparsity one can see: a tile for every unit over two factors, and frames sorted by zone; more color, more active.
(function (lpwm) {
  "use strict";
  const GAP = 4, BAND = 14, QUARTERS = ["top left", "top right", "bottom left", "bottom right"];

  function placeName(study, k) { return study.zoned ? "zone " + k : QUARTERS[k]; }
  function word(study) { return study.sparse ? "on" : "above 5 % of the largest |z|"; } // a dense unit is never off
  function bytes(text) {
    const raw = atob(text), out = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
    return out;
  }
  function canvasOf(canvas, wide, high) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.height = high + "px";
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    return g;
  }
  function inks(study) { // 256 colors from the panel's to the method's
    const parse = (text) => { const g = document.createElement("canvas").getContext("2d"); g.fillStyle = text; return [1, 3, 5].map((i) => parseInt(g.fillStyle.slice(i, i + 2), 16)); };
    const low = parse(lpwm.css("--panel")), high = parse(lpwm.color(study.color));
    return Array.from({ length: 256 }, (_, v) => "rgb(" + low.map((c, k) => Math.round(c + (high[k] - c) * v / 255)).join(",") + ")");
  }
  function Atlas(canvas, study, readout) {
    Object.assign(this, { canvas, study, readout, maps: bytes(study.maps), usual: readout.textContent });
    canvas.addEventListener("pointermove", (e) => this.say(e));
    canvas.addEventListener("pointerleave", () => { readout.textContent = this.usual; });
  }
  Atlas.prototype.draw = function () {
    const s = this.study, n = s.side, wide = Math.max(240, this.canvas.clientWidth || 600), count = s.numbers.length;
    this.columns = Math.max(6, Math.min(16, Math.floor(wide / 46)));
    this.tile = (wide - GAP * (this.columns - 1)) / this.columns;
    const rows = Math.ceil(count / this.columns), g = canvasOf(this.canvas, wide, rows * (this.tile + GAP) - GAP), ink = inks(s);
    const empty = new Set(s.empty), paper = lpwm.css("--paper"), pixel = this.tile / n;
    for (let u = 0; u < count; u++) {
      const left = (u % this.columns) * (this.tile + GAP), top = Math.floor(u / this.columns) * (this.tile + GAP);
      for (let j = 0; j < n * n; j++) {
        g.fillStyle = empty.has(j) ? paper : ink[this.maps[u * n * n + j]];
        g.fillRect(left + (j % n) * pixel, top + Math.floor(j / n) * pixel, pixel + 0.4, pixel + 0.4);
      }
      g.strokeStyle = lpwm.css("--rule");
      g.strokeRect(left, top, this.tile, this.tile);
    }
  };
  Atlas.prototype.say = function (event) {
    const box = this.canvas.getBoundingClientRect(), s = this.study, step = this.tile + GAP;
    const u = Math.floor((event.clientY - box.top) / step) * this.columns + Math.min(this.columns - 1, Math.floor((event.clientX - box.left) / step));
    if (u >= 0 && u < s.numbers.length) {
      this.readout.textContent = "Unit " + s.numbers[u] + ": " + word(s) + " in " + (100 * s.on[u]).toFixed(0) + " % of the frames, most in " + placeName(s, s.prefers[u]) + ".";
    }
  };
  function raster(canvas, study) {
    const s = study, F = s.zones.length, U = s.numbers.length, values = bytes(s.frames);
    const wide = Math.max(240, canvas.clientWidth || 600), unit = Math.max(2, Math.min(5, Math.floor(260 / U)));
    const g = canvasOf(canvas, wide, BAND + 3 + U * unit), ink = inks(s), at = (f) => f * wide / F;
    for (let f = 0; f < F; f++) for (let u = 0; u < U; u++) {
      g.fillStyle = ink[values[f * U + u]];
      g.fillRect(at(f), BAND + 3 + u * unit, wide / F + 0.4, unit);
    }
    g.font = "11px " + lpwm.css("--sans");
    g.textAlign = "center";
    for (let f = 0, from = 0; f < F; f++) {
      if (f + 1 < F && s.zones[f + 1] === s.zones[from]) continue;
      g.fillStyle = lpwm.css("--muted");
      const name = placeName(s, s.zones[from]), room = at(f + 1) - at(from);
      if (g.measureText(name).width < room) g.fillText(name, at(from) + room / 2, BAND - 3);
      if (from) g.fillRect(at(from) - 0.5, 0, 1, BAND + 3 + U * unit);
      from = f + 1;
    }
  }
  lpwm.startUnits = function () {
    const place = document.getElementById("units-panels"), drawn = [];
    if (!place) return;
    lpwm.data.units.forEach((study) => {
      const panel = lpwm.make("div", { class: "unit-pair" }, place);
      const title = lpwm.make("h3", { text: study.label }, panel), on = study.on, mean = on.reduce((a, b) => a + b, 0) / on.length;
      title.prepend(lpwm.make("span", { class: "swatch c" + study.color, "aria-hidden": "true" }));
      const text = "In a frame " + (100 * mean).toFixed(0) + " % of the " + on.length + " units are " + word(study) + ", on average" + (study.sparse ? "; " + on.filter((v) => v === 0).length + " never are." : ".");
      const figure = (caption, label) => {
        const f = lpwm.make("figure", {}, panel);
        lpwm.make("figcaption", { text: caption }, f);
        return lpwm.make("canvas", { class: "units", role: "img", "aria-label": study.label + ": " + label }, f);
      };
      const tiles = figure("Each unit over " + study.x + " (across) and " + study.y + " (down)", "activity of every unit. " + text);
      const readout = lpwm.make("p", { class: "summary", text: text }, tiles.parentNode), atlas = new Atlas(tiles, study, readout);
      const frames = figure("Units (down) in held-out frames (across), both sorted by " + study.place, "units in frames sorted by " + study.place);
      drawn.push(() => atlas.draw(), () => raster(frames, study));
    });
    const all = () => drawn.forEach((f) => f());
    all();
    lpwm.onTheme(all);
    window.addEventListener("resize", all);
  };
})(window.lpwm);
