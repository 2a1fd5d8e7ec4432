// A canvas as wide as its container and as sharp as the screen. It is painted when its contents have changed.

import { html, useEffect, useLayoutEffect, useRef, useState } from "page/dom.js";

const DARK = "(prefers-color-scheme: dark)";

/**
 * paint(context, ink, fresh): draws in CSS pixels. fresh: whether the canvas is empty. revision: changes with the
 * contents. ink: the colours of the page. onPoint(x, y): the pointer's position, or null, null when it has left.
 * onKey(event): a key while the canvas has the focus.
 */
export function Canvas({ name, width, height, revision, paint, onPoint, onKey }) {
  const canvas = useRef(null);
  const [scheme, setScheme] = useState(() => matchMedia(DARK).matches);
  const drawn = useRef("");
  useEffect(() => {
    const query = matchMedia(DARK);
    const change = () => setScheme(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  useLayoutEffect(() => {
    const own = canvas.current;
    const ratio = Math.min(2, devicePixelRatio || 1);
    const shape = [width, height, ratio, scheme].join();
    const fresh = drawn.current !== shape;
    if (fresh) {
      drawn.current = shape;
      own.width = Math.round(width * ratio);
      own.height = Math.round(height * ratio);
      own.style.width = `${width}px`;
      own.style.height = `${height}px`;
    }
    const context = own.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint(context, inkOf(own, scheme), fresh);
  }, [revision, width, height, scheme, paint]);
  const point = (event) => {
    const box = canvas.current.getBoundingClientRect();
    onPoint?.(event.clientX - box.left, event.clientY - box.top);
  };
  return html`<canvas
    ref=${canvas}
    role="img"
    aria-label=${name}
    tabindex=${onKey ? 0 : null}
    onPointerMove=${point}
    onPointerDown=${point}
    onPointerLeave=${() => onPoint?.(null, null)}
    onKeyDown=${onKey}
  />`;
}

let [inked, scheme] = [null, null];

/** Return the colours of the page. They are read once per colour scheme, because reading them causes a layout. */
function inkOf(element, dark) {
  if (scheme === dark) return inked;
  const style = getComputedStyle(element);
  const names = ["ground", "card", "ink", "dim", "rule", "edge", "accent", "memory", "compute"];
  inked = { dark, ...Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) };
  scheme = dark;
  return inked;
}

/** Return the width of an element in whole CSS pixels, 0 while it is hidden, and the `ref` for the element. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const own = element.current;
    const measure = () => own.clientWidth && setWidth(own.clientWidth);
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(own);
    return () => watch.disconnect();
  }, []);
  return [element, width];
}
