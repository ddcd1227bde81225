'use strict';
// Asks the server whenever the form changes, and shows its answers as they come.
(() => {
  const id = (name) => document.getElementById(name);
  const { units } = shardwright;
  let { asked, kept } = question.fromAddress();
  let keptFigures = null; // of the kept question
  let nowFigures = null; // of the last answer
  let charts = {};
  let running = null; // the question that is being answered: { stop, answered }
  const LAST = 3; // steps of an answer: the first plan, fewer machines, the best plan
  let again = false; // it changed before its first answer
  let changed = performance.now();

  // --- the form ---------------------------------------------------------------------------------------------------
  function fill() {
    for (const name of question.NAMES) if (id(name) && name !== 'cluster') id(name).value = asked[name];
    for (const name of Object.keys(question.SLIDERS)) {
      id(`${name}-drag`).max = question.SLIDERS[name].places.length - 1;
      slide(name);
    }
    id('groups').replaceChildren(...question.groups(asked.cluster).map(group));
  }

  function slide(name) {
    const drag = id(`${name}-drag`);
    drag.value = question.place(name, asked[name]);
    drag.setAttribute('aria-valuetext', asked[name] || 'none');
  }

  function group(told, place, all) {
    const row = id('group').content.firstElementChild.cloneNode(true);
    const get = (name) => row.querySelector(`.${name}`);
    const number = all.length > 1 ? ` ${place + 1}` : '';
    for (const each of row.querySelectorAll('[aria-label]')) each.setAttribute('aria-label', each.getAttribute('aria-label') + number);
    get('gpu').value = told.gpu; get('nodes').value = told.nodes; get('gpus').value = told.gpus;
    get('nodes-drag').max = Math.max(128, +told.nodes || 0); get('nodes-drag').value = told.nodes;
    get('nodes-drag').addEventListener('input', () => { get('nodes').value = get('nodes-drag').value; });
    get('nodes').addEventListener('input', () => { get('nodes-drag').value = get('nodes').value; });
    get('remove').hidden = all.length === 1;
    get('remove').addEventListener('click', () => { row.remove(); regroup(); fill(); id('add').focus(); });
    return row;
  }

  function regroup() {
    const value = (row, name) => row.querySelector(`.${name}`).value.trim();
    const rows = [...id('groups').children].map((row) => ({ nodes: value(row, 'nodes'), gpus: value(row, 'gpus'), gpu: value(row, 'gpu') }));
    change({ cluster: question.cluster(rows) });
  }

  function change(told) {
    asked = { ...asked, ...told };
    changed = performance.now();
    history.replaceState(null, '', question.address(asked, kept));
    ask();
  }

  id('ask').addEventListener('submit', (event) => event.preventDefault());
  id('groups').addEventListener('input', regroup);
  id('add').addEventListener('click', () => { change({ cluster: `${asked.cluster}+8x8xA100-SXM-80` }); fill(); });
  for (const name of question.NAMES) {
    if (name === 'cluster') continue;
    id(name).addEventListener('input', () => { change({ [name]: id(name).value }); if (question.SLIDERS[name]) slide(name); });
  }
  for (const [name, { places }] of Object.entries(question.SLIDERS)) {
    id(`${name}-drag`).addEventListener('input', () => {
      id(name).value = places[id(`${name}-drag`).value];
      change({ [name]: id(name).value });
      id(`${name}-drag`).setAttribute('aria-valuetext', id(name).value || 'none');
    });
  }

  // --- questions and answers -----------------------------------------------------------------------------------------
  // Yields the answers to a question as they come.
  async function* answers(told, signal) {
    const sent = await fetch('/answer', {
      method: 'POST', signal, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(question.request(told)),
    });
    if (!sent.ok) throw new Error(`the server says ${sent.status}`);
    const reader = sent.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      const lines = (rest + (value ?? '')).split('\n');
      rest = lines.pop();
      for (const line of lines) yield JSON.parse(line);
      if (done) return;
    }
  }

  // A question that has no answer yet is let go on, so that something shows while a slider is dragged; one that is
  // only being refined is stopped, and its search with it.
  async function ask() {
    if (running && !running.answered) { again = true; return; }
    running?.stop.abort();
    const mine = { stop: new AbortController(), answered: false };
    running = mine;
    again = false;
    busy();
    try {
      for await (const answer of answers(asked, mine.stop.signal)) {
        if (running !== mine) return;
        if (answer.step !== 'front') mine.answered = true;
        show(answer);
        mine.ended ||= answer.step !== 'front' && answer.step !== 'first';
        if (again && mine.answered) { ask(); return; }
      }
      document.body.dataset.done = question.toText(asked);
      if (!mine.ended) told('', 'The search broke off; the terminal of `shardwright serve` says why.');
      if (document.body.dataset.step === 'none') id('status').textContent = 'searched to the end';
    } catch (error) {
      if (running !== mine || error.name === 'AbortError') return;
      mine.answered = true;
      told('', `No answer: ${error.message}. Is \`shardwright serve\` still running?`);
    } finally {
      if (running === mine) { running = null; waits(LAST); id('status').classList.remove('busy'); if (again) ask(); }
    }
  }

  // Until the last answer is there, what is shown is dimmed and cannot be taken along.
  function waits(step) {
    const words = ['Looking for a first plan…', 'Pricing fewer machines…', 'Searching for better…'][step];
    document.body.classList.toggle('waits', words !== undefined);
    id('progress').hidden = words === undefined;
    id('progress').value = step;
    if (words) id('status').textContent = words;
    for (const button of document.querySelectorAll('[data-to], #export, #keep')) button.disabled = words !== undefined;
  }

  function busy() {
    waits(0);
    id('status').classList.add('busy');
    delete document.body.dataset.done;
    delete document.body.dataset.step;
  }

  function show(answer) {
    const shown = { first: first, best: best, front: sections, none: none, errors: errors, late: errors }[answer.step];
    if (answer.step !== 'front') told('', '', true);
    shown(answer);
    waits(running?.ended ? LAST : { first: 1, front: 2, none: 2 }[answer.step] ?? LAST);
    document.body.dataset.step = answer.step;
  }

  function first(answer) {
    head(answer);
    sections(answer);
    for (const name of ['map', 'timeline', 'front']) document.querySelector(`[data-section="${name}"]`).classList.add('stale');
    const waited = changed;
    requestAnimationFrame(() => setTimeout(() => {
      const took = performance.now() - waited;
      document.body.dataset.latency = took.toFixed(0);
      if (id('status').classList.contains('busy')) id('status').textContent = `first answer after ${took.toFixed(0)} ms; searching for better…`;
    }));
  }

  function best(answer) {
    head(answer);
    sections(answer);
    id('status').textContent = answer.search;
    id('command').textContent = answer.command;
    id('repeat').hidden = false;
  }

  function head(answer) {
    id('answer').textContent = answer.misses.length ? `${answer.answer.slice(0, -1)}; that ${answer.misses.join(' and ')}.` : answer.answer;
    id('context').textContent = answer.context.join(' · ');
    id('key-figures').innerHTML = answer.key_figures; // escaped by the server, as in the report
    id('next').hidden = true;
    nowFigures = answer.figures;
    id('key-figures').classList.remove('stale');
    compare();
  }

  function sections(answer) {
    for (const [name, html] of Object.entries(answer.sections)) {
      const place = document.querySelector(`[data-section="${name}"]`);
      const open = place.querySelector('details')?.open;
      place.innerHTML = html; // escaped by the server, as in the report
      place.classList.remove('stale');
      if (open && place.querySelector('details')) place.querySelector('details').open = true;
    }
    charts = { ...charts, ...answer.charts };
    const drawn = shardwright.draw(document, answer.charts);
    drawn.front?.on('click', (point) => { if (point.data?.[2]) { change({ cluster: point.data[2] }); fill(); } });
  }

  function none(answer) {
    id('answer').textContent = answer.answer;
    id('next').replaceChildren(...answer.next.map((words) => Object.assign(document.createElement('li'), { textContent: words })));
    id('next').hidden = !answer.next.length;
    id('key-figures').classList.add('stale');
    for (const place of document.querySelectorAll('[data-section]')) place.classList.add('stale');
    nowFigures = null;
    compare();
  }

  function errors(answer) {
    for (const { field, message, hint } of answer.errors) told(field ?? '', `${message}${hint ? `: ${hint}` : ''}`);
    id('status').textContent = answer.step === 'late' ? 'stopped' : 'something in the question is wrong';
  }

  // Shows a message beside the field that it is about; `clear` takes all away first.
  function told(field, message, clear = false) {
    if (clear) {
      for (const each of document.querySelectorAll('form .wrong, #wrong')) each.textContent = '';
      for (const each of document.querySelectorAll('[aria-invalid]')) { each.removeAttribute('aria-invalid'); each.removeAttribute('aria-describedby'); }
    }
    if (!message) return;
    const place = id(`${field}-wrong`) ?? id('wrong');
    place.textContent = [place.textContent, message].filter(Boolean).join('; ');
    const input = id(field === 'deadline_hours' ? 'deadline' : field);
    if (field && input) { input.setAttribute('aria-invalid', 'true'); input.setAttribute('aria-describedby', place.id); }
  }

  // --- two scenarios -------------------------------------------------------------------------------------------------
  const FIGURES = [
    ['GPUs', 'gpus', (v) => v.toLocaleString('en-US'), 0],
    ['iteration', 'iteration_seconds', units.seconds, -1],
    ['tokens a second', 'tokens_per_second', (v) => Math.round(v).toLocaleString('en-US'), 1],
    ['MFU', 'mfu', (v) => `${(100 * v).toFixed(1)}%`, 1],
    ['fullest GPU', 'fullest_gpu_gib', (v) => `${v.toFixed(1)} GiB`, 0],
    ['whole run', 'hours', (v) => units.seconds(v * 3600), -1],
    ['cost of the run', 'dollars', units.dollars, -1],
  ];

  function compare() {
    id('compare').hidden = !kept;
    if (!kept) return;
    id('kept-words').textContent = `Kept: ${kept.model} on ${kept.cluster}, global batch ${kept.global_batch} × ${kept.seq_len}.`;
    id('compared').replaceChildren(...FIGURES.map(([words, name, text, good]) => {
      const [before, now] = [keptFigures?.[name], nowFigures?.[name]];
      const row = document.createElement('tr');
      const cell = (content, kind = '') => Object.assign(row.insertCell(), { textContent: content, className: kind });
      cell(words, 'words');
      cell(before == null ? '–' : text(before));
      cell(now == null ? '–' : text(now));
      const part = before && now ? now / before - 1 : 0;
      const kind = !part || !good ? '' : part * good > 0 ? 'better' : 'worse';
      cell(before && now ? `${part >= 0 ? '+' : '−'}${(100 * Math.abs(part)).toFixed(1)}%` : '', kind);
      return row;
    }));
  }

  async function keep(told, figures) {
    kept = told;
    keptFigures = figures;
    history.replaceState(null, '', question.address(asked, kept));
    compare();
    delete document.body.dataset.kept;
    if (!kept || figures) return;
    for await (const answer of answers(kept)) if (answer.figures && kept === told) { keptFigures = answer.figures; compare(); }
    if (kept === told) document.body.dataset.kept = question.toText(kept);
  }

  id('keep').addEventListener('click', () => keep(asked, nowFigures));
  id('drop').addEventListener('click', () => keep(null, null));
  id('swap').addEventListener('click', () => {
    const before = kept;
    keep(asked, nowFigures);
    change(before);
    fill();
  });

  // --- to take along -------------------------------------------------------------------------------------------------
  async function download(to, button) {
    id('to-wrong').textContent = '';
    button.disabled = true;
    try {
      const sent = await fetch('/download', {
        method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ to, ...question.request(asked) }),
      });
      if (sent.ok) {
        const name = /filename="([^"]+)"/.exec(sent.headers.get('Content-Disposition'))?.[1] ?? to;
        shardwright.save(name, await sent.blob());
      } else if (sent.status === 422) {
        id('to-wrong').textContent = (await sent.json()).errors.map((each) => `${each.path} ${each.message}: ${each.hint}`).join('; ');
      } else throw new Error(`the server says ${sent.status}`);
    } catch (error) {
      id('to-wrong').textContent = `Not saved: ${error.message}.`;
    } finally { button.disabled = false; }
  }
  for (const button of document.querySelectorAll('[data-to]')) button.addEventListener('click', () => download(button.dataset.to, button));
  id('export').addEventListener('click', () => download(id('target').value, id('export')));
  id('link').addEventListener('click', async () => {
    await navigator.clipboard.writeText(location.href);
    id('link').textContent = 'Copied';
    setTimeout(() => { id('link').textContent = 'Copy link'; }, 1500);
  });

  window.addEventListener('hashchange', () => { ({ asked, kept } = question.fromAddress()); fill(); keep(kept, null); change({}); });
  shardwright.onChange(() => shardwright.draw(document, charts));
  fill();
  if (kept) keep(kept, null);
  ask();
})();
