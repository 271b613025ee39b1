"use strict";
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const runs = content.runs, NS = "http://www.w3.org/2000/svg";
  const by = id => document.getElementById(id);
  const COLOURS = 7, DASHES = 4;
  const look = i => `c${runs[i].look % COLOURS} d${runs[i].look % DASHES}`;

  // Text from files only ever becomes textContent or an attribute's value, never markup.
  function add(parent, tag, attributes = {}, text = null) {
    const node = parent.namespaceURI === NS || tag === "svg" ? document.createElementNS(NS, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  }

  function number(value, digits = 4) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e5 && size < 1e15 && Number.isInteger(value)) return value.toLocaleString("en");
    if (size !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2).replace("e+", "e");
    return String(Number(value.toPrecision(digits)));
  }

  function ticks(low, high, count, log, least = 0) {
    if (log) {
      const found = [], first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9);
      const step = Math.max(1, Math.ceil((last - first) / count));
      for (let power = first; power <= last; power += step) found.push(power);
      if (last - first >= 2) return found;
      const lows = 10 ** low, highs = 10 ** high;  // one or two decades: 1, 2, 5 of each, or ordinary ticks
      const more = [];
      for (let p = Math.floor(low); p <= high; p++) for (const m of [1, 2, 5]) more.push(p + Math.log10(m));
      const inside = more.filter(t => t >= low - 1e-9 && t <= high + 1e-9);
      return inside.length >= 2 ? inside : ticks(lows, highs, count, false).filter(t => t > 0).map(Math.log10);
    }
    const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw || 1));
    const step = Math.max(least, [1, 2, 5, 10].map(m => m * power).find(s => s >= raw) || power);
    const found = [];
    for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) found.push(Math.abs(t) < step * 1e-9 ? 0 : t);
    return found;
  }

  // Numbers with steps of a size that can be read: 12000000 bytes are 12 MB
  function scale(label, largest) {
    const found = label.match(/^(.*) \((bytes|samples)\)$/);
    if (!found) return [1, label];
    const words = found[2] === "bytes" ? ["bytes", "kB", "MB", "GB", "TB"] : ["samples", "10³ samples", "10⁶ samples", "10⁹ samples", "10¹² samples"];
    const step = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, largest / 5)) / 3)));
    return [10 ** (3 * step), `${found[1]} (${words[step]})`];
  }

  let paper = 0;  // the width on paper, while it is printed
  function prepare(svg, height) {
    const width = paper || Math.max(260, svg.parentNode.clientWidth);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    return width;
  }

  // Curves

  const curve = by("curve"), tip = by("curve-tip");
  const state = { hidden: new Set(), cursor: null };
  const MOST = 12;  // runs whose values there is room for
  let drawn = null;

  function series() {
    const metric = by("metric").value, axis = by("axis").value;
    const logX = by("log-x").checked, logY = by("log-y").checked;
    return runs.map((run, index) => {
      const xs = run.axes[axis], ys = run.metrics[metric] || [];
      const points = [];
      for (let i = 0; i < ys.length; i++) {
        if (ys[i] === null || xs[i] === null || (logX && xs[i] <= 0) || (logY && ys[i] <= 0)) continue;
        points.push([xs[i], ys[i]]);
      }
      return { index, name: run.name, points };
    }).filter(s => !state.hidden.has(s.index) && s.points.length);
  }

  function drawCurves() {
    const height = Math.max(260, Math.min(420, window.innerHeight * 0.6)), width = prepare(curve, height);
    const info = content.metrics.find(m => m.name === by("metric").value) || { name: "", meaning: "", unit: "" };
    by("meaning").textContent = info.meaning + (info.unit ? ` (${info.unit})` : "");
    const found = series(), logX = by("log-x").checked, logY = by("log-y").checked;
    const all = found.flatMap(s => s.points);
    const label = content.axes.find(a => a.name === by("axis").value).label;
    const [factor, words] = scale(label, Math.max(0, ...all.map(p => p[0])));
    const fx = logX ? v => Math.log10(v / factor) : v => v / factor, fy = logY ? Math.log10 : v => v;
    tip.hidden = true;
    if (!all.length) {
      add(curve, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" },
        state.hidden.size === runs.length ? "No run is shown." : "Nothing to show" + (logX || logY ? " on a logarithmic scale." : "."));
      drawn = null;
      return;
    }
    let [x0, x1] = span(all.map(p => fx(p[0]))), [y0, y1] = span(all.map(p => fy(p[1])), 0.04);
    const yTicks = ticks(y0, y1, height / 55, logY);
    const yWords = yTicks.map(t => number(logY ? 10 ** t : t));
    const left = 34 + 7.2 * Math.max(...yWords.map(w => w.length)), right = 14, top = 12, bottom = 44;
    const X = v => left + (fx(v) - x0) / (x1 - x0) * (width - left - right);
    const Y = v => height - bottom - (fy(v) - y0) / (y1 - y0) * (height - top - bottom);
    yTicks.forEach((t, i) => {
      const y = Y(logY ? 10 ** t : t);
      add(curve, "path", { class: "grid", d: `M${left} ${y}H${width - right}` });
      add(curve, "text", { x: left - 6, y: y + 4, "text-anchor": "end" }, yWords[i]);
    });
    const only = all.every(p => p[0] === all[0][0]);  // the start, or a clock that stood still
    for (const t of only ? [fx(all[0][0])] : ticks(x0, x1, width / 90, logX, label.includes("round") ? 1 : 0)) {
      const x = left + (t - x0) / (x1 - x0) * (width - left - right);
      add(curve, "path", { class: "grid", d: `M${x} ${top}V${height - bottom}` });
      add(curve, "text", { x, y: height - bottom + 17, "text-anchor": "middle" }, number(logX ? 10 ** t : t));
    }
    add(curve, "path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}`, fill: "none" });
    add(curve, "text", { class: "strong", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, words);
    add(curve, "text", { class: "strong", transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, info.name);
    for (const s of found) {
      const path = s.points.map((p, i) => `${i ? "L" : "M"}${X(p[0]).toFixed(1)} ${Y(p[1]).toFixed(1)}`).join("");
      add(curve, "path", { class: `line ${look(s.index)}`, d: path, "data-run": s.index });
      if (s.points.length <= 30) for (const p of s.points) add(curve, "circle", { class: `dot ${look(s.index)}`, cx: X(p[0]), cy: Y(p[1]), r: s.points.length > 1 ? 2.5 : 4.5 });
    }
    drawn = { found, X, Y, left, right, top, bottom, width, height, factor, words,
      places: [...new Set(all.map(p => p[0]))].sort((a, b) => a - b) };
    if (state.cursor !== null) readAt(nearest(drawn.places, state.cursor), false);
  }

  function span(values, margin = 0) {
    let low = Infinity, high = -Infinity;
    for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
    if (low === high) { const d = Math.abs(low) * 0.1 || 1; low -= d; high += d; }
    const d = (high - low) * margin;
    return [low - d, high + d];
  }

  function nearest(sorted, value) {
    let best = sorted[0];
    for (const v of sorted) if (Math.abs(v - value) < Math.abs(best - value)) best = v;
    return best;
  }

  function readAt(place, aloud) {
    if (!drawn) return;
    state.cursor = place;
    curve.querySelectorAll(".at").forEach(node => node.remove());
    const group = add(curve, "g", { class: "at" }), x = drawn.X(place);
    add(group, "path", { class: "cursor", d: `M${x} ${drawn.top}V${drawn.height - drawn.bottom}` });
    tip.replaceChildren();
    add(tip, "b", {}, `${drawn.words}: ${number(place / drawn.factor)}`);
    const heard = [];
    for (const s of drawn.found) {
      const point = s.points.reduce((a, b) => Math.abs(b[0] - place) < Math.abs(a[0] - place) ? b : a);
      if (Math.abs(drawn.X(point[0]) - x) > 40) continue;  // a run that ended long before
      if (heard.length === MOST) { add(tip, "div", {}, "… hide some runs to see the others"); break; }
      add(group, "circle", { class: `dot ${look(s.index)}`, cx: drawn.X(point[0]), cy: drawn.Y(point[1]), r: 5 });
      const row = add(tip, "div");
      const swatch = add(row, "svg", { class: `swatch ${look(s.index)}`, viewBox: "0 0 26 10", width: 26, height: 10 });
      add(swatch, "path", { class: "line", d: "M1 5H25" });
      add(row, "span", {}, s.name);
      add(row, "span", {}, number(point[1], 5));
      heard.push(`${s.name} ${number(point[1], 5)}`);
    }
    show(tip, x, drawn.top + 8, drawn.width);
    if (aloud) by("curve-live").textContent = `${drawn.words} ${number(place / drawn.factor)}: ${heard.join(", ")}`;
  }

  function show(box, x, y, width) {
    box.hidden = false;
    const room = box.offsetWidth;
    box.style.left = `${x + room + 24 < width ? x + 12 : Math.max(0, x - room - 12)}px`;
    box.style.top = `${y}px`;
  }

  function forget() {
    state.cursor = null;
    tip.hidden = true;
    curve.querySelectorAll(".at").forEach(node => node.remove());
  }

  const place = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) / box.width * view.width, (event.clientY - box.top) / box.height * view.height];
  };
  function pointAt(event) {
    if (!drawn) return;
    const [x] = place(curve, event);
    let best = drawn.places[0];
    for (const p of drawn.places) if (Math.abs(drawn.X(p) - x) < Math.abs(drawn.X(best) - x)) best = p;
    readAt(best, false);
  }
  curve.addEventListener("pointermove", pointAt);
  curve.addEventListener("pointerdown", pointAt);
  curve.addEventListener("pointerleave", forget);
  curve.addEventListener("blur", forget);
  curve.addEventListener("keydown", event => {
    if (!drawn || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") return forget();
    const all = drawn.places, last = all.length - 1;
    const here = state.cursor === null ? -1 : all.indexOf(nearest(all, state.cursor));
    const step = event.key === "ArrowRight" ? Math.min(here + 1, last) : Math.max(here - 1, 0);
    readAt(all[event.key === "Home" ? 0 : event.key === "End" ? last : step], true);
  });
  for (const id of ["metric", "axis", "log-x", "log-y"]) by(id).addEventListener("change", () => { forget(); drawCurves(); });
  const boxes = [...document.querySelectorAll("input.run")];
  function showRuns() {
    state.hidden = new Set(boxes.filter(b => !b.checked).map(b => Number(b.value)));
    forget();
    drawCurves();
  }
  for (const box of boxes) box.addEventListener("change", showRuns);
  for (const [id, checked] of [["all-runs", true], ["no-runs", false]]) {
    by(id).addEventListener("click", () => { for (const box of boxes) box.checked = checked; showRuns(); });
  }

  // Clients

  const lanes = by("lanes"), lanesTip = by("lanes-tip");
  const ARRAYS = { "u1": Uint8Array, "u2": Uint16Array, "u4": Uint32Array, "f4": Float32Array };
  function unpack(text, kind) {
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    return new ARRAYS[kind](bytes.buffer);
  }
  const KINDS = { lane: "u2", sent: "f4", arrived: "f4", begun: "f4", compute: "f4", age: "u4", kind: "u1", rejected: "u1" };
  const open = new Map();
  function timeline(index) {
    if (!open.has(index)) {
      const t = { ...runs[index].timeline };
      for (const [name, kind] of Object.entries(KINDS)) t[name] = unpack(t[name], kind);
      t.stretches = t.stretches.map(s => unpack(s, "f4"));
      t.of = t.lanes.map(() => []);
      for (let i = 0; i < t.lane.length; i++) t.of[t.lane[i]].push(i);
      t.computes = t.compute.some(v => v > 0);
      t.view = [0, t.end || 1];
      open.set(index, t);
    }
    return open.get(index);
  }
  let field = null;

  function drawLanes() {
    const t = timeline(Number(by("lanes-run").value)), m = t.lanes.length, still = t.end === 0;
    for (const node of [lanes.parentNode, by("key"), by("zoom")]) node.hidden = still;
    for (const [id, there] of [["k-compute", t.computes], ["k-bad", t.rejected.some(v => v)], ["k-left", t.left.length], ["k-adopted", t.adopted.length]]) by(id).hidden = !there;
    if (still) by("lanes-note").textContent = `${t.answers.toLocaleString("en")} answers; no time passed on this run’s clock.`;
    if (still) return;
    const tall = Math.max(13, Math.min(20, 420 / m)), top = 6, bottom = 44, height = top + bottom + tall * m;
    const width = prepare(lanes, height), slow = new Set(t.slow), right = 10;
    const called = t.lanes.map(c => c + (slow.has(c) ? " slow" : "")), left = 30 + 7.5 * Math.max(...called.map(w => w.length));
    const [t0, t1] = t.view, wide = width - left - right, X = v => left + (v - t0) / (t1 - t0) * wide;
    const clamp = v => Math.max(left, Math.min(left + wide, v));
    const gone = new Map(t.left);
    const inView = [];
    t.of.forEach((list, lane) => { for (const i of list) if (t.arrived[i] >= t0 && t.sent[i] <= t1) inView.push(i); });
    const single = inView.length / m <= wide / 5;
    const defs = add(lanes, "defs");
    const pattern = add(defs, "pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    add(pattern, "path", { class: "hatch", d: "M0 0V6" });
    const lines = { way: ["", "", "", "", ""], compute: "", tick: "", bad: "" };
    for (let lane = 0; lane < m; lane++) {
      const y = top + lane * tall, a = (y + tall * 0.14).toFixed(1), h = (tall * 0.72).toFixed(1);
      add(lanes, "rect", { class: "lane", x: left, y: a, width: wide, height: h });
      const odd = slow.has(t.lanes[lane]) || gone.has(lane);
      add(lanes, "text", { x: left - 5, y: y + tall / 2 + 4, "text-anchor": "end", class: odd ? "alarm" : "" }, called[lane]);
      const cover = new Float32Array(Math.ceil(wide) + 1), s = t.stretches[lane];
      for (let i = 0; i < s.length; i += 2) {
        if (s[i + 1] < t0 || s[i] > t1) continue;
        const x0 = clamp(X(s[i])) - left, x1 = clamp(X(s[i + 1])) - left;
        if (single) { lines.way[4] += `M${(x0 + left).toFixed(2)} ${a}h${Math.max(x1 - x0, 0.4).toFixed(2)}v${h}h${(-Math.max(x1 - x0, 0.4)).toFixed(2)}z`; continue; }
        for (let p = Math.floor(x0); p <= Math.floor(x1); p++) cover[p] += Math.max(0, Math.min(x1, p + 1) - Math.max(x0, p));
      }
      if (!single) {
        let p = 0;
        while (p < wide) {  // stretches of pixels that are busy alike
          const level = Math.ceil(Math.min(1, cover[p]) * 4 - 0.05), first = p;
          while (p < wide && Math.ceil(Math.min(1, cover[p]) * 4 - 0.05) === level) p++;
          if (level > 0) lines.way[level] += `M${left + first} ${a}h${Math.min(p, wide) - first}v${h}h${first - Math.min(p, wide)}z`;
        }
      }
    }
    for (const i of inView) {
      const y = top + t.lane[i] * tall, a = (y + tall * 0.14).toFixed(1), h = (tall * 0.72).toFixed(1);
      if (single && t.compute[i] > 0) {
        const x0 = clamp(X(t.begun[i])), x1 = clamp(X(t.begun[i] + t.compute[i]));
        if (x1 > x0) lines.compute += `M${x0.toFixed(2)} ${a}h${(x1 - x0).toFixed(2)}v${h}h${(x0 - x1).toFixed(2)}z`;
      }
      if (t.arrived[i] > t1) continue;
      const x = X(t.arrived[i]).toFixed(2);
      if (t.rejected[i]) lines.bad += `M${x - 4} ${y + tall / 2 - 4}l8 8m0-8l-8 8`;
      else if (single) lines.tick += `M${x} ${a}v${h}`;
    }
    lines.way.forEach((d, level) => { if (d) add(lanes, "path", { class: `way w${level}`, d }); });
    if (lines.compute) add(lanes, "path", { class: "compute", d: lines.compute });
    if (lines.tick) add(lanes, "path", { class: "tick", d: lines.tick });
    for (const [lane, when] of t.left) if (when < t1) {
      const x = clamp(X(when));
      add(lanes, "rect", { class: "left", fill: "url(#hatch)", x, y: top + lane * tall + tall * 0.14, width: left + wide - x, height: tall * 0.72 });
    }
    if (lines.bad) add(lanes, "path", { class: "bad", d: lines.bad });
    for (const [lane, when] of t.adopted) if (when >= t0 && when <= t1) {
      add(lanes, "path", { class: "adopted", d: `M${X(when)} ${top + lane * tall + tall / 2 - 5}l5 5l-5 5l-5-5z` });
    }
    const base = top + m * tall;
    add(lanes, "path", { class: "axis", d: `M${left} ${base}H${left + wide}` });
    for (const v of ticks(t0, t1, width / 100, false)) {
      add(lanes, "path", { class: "axis", d: `M${X(v)} ${base}v4` });
      add(lanes, "text", { x: X(v), y: base + 17, "text-anchor": "middle" }, number(v, 6));
    }
    add(lanes, "text", { class: "strong", x: left + wide / 2, y: height - 8, "text-anchor": "middle" }, `time (${t.unit})`);
    add(lanes, "text", { class: "strong", transform: `translate(11 ${base / 2}) rotate(-90)`, "text-anchor": "middle" }, "client");
    const some = m < t.clients ? ` ${m} of ${t.clients} clients, those that stand out among them.` : "";
    const part = t.until < t.end ? ` Single answers are shown until ${number(t.until)} only.` : "";
    by("lanes-note").textContent = `${inView.length.toLocaleString("en")} answers from ${number(t0)} to ${number(t1)} ${t.unit}.` +
      (single ? "" : " The darker, the more of the time with a task; zoom in to see each answer.") + some + part;
    field = { t, X, left, wide, tall, top, m, width };
  }

  function look_at(begin, length) {
    const t = field.t, whole = t.end || 1;
    const long = Math.max(whole * 1e-6, Math.min(whole, length));
    const first = Math.max(0, Math.min(whole - long, begin));
    t.view = [first, first + long];
    lanesTip.hidden = true;
    drawLanes();
  }
  function zoom(factor, at = null) {
    const [a, b] = field.t.view, middle = at === null ? (a + b) / 2 : at;
    look_at(middle - (middle - a) * factor, (b - a) * factor);
  }
  const move = share => { const [a, b] = field.t.view; look_at(a + share * (b - a), b - a); };
  const acts = { "zoom-in": () => zoom(0.5), "zoom-out": () => zoom(2), earlier: () => move(-0.4), later: () => move(0.4),
    whole: () => look_at(0, Infinity) };
  const keys = { "+": "zoom-in", "=": "zoom-in", "-": "zoom-out", ArrowLeft: "earlier", ArrowRight: "later", Home: "whole" };

  function drawAges() {
    const found = runs[Number(by("lanes-run").value)].ages, height = 200, svg = by("ages"), width = prepare(svg, height);
    by("ages-note").textContent = found.oldest === 0 ? "Every answer arrived in the round of its task." :
      `An answer was ${number(found.mean, 3)} rounds of communication old on average, 95 % at most ${number(found.late)}, the oldest ${found.oldest}.`;
    svg.parentNode.hidden = found.oldest === 0;
    const left = 68, bottom = 40, top = 10, n = found.counts.length, most = Math.log10(Math.max(...found.counts, 1)) + 0.1;
    const Y = v => height - bottom - (v > 0 ? Math.max(2, (Math.log10(v) + 0.3) / (most + 0.3) * (height - bottom - top)) : 0);
    const bar = (width - left - 10) / n;
    for (let power = 0; power <= most; power++) {
      add(svg, "path", { class: "grid", d: `M${left} ${Y(10 ** power)}H${width - 10}` });
      add(svg, "text", { x: left - 6, y: Y(10 ** power) + 4, "text-anchor": "end" }, number(10 ** power));
    }
    found.counts.forEach((count, i) => {
      const node = add(svg, "rect", { class: "bar", x: left + i * bar + 0.5, y: Y(count), width: Math.max(1, bar - 1), height: height - bottom - Y(count) });
      add(node, "title", {}, `age ${found.from[i]}${found.width > 1 ? "–" + (found.from[i] + found.width - 1) : ""}: ${count} answers`);
    });
    const step = Math.ceil(n / (width / 60));
    for (let i = 0; i < n; i += step) add(svg, "text", { x: left + (i + 0.5) * bar, y: height - bottom + 16, "text-anchor": "middle" }, found.from[i]);
    add(svg, "path", { class: "axis", d: `M${left} ${height - bottom}H${width - 10}` });
    add(svg, "text", { class: "strong", x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "age (rounds of communication)");
    add(svg, "text", { class: "strong", transform: `translate(11 ${(height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "answers");
  }

  function hoverLanes(event) {
    const [x, y] = place(lanes, event), f = field, lane = Math.floor((y - f.top) / f.tall);
    lanesTip.hidden = true;
    if (lane < 0 || lane >= f.m || x < f.left) return;
    const [a, b] = f.t.view, at = a + (x - f.left) / f.wide * (b - a), near = 6 / f.wide * (b - a);
    let best = -1;
    for (const i of f.t.of[lane]) {
      if (f.t.sent[i] - near > at || f.t.arrived[i] + near < at) continue;
      if (best < 0 || Math.abs(f.t.arrived[i] - at) < Math.abs(f.t.arrived[best] - at)) best = i;
    }
    lanesTip.replaceChildren();
    add(lanesTip, "b", {}, `client ${f.t.lanes[lane]}`);
    const gone = f.t.left.find(pair => pair[0] === lane && pair[1] <= at);
    if (gone) add(lanesTip, "div", {}, `left out since ${number(gone[1])}`);
    else if (best < 0) add(lanesTip, "div", {}, "waiting for a task");
    else {
      const t = f.t, rows = [["task", t.kinds[t.kind[best]] || "?"], ["sent", number(t.sent[best], 6)],
        ["arrived", number(t.arrived[best], 6)], ["age", t.age[best]]];
      if (t.computes) rows.push(["computing", number(t.compute[best], 3)]);
      if (t.rejected[best]) rows.push(["rejected", "yes"]);
      for (const [name, value] of rows) { const row = add(lanesTip, "div"); add(row, "span", {}, name); add(row, "span", {}, String(value)); }
    }
    show(lanesTip, x, f.top + (lane + 1) * f.tall + 4, f.width);
  }

  if (lanes) {
    let drag = null;
    lanes.addEventListener("pointerdown", event => { drag = [place(lanes, event)[0], ...field.t.view]; hoverLanes(event); });
    lanes.addEventListener("pointermove", event => {
      if (drag && event.buttons) {
        const [from, a, b] = drag, moved = (from - place(lanes, event)[0]) / field.wide * (b - a);
        if (Math.abs(moved) > (b - a) * 0.005) look_at(a + moved, b - a);
      } else hoverLanes(event);
    });
    window.addEventListener("pointerup", () => { drag = null; });
    lanes.addEventListener("pointerleave", () => { lanesTip.hidden = true; });
    lanes.addEventListener("wheel", event => {
      if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls; with Ctrl, or a pinch, time is zoomed
      event.preventDefault();
      const [a, b] = field.t.view;
      zoom(event.deltaY < 0 ? 0.8 : 1.25, a + (place(lanes, event)[0] - field.left) / field.wide * (b - a));
    }, { passive: false });
    lanes.addEventListener("keydown", event => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[keys[event.key]]();
    });
    for (const [id, act] of Object.entries(acts)) by(id).addEventListener("click", act);
    by("lanes-run").addEventListener("change", () => { lanesTip.hidden = true; drawLanes(); drawAges(); });
  }

  window.addEventListener("beforeprint", () => { paper = 720; forget(); draw(); });
  window.addEventListener("afterprint", () => { paper = 0; draw(); });
  let last = 0;
  function draw() {
    drawCurves();
    if (lanes) { drawLanes(); drawAges(); }
  }
  new ResizeObserver(() => {
    const width = document.querySelector("main").clientWidth;
    if (width !== last && !paper) { last = width; draw(); }
  }).observe(document.querySelector("main"));
  draw();
})();
