// Files that are dragged over the page and dropped there.

/**
 * Watch for dragged files. setOver(whether files are over the page now). take(files): the dropped files. Returns a
 * function that ends it.
 */
export function onFiles(setOver, take) {
  const holds = (event) => event.dataTransfer?.types.includes("Files");
  const move = (event) => {
    if (!holds(event)) return;
    event.preventDefault();
    setOver(true);
  };
  const leave = (event) => event.relatedTarget === null && setOver(false);
  const drop = (event) => {
    if (!holds(event)) return;
    event.preventDefault();
    setOver(false);
    const files = [...event.dataTransfer.files];
    if (files.length) take(files);
  };
  const heard = { dragover: move, dragleave: leave, drop };
  for (const [name, hear] of Object.entries(heard)) addEventListener(name, hear);
  return () => {
    setOver(false);
    for (const [name, hear] of Object.entries(heard)) removeEventListener(name, hear);
  };
}
