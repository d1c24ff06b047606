// What the other scripts share. Everything the page knows is in `lpwm`, so that a test (or a reader) can ask it.
window.lpwm = (function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const listeners = [];
  const media = window.matchMedia("(prefers-color-scheme: dark)");

  function stored() {
    try { return localStorage.getItem("lpwm-theme"); } catch (e) { return null; }
  }
  function dark() {
    const forced = root.getAttribute("data-theme");
    return forced ? forced === "dark" : media.matches;
  }
  function setTheme(theme) {
    if (theme) root.setAttribute("data-theme", theme); else root.removeAttribute("data-theme");
    const button = document.getElementById("theme");
    button.setAttribute("aria-pressed", String(dark()));
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use light colors" : "Use dark colors");
    listeners.forEach((f) => f());
  }
  function onTheme(f) { listeners.push(f); }
  function css(name) { return getComputedStyle(root).getPropertyValue(name).trim(); }
  function color(i) { return css(i < 0 ? "--gray" : "--c" + i); }

  function bits(packed) { // {data, shape [..., D], bytes_per_row} -> rows of bytes, most significant bit first
    const raw = atob(packed.data), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return { bytes: bytes, width: packed.bytes_per_row, units: packed.shape[packed.shape.length - 1] };
  }

  const stops = data.colors.map.map((h) => [1, 3, 5].map((i) => parseInt(h.slice(i, i + 2), 16)));
  function shade(v) { // 0…1 -> [r, g, b]
    const t = Math.min(Math.max(v, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(t), stops.length - 2);
    return stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (t - i)));
  }
  function make(tag, attributes, parent) {
    const svg = ["svg", "g", "rect", "circle", "line", "polyline", "path", "text", "title"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const name in attributes || {}) {
      if (name === "text") node.textContent = attributes[name]; else node.setAttribute(name, attributes[name]);
    }
    if (parent) parent.appendChild(node);
    return node;
  }
  function start() {
    document.getElementById("theme").addEventListener("click", function () {
      const next = dark() ? "light" : "dark";
      try { localStorage.setItem("lpwm-theme", next); } catch (e) { /* a page from disk may not store */ }
      setTheme(next);
    });
    media.addEventListener("change", () => setTheme(root.getAttribute("data-theme")));
    // Paper is light, and folded tables are printed too.
    let before = null;
    window.addEventListener("beforeprint", function () {
      before = root.getAttribute("data-theme");
      document.querySelectorAll("details").forEach((d) => { d.open = true; });
      setTheme("light");
    });
    window.addEventListener("afterprint", () => setTheme(before));
    setTheme(stored());
  }
  return { data, dark, setTheme, onTheme, css, color, bits, shade, make, start, marks: {} };
})();
