'use strict';
// Draws charts from their JSON. Colours come from the style sheet, so both colour schemes work.
window.shardwright = (() => {
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim();
  const palette = () => [0, 1, 2, 3, 4, 5, 6, 7].map((i) => colour(`--c${i}`));
  const painted = (pair) => (pair ? { itemStyle: { color: palette()[pair[0]], opacity: pair[1] } } : {});
  const narrow = () => window.innerWidth < 640;
  const margin = (names) => Math.min(16 + 7 * Math.max(...names.map((name) => name.length)), narrow() ? 96 : 260);
  const plain = (text) => text.replace(/[&<>]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[c]);

  function seconds(value) {
    if (value === 0) return '0';
    const steps = [[1e-3, 1e6, 'µs'], [1, 1e3, 'ms'], [120, 1, 's'], [7200, 1 / 60, 'min'], [259200, 1 / 3600, 'h']];
    for (const [limit, scale, unit] of steps) if (value < limit) return `${+(value * scale).toPrecision(4)} ${unit}`;
    return `${+(value / 86400).toPrecision(4)} days`;
  }
  const units = {
    seconds,
    days: (value) => (value < 3 ? `${+(value * 24).toPrecision(3)} h` : `${+value.toPrecision(3)} days`),
    bytes: (value) => `${+(value / 2 ** 30).toPrecision(4)} GiB`,
    dollars: (value) => `$${Math.round(value).toLocaleString('en-US')}`,
    GPUs: (value) => `${Math.round(value).toLocaleString('en-US')} GPUs`,
  };

  const axis = (extra) => ({
    axisLabel: { color: colour('--soft'), hideOverlap: true, ...extra?.axisLabel },
    axisLine: { lineStyle: { color: colour('--line') } },
    splitLine: { lineStyle: { color: colour('--line') } },
    nameTextStyle: { color: colour('--soft') },
    ...Object.fromEntries(Object.entries(extra ?? {}).filter(([key]) => key !== 'axisLabel')),
  });
  const tooltip = (formatter) => ({
    confine: true, backgroundColor: colour('--card'), borderColor: colour('--line'), textStyle: { color: colour('--ink') },
    formatter,
  });
  const base = () => ({
    animation: false, color: palette(), textStyle: { fontFamily: 'inherit' },
    aria: { enabled: true, label: { enabled: false }, decal: { show: hatched() } },
    legend: { top: 0, textStyle: { color: colour('--ink') }, inactiveColor: colour('--soft') },
  });
  const hatched = () => Boolean(document.querySelector('[data-hatching]')?.checked);

  // What the legend of some names takes beyond its first line in a chart so wide: all of them are shown.
  const ruler = document.createElement('canvas').getContext('2d');
  function moreLegend(names, width) {
    ruler.font = '12px sans-serif';
    let lines = 1, used = 10;
    for (const name of names) {
      const wide = 40 + ruler.measureText(name).width;
      if (used + wide > width && used > 10) { lines++; used = 10; }
      used += wide;
    }
    return 24 * (lines - 1);
  }

  // Stacked bars: rows of values by kind, with a mark at `limits` of each row.
  function bars(data, width) {
    const show = units[data.unit];
    const more = moreLegend([...data.kinds, ...(data.limits ? [data.limit_name] : [])], width);
    const left = margin(data.rows);
    const series = data.kinds.map((kind, k) => ({
      name: kind, type: 'bar', stack: 'all', barMaxWidth: 26, ...painted(data.colours?.[k]), data: data.values.map((row) => row[k]),
    }));
    if (data.limits) {
      series.push({
        name: data.limit_name, type: 'custom', itemStyle: { color: colour('--ink') }, tooltip: { show: true },
        data: data.limits.map((limit, row) => [limit, row]), encode: { x: 0, y: 1 },
        renderItem: (_, api) => {
          const [x, y] = api.coord([api.value(0), api.value(1)]);
          const half = Math.min(api.size([0, 1])[1] * 0.42, 17);
          return { type: 'line', shape: { x1: x, x2: x, y1: y - half, y2: y + half },
            style: { stroke: colour('--ink'), lineWidth: 2 } };
        },
      });
    }
    return {
      height: 80 + 34 * data.rows.length + more,
      option: {
        ...base(),
        grid: { left, right: 30, top: 44 + more, bottom: 30 },
        tooltip: { ...tooltip((p) => {
          const value = Array.isArray(p.value) ? p.value[0] : p.value;
          return `${plain(data.rows[p.dataIndex])}<br>${p.marker} ${plain(p.seriesName)}: <b>${show(value)}</b>`;
        }), trigger: 'item' },
        xAxis: { type: 'value', ...(data.unit === 'bytes' ? wholeGib(data) : {}), ...axis({ axisLabel: { formatter: show } }) },
        yAxis: { type: 'category', inverse: true, data: data.rows,
          ...axis({ axisLabel: { color: colour('--ink'), width: left - 12, overflow: 'break', lineHeight: 13, interval: 0, hideOverlap: false } }) },
        series,
      },
    };
  }

  // The ticks of an axis of bytes: a round number of GiB apart, about five to the longest bar, and one at the end.
  function wholeGib(data) {
    const longest = Math.max(...data.values.map((row) => row.reduce((sum, each) => sum + each, 0)), ...(data.limits ?? []));
    const wanted = longest / 2 ** 30 / 5, size = 10 ** Math.floor(Math.log10(wanted));
    const interval = 2 ** 30 * size * [1, 2, 5, 10].find((each) => each * size >= wanted);
    return { interval, max: interval * Math.ceil(longest / interval) };
  }

  // Points of a front, one series a kind; the table below the chart lists them.
  function points(data, width) {
    const more = moreLegend(data.series.map((each) => each.name), width);
    const [fx, fy] = [units[data.x.unit], units[data.y.unit]];
    const all = data.series.flatMap((each) => each.points);
    // Far apart, values are on a logarithmic axis, whose ends are no round numbers and stay unnamed.
    const scaled = (place, format, name, more) => {
      const values = all.map((point) => point[place]);
      const far = Math.max(...values) > 20 * Math.min(...values);
      const near = { min: (range) => range.min * 0.8, max: (range) => range.max * 1.25 };
      const label = { formatter: format, showMinLabel: !far, showMaxLabel: !far };
      return { name, ...more, ...(far ? { type: 'log', ...near } : { type: 'value', scale: true }), ...axis({ axisLabel: label }) };
    };
    const shapes = ['circle', 'rect', 'triangle', 'diamond', 'pin', 'arrow'];
    return {
      height: (narrow() ? 340 : 440) + more,
      option: {
        ...base(),
        grid: { left: 70, right: 30, top: 44 + more, bottom: 50 },
        tooltip: { ...tooltip((p) => `<b>${plain(p.data[2])}</b><br>${fx(p.data[0])}<br>${fy(p.data[1])}`), trigger: 'item' },
        xAxis: scaled(0, fx, data.x.name, { nameLocation: 'middle', nameGap: 30 }),
        yAxis: scaled(1, fy, data.y.name, {}),
        series: data.series.map((each, k) => ({
          name: each.name, type: 'scatter', symbol: shapes[k % shapes.length], symbolSize: 11, data: each.points,
          markLine: k || !data.limits.length ? undefined : {
            symbol: 'none', lineStyle: { color: colour('--soft'), type: 'dashed' }, label: { color: colour('--soft'), formatter: (p) => p.name },
            data: data.limits.map((l) => ({ name: l.name, [l.axis + 'Axis']: l.value })),
          },
        })),
      },
    };
  }

  // Bars in time, a row a stage. data.bars: [row, kind, start, end, micro-batch, chunk] in seconds.
  function timeline(data, width) {
    const left = margin(data.rows);
    const more = moreLegend(data.kinds.map((kind) => kind.name), width);
    const colours = palette();
    const height = (narrow() ? 106 + 36 * data.rows.length : 80 + 24 * data.rows.length) + more;
    const series = data.kinds.map((kind, k) => ({
      name: kind.name, type: 'custom', clip: true, itemStyle: { color: colours[kind.colour], opacity: kind.opacity },
      encode: { x: [2, 3], y: 0 }, data: data.bars.filter((bar) => bar[1] === k), progressive: 4000,
      renderItem: (params, api) => {
        const [x0, y] = api.coord([api.value(2), api.value(0)]);
        const [x1] = api.coord([api.value(3), api.value(0)]);
        const thick = api.size([0, 1])[1] * kind.height;
        const area = params.coordSys;
        const from = Math.max(x0, area.x), to = Math.min(x1, area.x + area.width);
        if (to <= from) return null;
        return { type: 'rect', shape: { x: from, y: y - thick / 2, width: Math.max(to - from - 0.4, 0.4), height: thick },
          style: { fill: colours[kind.colour], opacity: kind.opacity } };
      },
    }));
    return {
      height,
      option: {
        ...base(),
        aria: { enabled: true, label: { enabled: false } },
        grid: { left, right: 24, top: 40 + more, bottom: 66 },
        dataZoom: [{ type: 'slider', bottom: 6, height: 22, labelFormatter: seconds, filterMode: 'weakFilter' },
          { type: 'inside', filterMode: 'weakFilter', zoomOnMouseWheel: 'ctrl' }],
        tooltip: { ...tooltip((p) => {
          const [row, kind, start, end, micro, chunk] = p.data;
          const which = micro < 0 ? '' : `, ${data.pass.map((name, n) => `${name} ${[micro, chunk][n]}`).join(', ')}`;
          return `${plain(data.rows[row])}<br>${p.marker} ${plain(data.kinds[kind].name)}${which}<br><b>${seconds(end - start)}</b> from ${seconds(start)}`;
        }), trigger: 'item' },
        xAxis: { type: 'value', min: 0, max: data.seconds, ...axis({ axisLabel: { showMaxLabel: false, formatter: (v) => (v ? seconds(v) : '0') } }) },
        yAxis: { type: 'category', inverse: true, data: data.rows,
          ...axis({ axisLabel: { color: colour('--ink'), width: left - 12, overflow: 'break', lineHeight: 13, interval: 0, hideOverlap: false } }) },
        series,
      },
    };
  }

  // GPUs as squares, machine by machine. data.cells: index into data.kinds of each GPU, machines one after the other.
  function map(data) {
    const width = Math.max(Math.min(document.body.clientWidth, 1100) - 20, 240);
    const total = data.machines.reduce((sum, m) => sum + m.gpus, 0);
    const size = Math.max(3, Math.min(18, Math.floor(Math.sqrt((width * 420) / (total * 1.5)))));
    const gap = size > 6 ? 6 : 2;
    const placed = [];
    let x = 0, y = 0, index = 0, type = null;
    const heads = [];
    for (const machine of data.machines) {
      const across = Math.min(machine.gpus, 8), rows = Math.ceil(machine.gpus / 8);
      if (machine.gpu !== type) {
        if (type !== null) { x = 0; y += size * rows + 10; }
        type = machine.gpu; heads.push([type, y]); y += 22;
      }
      if (x + across * size > width) { x = 0; y += size * rows + gap; }
      for (let g = 0; g < machine.gpus; g++, index++)
        placed.push({ x: x + (g % 8) * size, y: y + Math.floor(g / 8) * size, machine, g, kind: data.cells[index] });
      x += across * size + gap;
    }
    const height = y + size * Math.ceil((data.machines.at(-1)?.gpus ?? 8) / 8) + 4;
    const canvas = document.createElement('canvas');
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.cssText = `width:${width}px;height:${height}px;max-width:100%`;
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    pen.font = '13px system-ui, sans-serif'; pen.fillStyle = colour('--soft');
    for (const [name, top] of heads) pen.fillText(name, 0, top + 15);
    const colours = palette();
    for (const cell of placed) {
      const kind = cell.kind < 0 ? null : data.kinds[cell.kind];
      pen.globalAlpha = kind ? kind.opacity : 1;
      pen.fillStyle = kind ? colours[kind.colour % 8] : colour('--line');
      pen.fillRect(cell.x, cell.y, size - 1, size - 1);
      pen.globalAlpha = 1;
      if (kind && size >= 15) {
        pen.fillStyle = colour('--ink'); pen.font = `${size - 8}px system-ui, sans-serif`; pen.textAlign = 'center';
        pen.fillText(kind.mark, cell.x + size / 2, cell.y + size - 5.5); pen.textAlign = 'left';
      }
    }
    canvas.addEventListener('mousemove', (event) => {
      const box = canvas.getBoundingClientRect(), sx = width / box.width;
      const px = (event.clientX - box.left) * sx, py = (event.clientY - box.top) * sx;
      const cell = placed.find((c) => px >= c.x && px < c.x + size && py >= c.y && py < c.y + size);
      canvas.title = cell ? `${cell.machine.gpu}, machine ${cell.machine.number}, GPU ${cell.g}: ${cell.kind < 0 ? 'idle' : data.kinds[cell.kind].name}` : '';
    });
    return canvas;
  }

  const kinds = { bars, points, timeline };
  const drawn = new Map(); // charts by the element that they stand in

  function forget() {
    for (const [place, chart] of drawn) if (!place.isConnected) { chart.dispose(); drawn.delete(place); }
  }

  // Draws every chart below `root` whose JSON is in `charts` by name. Returns the charts by name.
  function draw(root, charts) {
    forget();
    const found = {};
    for (const place of root.querySelectorAll('[data-chart]')) {
      const data = charts[place.dataset.chart];
      if (!data) continue;
      if (data.kind === 'map') { place.replaceChildren(map(data)); continue; }
      const { height, option } = kinds[data.kind](data, place.clientWidth);
      place.style.height = `${height}px`;
      if (!drawn.has(place)) drawn.set(place, echarts.init(place, null, { renderer: 'canvas' }));
      else drawn.get(place).resize();
      drawn.get(place).setOption(option, true);
      found[place.dataset.chart] = drawn.get(place);
    }
    document.body.dataset.drawn = 'yes';
    return found;
  }

  function save(name, blob) {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // Calls `again` when the page has another width or other colours, or charts are to be hatched.
  function onChange(again) {
    let waiting = 0;
    window.addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(again, 150); });
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
    document.querySelector('[data-hatching]')?.addEventListener('change', again);
  }

  return { draw, save, onChange, units };
})();
