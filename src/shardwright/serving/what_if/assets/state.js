'use strict';
// The question as a value: between the form, the address of the page, and the request.
window.question = (() => {
  const USUAL = {
    model: 'llama-3.1-70b', cluster: '8x8xH100-SXM+16x8xA100-SXM-80', global_batch: '512', seq_len: '8192',
    tokens: '100B', deadline: '', budget_dollars: '', objective: 'time', precision: 'bf16',
  };
  const NAMES = Object.keys(USUAL);

  const toText = (asked) => new URLSearchParams(NAMES.map((name) => [name, asked[name]])).toString();
  function fromText(text) {
    const told = new URLSearchParams(text);
    return Object.fromEntries(NAMES.map((name) => [name, (told.get(name) ?? USUAL[name]).slice(0, 400)]));
  }

  // The address has the question, and the one that it is compared with.
  function fromAddress() {
    const told = new URLSearchParams(location.hash.slice(1));
    const kept = told.get('kept');
    return { asked: fromText(told.toString()), kept: kept ? fromText(kept) : null };
  }
  function address(asked, kept) {
    const told = new URLSearchParams(toText(asked));
    if (kept) told.set('kept', toText(kept));
    return `#${told}`;
  }

  const groups = (cluster) => cluster.split('+').map((part) => {
    const [nodes = '', gpus = '', ...gpu] = part.trim().split('x');
    return { nodes, gpus, gpu: gpu.join('x') };
  });
  const cluster = (found) => found.map((each) => `${each.nodes}x${each.gpus}x${each.gpu}`).join('+');

  const number = (text) => (text.trim() === '' ? undefined : Number.isNaN(+text.replaceAll(',', '')) ? text : +text.replaceAll(',', ''));
  const request = (asked) => ({
    model: asked.model, cluster: cluster(groups(asked.cluster).filter((each) => each.nodes !== '0')) || asked.cluster,
    global_batch: number(asked.global_batch), seq_len: number(asked.seq_len), tokens: asked.tokens.trim() || undefined,
    deadline_hours: typeof number(asked.deadline) === 'number' ? number(asked.deadline) * 24 : number(asked.deadline),
    budget_dollars: number(asked.budget_dollars), objective: asked.objective, precision: asked.precision,
  });

  // Positions of sliders: values in steps of equal ratio, written in few digits. A slider whose first place is
  // nothing has `none`.
  const short = (value) => {
    const digits = +value.toPrecision(2);
    for (const [size, letter] of [[1e12, 'T'], [1e9, 'B'], [1e6, 'M']]) if (digits >= size) return `${+(digits / size).toPrecision(3)}${letter}`;
    return String(digits);
  };
  const ratios = (low, high, each) => Array.from({ length: Math.round(Math.log(high / low) / Math.log(each)) + 1 }, (_, i) => low * each ** i);
  const SLIDERS = {
    global_batch: { places: ratios(8, 16384, 2).map(String), value: Number },
    tokens: { places: ratios(1e9, 3e13, 10 ** 0.1).map(short), value: (text) => +text.replace(/[TBMk]$/i, '') * { T: 1e12, B: 1e9, M: 1e6, K: 1e3 }[text.slice(-1).toUpperCase()] || +text },
    deadline: { places: ['', ...ratios(0.5, 1000, 10 ** 0.05).map((v) => String(+v.toPrecision(2)))], value: Number },
    budget_dollars: { places: ['', ...ratios(1e3, 1e9, 10 ** 0.1).map((v) => String(+v.toPrecision(2)))], value: Number },
  };
  function place(name, text) {
    const { places, value } = SLIDERS[name];
    if (text.trim() === '') return 0;
    const wanted = Math.log(value(text) || 1);
    let best = places[0] === '' ? 1 : 0;
    places.forEach((each, i) => { if (each !== '' && Math.abs(Math.log(value(each)) - wanted) < Math.abs(Math.log(value(places[best])) - wanted)) best = i; });
    return best;
  }

  return { NAMES, SLIDERS, fromAddress, address, groups, cluster, request, place, toText };
})();
