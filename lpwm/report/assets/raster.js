// The raster: units down, steps across, a mark where a unit is on; above it the zone, below it 1 − J of neighbors.
(function (lpwm) {
  "use strict";
  const BAND = 15, GAP = 3, LINE = 34;

  function zoneShade(z, count) { // zones by lightness, labeled in words below
    return "rgb(" + lpwm.shade(count > 1 ? 0.15 + 0.75 * z / (count - 1) : 0.5).join(",") + ")";
  }
  function draw(canvas, study) {
    const r = study.raster, packed = lpwm.bits(r.supports), T = r.zones.length, D = packed.units;
    const wide = Math.max(300, canvas.clientWidth || 600), ratio = window.devicePixelRatio || 1;
    const unit = Math.max(1, Math.min(4, Math.floor(260 / D) || 1)), rows = D * unit;
    const high = BAND + GAP + rows + GAP + LINE;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    canvas.style.height = high + "px";
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    const at = (t) => Math.round(t * wide / T * ratio) / ratio, count = Math.max(...r.zones) + 1;
    const ink = lpwm.color(study.color), panel = lpwm.css("--panel"), muted = lpwm.css("--gray");
    g.fillStyle = panel;
    g.fillRect(0, BAND + GAP, wide, rows);
    for (let t = 0; t < T; t++) {
      g.fillStyle = zoneShade(r.zones[t], count);
      g.fillRect(at(t), 0, at(t + 1) - at(t), BAND);
      g.fillStyle = ink;
      for (let i = 0; i < D; i++) {
        if (lpwm.on(packed, t, study.order[i])) g.fillRect(at(t), BAND + GAP + i * unit, at(t + 1) - at(t), unit);
      }
    }
    for (let t = 0, from = 0; t < T; t++) { // each stay's zone, by number
      if (t + 1 < T && r.zones[t + 1] === r.zones[from]) continue;
      if (at(t + 1) - at(from) > 14) {
        g.font = "10px " + lpwm.css("--sans");
        g.textAlign = "center";
        g.textBaseline = "middle";
        g.fillStyle = r.zones[from] / Math.max(1, count - 1) > 0.5 ? "#111" : "#fff";
        g.fillText((at(t + 1) - at(from) > 50 ? "zone " : "") + r.zones[from], (at(from) + at(t + 1)) / 2, BAND / 2 + 0.5);
      }
      from = t + 1;
    }
    const low = BAND + GAP + rows + GAP + LINE - 1, most = Math.max(0.05, ...r.instability);
    g.strokeStyle = muted;
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(0, low + 0.5);
    g.lineTo(wide, low + 0.5);
    g.stroke();
    g.strokeStyle = lpwm.css("--ink");
    g.lineWidth = 1.3;
    g.beginPath();
    r.instability.forEach((v, t) => {
      const x = at(t + 1), y = low - v / most * (LINE - 4);
      if (t) g.lineTo(x, y); else g.moveTo(x, y);
    });
    g.stroke();
  }
  lpwm.startRaster = function () {
    const place = document.getElementById("raster-panels");
    if (!place) return;
    const drawn = [];
    lpwm.data.studies.filter((s) => s.raster).forEach((study) => {
      const panel = lpwm.make("figure", {}, place);
      lpwm.make("figcaption", { text: study.label }, panel);
      const active = study.raster.instability, mean = active.reduce((a, b) => a + b, 0) / Math.max(1, active.length);
      const text = "Held-out episode " + study.raster.episode + ", " + study.raster.zones.length + " steps, " +
        study.order.length + " units; on average " + (100 * mean).toFixed(1) + " % of the support changes in a step.";
      const canvas = lpwm.make("canvas", { class: "raster", role: "img", "aria-label": study.label + ". " + text }, panel);
      lpwm.make("p", { class: "summary", text: text }, panel);
      drawn.push(() => draw(canvas, study));
    });
    const all = () => drawn.forEach((f) => f());
    all();
    lpwm.onTheme(all);
    window.addEventListener("resize", all);
  };
})(window.lpwm);
