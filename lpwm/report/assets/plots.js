// Curves, by plotly: unpacked and started only after the page stands, since it is most of the file.
(function (lpwm) {
  "use strict";
  function ticks(plot) { // of a log axis: more of them the fewer decades it spans
    const all = plot.traces.flatMap((t) => t.y.filter((v) => v > 0)), low = Math.log10(Math.min(...all)), high = Math.log10(Math.max(...all));
    const span = high - low, marks = span < 0.8 ? [1, 1.5, 2, 3, 5, 7] : [1, 2, 5], at = [], every = Math.max(1, Math.ceil(span / 5));
    for (let e = Math.floor(low) - 1; e <= Math.ceil(high) + 1; e++) {
      if (span < 1.7) marks.forEach((m) => at.push(m * Math.pow(10, e)));
      else if (e % every === 0) at.push(Math.pow(10, e));
    }
    const name = (v) => (v >= 0.0001 && v < 10000 ? String(+v.toPrecision(2)) : v.toExponential(1).replace(".0", ""));
    return { type: "log", tickvals: at, ticktext: at.map(name) };
  }
  function layout(plot) {
    const ink = lpwm.css("--ink"), muted = lpwm.css("--muted"), rule = lpwm.css("--rule");
    const axis = (title) => ({ title: { text: title, font: { size: 12, color: muted }, standoff: 8 }, color: muted, gridcolor: rule, linecolor: rule, zeroline: false, tickfont: { size: 11, color: muted }, automargin: true, fixedrange: true });
    const y = Object.assign(axis(plot.y), plot.range ? { range: plot.range } : {}, plot.log ? ticks(plot) : {});
    return {
      margin: { l: 48, r: 8, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: lpwm.css("--sans"), color: ink }, xaxis: axis(plot.x), yaxis: y, hovermode: "closest", dragmode: false,
      showlegend: plot.section === "horizon", legend: { orientation: "h", y: -0.22, font: { size: 11, color: muted } },
      hoverlabel: { font: { family: lpwm.css("--sans"), size: 12 } },
    };
  }
  function traces(plot) {
    const bands = plot.section === "distance" ? plot.traces.map((t) => ({
      type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: lpwm.color(t.color), opacity: 0.13, hoverinfo: "skip",
      x: t.x.concat(t.x.slice().reverse()), y: t.high.concat(t.low.slice().reverse()),
    })) : [];
    const dodge = plot.section === "horizon" ? 0.05 : 0; // intervals next to one another, not over
    return bands.concat(plot.traces.map((t, k) => {
      const color = lpwm.color(t.color), out = {
        type: "scatter", name: t.name, x: dodge ? t.x.map((v) => v + dodge * (k - (plot.traces.length - 1) / 2)) : t.x, y: t.y, text: t.x, mode: t.markers ? "lines+markers" : "lines",
        line: { color: color, width: t.dash === "dot" ? 1.4 : 1.9, dash: t.dash }, marker: { color: color, size: 5 },
        hovertemplate: "%{text}: %{y:.4g}<extra>" + t.name + "</extra>",
      };
      if (t.low && !bands.length) {
        out.error_y = { type: "data", symmetric: false, thickness: 1.2, width: 3, color: color,
          array: t.y.map((v, i) => (t.high[i] === null ? 0 : t.high[i] - v)), arrayminus: t.y.map((v, i) => (t.low[i] === null ? 0 : v - t.low[i])) };
      }
      return out;
    }));
  }
  function drawOne(plot) {
    const node = document.getElementById(plot.id);
    if (node) window.Plotly.react(node, traces(plot), layout(plot), { displayModeBar: false, responsive: true, scrollZoom: false });
  }
  function draw() { lpwm.data.plots.forEach(drawOne); }
  async function unpack() {
    const raw = atob(document.getElementById("plotly").textContent.trim()), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
  }
  lpwm.startPlots = async function () {
    try {
      if (lpwm.data.plots.length) {
        await unpack();
        for (const plot of lpwm.data.plots) { // a pause between two, so that the page answers meanwhile
          drawOne(plot);
          await new Promise((next) => setTimeout(next, 0));
        }
        lpwm.onTheme(draw);
      }
    } catch (error) {
      document.querySelectorAll(".plot").forEach((p) => { p.textContent = "This browser cannot unpack the curves; lpwm report --figures draws them as pictures."; });
    }
    lpwm.marks.plots = performance.now();
  };
})(window.lpwm);
