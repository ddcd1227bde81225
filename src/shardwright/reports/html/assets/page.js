'use strict';
// Draws the charts of the page from the JSON in it, and lets its files be saved.
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read('charts');
  const shelf = document.getElementById('shelf');
  for (const [name, text] of Object.entries(read('files'))) {
    const button = document.createElement('button');
    button.textContent = `Save ${name}`;
    button.addEventListener('click', () => shardwright.save(name, new Blob([text], { type: 'application/json' })));
    shelf.append(button);
  }
  const draw = () => shardwright.draw(document, charts);
  shardwright.onChange(draw);
  draw();
})();
